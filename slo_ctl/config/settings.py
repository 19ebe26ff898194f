"""The settings of the configuration and their defaults."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field, StrictBool

from slo_ctl.base.accounts import EVERYONE, Peer
from slo_ctl.base.patterns import matches, specificity
from slo_ctl.config.values import (
    AbsolutePath,
    Budget,
    Bytes,
    Command,
    Group,
    LibvirtUri,
    Listen,
    LoopbackListen,
    PolicyName,
    Seconds,
    ShareUnit,
    Url,
    size_bytes,
    time_s,
)
from slo_ctl.decide.policies import DEFAULT_POLICY, STRICT_POLICY
from slo_ctl.decide.slo_sources import resolve
from slo_ctl.host.sockets import GROUP
from slo_ctl.model.sample import ShareBy
from slo_ctl.model.slo import (
    CLASS_KEY,
    GROUP_KEY,
    ResolvedSlo,
    Slo,
    SloBySource,
    SloClass,
    SloEntry,
    SloGroup,
    SloUpdate,
    check_named,
)


class Section:
    """A section of `slo-ctl.toml`: its keys, how they are written, and their defaults.

    Its name is that of the attribute of `Config`.
    """

    __slots__ = ()
    __pydantic_config__ = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True)
class DaemonConfig(Section):
    """`[daemon]`."""

    epoch_s: Annotated[Seconds, time_s("100ms", "1h"), Field(alias="epoch")] = 1.0
    """Control interval of the daemon."""
    window_s: Annotated[Seconds, time_s("100ms", "1d"), Field(alias="window")] = 10.0
    """Window of status, verdicts and metrics; at least one epoch."""
    policy: PolicyName = DEFAULT_POLICY
    """OPS policy of emulated devices without a policy of their own."""
    strict: StrictBool = False
    """Keep exact proportions instead of giving to other VMs what a VM cannot use."""
    share_by: ShareUnit = ShareBy.PAGES
    """Unit of shares: pages, requests or device time."""
    move_budget: Budget = 0.1
    """Share of the time of each die that moves of OPS may take while requests are outstanding."""
    keep_on_stop: StrictBool = False
    """Keep the settings when the daemon stops, instead of restoring the previous ones."""

    def policy_or(self, own: str | None) -> str:
        """OPS policy of a device whose own one is configured as `own`."""
        policy = own or self.policy
        return STRICT_POLICY if self.strict and policy == DEFAULT_POLICY else policy


@dataclass(frozen=True, slots=True)
class LibvirtConfig(Section):
    """`[libvirt]`."""

    uri: LibvirtUri = "qemu:///system"
    """None: libvirt is not used."""
    latency_histograms: StrictBool = False
    """Enable latency histograms of QEMU by monitor commands, which mark VMs as tainted."""


@dataclass(frozen=True, slots=True)
class CgroupConfig(Section):
    """`[cgroup]`."""

    root: AbsolutePath = Path("/sys/fs/cgroup")
    """Mount point of cgroup v2, or the parent directory of those of v1."""
    latency_histograms: StrictBool = False
    """Have bpftrace measure latencies of cgroups on block devices."""


@dataclass(frozen=True, slots=True)
class HistoryConfig(Section):
    """`[history]`."""

    keep_s: Annotated[Seconds, time_s("1m", "3650d"), Field(alias="keep")] = 7 * 86400.0
    max_bytes: Annotated[Bytes, size_bytes("1MiB"), Field(alias="max_size")] = 512 << 20


@dataclass(frozen=True, slots=True)
class ApiConfig(Section):
    """`[api]`."""

    group: Group = GROUP
    """Group that may use the API; if it does not exist, only the daemon's user may."""


@dataclass(frozen=True, slots=True)
class MetricsConfig(Section):
    """`[metrics]`."""

    listen: Listen = None
    """`HOST:PORT`; None: no metrics."""


@dataclass(frozen=True, slots=True)
class PageConfig(Section):
    """`[page]`."""

    listen: LoopbackListen = None
    """`ADDRESS:PORT`; None: no page."""


@dataclass(frozen=True, slots=True)
class HooksConfig(Section):
    """`[hooks]`."""

    on_verdict: Command = ()
    """Program and arguments that are run when a VM's verdict changes; empty: none."""
    webhook: Url = ""
    """HTTP or HTTPS address that receives a request when a VM's verdict changes; empty: none."""


class Right(StrEnum):
    """What a client of the API may do, by its key in `[access]`."""

    READ = "read"
    SET_SLOS = "set_slos"
    MANAGE = "manage"


@dataclass(frozen=True, slots=True)
class AccessConfig:
    """`[access]`: the rights of users who can connect to the socket."""

    configured: dict[Right, tuple[str, ...]] = field(default_factory=dict)
    sources: dict[Right, str] = field(default_factory=dict)
    """`FILE:LINE` of each list that is configured."""

    def key_of(self, right: Right) -> Right:
        """The right whose list applies; without a list of its own, `manage` uses that of `set_slos`."""
        return Right.SET_SLOS if right is Right.MANAGE and right not in self.configured else right

    def entries(self, right: Right) -> tuple[str, ...]:
        """Users, and groups as `@NAME`, that have the right."""
        return self.configured.get(self.key_of(right), (EVERYONE,))

    def allows(self, right: Right, peer: Peer, own_uid: int) -> bool:
        """Whether a client has the right; root and the daemon's own user have all rights."""
        return peer.uid in (0, own_uid) or any(map(peer.is_named_by, self.entries(right)))


@dataclass(frozen=True, slots=True)
class DeviceConfig:
    """A device to manage."""

    name: str
    path: str | None
    """Path of a real block device; None for an emulated one."""
    policy: str | None
    """OPS policy; None: the one of `[daemon]`."""
    source: str = ""
    """`FILE:LINE`."""
    scheduler: str = "keep"
    """Name of an I/O scheduler; `keep`: do not change it; `auto`: choose the most suitable one."""


@dataclass(frozen=True, slots=True)
class VmConfig:
    """Configuration of one VM, or of all whose names match a pattern."""

    name: str
    slo: SloEntry
    cgroup: str | None
    """Cgroup of a VM without libvirt, as in /proc/PID/cgroup."""
    namespaces: tuple[str, ...]
    """`DEVICE/NAMESPACE` of emulated SSDs that it uses."""
    source: str
    """`FILE:LINE` where it is defined first, relative to the directory of the configuration."""
    slo_sources: dict[str, str] = field(default_factory=dict)
    """`FILE:LINE` of each value in `slo`, by its key."""

    def by_source(self) -> SloBySource:
        """The SLO values by source, `config FILE:LINE`."""
        keys = defaultdict[str, set[str]](set)
        for key in (*self.slo.fields, *self.slo.chosen):
            keys[f"config {self.slo_sources.get(key, self.source)}"].add(key)
        return {source: self.slo.only(names) for source, names in keys.items()}


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that can be configured."""

    daemon: DaemonConfig = DaemonConfig()
    libvirt: LibvirtConfig = LibvirtConfig()
    cgroup: CgroupConfig = CgroupConfig()
    history: HistoryConfig = HistoryConfig()
    api: ApiConfig = ApiConfig()
    metrics: MetricsConfig = MetricsConfig()
    page: PageConfig = PageConfig()
    hooks: HooksConfig = HooksConfig()
    access: AccessConfig = AccessConfig()
    default_slo: Slo = field(default_factory=Slo)
    devices: tuple[DeviceConfig, ...] = ()
    classes: dict[str, SloClass] = field(default_factory=dict)
    groups: dict[str, SloGroup] = field(default_factory=dict)
    vms: dict[str, VmConfig] = field(default_factory=dict)
    patterns: dict[str, VmConfig] = field(default_factory=dict)
    """SLOs of VMs by patterns of their names."""
    notes: tuple[str, ...] = ()
    """One sentence for each conflict between files."""

    @property
    def cgroup_of(self) -> dict[str, str]:
        """Cgroups of the VMs for which one is configured."""
        return {vm.name: vm.cgroup for vm in self.vms.values() if vm.cgroup is not None}

    @property
    def namespaces_of(self) -> dict[str, tuple[str, ...]]:
        """Namespaces of the VMs for which any are configured."""
        return {vm.name: vm.namespaces for vm in self.vms.values() if vm.namespaces}

    def check_chosen(self, change: SloUpdate) -> None:
        """Raise SloError if a change chooses a class or a group that is not configured."""
        for key, known in ((CLASS_KEY, self.classes), (GROUP_KEY, self.groups)):
            if key in change.chosen:
                check_named(key, change.chosen[key], known)

    def resolve(self, vm: str, by_source: SloBySource) -> ResolvedSlo:
        """The SLO in force for a VM."""
        return resolve(vm, by_source, self.default_slo, self.classes, self.groups)

    def slo_table_of(self, vm: str) -> VmConfig | None:
        """The table with the SLO of a VM: its own if it sets any SLO, else the most specific pattern."""
        own = self.vms.get(vm)
        if own is not None and own.slo.is_set:
            return own
        found = [pattern for pattern in self.patterns if matches(pattern, vm)]
        return self.patterns[max(found, key=specificity)] if found else None


DEFAULTS = Config()
"""The settings without any configuration file."""

SECTIONS: dict[str, type[Section]] = {
    item.name: type(item.default) for item in fields(Config) if isinstance(item.default, Section)
}
"""Types of the sections by name."""
