"""Samples of the activity of VMs, and the WAF of their drive, in a window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from slo_ctl.base.numbers import max_known
from slo_ctl.model.host import IoCounters
from slo_ctl.model.slo import Slo

# Flash of an emulated SSD.


class TimingModel(StrEnum):
    """Model of the time of a host page write."""

    PAPER = "paper"
    """t_gc = gc_write_ratio x t_prog (FAST'15, section 4.1)."""
    FULL = "full"
    """t_gc also pays the reads, the transfers (unless copied back) and the erase of every victim."""
    NONE = "none"
    """Count-only: no clock, so IOPS are unknown."""


class Placement(StrEnum):
    """Sharing of blocks between VMs."""

    SHARED = "shared"
    """One pool for all VMs: GC for one VM copies pages of others."""
    ISOLATED = "isolated"
    """Each VM has its own blocks, OPS and GC."""


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
    """Whether GC copies pages inside the die, without the channel."""

    @property
    def copy_us(self) -> float:
        """Time to copy one page; without copyback it crosses the channel twice."""
        return self.read_us + self.program_us + (0.0 if self.copyback else 2.0 * self.transfer_us)


class ShareBy(StrEnum):
    """Unit of shares."""

    PAGES = "pages"
    """Host pages read and written, close to IOPS normalised to 4 KiB."""
    REQUESTS = "requests"
    """Requests, whatever their size."""
    DEVICE_TIME = "device-time"
    """Die and channel time, garbage collection included."""

    def amount(self, pages: int, requests: int, device_s: float) -> float:
        """The argument that has this unit."""
        match self:
            case ShareBy.PAGES:
                return pages
            case ShareBy.REQUESTS:
                return requests
            case ShareBy.DEVICE_TIME:
                return device_s


def waf_of(host_page_writes: int, gc_page_writes: int) -> float | None:
    """(host + GC) / host page writes; None without host writes."""
    return (host_page_writes + gc_page_writes) / host_page_writes if host_page_writes else None


_NOT_COUNTED = IoCounters()
_NO_SLO = Slo()
_US_PER_S = 1e6


class VmSample(NamedTuple):
    """Activity of one VM on one device in one window: a control interval, or the window of the status.

    None: unknown.
    """

    vm: str
    """Name of the VM, or key of its stream on an emulated device."""
    window_s: float
    """Length of the window: 0 before the second reading, and in count-only mode. Modelled time on an emulated
    SSD with latency, else real time."""
    totals: IoCounters = _NOT_COUNTED
    """Counters at the end of the window."""
    iops: float | None = None
    """Completed requests per second."""
    bandwidth_bytes_s: float | None = None
    """Sum of reads and writes."""
    guest_iops: float | None = None
    """Requests of the guest as QEMU counts and limits them: before the kernel splits large ones, and without
    those of backing files and block jobs."""
    p99_read_us: float | None = None
    p99_write_us: float | None = None
    p99_window_s: float = 0.0
    """Window of the percentiles, if longer than this window."""
    slo: Slo = _NO_SLO
    """Set by `DeviceSample.with_slos`, because observers do not know SLOs."""
    active: bool = False
    """Whether the VM had requests in the window."""
    requests: int = 0
    """Requests of every kind completed in the window, on an emulated device."""
    host_page_reads: int = 0
    host_page_writes: int = 0
    gc_page_writes: int = 0
    """Pages, of any owner, that GC copied for this VM's writes."""
    victim_pages: int = 0
    """Pages of victim blocks that were collected for this VM's writes."""
    victim_valid_pages: int = 0
    """Valid pages among `victim_pages`."""
    size_bytes: int | None = None
    logical_blocks: int = 0
    """Blocks of the VM's logical size, rounded up."""
    ops_blocks: int = 0
    """Blocks that the VM owns beyond `logical_blocks`, without those that GC keeps free."""
    min_ops_blocks: int = 0
    """Minimum of OPS blocks with which GC always makes progress."""
    block_bytes: int = 0
    """Size of a block; 0: the device has no OPS, or it is not known."""
    limit_iops: float | None = None
    """Rate limit in force on the device; None: none."""
    scheduler_weight: float = 1.0
    outstanding: float | None = None
    """Mean number of requests in the device, without throttled ones."""
    throttled: float | None = None
    """Mean number of requests throttled by a rate limit."""
    device_s: float = 0.0
    """Die and channel time of this VM's requests, including GC."""
    queued_share: float = 1.0
    """Share of the window with a request waiting in the device's queue."""
    backlog_share: float = 1.0
    """Share of the window with a request in the device or throttled; below 1 the VM is partly idle."""

    @property
    def pages(self) -> int:
        """Host pages read and written."""
        return self.host_page_reads + self.host_page_writes

    def amount(self, share_by: ShareBy) -> float:
        """Work delivered to the VM in the window, in the unit of shares."""
        return share_by.amount(self.pages, self.requests, self.device_s)

    @property
    def p99_us(self) -> float | None:
        """The worse one of reads and writes."""
        return max_known((self.p99_read_us, self.p99_write_us))

    @property
    def throttle_wait_us(self) -> float | None:
        """Mean time that a request was throttled by a limit."""
        if self.throttled is None or not self.requests:
            return None
        return self.throttled * self.window_s * _US_PER_S / self.requests

    @property
    def u(self) -> float | None:
        """Utilization of victim blocks; None if GC collected none in the window."""
        return self.victim_valid_pages / self.victim_pages if self.victim_pages else None

    @property
    def waf(self) -> float | None:
        """Write amplification; None without host writes."""
        return waf_of(self.host_page_writes, self.gc_page_writes)

    @property
    def ops_bytes(self) -> int | None:
        return self.ops_blocks * self.block_bytes if self.block_bytes else None

    @property
    def ops_share(self) -> float | None:
        """OPS / logical size."""
        return self.ops_bytes / self.size_bytes if self.ops_bytes is not None and self.size_bytes else None


@dataclass(frozen=True, slots=True)
class DeviceSample:
    """Samples of all VMs on one device in one window, in a stable order."""

    timing: FlashTiming
    vms: tuple[VmSample, ...]
    spare_blocks: int = 0
    """Blocks that belong to no VM."""
    share_by: ShareBy = ShareBy.PAGES

    def with_slos(self, slos: Mapping[str, Slo]) -> DeviceSample:
        """The sample with the SLO of each VM; streams without one belong to no VM and become inactive."""
        vms = tuple(
            vm._replace(slo=slos[vm.vm]) if vm.vm in slos else vm._replace(active=False) for vm in self.vms
        )
        return replace(self, vms=vms)

    @property
    def total_ops_blocks(self) -> int:
        """OPS of all VMs and spare blocks."""
        return self.spare_blocks + sum(v.ops_blocks for v in self.vms)


# The WAF of a whole drive.


class WafSource(StrEnum):
    """Source of a device's WAF, best first."""

    FTL = "emulated FTL"
    FDP = "FDP statistics"
    ENDURANCE_GROUP = "endurance group log"
    OCP = "OCP C0h log"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class MediaCounters:
    """Lifetime counters of bytes written, from one source at one time."""

    source: WafSource
    at_s: float
    """Time of a monotonic clock."""
    host_bytes: int
    media_bytes: int


@dataclass(frozen=True, slots=True)
class DeviceWaf:
    """WAF of a whole drive or endurance group, never of one VM. `waf` is media over host bytes written."""

    source: WafSource = WafSource.NONE
    waf: float | None = None
    """WAF; None: unknown, see `reason`."""
    uncertainty: float | None = None
    """Maximum error caused by the resolution of the counters."""
    window_s: float = 0.0
    """Length of the window of `waf`."""
    host_bytes: int = 0
    """Bytes written by hosts in the window."""
    resolution_bytes: int | None = None
    """Bytes per count of the coarser counter."""
    scope: str = ""
    """What the counters cover, such as `endurance group 1 of nvme0`."""
    emulated: bool = False
    """Whether the counters come from an emulator."""
    reason: str = ""
    """Why the WAF is unknown, or why better sources are not used."""
