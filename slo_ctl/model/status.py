"""What the daemon reports: the status of the host, the SLO of a VM, planned changes, its health."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from slo_ctl.base.text import counted
from slo_ctl.model.sample import DeviceWaf
from slo_ctl.model.setting import Outcome
from slo_ctl.model.slo import ResolvedSlo, Slo, SloFields


class Verdict(StrEnum):
    """Whether a VM's SLO was met in the window."""

    OK = "ok"
    INSUFFICIENT = "insufficient"
    """Below its target or its minimum, or above its latency target."""
    SETTLING = "settling"
    """Below its entitlement in a window in which a VM became active or an SLO changed."""
    IDLE = "idle"
    """No requests."""
    CAPPED = "capped"
    """At its maximum."""
    NO_MECHANISM = "no-mechanism"
    """This host has no mechanism for the SLO."""
    UNAPPLIED = "unapplied"
    """A setting could not be applied."""
    UNKNOWN_VM = "unknown-vm"
    """Configured, but not on this host."""


DEGRADED = frozenset({Verdict.INSUFFICIENT, Verdict.NO_MECHANISM, Verdict.UNAPPLIED, Verdict.UNKNOWN_VM})
"""Verdicts for which the exit status of `slo-ctl status` is 3."""


@dataclass(frozen=True, slots=True)
class VmStatus:
    """One VM on one device in the status window. None: unknown or not applicable."""

    vm: str
    device: str
    """Name of a managed device; empty if the VM has no I/O on one."""
    disks: tuple[str, ...]
    slo: Slo
    slo_source: str
    """Sources of the SLO in force, such as `vm set`, `metadata`, `config FILE` or `default`."""
    state: str
    """libvirt's state of the VM; empty if unknown."""
    backend: str
    """Isolation mechanism, such as `emulated SSD, isolated OPS`, `cgroup v1 bfq` or `none`."""
    verdict: Verdict
    reason: str
    """One sentence that explains the verdict."""
    target_iops: float | None = None
    target_share: float | None = None
    share: float | None = None
    """Share of the device's IOPS, or of those of the NVMe drive if VMs on several namespaces share it."""
    iops: float | None = None
    bandwidth_bytes_s: float | None = None
    p99_read_us: float | None = None
    p99_write_us: float | None = None
    throttle_wait_us: float | None = None
    """Mean time that a request was throttled by a limit."""
    ops_blocks: int | None = None
    ops_bytes: int | None = None
    ops_share: float | None = None
    """OPS / logical size of the VM."""
    u: float | None = None
    waf: float | None = None
    unapplied: tuple[Outcome, ...] = ()
    group: str = ""
    """Group of whose minimum and maximum `slo` contains a part; empty: none."""
    first_reading: bool = False
    """Its counters were read only once yet, so that `idle` is not a change of its verdict."""


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """A group of VMs with a common minimum and maximum, in the status window."""

    name: str
    vms: tuple[str, ...]
    """VMs of this host in the group."""
    verdict: Verdict
    reason: str
    min_iops: float | None = None
    max_iops: float | None = None
    max_bandwidth_bytes_s: float | None = None
    iops: float | None = None
    """Sum of its VMs on managed devices."""
    bandwidth_bytes_s: float | None = None


@dataclass(frozen=True, slots=True)
class MoveStatus:
    """A move of OPS in progress."""

    source: str
    """VM that gives blocks; empty: the spare blocks of the device."""
    target: str
    blocks_left: int
    share_done: float
    """Part of the planned blocks that has been moved, 0..1."""
    cost_s: float | None
    """Device time that the remaining moves cost; None on a device without modelled latency."""
    saving_s: float | None
    """Device time saved over the next drive write; None on a device without modelled latency."""
    left_s: float | None = None
    """Time until all moves of the device are complete, at the speed of the last minute; None: unknown."""
    waiting: str = ""
    """Why it does not go on; else empty."""

    def __str__(self) -> str:
        left = "" if self.left_s is None else f", about {self.left_s:,.0f} s left"
        left = f", {self.waiting}" if self.waiting else left
        text = (
            f"moving {counted(self.blocks_left, 'OPS block')} from {self.source or 'the spare blocks'} to "
            f"{self.target or 'the spare blocks'}: {100 * self.share_done:.0f}% done{left}"
        )
        if self.cost_s is None or self.saving_s is None:
            return text
        return (
            f"{text}; costs {self.cost_s:,.1f} s of device time and saves {self.saving_s:,.1f} s "
            "by the time the drive is overwritten once"
        )


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """One managed device in the status window."""

    name: str
    kind: str
    """`emulated` or `block`."""
    backend: str
    policy: str
    """OPS policy, or how weights are decided; empty if nothing is decided."""
    window_s: float
    iops: float | None = None
    capacity_iops: float | None = None
    """Maximum measured while VMs had waiting requests; None before that."""
    estimated_iops: float | None = None
    """Maximum of an emulated SSD, from its timing and present GC; None: unknown."""
    sum_min_iops: float = 0.0
    overcommitted: bool = False
    """Whether the minimums exceed the capacity of the device."""
    problem: str = ""
    """Why the device cannot be observed or controlled now; else empty."""
    reasons: tuple[str, ...] = ()
    """Recent decisions, oldest first."""
    waf: DeviceWaf | None = None
    """WAF of the device, with its source; None if there is no source."""
    placement: str = ""
    """Strongest placement of the drive, such as `separation by FDP`; empty if unknown."""
    share_by: str = ""
    """Unit of shares: pages, requests or device-time; empty if shares are not controlled."""
    move_budget: float | None = None
    """Share of the time of each die that moves of OPS may take while requests are outstanding."""
    moves: tuple[MoveStatus, ...] = ()


@dataclass(frozen=True, slots=True)
class HostStatus:
    """Status of the host at one time."""

    at: float
    """Seconds since 1970 (UTC)."""
    window_s: float
    """Window of IOPS, shares and percentiles."""
    epoch_s: float
    daemon_pid: int
    started_at: float
    config_problem: str
    """Why the configuration on disk is not in force; empty if it is."""
    devices: tuple[DeviceStatus, ...] = ()
    vms: tuple[VmStatus, ...] = ()
    groups: tuple[GroupStatus, ...] = ()
    notes: tuple[str, ...] = field(default=())
    """One sentence for each failure to observe or act."""
    epoch_cpu_ms: float = 0.0
    """CPU time of the last epoch."""


# Other replies of the daemon.


@dataclass(frozen=True, slots=True, kw_only=True)
class VmSlo(ResolvedSlo):
    """The SLO of a VM and its sources."""

    vm: str
    vm_set: SloFields = field(default_factory=dict)
    """Fields set by `slo-ctl vm set` or the API."""
    vm_set_class: str | None = None
    """Class set by `slo-ctl vm set` or the API; None: none."""
    vm_set_group: str | None = None
    """Group set by `slo-ctl vm set` or the API; None: none."""
    notes: tuple[str, ...] = ()
    """Warnings, such as minimums that exceed what a device can do."""


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """Present decision for one device."""

    device: str
    policy: str
    decided: tuple[str, ...]
    """One sentence for each move of OPS, limit or weight that the policy would change."""
    reasons: tuple[str, ...]
    has_ops: bool = True
    """Whether it has OPS that its policy could move."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Changes that the next epoch would make."""

    outcomes: tuple[Outcome, ...] = ()
    """Outcomes of all settings; those that would change are `planned`."""
    devices: tuple[DevicePlan, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Health:
    """Health of the daemon."""

    pid: int
    program_version: str
    started_at: float
    epochs: int
    """Completed epochs since the start."""
    missed_epochs: int
    """Epochs skipped because earlier ones took too long."""
    last_epoch_at: float | None
    """Seconds since 1970; None before the first epoch."""
    config_problem: str
