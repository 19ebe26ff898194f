"""Interface between policies and an emulated drive in this process: samples and decisions."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ftl_emul import Device, DriveError
from slo_ctl.model.decision import Decision, OpsMove
from slo_ctl.model.sample import DeviceSample, FlashTiming, VmSample
from slo_ctl.model.slo import Slo
from slo_ctl.observe.ssd import Blocks, VmReading, vm_sample


class PlayedDrive:
    """Samples the windows of a drive and applies decisions to it."""

    def __init__(
        self,
        device: Device,
        tenants: Mapping[str, int],
        timing: FlashTiming,
        held_blocks: int,
        *,
        clocked: bool,
    ) -> None:
        """`tenants`: numbers by VM; `held_blocks`: blocks of each that GC keeps free, which are not OPS."""
        self._device = device
        self._tenants = dict(tenants)
        self._timing = timing
        self._held_blocks = held_blocks
        self._clocked = clocked
        self.limits_iops: dict[str, float | None] = dict.fromkeys(tenants)
        self._scheduler_weights: dict[str, float] = dict.fromkeys(tenants, 1.0)
        self._last = self.read()

    def read(self) -> dict[str, VmReading]:
        """Present counters of every VM."""
        return {vm: reading_of(self._device, t, clocked=self._clocked) for vm, t in self._tenants.items()}

    def sample(self, slos: Mapping[str, Slo], running: Collection[str]) -> DeviceSample:
        """Sample of the window since the last sample."""
        now, last = self.read(), self._last
        self._last = now
        vms = tuple(
            self._vm(
                *(vm, reading.since(last[vm]), slos[vm]),
                running=vm in running,
                with_p99=self._clocked and slos[vm].p99_latency_us is not None,
            )
            for vm, reading in now.items()
        )
        return DeviceSample(timing=self._timing, vms=vms)

    def _vm(self, vm: str, window: VmReading, slo: Slo, *, running: bool, with_p99: bool) -> VmSample:
        space = self._device.space(self._tenants[vm])
        blocks = Blocks(
            logical=space.logical_blocks,
            ops=space.ops_blocks - self._held_blocks,
            min_ops=space.min_ops_blocks - self._held_blocks,
        )
        return vm_sample(
            *(vm, window, blocks, self._timing.pages_per_block),
            active=running or window.requests > 0,
            limit_iops=self.limits_iops[vm],
            scheduler_weight=self._scheduler_weights[vm],
            p99_us=self._p99_us(vm) if with_p99 else None,
            slo=slo,
        )

    def _p99_us(self, vm: str) -> float | None:
        recent = self._device.take_recent_latency_us(self._tenants[vm], [99.0])
        return max([*recent.read, *recent.write], default=None)

    def apply(self, decision: Decision) -> list[str]:
        """Apply a decision; returns a sentence for each part that the device refused."""
        refusals = self._move(decision.moves)
        if not self._clocked:
            return refusals
        for vm, limit in decision.limits_iops.items():
            self._device.set_limit(self._tenants[vm], iops=limit)
            self.limits_iops[vm] = limit
        for vm, weight in decision.scheduler_weights.items():
            self._device.set_weight(self._tenants[vm], weight)
            self._scheduler_weights[vm] = weight
        return refusals

    def _move(self, moves: tuple[OpsMove, ...]) -> list[str]:
        # While earlier moves are pending, the sample for this decision does not include their result.
        if not moves or self._device.advance_moves(0).pending_blocks:
            return []
        refusals = []
        for move in moves:
            ends = [None if vm is None else self._tenants[vm] for vm in (move.source, move.target)]
            try:
                self._device.request_move(ends[0], ends[1], move.blocks)
            except DriveError as error:
                refusals.append(f"unapplied: {move}: {error}")
        return refusals

    def finish_moves(self) -> None:
        """Complete all moves, with the garbage collection that they need."""
        while self._device.advance_moves(1024).gc_passes:
            pass


def reading_of(device: Device, tenant: int, *, clocked: bool) -> VmReading:
    """Present counters of one tenant; queue counters are 0 on a device without a clock."""
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
