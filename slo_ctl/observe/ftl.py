"""Samples of an emulated SSD: its counters, window by window."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from slo_ctl.model import DeviceSample, FlashTiming, Slo, VmSample

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ftl_emul import Device

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

    @property
    def requests(self) -> int:
        """Requests of every kind completed."""
        return self.reads + self.writes + self.other_requests

    def since(self, earlier: VmReading) -> VmReading:
        """What happened between an earlier reading and this one."""
        differences = {
            f.name: getattr(self, f.name) - getattr(earlier, f.name)
            for f in fields(self)
            if f.name != "moved_pages_of"
        }
        moved = tuple(a - b for a, b in zip(self.moved_pages_of, earlier.moved_pages_of, strict=True))
        return VmReading(**differences, moved_pages_of=moved)


def read_vm(device: Device, tenant: int, *, clocked: bool) -> VmReading:
    """The counters of one tenant now; queue counters are 0 on a device without a clock."""
    flash = device.counters(tenant)
    queue = device.queue_counters(tenant) if clocked else None
    return VmReading(
        now_ns=device.now_ns,
        reads=queue.reads if queue else 0,
        writes=queue.writes if queue else 0,
        other_requests=queue.trims + queue.write_zeroes + queue.flushes if queue else 0,
        read_bytes=queue.read_bytes if queue else 0,
        write_bytes=queue.write_bytes if queue else 0,
        latency_ns=queue.latency_ns if queue else 0,
        throttled_ns=queue.throttled_ns if queue else 0,
        backlog_ns=queue.backlog_ns if queue else 0,
        host_page_writes=flash.host_page_writes,
        host_page_reads=flash.host_page_reads + flash.unmapped_page_reads,
        gc_page_writes=flash.gc_page_writes,
        victims=flash.victims,
        victim_valid_pages=flash.victim_valid_pages,
        moved_pages_of=tuple(flash.moved_pages_of),
    )


@dataclass(frozen=True, slots=True)
class Standing:
    """What is in force for a VM, besides its blocks."""

    slo: Slo
    running: bool
    limit_iops: float | None = None
    scheduler_weight: float = 1.0


class FtlObserver:
    """Turns the counters of an emulated SSD into samples, one window after the other."""

    def __init__(
        self,
        device: Device,
        tenants: Mapping[str, int],
        timing: FlashTiming,
        held_blocks: int,
        *,
        clocked: bool,
    ) -> None:
        """`held_blocks` of each tenant are kept free for GC and count as nobody's OPS."""
        self._device = device
        self._tenants = dict(tenants)
        self._timing = timing
        self._held_blocks = held_blocks
        self._clocked = clocked
        self._last = self.read()

    def read(self) -> dict[str, VmReading]:
        """The counters of every VM now."""
        return {vm: read_vm(self._device, t, clocked=self._clocked) for vm, t in self._tenants.items()}

    def sample(
        self, standings: Mapping[str, Standing], *, collections_as_move_budget: bool = False
    ) -> DeviceSample:
        """The window since the last sample. On request, GC runs in it bound the blocks that may move."""
        now = self.read()
        windows = {vm: reading.since(self._last[vm]) for vm, reading in now.items()}
        self._last = now
        budget = max(1, sum(w.victims for w in windows.values())) if collections_as_move_budget else None
        return DeviceSample(
            timing=self._timing,
            vms=tuple(self._vm(vm, standings[vm], window) for vm, window in windows.items()),
            max_move_blocks=budget,
        )

    def _vm(self, vm: str, standing: Standing, window: VmReading) -> VmSample:
        space = self._device.space(self._tenants[vm])
        length_ns = window.now_ns
        on_device_ns = max(0, window.latency_ns - window.throttled_ns)
        return VmSample(
            vm=vm,
            slo=standing.slo,
            active=standing.running or window.requests > 0,
            window_s=length_ns / _NS_PER_S,
            requests=window.requests,
            host_page_writes=window.host_page_writes,
            gc_page_writes=window.gc_page_writes,
            victim_pages=window.victims * self._timing.pages_per_block,
            victim_valid_pages=window.victim_valid_pages,
            logical_blocks=space.logical_blocks,
            ops_blocks=space.ops_blocks - self._held_blocks,
            min_ops_blocks=space.min_ops_blocks - self._held_blocks,
            limit_iops=standing.limit_iops,
            scheduler_weight=standing.scheduler_weight,
            host_page_reads=window.host_page_reads,
            outstanding=on_device_ns / length_ns if length_ns else None,
            backlog_share=min(1.0, window.backlog_ns / length_ns) if length_ns else 1.0,
            held_back=window.throttled_ns / length_ns if length_ns else None,
        )
