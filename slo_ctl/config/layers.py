"""All configuration files merged, each value with its file and line, and checked as a whole."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from slo_ctl.base.errors import UserError
from slo_ctl.base.patterns import common_name, is_pattern, specificity
from slo_ctl.base.quantity import format_number
from slo_ctl.base.text import toml_key
from slo_ctl.config.schema import attributes, check_tables
from slo_ctl.config.settings import (
    SECTIONS,
    AccessConfig,
    Config,
    DaemonConfig,
    DeviceConfig,
    Right,
    Section,
    VmConfig,
)
from slo_ctl.config.toml_file import ConfigFile, Location
from slo_ctl.config.values import BLOCK_SCHEDULERS, TENANT_SCHEDULERS
from slo_ctl.model.slo import (
    CLASS_KEY,
    CONFIG_KEYS,
    FIELDS,
    GROUP_KEY,
    SYNONYMS,
    Slo,
    SloClass,
    SloEntry,
    SloError,
    SloGroup,
    check_fields,
    check_named,
)


@dataclass(frozen=True, slots=True)
class Placed:
    """A value and where it was given."""

    value: Any
    file: ConfigFile
    where: Location
    shown: str
    """`FILE:LINE`."""

    def fail(self, problem: str, hint: str) -> UserError:
        """The error about this value."""
        return self.file.fail(self.where, problem, hint)


Table = dict[str, Placed]


@dataclass(slots=True)
class NamedTable:
    """A table with a name, from one or several files."""

    first: Placed
    """Its name, with the place where the table is defined first."""
    last_file: str
    keys: Table = field(default_factory=dict)

    @property
    def source(self) -> str:
        """`FILE:LINE` of its first definition."""
        return self.first.shown


_NAMED_KINDS = ("device", "class", "group", "vm")


class Layers:
    """All files read so far. A later one overrides key by key."""

    def __init__(self) -> None:
        self.sections: dict[str, Table] = {}
        self.named: dict[str, dict[str, NamedTable]] = {kind: {} for kind in _NAMED_KINDS}
        """Tables with names, by kind."""
        self.problems: list[UserError] = []
        """Keys given twice in one file; after `config`, also values that contradict each other."""
        self._notes: list[str] = []
        """One sentence for each value of a named table that a later file overrides with another."""

    def add(self, file: ConfigFile, shown: str) -> None:
        """Add a file, which overrides earlier ones. Raises UserError for the first invalid value in it."""
        tables = check_tables(file)
        named = {kind: tables.pop(kind, {}) for kind in _NAMED_KINDS}
        for section, values in tables.items():
            table = self._placed(section, values, file, (section,), shown)
            self.sections.setdefault(section, {}).update(table)
        for kind, listed in named.items():
            for index_or_name, values in listed.items() if isinstance(listed, dict) else enumerate(listed):
                name = str(values.pop("name", index_or_name))
                self._add_named(kind, name, values, file, (kind, index_or_name), shown)

    def _add_named(
        self, kind: str, name: str, values: dict[str, Any], file: ConfigFile, where: Location, shown: str
    ) -> None:
        earlier = self.named[kind].get(name)
        if earlier is not None and earlier.last_file == shown:
            problem = f"{kind} {name} is already defined ({earlier.source})"
            self.problems.append(file.fail(where, problem, "put all its keys into one table"))
            return
        named = self.named[kind].setdefault(
            name, NamedTable(Placed(name, file, where, f"{shown}:{file.line(where)}"), shown)
        )
        named.last_file = shown
        for key, placed in self._placed(f"{kind} {name}", values, file, where, shown).items():
            before = named.keys.get(key)
            if before is not None and before.value != placed.value:
                self._notes.append(
                    f"{kind} {name}: {key}: {_shown(key, placed.value)} in {placed.shown} overrides "
                    f"{_shown(key, before.value)} in {before.shown}"
                )
            named.keys[key] = placed

    def _placed(
        self, table_name: str, values: dict[str, Any], file: ConfigFile, where: Location, shown: str
    ) -> Table:
        """The values of one table in one file; synonyms of keys are replaced by the keys."""
        table: Table = {}
        for written, value in values.items():
            inside = (*where, written)
            key = SYNONYMS.get(written, written)
            if key in table:
                problem = f"{table_name}: {key} is given twice, as {table[key].where[-1]} and as {written}"
                self.problems.append(file.fail(inside, problem, f"write {key} once"))
            table[key] = Placed(value, file, inside, f"{shown}:{file.line(inside)}")
        return table

    def config(self) -> Config:
        """The merged settings, which are valid only if `problems` is empty afterwards."""
        classes = {name: self._class(name, named) for name, named in self.named["class"].items()}
        groups = {name: self._group(name, named) for name, named in self.named["group"].items()}
        tables = {name: self._vm(name, named, classes, groups) for name, named in self.named["vm"].items()}
        vms = {name: vm for name, vm in tables.items() if not is_pattern(name)}
        patterns = {name: vm for name, vm in tables.items() if is_pattern(name)}
        self._refuse_shared_resources(vms)
        self._check_patterns(patterns)
        default = _slo_fields(self.sections.get("defaults", {}))
        self._check_slo("[defaults]", default)
        sections: dict[str, Any] = {name: self._section(name, kind) for name, kind in SECTIONS.items()}
        self._check_window(sections["daemon"])
        self._refuse_one_address(sections["metrics"].listen, sections["page"].listen)
        return Config(
            **sections,
            access=self._access(),
            default_slo=Slo(**_values(default)),
            devices=self._device_configs(),
            classes=classes,
            groups=groups,
            vms=vms,
            patterns=patterns,
            notes=tuple(self._notes),
        )

    def _section(self, name: str, kind: type[Section]) -> Section:
        given = self.sections.get(name, {})
        return kind(**{attributes(kind)[key]: placed.value for key, placed in given.items()})

    def _check_window(self, daemon: DaemonConfig) -> None:
        if daemon.window_s < daemon.epoch_s:
            given = self.sections["daemon"]
            self._report(
                given.get("window") or given["epoch"],
                f"[daemon] window = {format_number(daemon.window_s)}s is shorter than "
                f"epoch = {format_number(daemon.epoch_s)}s",
                "make window at least one epoch",
            )

    def _refuse_one_address(self, metrics: str | None, page: str | None) -> None:
        if metrics is not None and metrics == page:
            self._report(
                self.sections["page"]["listen"],
                f'[page] listen = "{page}" is also [metrics] listen',
                "choose another port for one of them",
            )

    def _access(self) -> AccessConfig:
        given = {Right(key): placed for key, placed in self.sections.get("access", {}).items()}
        return AccessConfig(
            {right: placed.value for right, placed in given.items()},
            {right: placed.shown for right, placed in given.items()},
        )

    def _device_configs(self) -> tuple[DeviceConfig, ...]:
        devices, paths = [], dict[str, str]()
        for name, named in self.named["device"].items():
            path, policy = named.keys.get("path"), named.keys.get("policy")
            if path is not None and policy is not None:
                self._report(
                    policy,
                    f"[[device]] {name}: policy has no meaning with path",
                    "only emulated SSDs have OPS to share out: leave policy out",
                )
            if path is not None and (other := paths.setdefault(str(path.value), name)) != name:
                self._report(
                    path,
                    f"[[device]] {name}: path {path.value} is already that of device {other}",
                    "name a device once",
                )
            devices.append(
                DeviceConfig(
                    name,
                    str(path.value) if path else None,
                    policy.value if policy else None,
                    named.source,
                    self._scheduler(name, named.keys.get("scheduler"), block=path is not None),
                )
            )
        return tuple(devices)

    def _scheduler(self, name: str, given: Placed | None, *, block: bool) -> str:
        """The scheduler of a device; by default `auto` for block devices, `keep` for emulated SSDs."""
        if given is None:
            return "auto" if block else "keep"
        known = BLOCK_SCHEDULERS if block else TENANT_SCHEDULERS
        if given.value not in known:
            kind = "a real block device" if block else "an emulated SSD"
            self._report(
                given,
                f"[[device]] {name}: scheduler = {given.value} is not a scheduler of {kind}",
                f"valid schedulers: {', '.join(known)}",
            )
        return str(given.value)

    def _class(self, name: str, named: NamedTable) -> SloClass:
        given = _slo_fields(named.keys)
        self._check_slo(f"class {name}:", given)
        return SloClass(
            name=name,
            fields=_values(given),
            source=named.source,
            field_sources={field: placed.shown for field, placed in given.items()},
        )

    def _group(self, name: str, named: NamedTable) -> SloGroup:
        given = _slo_fields(named.keys)
        self._check_slo(f"group {name}:", given)
        return SloGroup(name, _values(given))

    def _vm(
        self, name: str, named: NamedTable, classes: Collection[str], groups: Collection[str]
    ) -> VmConfig:
        keys = named.keys
        given = _slo_fields(keys)
        self._check_slo(f"VM {name}:", given)
        chosen, group = keys.get(CLASS_KEY), keys.get(GROUP_KEY)
        for key, placed, known in ((CLASS_KEY, chosen, classes), (GROUP_KEY, group, groups)):
            if placed is not None:
                try:
                    check_named(key, placed.value, known)
                except SloError as error:
                    self._report(placed, f"VM {name}: {error.message}", error.hint)
        placed_slo = {**given, CLASS_KEY: chosen, GROUP_KEY: group}
        return VmConfig(
            name=name,
            slo=SloEntry(
                _values(given),
                chosen.value if chosen else None,
                group.value if group else None,
            ),
            cgroup=keys["cgroup"].value if "cgroup" in keys else None,
            namespaces=tuple(dict.fromkeys(keys["namespaces"].value)) if "namespaces" in keys else (),
            source=named.source,
            slo_sources={key: placed.shown for key, placed in placed_slo.items() if placed is not None},
        )

    def _refuse_shared_resources(self, vms: dict[str, VmConfig]) -> None:
        """No two VMs may be the same cgroup, one inside the other, or use the same namespace."""
        owners: dict[str, str] = {}
        for name, vm in vms.items():
            for key, values in (("cgroup", (vm.cgroup,)), ("namespaces", vm.namespaces)):
                for value in values:
                    if value is None or (owner := owners.setdefault(f"{key} {value}", name)) == name:
                        continue
                    self._report(
                        self.named["vm"][name].keys[key],
                        f"VM {name}: {key}: {value} is already that of VM {owner}",
                        "give each VM its own",
                    )
        for name, vm in vms.items():
            for parent in PurePosixPath(vm.cgroup or "/").parents:
                if outer := owners.get(f"cgroup {parent}"):
                    self._report(
                        self.named["vm"][name].keys["cgroup"],
                        f"VM {name}: cgroup: {vm.cgroup} is inside {parent}, that of VM {outer}: "
                        "its I/O would count for both",
                        "give each VM a cgroup that contains no other",
                    )

    def _check_patterns(self, patterns: dict[str, VmConfig]) -> None:
        """Patterns may set only SLOs, and of two that match one VM one must be more specific."""
        for name in patterns:
            keys = self.named["vm"][name].keys
            for key in ("cgroup", "namespaces"):
                if key in keys:
                    problem = f"[vm.{toml_key(name)}]: {key} cannot be set for several VMs"
                    self._report(
                        keys[key], problem, f"write {key} into the table of each VM, such as [vm.web]"
                    )
        by_length = defaultdict[int, list[str]](list)
        for name in patterns:
            equally_specific = by_length[specificity(name)]
            for other in equally_specific:
                if (both := common_name(other, name)) is not None:
                    self._report(
                        self.named["vm"][name].first,
                        f"[vm.{toml_key(name)}] and [vm.{toml_key(other)}] ({patterns[other].source}) are "
                        f"equally specific, and both match {both}",
                        "make one of them longer",
                    )
            equally_specific.append(name)

    def _check_slo(self, table_name: str, given: Table) -> None:
        """Check how the values of one SLO go together; each was already validated on its own."""
        try:
            check_fields(_values(given))
        except SloError as error:
            placed, maximum = given[error.key], given.get("max_iops")
            where = ""
            if maximum is not None and maximum.file is not placed.file:
                where = f" in {maximum.shown}"
            self._report(placed, f"{table_name} {error.message}{where}", error.hint)

    def _report(self, placed: Placed, problem: str, hint: str) -> None:
        self.problems.append(placed.fail(problem, hint))


def _slo_fields(keys: Table) -> Table:
    """The SLO values of a table, by field of `model.Slo`."""
    return {CONFIG_KEYS[key]: placed for key, placed in keys.items() if key in CONFIG_KEYS}


def _values(table: Table) -> dict[str, Any]:
    return {key: placed.value for key, placed in table.items()}


def _shown(key: str, value: Any) -> str:
    if key in CONFIG_KEYS:
        return FIELDS[CONFIG_KEYS[key]].text(value)
    return ", ".join(value) if isinstance(value, list) else str(value)
