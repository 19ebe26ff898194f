"""From counters of one VM on an emulated SSD to its sample: the arithmetic, wherever they come from."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from slo_ctl.model import ShareBy, VmSample

if TYPE_CHECKING:
    from slo_ctl.model import Slo

_NS_PER_S = 1e9


@dataclass(frozen=True, slots=True)
class VmReading:
    """Counters of one VM, at one moment or, as a difference, over a window. Times in nanoseconds."""

    now_ns: int
    reads: int
    writes: int
    other_requests: int
    read_bytes: int
    write_bytes: int
    latency_ns: int
    throttled_ns: int
    backlog_ns: int
    host_page_writes: int
    host_page_reads: int
    gc_page_writes: int
    victims: int
    victim_valid_pages: int
    moved_pages_of: tuple[int, ...]
    """Pages moved while serving this VM, by the tenant number of their owner."""
    switch_merges: int = 0
    """Merges caused by this VM, on mappings with log blocks (docs/mappings.md)."""
    partial_merges: int = 0
    full_merges: int = 0
    merged_blocks: int = 0
    """Logical blocks of full merges."""
    switch_merge_ns: int = 0
    """Time of dies and channels; 0 without a clock."""
    partial_merge_ns: int = 0
    full_merge_ns: int = 0
    device_ns: int = 0
    """Die and channel time spent on this VM's requests, garbage collection included."""
    queued_ns: int = 0
    """Time with a request waiting for its turn in the device's queue."""

    @property
    def requests(self) -> int:
        """Requests of every kind completed."""
        return self.reads + self.writes + self.other_requests

    @property
    def pages(self) -> int:
        """Host pages read and written."""
        return self.host_page_reads + self.host_page_writes

    def amount(self, share_by: ShareBy) -> float:
        """What the VM got, in the unit of shares."""
        return share_by.amount(self.pages, self.requests, self.device_ns / _NS_PER_S)

    def went_back(self, earlier: VmReading) -> bool:
        """Whether anything was less than in an earlier reading: these are other counters."""
        if len(self.moved_pages_of) != len(earlier.moved_pages_of):
            return True
        return any(
            getattr(self, f.name) < getattr(earlier, f.name)
            for f in fields(self)
            if f.name != "moved_pages_of"
        )

    def since(self, earlier: VmReading) -> VmReading:
        """What happened between an earlier reading and this one."""
        differences = {
            f.name: getattr(self, f.name) - getattr(earlier, f.name)
            for f in fields(self)
            if f.name != "moved_pages_of"
        }
        moved = tuple(a - b for a, b in zip(self.moved_pages_of, earlier.moved_pages_of, strict=True))
        return VmReading(**differences, moved_pages_of=moved)


@dataclass(frozen=True, slots=True)
class Standing:
    """What is in force for a VM, besides its blocks."""

    slo: Slo
    running: bool
    limit_iops: float | None = None
    scheduler_weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Blocks:
    """What a VM owns of the flash, in blocks. OPS without those that are kept free for GC."""

    logical: int
    ops: int
    min_ops: int


def vm_sample(
    vm: str,
    standing: Standing,
    window: VmReading,
    blocks: Blocks,
    pages_per_block: int,
    *,
    queued: bool = True,
    active: bool | None = None,
    p99_us: float | None = None,
    p99_window_s: float = 0.0,
) -> VmSample:
    """The sample of a window, which is a difference of two readings.

    Not `queued`: the device has no queue of its own to measure. `active` is by default whether the VM runs or
    had a request completed.
    """
    length_ns = window.now_ns
    on_device_ns = max(0, window.latency_ns - window.throttled_ns)
    measured = bool(length_ns) and queued
    return VmSample(
        vm=vm,
        slo=standing.slo,
        active=standing.running or window.requests > 0 if active is None else active,
        window_s=length_ns / _NS_PER_S,
        requests=window.requests,
        host_page_writes=window.host_page_writes,
        gc_page_writes=window.gc_page_writes,
        victim_pages=window.victims * pages_per_block,
        victim_valid_pages=window.victim_valid_pages,
        logical_blocks=blocks.logical,
        ops_blocks=blocks.ops,
        min_ops_blocks=blocks.min_ops,
        limit_iops=standing.limit_iops,
        scheduler_weight=standing.scheduler_weight,
        host_page_reads=window.host_page_reads,
        outstanding=on_device_ns / length_ns if measured else None,
        backlog_share=min(1.0, window.backlog_ns / length_ns) if measured else 1.0,
        held_back=window.throttled_ns / length_ns if measured else None,
        p99_us=p99_us,
        p99_window_s=p99_window_s,
        device_s=window.device_ns / _NS_PER_S,
        queued_share=min(1.0, window.queued_ns / length_ns) if measured else 1.0,
    )
