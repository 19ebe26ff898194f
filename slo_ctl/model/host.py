"""VMs on a host, their disks, and their I/O streams."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class VmState(StrEnum):
    """State of a VM, in libvirt's words."""

    RUNNING = "running"
    BLOCKED = "blocked"
    PAUSED = "paused"
    SHUTTING_DOWN = "shutting down"
    SHUT_OFF = "shut off"
    CRASHED = "crashed"
    SUSPENDED = "suspended"
    UNKNOWN = "unknown"
    """Not known: a VM found only by its cgroup."""

    @property
    def is_off(self) -> bool:
        """Whether a VM in this state has no processes."""
        return self in {VmState.SHUT_OFF, VmState.CRASHED}

    @property
    def may_do_io(self) -> bool:
        """Whether a VM in this state can make requests."""
        return not (self.is_off or self in {VmState.PAUSED, VmState.SUSPENDED})


class FoundBy(StrEnum):
    """How a VM was found."""

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
    """Type of the source, in libvirt's words: `file`, `block`, `network`, `vhostuser`, ..."""
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
class LatencyCounts:
    """How long requests of one kind took since some time, counted between bounds."""

    bounds_s: tuple[float, ...]
    """Empty: only the number of requests and their mean are known."""
    counts: tuple[int, ...]
    """One more than there are bounds: the last is of what took longer than all of them."""
    sum_s: float


@dataclass(frozen=True, slots=True)
class IoCounters:
    """I/O on one device since the cgroup was created or the device was served. None: not counted there."""

    read_bytes: int | None = None
    written_bytes: int | None = None
    reads: int | None = None
    writes: int | None = None
    discarded_bytes: int | None = None
    discards: int | None = None
    cost_usage_us: int | None = None
    """Device time as io.cost models it."""
    host_page_writes: int | None = None
    gc_page_writes: int | None = None
    read_latency: LatencyCounts | None = None
    write_latency: LatencyCounts | None = None


@dataclass(frozen=True, slots=True, order=True)
class Tenant:
    """A stream as the flash sees it: a namespace of an emulated SSD."""

    device: str
    namespace: str

    def __str__(self) -> str:
        return f"{self.device}/{self.namespace}"


@dataclass(frozen=True, slots=True)
class Stream:
    """I/O that can be distinguished: one VM's, on one disk, through one cgroup, on one device."""

    vm: str
    disk: Disk | None
    """None: the cgroup did I/O on a device that is behind no known disk."""
    cgroup: str | None
    device: DeviceNumber | None
    counters: IoCounters | None = None
    """Counters of the cgroup on the device, shared by a VM's disks there. None: no I/O was counted."""
    tenant: Tenant | None = None
    """The namespace of an emulated SSD that it is stored on."""


@dataclass(frozen=True, slots=True)
class DiskLatency:
    """Latencies of the requests to one disk of a VM since it was started, as QEMU counts them."""

    reads: LatencyCounts
    writes: LatencyCounts


# What a host's kernel can do for the I/O of cgroups, device by device.


@dataclass(frozen=True, slots=True)
class WeightScale:
    """The weights a mechanism takes: whole numbers, shares in proportion to them."""

    mechanism: str
    """`bfq`, `io.cost` or `cfq`."""
    knob: str
    """Name of the Knob: `weight`, or `cost_weight` for io.cost's."""
    low: int
    high: int


BFQ = WeightScale("bfq", "weight", 1, 1000)
CFQ = WeightScale("cfq", "weight", 10, 1000)
IO_COST = WeightScale("io.cost", "cost_weight", 1, 10_000)


@dataclass(frozen=True, slots=True)
class BlockCapability:
    """Weights, limits and latency targets that one block device supports."""

    device: DeviceNumber
    name: str
    """The kernel's, such as `sda`; empty when it is not there."""
    weights: WeightScale | None
    """Mechanism that shares the device in proportion to weights, if any."""
    limits: bool
    """IOPS and bytes can be limited."""
    problem: str = ""
    """Why there are no weights, and what would give them; empty otherwise."""
    latency: bool = False
    """A cgroup can have a latency target there, for which its neighbours are slowed down."""
    cautions: tuple[str, ...] = ()
    """Reasons why shares are inexact there, one sentence each with the fix."""
    limit_step_iops: float = 10.0
    """Limits on IOPS act in such steps: the kernel grants whole requests in each slice of time."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Features of one host."""

    cgroup_version: int | None
    """None: no cgroup tree with block I/O."""
    devices: dict[DeviceNumber, BlockCapability] = field(default_factory=dict)
    systemd: bool = False
    """systemd runs and sets what cgroups of its units have: what is written past it, it may overwrite."""
