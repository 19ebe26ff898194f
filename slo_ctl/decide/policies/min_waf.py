"""`min_waf`: OPS goes where one more block saves most GC writes, for the write rates there are.

OPS then no longer sets the shares; the device's scheduler must. It is given weight x device time per
request, so that one that is fair by device time yields IOPS in proportion to the weights: the same shares
at a higher total.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from slo_ctl.decide import gc_model
from slo_ctl.decide.gc_model import GcCurve, Writer, best_split
from slo_ctl.decide.ops_plan import allocate, moves_between
from slo_ctl.decide.policies.interface import without_pacing
from slo_ctl.model import Decision, DeviceSample, FlashTiming, OpsMove, Placement, TimingModel, VmSample

_WORTH_MOVING = 0.003
"""Part of all GC writes that a correction is expected to save at least."""
_SETTLED_POOL_SHARE = 0.5
"""u of a VM is measured once it has written this part of the pages it owns since its OPS changed."""
_GAIN = 0.7
"""Part of the way to the best split that a plan goes: curves are refitted where it ends."""
_RATE_MEMORY_SAMPLES = 8.0
"""Rates and u are averages over this many windows."""
_WRITES_FROM = 0.02
"""Part of all writes from which on a VM's u has to be settled."""
_WORTH_RESCHEDULING = 0.02
"""Relative change of a weight from which on weights are set."""


@dataclass(frozen=True, slots=True)
class WriterTrack:
    """State of one VM. Pages are per window, averaged over the last few."""

    curve: GcCurve
    ops_blocks: int
    host_page_writes: float = 0.0
    host_page_reads: float = 0.0
    requests: float = 0.0
    victim_pages: float = 0.0
    """Since the last move settled."""
    victim_valid_pages: float = 0.0
    written_pool_share: float = 1.0
    """Pages written since the last move, relative to the pages owned."""


@dataclass(frozen=True, slots=True)
class MinWafState:
    """All that is remembered between windows."""

    tracks: dict[str, WriterTrack]
    plan: dict[str, int] = field(default_factory=dict)
    """OPS blocks per VM to arrive at; empty when nothing is under way."""


@dataclass(frozen=True, slots=True)
class MinWaf:
    """Minimises the device's GC writes."""

    name: str = "min_waf"
    placement: Placement = Placement.ISOLATED

    def start(self, sample: DeviceSample) -> tuple[MinWafState, Decision]:
        """Split as if VMs wrote in proportion to their weights; ValueError when the minimums exceed OPS."""
        tracks = {v.vm: _observe(None, v, sample.timing) for v in sample.vms}
        plan = _best({v.vm: v.slo.weight if v.active else 0.0 for v in sample.vms}, tracks, sample)
        return MinWafState(tracks, plan), Decision(moves=_moves(plan, sample), reasons=("initial split",))

    def resume(self, sample: DeviceSample) -> tuple[MinWafState, Decision]:
        """Keep the split and the scheduler's weights; limits of another policy are lifted."""
        tracks = {v.vm: _observe(None, v, sample.timing) for v in sample.vms}
        weights = {v.vm: v.scheduler_weight for v in sample.vms if v.active}
        return MinWafState(tracks), Decision(limits_iops=without_pacing(sample), scheduler_weights=weights)

    def step(self, state: MinWafState, sample: DeviceSample) -> tuple[MinWafState, Decision]:
        """Refit, and move blocks when that saves a noticeable part of the GC writes."""
        tracks = {v.vm: _observe(state.tracks.get(v.vm), v, sample.timing) for v in sample.vms}
        newcomers = tracks.keys() != state.tracks.keys()
        plan, reasons = _plan(state.plan, tracks, sample, newcomers)
        decision = Decision(
            moves=_moves(plan, sample),
            scheduler_weights=_scheduler_weights(tracks, sample),
            reasons=reasons,
        )
        return MinWafState(tracks, plan), decision


def _observe(track: WriterTrack | None, vm: VmSample, timing: FlashTiming) -> WriterTrack:
    if track is None or track.curve.logical_blocks != vm.logical_blocks:
        curve = GcCurve.prior(vm.logical_blocks, timing.pages_per_block).fit(vm.ops_blocks, vm.u)
        return WriterTrack(
            curve,
            vm.ops_blocks,
            vm.host_page_writes,
            vm.host_page_reads,
            vm.requests,
            victim_pages=vm.victim_pages,
            victim_valid_pages=vm.victim_valid_pages,
        )
    if track.ops_blocks != vm.ops_blocks:
        track = replace(
            track, ops_blocks=vm.ops_blocks, victim_pages=0.0, victim_valid_pages=0.0, written_pool_share=0.0
        )
    owned_pages = timing.pages_per_block * (vm.logical_blocks + vm.ops_blocks)
    settled = track.written_pool_share >= _SETTLED_POOL_SHARE

    def averaged(before: float, now: float) -> float:
        return before + (now - before) / _RATE_MEMORY_SAMPLES

    track = replace(
        track,
        host_page_writes=averaged(track.host_page_writes, vm.host_page_writes),
        host_page_reads=averaged(track.host_page_reads, vm.host_page_reads),
        requests=averaged(track.requests, vm.requests),
        written_pool_share=track.written_pool_share + (vm.host_page_writes + vm.gc_page_writes) / owned_pages,
    )
    if not settled or vm.victim_pages == 0:
        return track
    keep = 1.0 - 1.0 / _RATE_MEMORY_SAMPLES
    victim_pages = keep * track.victim_pages + vm.victim_pages
    victim_valid_pages = keep * track.victim_valid_pages + vm.victim_valid_pages
    return replace(
        track,
        victim_pages=victim_pages,
        victim_valid_pages=victim_valid_pages,
        curve=track.curve.fit(vm.ops_blocks, victim_valid_pages / victim_pages),
    )


def _plan(
    plan: dict[str, int], tracks: dict[str, WriterTrack], sample: DeviceSample, newcomers: bool
) -> tuple[dict[str, int], tuple[str, ...]]:
    blocks = {v.vm: v.ops_blocks for v in sample.vms}
    if not blocks:
        return {}, ()
    under_way = plan.keys() == blocks.keys() and plan != blocks
    if under_way:
        return plan, ()
    rates = {v.vm: tracks[v.vm].host_page_writes for v in sample.vms}
    writers = [tracks[vm] for vm, rate in rates.items() if rate > _WRITES_FROM * sum(rates.values())]
    if not newcomers and not all(t.written_pool_share >= _SETTLED_POOL_SHARE for t in writers):
        return {}, ()
    best = _best(rates, tracks, sample)
    now, then = (_gc_writes(rates, tracks, split) for split in (blocks, best))
    if now <= 0.0 or (now - then) / now < _WORTH_MOVING:
        return {}, ()
    gain = 1.0 if newcomers else _GAIN
    ideal = {vm: blocks[vm] + gain * (best[vm] - blocks[vm]) for vm in blocks}
    minimum = {v.vm: v.min_ops_blocks for v in sample.vms}
    plan = allocate(sample.total_ops_blocks, ideal, minimum)
    return plan, (f"{100 * (now - then) / now:.1f} % fewer GC writes expected from another split",)


def _best(rates: dict[str, float], tracks: dict[str, WriterTrack], sample: DeviceSample) -> dict[str, int]:
    total = sample.total_ops_blocks
    writers = [Writer(tracks[v.vm].curve, rates[v.vm], v.min_ops_blocks) for v in sample.vms]
    if not writers:
        return {}
    ideal = dict(zip(rates, best_split(writers, total), strict=True))
    return allocate(total, ideal, {v.vm: v.min_ops_blocks for v in sample.vms})


def _gc_writes(rates: dict[str, float], tracks: dict[str, WriterTrack], split: dict[str, int]) -> float:
    return sum(rates[vm] * gc_model.gc_write_ratio(tracks[vm].curve.u_at(split[vm])) for vm in rates)


def _moves(plan: dict[str, int], sample: DeviceSample) -> tuple[OpsMove, ...]:
    if not plan:
        return ()
    blocks = {v.vm: v.ops_blocks for v in sample.vms}
    return moves_between(blocks, plan, sample.spare_blocks, sample.max_move_blocks)


def _scheduler_weights(tracks: dict[str, WriterTrack], sample: DeviceSample) -> dict[str, float]:
    """weight x device time per request, scaled to the sum of the weights; empty when hardly different."""
    timing = sample.timing
    active = [v for v in sample.vms if v.active and tracks[v.vm].requests > 0]
    if timing.model is TimingModel.NONE or not active:
        return {}
    raw = {v.vm: v.slo.weight * _device_time_us(tracks[v.vm], timing) for v in active}
    if not all(raw.values()):
        return {}
    scale = sum(v.slo.weight for v in active) / sum(raw.values())
    weights = {vm: scale * time for vm, time in raw.items()}
    in_force = {v.vm: v.scheduler_weight for v in active}
    changed = any(abs(weights[vm] / in_force[vm] - 1.0) > _WORTH_RESCHEDULING for vm in weights)
    return weights if changed else {}


def _device_time_us(track: WriterTrack, timing: FlashTiming) -> float:
    """Device time of one mean request of the VM, in microseconds."""
    write_us = gc_model.write_time_us(timing, track.curve.u_at(track.ops_blocks))
    read_us = timing.read_us + timing.transfer_us
    return (track.host_page_writes * write_us + track.host_page_reads * read_us) / track.requests
