"""Samples of an emulated SSD: its counters, window by window."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slo_ctl.model import DeviceSample
from slo_ctl.observe.vm_reading import Blocks, Standing, VmReading, vm_sample

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ftl_emul import Device
    from slo_ctl.model import FlashTiming, VmSample

__all__ = ["FtlObserver", "Standing", "VmReading", "read_vm"]


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
        device_ns=queue.device_ns if queue else 0,
        queued_ns=queue.queued_ns if queue else 0,
        host_page_writes=flash.host_page_writes,
        host_page_reads=flash.host_page_reads + flash.unmapped_page_reads,
        gc_page_writes=flash.gc_page_writes,
        victims=flash.victims,
        victim_valid_pages=flash.victim_valid_pages,
        moved_pages_of=tuple(flash.moved_pages_of),
        switch_merges=flash.switch_merges,
        partial_merges=flash.partial_merges,
        full_merges=flash.full_merges,
        merged_blocks=flash.merged_blocks,
        switch_merge_ns=flash.switch_merge_ns,
        partial_merge_ns=flash.partial_merge_ns,
        full_merge_ns=flash.full_merge_ns,
    )


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
        blocks = Blocks(
            logical=space.logical_blocks,
            ops=space.ops_blocks - self._held_blocks,
            min_ops=space.min_ops_blocks - self._held_blocks,
        )
        return vm_sample(
            vm, standing, window, blocks, self._timing.pages_per_block, p99_us=self._p99_us(vm, standing)
        )

    def _p99_us(self, vm: str, standing: Standing) -> float | None:
        """Over the window, of a VM that has a p99 to keep."""
        if not self._clocked or standing.slo.p99_latency_us is None:
            return None
        recent = self._device.take_recent_latency_us(self._tenants[vm], [99.0])
        return max([*recent.read, *recent.write], default=None)
