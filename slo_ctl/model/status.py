"""The status: what `slo-ctl status`, the API, the history and the metrics report."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from slo_ctl.base.text import counted
from slo_ctl.model.decision import Outcome
from slo_ctl.model.device_waf import DeviceWaf
from slo_ctl.model.sample import Slo
from slo_ctl.model.slo import ResolvedSlo, SloFields


class Verdict(StrEnum):
    """Whether a VM's SLO was kept in the window."""

    OK = "ok"
    INSUFFICIENT = "insufficient"
    """Below its target or its minimum, or above its latency target."""
    SETTLING = "settling"
    """Below its entitlement in a window in which a VM woke up or an SLO changed."""
    IDLE = "idle"
    """Asked for nothing."""
    CAPPED = "capped"
    """At its maximum."""
    NO_MECHANISM = "no-mechanism"
    """Nothing on this host can keep the SLO."""
    UNAPPLIED = "unapplied"
    """A setting could not be applied."""
    UNKNOWN_VM = "unknown-vm"
    """Named in the configuration, but not on this host."""


DEGRADED = frozenset({Verdict.INSUFFICIENT, Verdict.NO_MECHANISM, Verdict.UNAPPLIED, Verdict.UNKNOWN_VM})
"""Verdicts for which `slo-ctl status` exits with 3."""


@dataclass(frozen=True, slots=True)
class VmStatus:
    """One VM on one device over the status window. None: not known, or has no meaning there."""

    vm: str
    device: str
    """Name of a managed device; empty when the VM has I/O on none."""
    disks: tuple[str, ...]
    slo: Slo
    slo_source: str
    """Where the SLO in force comes from, such as `vm set`, `metadata`, `config FILE` or `default`."""
    state: str
    """libvirt's word for what the VM does; empty where it is not known."""
    backend: str
    """Isolation mechanism, such as `emulated SSD, isolated OPS`, `cgroup v1 bfq` or `none`."""
    verdict: Verdict
    reason: str
    """One sentence: why this verdict."""
    target_iops: float | None = None
    target_share: float | None = None
    share: float | None = None
    """Share of the device's IOPS, or of its NVMe drive's where VMs on several namespaces share that."""
    iops: float | None = None
    bandwidth_bytes_s: float | None = None
    p99_read_us: float | None = None
    p99_write_us: float | None = None
    throttle_wait_us: float | None = None
    """Mean time that a request was throttled by a limit."""
    ops_blocks: int | None = None
    ops_bytes: int | None = None
    ops_share: float | None = None
    """OPS over the VM's logical size."""
    u: float | None = None
    waf: float | None = None
    unapplied: tuple[Outcome, ...] = ()
    group: str = ""
    """Group of whose minimum and maximum `slo` includes a part; empty: none."""


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """VMs that have one minimum and one maximum together, over the status window."""

    name: str
    vms: tuple[str, ...]
    """Those of this host that belong to it."""
    verdict: Verdict
    reason: str
    min_iops: float | None = None
    max_iops: float | None = None
    max_bandwidth_bytes_s: float | None = None
    iops: float | None = None
    """Of all of them, on managed devices."""
    bandwidth_bytes_s: float | None = None


@dataclass(frozen=True, slots=True)
class MoveStatus:
    """OPS on its way from one VM to another."""

    source: str
    """Empty: the device's spare blocks."""
    target: str
    blocks_left: int
    share_done: float
    """Part of the planned blocks that has been moved, 0..1."""
    cost_s: float
    """Device time that the rest costs."""
    saving_s: float
    """Device time that it saves over the next drive write."""
    left_s: float | None = None
    """How long the rest takes within the budget; None: not known."""

    def __str__(self) -> str:
        left = "" if self.left_s is None else f", about {self.left_s:,.0f} s left"
        return (
            f"moving {counted(self.blocks_left, 'OPS block')} from {self.source or 'the spare'} to "
            f"{self.target or 'the spare'}: {100 * self.share_done:.0f}% done{left}; costs "
            f"{self.cost_s:,.1f} s of device time and saves {self.saving_s:,.1f} s "
            "by the time the drive is overwritten once"
        )


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """One managed device over the status window."""

    name: str
    kind: str
    """`emulated` or `block`."""
    backend: str
    policy: str
    """How OPS or weights are decided there; empty where nothing is."""
    window_s: float
    iops: float | None = None
    capacity_iops: float | None = None
    """The most that was measured with the VMs asking for more; None before that."""
    estimated_iops: float | None = None
    """Maximum of an emulated SSD, from its timing and the GC so far; None: not known."""
    sum_min_iops: float = 0.0
    overcommitted: bool = False
    """The minimums exceed what the device can do."""
    problem: str = ""
    """Why nothing is known or done at the moment; empty otherwise."""
    reasons: tuple[str, ...] = ()
    """Recent decisions."""
    waf: DeviceWaf | None = None
    """WAF of all writes, with the counters used; None where it cannot be known."""
    placement: str = ""
    """The strongest that the drive offers, such as `separation by FDP`; empty when not known."""
    share_by: str = ""
    """The unit of shares: pages, requests or device-time; empty where shares are not kept."""
    move_budget: float | None = None
    """Share of the time of each die that moves of OPS may take while requests are outstanding."""
    moves: tuple[MoveStatus, ...] = ()


@dataclass(frozen=True, slots=True)
class HostStatus:
    """Everything, at one moment."""

    at: float
    """Seconds since 1970 (UTC)."""
    window_s: float
    """Window of IOPS, shares and percentiles."""
    epoch_s: float
    daemon_pid: int
    started_at: float
    config_problem: str
    """Why the configuration on disk is not the one in force; empty when it is."""
    devices: tuple[DeviceStatus, ...] = ()
    vms: tuple[VmStatus, ...] = ()
    groups: tuple[GroupStatus, ...] = ()
    notes: tuple[str, ...] = field(default=())
    """Failures to observe or act, one sentence each."""
    epoch_cpu_ms: float = 0.0
    """CPU time of the last epoch."""


# Replies of the daemon besides its status: the SLO of a VM, and the changes planned next.


@dataclass(frozen=True, slots=True, kw_only=True)
class VmSlo(ResolvedSlo):
    """The SLO of a VM, and who set it."""

    vm: str
    vm_set: SloFields = field(default_factory=dict)
    """Given by `slo-ctl vm set`, or by this API."""
    vm_set_class: str | None = None
    """Given as `vm_set`."""
    vm_set_group: str | None = None
    """Given as `vm_set`."""
    notes: tuple[str, ...] = ()
    """Warnings, such as minimums that exceed what a device can do."""


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """Decision for one device as of now."""

    device: str
    policy: str
    decided: tuple[str, ...]
    """One sentence for each move of OPS, limit or weight that the policy would change."""
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """Changes that the next epoch would make."""

    outcomes: tuple[Outcome, ...] = ()
    """Outcomes of all settings; those that would change are `planned`."""
    devices: tuple[DevicePlan, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Health:
    """Daemon health with its work."""

    pid: int
    program_version: str
    started_at: float
    epochs: int
    """Completed since the start."""
    missed_epochs: int
    """Left out because earlier ones took too long."""
    last_epoch_at: float | None
    """Seconds since 1970; None before the first."""
    config_problem: str
