"""All files of the configuration laid over each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slo_ctl.base.errors import UserError
from slo_ctl.base.quantity import format_bytes_exact, format_number
from slo_ctl.config.schema import BLOCK_SCHEDULERS, TENANT_SCHEDULERS, check_tables, find_table_errors
from slo_ctl.config.settings import (
    DEFAULTS,
    Config,
    DaemonConfig,
    DeviceConfig,
    HistoryConfig,
    LibvirtConfig,
    VmConfig,
)
from slo_ctl.config.toml_file import ConfigFile, Location, read_file
from slo_ctl.model import Slo
from slo_ctl.model.slo import CONFIG_KEYS, SloError, check_fields, field_text

MAIN_FILE = "slo-ctl.toml"
FOLDER = "conf.d"
MAX_FILES = 4096
NO_LIBVIRT = "none"


def load(folder: Path) -> Config:
    """Read `slo-ctl.toml` and then `conf.d/*.toml` by name in `folder`; what is not given has its default.

    A later file overrides key by key; tables of one VM or device in two files are one. Raises UserError that
    names file, line and field.
    """
    layers = _Layers()
    files = [file for path in _paths(folder) if (file := read_file(path)) is not None]
    for file in files:
        layers.add(file, str(file.path.relative_to(folder)))
    return layers.config(tuple(file.path for file in files))


def find_errors(folder: Path) -> list[UserError]:
    """All errors of the files in `folder`; those across tables and files only when each file is valid."""
    errors: list[UserError] = []
    try:
        paths = _paths(folder)
    except UserError as error:
        return [error]
    for path in paths:
        try:
            file = read_file(path)
        except UserError as error:
            errors.append(error)
        else:
            errors += find_table_errors(file) if file is not None else []
    if not errors:
        try:
            load(folder)
        except UserError as error:
            errors.append(error)
    return errors


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """A value of the configuration, as it is written in a file."""

    table: str
    key: str
    value: str
    origin: str
    """`FILE:LINE`, or `default`."""


def values_with_origin(folder: Path) -> list[ConfigValue]:
    """Every value of a valid configuration and every default. Raises UserError as `load` does."""
    load(folder)
    layers = _Layers()
    for path in _paths(folder):
        if (file := read_file(path)) is not None:
            layers.add(file, str(file.path.relative_to(folder)))
    return layers.values()


def _defaults() -> dict[tuple[str, str], str]:
    daemon, history = DEFAULTS.daemon, DEFAULTS.history
    values: dict[tuple[str, str], object] = {
        ("daemon", "epoch"): f"{format_number(daemon.epoch_s)}s",
        ("daemon", "window"): f"{format_number(daemon.window_s)}s",
        ("daemon", "policy"): daemon.policy,
        ("daemon", "strict"): daemon.strict,
        ("daemon", "share_by"): daemon.share_by.value,
        ("daemon", "move_budget"): f"{format_number(daemon.move_budget * 100)}%",
        ("daemon", "keep_on_stop"): daemon.keep_on_stop,
        ("libvirt", "uri"): DEFAULTS.libvirt.uri or NO_LIBVIRT,
        ("cgroup", "root"): str(DEFAULTS.cgroup_root),
        ("history", "keep"): f"{format_number(history.keep_s / 86400)}d",
        ("history", "max_size"): format_bytes_exact(history.max_bytes),
        ("api", "group"): DEFAULTS.api_group or "",
        ("metrics", "listen"): DEFAULTS.metrics_listen or "",
        ("defaults", "weight"): format_number(DEFAULTS.default_slo.weight),
    }
    return {where: _written(value) for where, value in values.items()}


def _written(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


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
            f"{extra}: {error.strerror}", f"make {FOLDER} a folder that can be read, or remove it"
        ) from None
    if len(names) > MAX_FILES:
        raise UserError(f"{extra}: {len(names)} files", f"put what they say into at most {MAX_FILES}")
    return [folder / MAIN_FILE, *(extra / name for name in names)]


@dataclass(frozen=True, slots=True)
class _Placed:
    """A value and where it was given."""

    value: Any
    file: ConfigFile
    where: Location
    shown: str
    """`FILE:LINE`."""


_Table = dict[str, _Placed]


@dataclass(slots=True)
class _Named:
    """A table with a name, from one or several files."""

    source: str
    """`FILE:LINE` of its first mention."""
    last_file: str
    keys: _Table = field(default_factory=dict)


class _Layers:
    """What all files said so far, each value with its place."""

    def __init__(self) -> None:
        self._sections: dict[str, _Table] = {}
        self._devices: dict[str, _Named] = {}
        self._vms: dict[str, _Named] = {}
        self._notes: list[str] = []

    def add(self, file: ConfigFile, shown: str) -> None:
        """Lay one file over the others."""
        tables = check_tables(file)
        devices, vms = tables.pop("device", []), tables.pop("vm", [])
        for section, table in tables.items():
            for key, value in table.items():
                placed = self._place(value, file, (section, key), shown)
                self._sections.setdefault(section, {})[key] = placed
        for index, table in enumerate(devices):
            self._add_named(self._devices, "device", table.pop("name"), table, file, ("device", index), shown)
        listed: list[tuple[str | int, Any]] = list(vms.items() if isinstance(vms, dict) else enumerate(vms))
        for index_or_name, table in listed:
            name = str(table.pop("name", index_or_name))
            self._add_named(self._vms, "vm", name, table, file, ("vm", index_or_name), shown)

    def _add_named(
        self,
        known: dict[str, _Named],
        kind: str,
        name: str,
        table: dict[str, Any],
        file: ConfigFile,
        where: Location,
        shown: str,
    ) -> None:
        earlier = known.get(name)
        source = f"{shown}:{file.line(where)}"
        if earlier is not None and earlier.last_file == shown:
            raise file.fail(
                where,
                f"{kind} {name} is there already ({earlier.source})",
                "put all its keys into one table",
            )
        named = known.setdefault(name, _Named(source, shown))
        named.last_file = shown
        for key, value in table.items():
            placed = self._place(value, file, (*where, key), shown)
            before = named.keys.get(key)
            if before is not None and before.value != value:
                self._notes.append(
                    f"{kind} {name}: {key}: {_shown(key, value)} in {placed.shown} overrides "
                    f"{_shown(key, before.value)} in {before.shown}"
                )
            named.keys[key] = placed

    @staticmethod
    def _place(value: Any, file: ConfigFile, where: Location, shown: str) -> _Placed:
        return _Placed(value, file, where, f"{shown}:{file.line(where)}")

    def values(self) -> list[ConfigValue]:
        """Every value as it is written in its file, and the defaults of those that are not."""
        found = [
            ConfigValue(section, key, default, "default")
            for (section, key), default in _defaults().items()
            if key not in self._sections.get(section, {})
        ]
        tables = {
            **self._sections,
            **{f"device {name}": named.keys for name, named in self._devices.items()},
            **{f"vm.{name}": named.keys for name, named in self._vms.items()},
        }
        found += [
            ConfigValue(table, key, _written(placed.file.value(placed.where)), placed.shown)
            for table, keys in tables.items()
            for key, placed in keys.items()
        ]
        order = list(
            dict.fromkeys(["daemon", "libvirt", "cgroup", "history", "api", "metrics", "defaults", *tables])
        )
        return sorted(found, key=lambda each: order.index(each.table))

    def config(self, files: tuple[Path, ...]) -> Config:
        """The whole, checked across tables and files."""
        vms = {name: _vm(name, named) for name, named in self._vms.items()}
        self._refuse_shared(vms)
        default = {CONFIG_KEYS[key]: placed for key, placed in self._sections.get("defaults", {}).items()}
        _check_slo("[defaults]", default)
        uri = self._value("libvirt", "uri", DEFAULTS.libvirt.uri)
        return Config(
            daemon=self._daemon(),
            libvirt=LibvirtConfig(None if uri == NO_LIBVIRT else uri),
            cgroup_root=Path(self._value("cgroup", "root", DEFAULTS.cgroup_root)),
            history=HistoryConfig(
                keep_s=self._value("history", "keep", DEFAULTS.history.keep_s),
                max_bytes=self._value("history", "max_size", DEFAULTS.history.max_bytes),
            ),
            api_group=self._value("api", "group", DEFAULTS.api_group),
            metrics_listen=self._value("metrics", "listen", DEFAULTS.metrics_listen),
            default_slo=Slo(**{name: placed.value for name, placed in default.items()}),
            devices=self._device_configs(),
            vms=vms,
            files=files,
            notes=tuple(self._notes),
        )

    def _value(self, section: str, key: str, default: Any) -> Any:
        placed = self._sections.get(section, {}).get(key)
        return default if placed is None else placed.value

    def _daemon(self) -> DaemonConfig:
        usual = DEFAULTS.daemon
        daemon = DaemonConfig(
            epoch_s=self._value("daemon", "epoch", usual.epoch_s),
            window_s=self._value("daemon", "window", usual.window_s),
            policy=self._value("daemon", "policy", usual.policy),
            strict=self._value("daemon", "strict", usual.strict),
            share_by=self._value("daemon", "share_by", usual.share_by),
            move_budget=self._value("daemon", "move_budget", usual.move_budget),
            keep_on_stop=self._value("daemon", "keep_on_stop", usual.keep_on_stop),
        )
        if daemon.window_s < daemon.epoch_s:
            given = self._sections["daemon"]
            placed = given.get("window") or given["epoch"]
            raise placed.file.fail(
                placed.where,
                f"[daemon] window = {format_number(daemon.window_s)}s is shorter than "
                f"epoch = {format_number(daemon.epoch_s)}s",
                "make window at least one epoch",
            )
        return daemon

    def _device_configs(self) -> tuple[DeviceConfig, ...]:
        devices, paths = [], dict[str, str]()
        for name, named in self._devices.items():
            path, policy = named.keys.get("path"), named.keys.get("policy")
            if path is not None and policy is not None:
                raise policy.file.fail(
                    policy.where,
                    f"[[device]] {name}: policy has no meaning with path",
                    "only emulated SSDs have OPS to share out: leave policy out",
                )
            if path is not None and (other := paths.setdefault(path.value, name)) != name:
                raise path.file.fail(
                    path.where,
                    f"[[device]] {name}: path {path.value} is that of device {other}",
                    "name a device once",
                )
            devices.append(
                DeviceConfig(
                    name,
                    path.value if path else None,
                    policy.value if policy else None,
                    named.source,
                    _scheduler(name, named.keys.get("scheduler"), block=path is not None),
                )
            )
        return tuple(devices)

    def _refuse_shared(self, vms: dict[str, VmConfig]) -> None:
        """No two VMs may be the same cgroup or use the same namespace."""
        owners: dict[str, str] = {}
        for name, vm in vms.items():
            for key, values in (("cgroup", (vm.cgroup,)), ("namespaces", vm.namespaces)):
                for value in values:
                    if value is None or (owner := owners.setdefault(f"{key} {value}", name)) == name:
                        continue
                    placed = self._vms[name].keys[key]
                    raise placed.file.fail(
                        placed.where,
                        f"VM {name}: {key}: {value} is that of VM {owner}",
                        "give each VM its own",
                    )


def _scheduler(name: str, given: _Placed | None, *, block: bool) -> str:
    """Real devices get what suits them unless told otherwise; an emulated one was made with a scheduler."""
    known = BLOCK_SCHEDULERS if block else TENANT_SCHEDULERS
    if given is None:
        return "auto" if block else "keep"
    if given.value not in known:
        kind = "a real block device" if block else "an emulated SSD"
        raise given.file.fail(
            given.where,
            f"[[device]] {name}: scheduler = {given.value} is none of {kind}",
            f"known there: {', '.join(known)}",
        )
    return str(given.value)


def _vm(name: str, named: _Named) -> VmConfig:
    keys = named.keys
    given = {CONFIG_KEYS[key]: placed for key, placed in keys.items() if key in CONFIG_KEYS}
    _check_slo(f"VM {name}:", given)
    return VmConfig(
        name=name,
        slo_fields={field: placed.value for field, placed in given.items()},
        cgroup=keys["cgroup"].value if "cgroup" in keys else None,
        namespaces=tuple(dict.fromkeys(keys["namespaces"].value)) if "namespaces" in keys else (),
        source=named.source,
        field_sources={field: placed.shown for field, placed in given.items()},
    )


def _check_slo(whose: str, given: dict[str, _Placed]) -> None:
    """Single values are checked by now; what is left is how they go together."""
    try:
        check_fields({name: placed.value for name, placed in given.items()})
    except SloError as error:
        placed = given[error.key]
        raise placed.file.fail(placed.where, f"{whose} {error.message}", error.hint) from None


def _shown(key: str, value: Any) -> str:
    if key in CONFIG_KEYS:
        return field_text(CONFIG_KEYS[key], value)
    return ", ".join(value) if isinstance(value, list) else str(value)
