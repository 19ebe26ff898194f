"""VMs on a host, their disks, and their I/O streams."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple


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
    """State of a VM that was found only by its cgroup."""

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
    """By a cgroup with a name as libvirt gives it."""
    OPTION = "option"
    """By a cgroup in the configuration or an option."""


class DeviceNumber(NamedTuple):
    """Major and minor number of a block device; a tuple, as it is a key of many mappings."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}:{self.minor}"


_DEVICE_NUMBER = re.compile(r"(\d{1,7}):(\d{1,7})", re.ASCII)


@lru_cache(maxsize=4096)
def parse_device_number(text: str) -> DeviceNumber | None:
    """The number in a string such as `8:0`; None if it is not one."""
    match = _DEVICE_NUMBER.fullmatch(text)
    return DeviceNumber(int(match[1]), int(match[2])) if match else None


@dataclass(frozen=True, slots=True)
class Disk:
    """A disk of a VM, and its source on the host."""

    target: str
    """Name in the guest's bus order, such as `vda`; unique within the VM."""
    kind: str
    """Type of the source, in libvirt's words: `file`, `block`, `network`, `vhostuser`, ..."""
    source: str | None = None
    """Path or URI; None for an empty drive."""
    device: DeviceNumber | None = None
    """Block device of the host that does its I/O; None if there is none or it is unknown."""
    copy: str | None = None
    """Path that a block job of libvirt copies it to, such as a storage migration; None without one."""
    copy_device: DeviceNumber | None = None
    """Block device of the copy; None if there is none or it is unknown."""
    below: tuple[DeviceNumber, ...] = ()
    """Devices that `device` is built on (LVM and other device mapper, RAID, loop), at all levels."""
    copy_below: tuple[DeviceNumber, ...] = ()
    """Devices that `copy_device` is built on."""

    @property
    def devices(self) -> tuple[DeviceNumber, ...]:
        """All block devices that its requests pass: each counts, shares and limits them for itself."""
        return () if self.device is None else (self.device, *self.below)

    @property
    def copy_devices(self) -> tuple[DeviceNumber, ...]:
        """All block devices that requests of its copy pass."""
        return () if self.copy_device is None else (self.copy_device, *self.copy_below)


@dataclass(frozen=True, slots=True)
class Vm:
    """A virtual machine of this host, or a cgroup that is configured as one."""

    name: str
    found_by: FoundBy
    state: VmState = VmState.UNKNOWN
    uuid: str | None = None
    libvirt_id: int | None = None
    """Number of this run of the VM; None while it is shut off or unknown."""
    cgroup: str | None = None
    """Cgroup with all its processes, as in /proc/PID/cgroup; None if unknown."""
    disks: tuple[Disk, ...] = ()
    resumed: bool = False
    """Whether it was or is being restored from a file or migrated to this host, and was not paused by a user
    since: its limits and weight may be those of its earlier run."""


class LatencyCounts(NamedTuple):
    """Histogram of latencies of reads or writes, cumulative since some time."""

    bounds_s: tuple[float, ...]
    """Bounds of the bins; empty: only the number of requests and their mean are known."""
    counts: tuple[int, ...]
    """Requests by bin; one more than bounds, the last for latencies above all bounds."""
    sum_s: float


class IoCounters(NamedTuple):
    """Counters of I/O on one device since the cgroup was created or the device was served.

    None: not counted.
    """

    read_bytes: int | None = None
    written_bytes: int | None = None
    reads: int | None = None
    writes: int | None = None
    discarded_bytes: int | None = None
    discards: int | None = None
    cost_usage_us: int | None = None
    """Device time according to the model of io.cost."""
    host_page_writes: int | None = None
    gc_page_writes: int | None = None
    read_latency: LatencyCounts | None = None
    write_latency: LatencyCounts | None = None


class Tenant(NamedTuple):
    """A namespace of an emulated SSD."""

    device: str
    namespace: str

    def __str__(self) -> str:
        return f"{self.device}/{self.namespace}"


class Stream(NamedTuple):
    """I/O of one VM, on one disk, through one cgroup, on one device."""

    vm: str
    disk: Disk | None
    """None: I/O of the cgroup on a device that no known disk uses."""
    cgroup: str | None
    device: DeviceNumber | None
    counters: IoCounters | None = None
    """Counters of the cgroup on the device, which all disks of the VM on it share; None: no I/O."""
    tenant: Tenant | None = None
    """Namespace of an emulated SSD behind the disk; None for other disks."""


@dataclass(frozen=True, slots=True)
class DiskLatency:
    """Latencies of one disk of a VM since its start, as counted by QEMU."""

    reads: LatencyCounts
    writes: LatencyCounts


# Features of the host's kernel for the I/O of cgroups, by device.


@dataclass(frozen=True, slots=True)
class WeightScale:
    """Range of the weights of a mechanism, which are whole numbers."""

    mechanism: str
    """`bfq`, `io.cost` or `cfq`."""
    knob: str
    """Name of the Knob: `weight`, or `cost_weight` for io.cost."""
    low: int
    high: int

    def nearest(self, weight: float) -> float:
        """The weight of the range that is nearest to `weight`."""
        return float(min(self.high, max(self.low, round(weight))))


BFQ = WeightScale("bfq", "weight", 1, 1000)
CFQ = WeightScale("cfq", "weight", 10, 1000)
IO_COST = WeightScale("io.cost", "cost_weight", 1, 10_000)
DEFAULT_WEIGHT = 100.0
"""The kernel's weight of a cgroup, on every scale."""


@dataclass(frozen=True, slots=True)
class BlockCapability:
    """Weights, limits and latency targets that one block device supports."""

    device: DeviceNumber
    name: str
    """Kernel name, such as `sda`; empty if the device does not exist."""
    weights: WeightScale | None
    """Mechanism for weights; None: none is active."""
    limits: bool
    """Whether IOPS and bandwidth can be limited."""
    problem: str = ""
    """Why there are no weights, and how to enable them; else empty."""
    latency: bool = False
    """Whether cgroups can have latency targets (io.latency), for which others are throttled."""
    cautions: tuple[str, ...] = ()
    """One sentence for each reason why shares are inexact, with the fix."""
    limit_step_iops: float = 10.0
    """Resolution of IOPS limits: the kernel admits whole requests in each time slice."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Features of one host."""

    cgroup_version: int | None
    """None: no cgroup hierarchy with block I/O."""
    devices: dict[DeviceNumber, BlockCapability] = field(default_factory=dict)
    systemd: bool = False
    """Whether systemd manages the cgroups of its units, so that it may overwrite direct writes."""
