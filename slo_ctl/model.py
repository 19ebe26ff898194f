"""The nouns everything else speaks of: VMs and their streams, SLOs, samples, decisions.

Data only: nothing in here performs I/O or reads a clock. Observers produce samples, `slo_ctl.decide` turns
them into decisions, actuators carry the decisions out, `slo_ctl.show` prints all three.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class TimingModel(StrEnum):
    """What a host page write costs on flash."""

    PAPER = "paper"
    """t_gc = gc_write_ratio x t_prog (FAST'15, section 4.1)."""
    FULL = "full"
    """t_gc also pays the reads, the transfers (unless copied back) and the erase of every victim."""
    NONE = "none"
    """Count-only: no clock; IOPS are not known."""


class Placement(StrEnum):
    """Whose pages share a block."""

    SHARED = "shared"
    """One pool for all: GC of one VM moves pages of the others."""
    ISOLATED = "isolated"
    """Every VM owns its blocks, its OPS and its GC."""


class VmState(StrEnum):
    """What a VM is doing, in libvirt's words."""

    RUNNING = "running"
    BLOCKED = "blocked"
    PAUSED = "paused"
    SHUTTING_DOWN = "shutting down"
    SHUT_OFF = "shut off"
    CRASHED = "crashed"
    SUSPENDED = "suspended"
    UNKNOWN = "unknown"
    """Nobody tells: a VM known only by its cgroup."""


class FoundBy(StrEnum):
    """Who says that there is a VM."""

    LIBVIRT = "libvirt"
    CGROUP_NAME = "cgroup name"
    """A cgroup is named as libvirt names those of its VMs."""
    OPTION = "option"
    """The operator named the cgroup."""


@dataclass(frozen=True, slots=True, order=True)
class DeviceNumber:
    """A block device as the kernel's I/O accounting names it."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}:{self.minor}"


@dataclass(frozen=True, slots=True)
class Disk:
    """A disk as the guest sees it, and what is behind it."""

    target: str
    """Name in the guest's bus order, such as `vda`; unique within the VM."""
    kind: str
    """What is behind it, in libvirt's words: `file`, `block`, `network`, `vhostuser`, ..."""
    source: str | None = None
    """Path or URI; None for an empty drive."""
    device: DeviceNumber | None = None
    """The host's block device that is charged for its I/O; None when there is none or it is not known."""


@dataclass(frozen=True, slots=True)
class Vm:
    """A virtual machine of this host, or what the operator wants treated as one."""

    name: str
    found_by: FoundBy
    state: VmState = VmState.UNKNOWN
    uuid: str | None = None
    libvirt_id: int | None = None
    """Number of this run of the VM; None while it is shut off or unknown."""
    cgroup: str | None = None
    """The group with all of its processes, as in /proc/PID/cgroup; None when it has none."""
    disks: tuple[Disk, ...] = ()


@dataclass(frozen=True, slots=True)
class IoCounters:
    """What a cgroup did on one device since the group was made. None: this kernel does not count that."""

    read_bytes: int | None = None
    written_bytes: int | None = None
    reads: int | None = None
    writes: int | None = None
    discarded_bytes: int | None = None
    discards: int | None = None
    cost_usage_us: int | None = None
    """Device time as io.cost models it."""


@dataclass(frozen=True, slots=True)
class Stream:
    """I/O that can be told apart: one VM's, on one disk, through one cgroup, on one device."""

    vm: str
    disk: Disk | None
    """None: the cgroup did I/O on a device that is behind no known disk."""
    cgroup: str | None
    device: DeviceNumber | None
    counters: IoCounters | None = None
    """Of the cgroup on the device, so shared by a VM's disks on one device. None: no I/O was counted."""
    tenant: int | None = None
    """On an emulated SSD, whose namespace it is."""


@dataclass(frozen=True, slots=True)
class FlashTiming:
    """Latencies of one die and its channel, in microseconds."""

    pages_per_block: int
    read_us: float
    program_us: float
    erase_us: float
    transfer_us: float
    model: TimingModel = TimingModel.FULL
    copyback: bool = True
    """GC copies stay inside the die and need no transfer over the channel."""


@dataclass(frozen=True, slots=True)
class Slo:
    """What one VM was promised. Bounds are absent when None."""

    weight: float = 1.0
    min_iops: float | None = None
    max_iops: float | None = None
    max_bandwidth_bytes_s: float | None = None
    p99_latency_us: float | None = None


@dataclass(frozen=True, slots=True)
class VmSample:
    """What one VM did on one device during one window."""

    vm: str
    slo: Slo
    active: bool
    """The VM had requests outstanding or arriving during the window."""
    window_s: float
    """Length of the window (virtual or real time; 0 in count-only mode)."""
    requests: int
    """Requests of every kind completed in the window."""
    host_page_writes: int
    gc_page_writes: int
    """Pages copied by GC while serving this VM's writes (whoever owned them)."""
    victim_pages: int
    """Pages, valid or not, of the victim blocks collected while serving this VM."""
    victim_valid_pages: int
    """Of those, the pages still valid; victim_valid_pages / victim_pages is u."""
    logical_blocks: int
    """Blocks that the VM's logical size fills (rounded up)."""
    ops_blocks: int
    """Blocks the VM owns beyond logical_blocks."""
    min_ops_blocks: int
    """The fewest OPS blocks with which GC is sure to make progress."""
    limit_iops: float | None = None
    """Rate limit in force on the device's queue of this VM."""
    scheduler_weight: float = 1.0
    host_page_reads: int = 0
    outstanding: float | None = None
    """Mean number of requests on the device, without those a rate limit holds back; None: not measured."""
    backlog_share: float = 1.0
    """Share of the window with a request on the device or held back; below 1 the VM asks for less."""

    @property
    def iops(self) -> float:
        """Completed requests per second; 0 when the window has no length."""
        return self.requests / self.window_s if self.window_s > 0 else 0.0

    @property
    def u(self) -> float | None:
        """Utilization of victim blocks; None when GC collected none in the window."""
        return self.victim_valid_pages / self.victim_pages if self.victim_pages else None

    @property
    def waf(self) -> float | None:
        """(host + GC) / host page writes; None without host writes."""
        if self.host_page_writes == 0:
            return None
        return (self.host_page_writes + self.gc_page_writes) / self.host_page_writes

    @property
    def gc_write_ratio(self) -> float | None:
        """GC page writes per host page write, the paper's "WAF(u)" (equation 2)."""
        return self.gc_page_writes / self.host_page_writes if self.host_page_writes else None


@dataclass(frozen=True, slots=True)
class DeviceSample:
    """One window of one device: every VM on it, in a stable order."""

    timing: FlashTiming
    vms: tuple[VmSample, ...]
    spare_blocks: int = 0
    """Blocks that belong to no VM and may be given to one."""
    max_move_blocks: int | None = None

    @property
    def total_ops_blocks(self) -> int:
        """OPS over all VMs plus what is unassigned."""
        return self.spare_blocks + sum(v.ops_blocks for v in self.vms)


@dataclass(frozen=True, slots=True)
class OpsMove:
    """Give `blocks` OPS blocks of `source` to `target`; None as an end is the device's unassigned spare."""

    source: str | None
    target: str | None
    blocks: int


@dataclass(frozen=True, slots=True)
class Target:
    """What an SLO means right now, given who is active and what the device can do."""

    share: float
    """Of the device's total IOPS, 0..1; 0 for an idle VM."""
    iops: float | None = None
    """None where no clock gives IOPS."""
    u: float | None = None
    ops_blocks: int | None = None
    """OPS the target is expected to need."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What should change. Empty means: leave everything as it is."""

    moves: tuple[OpsMove, ...] = ()
    limits_iops: dict[str, float | None] = field(default_factory=dict)
    """New rate limits; None lifts a limit; VMs not named keep theirs."""
    scheduler_weights: dict[str, float] = field(default_factory=dict)
    targets: dict[str, Target] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    """One plain sentence per thing that was decided, for status, history and logs."""
