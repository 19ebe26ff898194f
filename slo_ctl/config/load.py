"""Reading the configuration files into settings, and listing all their errors."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from slo_ctl.base.accounts import why_unknown
from slo_ctl.base.errors import UserError
from slo_ctl.base.files import why_not_run
from slo_ctl.base.quantity import format_number
from slo_ctl.config.layers import Layers
from slo_ctl.config.schema import find_table_errors
from slo_ctl.config.settings import DEFAULTS, SECTIONS, Config, Right
from slo_ctl.config.toml_file import read_file
from slo_ctl.model.slo import FIELDS

_MAIN_FILE = "slo-ctl.toml"
FOLDER = "conf.d"
_MAX_FILES = 4096


def load(folder: Path) -> Config:
    """Read `slo-ctl.toml` and `conf.d/*.toml` (sorted by name) in `folder`; missing values get defaults.

    A later file overrides key by key; tables of one VM, class or device in two files are merged.
    Raises UserError that names file, line and field.
    """
    layers = _read(folder)
    config = layers.config()
    if layers.problems:
        raise layers.problems[0]
    return config


def has_files(folder: Path) -> bool:
    """Whether `folder` has any configuration file. Raises UserError."""
    return any(path.exists() for path in _paths(folder))


def may_read(folder: Path) -> bool:
    """Whether this user may read all configuration files in `folder`."""
    try:
        paths = _paths(folder)
        return all(os.access(path, os.R_OK) for path in paths if path.exists())
    except (OSError, UserError):
        return False


def load_valid(folder: Path) -> tuple[Config, list[UserError]]:
    """The values in `folder` that are valid alone, to restore settings with, and the errors of others."""
    layers, errors, unread = _read_valid(folder)
    return layers.config(), [*errors, *unread, *layers.problems]


def find_errors(folder: Path) -> list[UserError]:
    """All errors of the files in `folder`; those across tables and files only when each file is TOML."""
    layers, errors, unread = _read_valid(folder)
    if unread:
        return [*errors, *unread]
    layers.config()
    return [*errors, *layers.problems, *_program_errors(layers), *_user_errors(layers)]


def _read_valid(folder: Path) -> tuple[Layers, list[UserError], list[UserError]]:
    """The valid tables of all files, the errors of others, and those of files that cannot be read."""
    errors, unread, layers = list[UserError](), list[UserError](), Layers()
    try:
        paths = _paths(folder)
    except UserError as error:
        return layers, errors, [error]
    for path in paths:
        try:
            file = read_file(path)
        except UserError as error:
            unread.append(error)
            continue
        if file is not None:
            found, valid = find_table_errors(file)
            errors += found
            layers.add(valid, str(path.relative_to(folder)))
    return layers, errors, unread


def _program_errors(layers: Layers) -> list[UserError]:
    """Errors of hook programs that the daemon would not run.

    It starts anyway and checks again at each run.
    """
    placed = layers.sections.get("hooks", {}).get("on_verdict")
    if placed is None or not placed.value:
        return []
    program = placed.value[0]
    problem = why_not_run(Path(program), as_root=os.geteuid() == 0)
    hint = "name a program that may be executed; root's daemon runs only programs that root alone can change"
    return [placed.fail(f"[hooks] on_verdict: {program} {problem}", hint)] if problem else []


def _user_errors(layers: Layers) -> list[UserError]:
    """Errors of missing users and groups in `[access]` and `[api]`; the daemon starts without them."""
    entries = [
        (placed, f"[access] {key}: {entry}", entry)
        for key, placed in layers.sections.get("access", {}).items()
        for entry in placed.value
    ]
    if (group := layers.sections.get("api", {}).get("group")) is not None:
        entries.append((group, f"[api] group: {group.value}", f"@{group.value}"))
    return [
        placed.fail(f"{where} {problem}", "see `getent passwd` and `getent group`")
        for placed, where, entry in entries
        if (problem := why_unknown(entry))
    ]


def _read(folder: Path) -> Layers:
    layers = Layers()
    for path in _paths(folder):
        if (file := read_file(path)) is not None:
            layers.add(file, str(path.relative_to(folder)))
    return layers


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """A value of the configuration, as it is written in a file."""

    table: str
    key: str
    value: str
    origin: str
    """`FILE:LINE`, followed by `(class NAME)` for a value that a VM has from its class; or `default`."""


def values_with_origin(folder: Path) -> list[ConfigValue]:
    """Every value of a valid configuration and every default. Raises UserError as `load` does."""
    config = load(folder)
    layers = _read(folder)
    defaults = _defaults(config)
    found = [
        ConfigValue(section, key, default, "default")
        for (section, key), default in defaults.items()
        if key not in layers.sections.get(section, {})
    ]
    tables = {
        **layers.sections,
        **{
            f"{kind}{' ' if kind == 'device' else '.'}{name}": table.keys
            for kind, tables in layers.named.items()
            for name, table in tables.items()
        },
    }
    found += [
        ConfigValue(table, key, _value_text(placed.file.value(placed.where)), placed.shown)
        for table, keys in tables.items()
        for key, placed in keys.items()
    ]
    found += [
        ConfigValue(
            f"vm.{vm.name}",
            FIELDS[name].key,
            FIELDS[name].text(value),
            f"{chosen.field_sources[name]} (class {chosen.name})",
        )
        for vm in (*config.vms.values(), *config.patterns.values())
        if vm.slo.class_name is not None and (chosen := config.classes[vm.slo.class_name])
        for name, value in chosen.fields.items()
        if name not in vm.slo.fields
    ]
    order = list(dict.fromkeys([*(section for section, _ in defaults), *tables]))
    return sorted(found, key=lambda value: order.index(value.table))


def _defaults(config: Config) -> dict[tuple[str, str], str]:
    values: dict[tuple[str, str], object] = {
        (section, key): value
        for section, kind in SECTIONS.items()
        for key, value in TypeAdapter(kind).dump_python(kind(), by_alias=True).items()
    }
    values |= {("access", right.value): config.access.entries(right) for right in Right}
    values["defaults", "weight"] = format_number(DEFAULTS.default_slo.weight)
    return {where: _value_text(value) for where, value in values.items()}


def _value_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _paths(folder: Path) -> list[Path]:
    extra = folder / FOLDER
    try:
        names = sorted(
            item.name for item in extra.iterdir() if item.suffix == ".toml" and item.name[0] != "."
        )
    except FileNotFoundError:
        names = []
    except OSError as error:
        raise UserError(
            f"{extra}: {error.strerror}", f"make {FOLDER} a readable directory, or remove it"
        ) from None
    if len(names) > _MAX_FILES:
        raise UserError(f"{extra}: {len(names)} files", f"merge them into at most {_MAX_FILES}")
    return [folder / _MAIN_FILE, *(extra / name for name in names)]
