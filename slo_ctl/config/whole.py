"""The configuration made of all layers, checked across tables and files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from pathlib import Path
from typing import Any

from slo_ctl.base.errors import UserError
from slo_ctl.base.patterns import common_name, is_pattern, specificity
from slo_ctl.base.quantity import format_number
from slo_ctl.config.layers import Layers, NamedTable, Placed, Table
from slo_ctl.config.schema import BLOCK_SCHEDULERS, TENANT_SCHEDULERS
from slo_ctl.config.settings import (
    DEFAULTS,
    Config,
    DaemonConfig,
    DeviceConfig,
    HistoryConfig,
    LibvirtConfig,
    VmConfig,
)
from slo_ctl.model import Slo
from slo_ctl.model.slo import (
    CLASS_KEY,
    CONFIG_KEYS,
    GROUP_KEY,
    SloClass,
    SloError,
    SloGroup,
    check_fields,
    check_named,
)

NO_LIBVIRT = "none"


def assemble(layers: Layers, files: tuple[Path, ...]) -> tuple[Config, list[UserError]]:
    """The settings, and all that is wrong with how they go together; not to be used with an error."""
    whole = _Whole(layers)
    return whole.config(files), whole.problems


class _Whole:
    def __init__(self, layers: Layers) -> None:
        self._layers = layers
        self.problems = list(layers.problems)

    def config(self, files: tuple[Path, ...]) -> Config:
        layers = self._layers
        classes = {name: self._class(name, named) for name, named in layers.classes.items()}
        groups = {name: self._group(name, named) for name, named in layers.groups.items()}
        tables = {name: self._vm(name, named, classes, groups) for name, named in layers.vms.items()}
        vms = {name: vm for name, vm in tables.items() if not is_pattern(name)}
        patterns = {name: vm for name, vm in tables.items() if is_pattern(name)}
        self._refuse_shared(vms)
        self._check_patterns(patterns)
        default = _slo_fields(layers.sections.get("defaults", {}))
        self._check_slo("[defaults]", default)
        uri = self._value("libvirt", "uri", DEFAULTS.libvirt.uri)
        return Config(
            daemon=self._daemon(),
            libvirt=LibvirtConfig(
                None if uri == NO_LIBVIRT else uri,
                self._value("libvirt", "latency_histograms", DEFAULTS.libvirt.latency_histograms),
            ),
            cgroup_root=Path(self._value("cgroup", "root", DEFAULTS.cgroup_root)),
            history=HistoryConfig(
                keep_s=self._value("history", "keep", DEFAULTS.history.keep_s),
                max_bytes=self._value("history", "max_size", DEFAULTS.history.max_bytes),
            ),
            api_group=self._value("api", "group", DEFAULTS.api_group),
            metrics_listen=self._value("metrics", "listen", DEFAULTS.metrics_listen),
            page_listen=self._value("page", "listen", DEFAULTS.page_listen),
            on_verdict=self._value("hooks", "on_verdict", DEFAULTS.on_verdict),
            default_slo=Slo(**{name: placed.value for name, placed in default.items()}),
            devices=self._device_configs(),
            classes=classes,
            groups=groups,
            vms=vms,
            patterns=patterns,
            files=files,
            notes=tuple(layers.notes),
        )

    def _value(self, section: str, key: str, default: Any) -> Any:
        placed = self._layers.sections.get(section, {}).get(key)
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
            given = self._layers.sections["daemon"]
            self._wrong(
                given.get("window") or given["epoch"],
                f"[daemon] window = {format_number(daemon.window_s)}s is shorter than "
                f"epoch = {format_number(daemon.epoch_s)}s",
                "make window at least one epoch",
            )
        return daemon

    def _device_configs(self) -> tuple[DeviceConfig, ...]:
        devices, paths = [], dict[str, str]()
        for name, named in self._layers.devices.items():
            path, policy = named.keys.get("path"), named.keys.get("policy")
            if path is not None and policy is not None:
                self._wrong(
                    policy,
                    f"[[device]] {name}: policy has no meaning with path",
                    "only emulated SSDs have OPS to share out: leave policy out",
                )
            if path is not None and (other := paths.setdefault(path.value, name)) != name:
                self._wrong(
                    path,
                    f"[[device]] {name}: path {path.value} is that of device {other}",
                    "name a device once",
                )
            devices.append(
                DeviceConfig(
                    name,
                    path.value if path else None,
                    policy.value if policy else None,
                    named.source,
                    self._scheduler(name, named.keys.get("scheduler"), block=path is not None),
                )
            )
        return tuple(devices)

    def _scheduler(self, name: str, given: Placed | None, *, block: bool) -> str:
        """Real devices get what suits them by default; an emulated one was made with a scheduler."""
        if given is None:
            return "auto" if block else "keep"
        known = BLOCK_SCHEDULERS if block else TENANT_SCHEDULERS
        if given.value not in known:
            kind = "a real block device" if block else "an emulated SSD"
            self._wrong(
                given,
                f"[[device]] {name}: scheduler = {given.value} is none of {kind}",
                f"known there: {', '.join(known)}",
            )
        return str(given.value)

    def _class(self, name: str, named: NamedTable) -> SloClass:
        given = _slo_fields(named.keys)
        self._check_slo(f"class {name}:", given)
        return SloClass(
            name=name,
            fields={field: placed.value for field, placed in given.items()},
            source=named.source,
            field_sources={field: placed.shown for field, placed in given.items()},
        )

    def _group(self, name: str, named: NamedTable) -> SloGroup:
        given = _slo_fields(named.keys)
        self._check_slo(f"group {name}:", given)
        return SloGroup(name, {field: placed.value for field, placed in given.items()}, named.source)

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
                    self._wrong(placed, f"VM {name}: {error.message}", error.hint)
        return VmConfig(
            name=name,
            slo_fields={field: placed.value for field, placed in given.items()},
            cgroup=keys["cgroup"].value if "cgroup" in keys else None,
            namespaces=tuple(dict.fromkeys(keys["namespaces"].value)) if "namespaces" in keys else (),
            source=named.source,
            field_sources={field: placed.shown for field, placed in given.items()},
            class_name=chosen.value if chosen else None,
            class_source=chosen.shown if chosen else "",
            group_name=group.value if group else None,
            group_source=group.shown if group else "",
        )

    def _refuse_shared(self, vms: dict[str, VmConfig]) -> None:
        """No two VMs may be the same cgroup or use the same namespace."""
        owners: dict[str, str] = {}
        for name, vm in vms.items():
            for key, values in (("cgroup", (vm.cgroup,)), ("namespaces", vm.namespaces)):
                for value in values:
                    if value is None or (owner := owners.setdefault(f"{key} {value}", name)) == name:
                        continue
                    self._wrong(
                        self._layers.vms[name].keys[key],
                        f"VM {name}: {key}: {value} is that of VM {owner}",
                        "give each VM its own",
                    )

    def _check_patterns(self, patterns: dict[str, VmConfig]) -> None:
        """They are about SLOs only, and for each VM one of them is the most specific."""
        for name in patterns:
            keys = self._layers.vms[name].keys
            for key in ("cgroup", "namespaces"):
                if key in keys:
                    problem = f'[vm."{name}"]: {key} cannot be that of several VMs'
                    self._wrong(
                        keys[key], problem, f"write {key} into the table of each VM, such as [vm.web]"
                    )
        by_length = defaultdict[int, list[str]](list)
        for name in patterns:
            others = by_length[specificity(name)]
            for other in others:
                if (both := common_name(other, name)) is not None:
                    self._wrong(
                        self._layers.vms[name].first,
                        f'[vm."{name}"] and [vm."{other}"] ({patterns[other].source}) are equally specific, '
                        f"and both match {both}",
                        "make one of them longer",
                    )
            others.append(name)

    def _check_slo(self, whose: str, given: Table) -> None:
        """Single values are checked by now; what is left is how they go together."""
        try:
            check_fields({name: placed.value for name, placed in given.items()})
        except SloError as error:
            self._wrong(given[error.key], f"{whose} {error.message}", error.hint)

    def _wrong(self, placed: Placed, problem: str, hint: str) -> None:
        self.problems.append(placed.fail(problem, hint))


def _slo_fields(keys: Table) -> Table:
    """SLO keys, by field of `model.Slo`."""
    return {CONFIG_KEYS[key]: placed for key, placed in keys.items() if key in CONFIG_KEYS}
