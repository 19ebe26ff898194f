"""Where OPS saves most device time, and which moves are worth what they cost.

OPS is a slow lever: moving a block makes the giver's garbage collection free one, and the effect comes only
as the drive is overwritten. So OPS follows each VM's write rate over the last drive write, not what it does
at the moment, and moves a few blocks at a time, each time only if what they save over the next drive write
exceeds what they cost. The device itself bounds the time that moves may take while requests are outstanding.

Device time without a clock is counted in pages copied.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache

from slo_ctl.decide import gc_model
from slo_ctl.decide.gc_model import GcCurve, Writer, best_split, gc_time_us
from slo_ctl.model import DeviceSample, FlashTiming, MovePlan, OpsMove, TimingModel, VmSample

# Whole blocks: rounding an ideal split, and the moves that lead from one split to another.


def allocate(total_blocks: int, ideal: Mapping[str, float], minimum: Mapping[str, int]) -> dict[str, int]:
    """Integer blocks per VM that add up to `total_blocks` exactly, none below its minimum, close to `ideal`.

    What the ideal exceeds the minimums by is scaled to the blocks there are, then rounded by largest
    remainder (ties: the earlier VM). Raises ValueError when the minimums alone exceed the total, or there
    is no VM.
    """
    if not ideal:
        raise ValueError("no VM to allocate blocks to")
    rest = total_blocks - sum(minimum[vm] for vm in ideal)
    if rest < 0:
        raise ValueError(f"the minimums exceed the {total_blocks} OPS blocks by {-rest}")
    excess = {vm: max(0.0, blocks - minimum[vm]) for vm, blocks in ideal.items()}
    wanted = sum(excess.values())
    share = {vm: e / wanted if wanted > 0 else 1.0 / len(excess) for vm, e in excess.items()}
    # Snap to the nearest integer within rounding error, so that an integer ideal comes back unchanged.
    exact = {vm: round(rest * s, 9) for vm, s in share.items()}
    blocks = {vm: minimum[vm] + math.floor(e) for vm, e in exact.items()}
    remainder = sorted(exact, key=lambda vm: math.floor(exact[vm]) - exact[vm])
    for vm in remainder[: total_blocks - sum(blocks.values())]:
        blocks[vm] += 1
    return blocks


def moves_between(
    current: Mapping[str, int],
    wanted: Mapping[str, int],
    spare_blocks: int = 0,
    max_move_blocks: int | None = None,
) -> tuple[OpsMove, ...]:
    """The moves that turn `current` into `wanted`: spare blocks first, then from the VM with most to give.

    At most `max_move_blocks` in total, shared out so that every receiver comes equally near to what it wants.
    """
    receivers = {vm: wanted[vm] - blocks for vm, blocks in current.items() if wanted[vm] > blocks}
    donors = {vm: blocks - wanted[vm] for vm, blocks in current.items() if wanted[vm] < blocks}
    available = spare_blocks + sum(donors.values())
    budget = min(sum(receivers.values()), available, math.inf if max_move_blocks is None else max_move_blocks)
    if budget <= 0:
        return ()
    granted = allocate(int(budget), receivers, dict.fromkeys(receivers, 0))
    sources: list[tuple[str | None, int]] = [(None, spare_blocks)] if spare_blocks > 0 else []
    sources += sorted(donors.items(), key=lambda donor: -donor[1])
    moves = []
    for target, needed in granted.items():
        while needed > 0:
            source, left = sources.pop(0)
            taken = min(needed, left)
            moves.append(OpsMove(source, target, taken))
            needed -= taken
            if left > taken:
                sources.insert(0, (source, left - taken))
    return tuple(moves)


FLOOR_OF_OWN_OPS = 0.5
"""Every VM, idle ones too, keeps this part of its own OPS, what it has in the split with the least GC if all
write uniformly by their weights; or of an even part by logical size, if that is less. So an idle VM lends
only part of it, and no VM is driven to a WAF from which it cannot recover quickly. A VM that is below its
share because of its own latency (few requests outstanding) keeps all that it has in that split if VMs also
read as much as they do: no queue could make up for its GC."""
WRITE_SHARE_STEPS = 20
"""Write shares are rounded to this many steps, so that they rarely change."""
KNOWN_FROM_DRIVE_WRITES = 0.1
"""Write rates count once the device has been observed for this long."""
SETTLED_FROM_POOL_WRITES = 0.7
"""u of a VM is measured once it has rewritten this part of the pages it owns since its OPS changed."""
LATENCY_BOUND_FROM = 0.5
"""Share of the last drive write for which a VM has to be below its share for its own latency to count as
such."""
FIT_FROM_VICTIMS = 20
"""Victim blocks that a measurement of u needs."""
REFUTED_FROM = 0.05
"""Of a curve's u that is not settled: more than noise."""
STEPS_PER_OPS = 256
"""A move takes this part of all OPS blocks at a time, so that a plan can be dropped at any moment."""
_VICTIM_MEMORY_WINDOWS = 32.0
"""u is an average over this many windows."""


@dataclass(frozen=True, slots=True)
class OpsTrack:
    """State of one VM."""

    curve: GcCurve
    ops_blocks: int
    written: float = 0.0
    """Host page writes; older ones fade over a drive write."""
    read: float = 0.0
    """Host page reads, likewise."""
    victim_pages: float = 0.0
    victim_valid_pages: float = 0.0
    gained: bool = False
    """OPS grew when it last changed."""
    pool_writes: float = math.inf
    """Pages written since the VM's OPS last changed, relative to the pages it owns."""
    fitted: bool = False
    """The curve was measured, not assumed."""
    latency_bound: float = 0.0
    """Share of the last drive write during which the VM was below its share for its own latency."""

    @property
    def write_share(self) -> float:
        """Of its pages; 1 before any."""
        pages = self.written + self.read
        return max(1, round(WRITE_SHARE_STEPS * self.written / pages)) / WRITE_SHARE_STEPS if pages else 1.0


@dataclass(frozen=True, slots=True)
class OpsState:
    """State of a device."""

    tracks: dict[str, OpsTrack] = field(default_factory=dict)
    drive_writes: float = 0.0
    """Observed so far."""
    plan_moved: int = 0
    """Blocks that VMs have received since the plan under way began."""
    plan_left: int = 0
    """Blocks that it has still to move; 0 when there is none."""


def assume_rates(sample: DeviceSample) -> OpsState:
    """As if the VMs had written by their weights, on an unused device."""
    weights = sum(v.slo.weight for v in sample.vms if v.active)
    pages = _logical_pages(sample)
    state = follow(OpsState(), sample)
    tracks = {
        v.vm: replace(
            state.tracks[v.vm],
            written=pages * v.slo.weight / weights if v.active and weights else 0.0,
            fitted=True,
        )
        for v in sample.vms
    }
    return replace(state, tracks=tracks, drive_writes=1.0)


def follow(state: OpsState, sample: DeviceSample, latency_bound: Set[str] = frozenset()) -> OpsState:
    """The state one window later. `latency_bound` are VMs below their share though none of theirs waits."""
    drive_writes = sum(v.host_page_writes for v in sample.vms) / max(1, _logical_pages(sample))
    keep = math.exp(-drive_writes)
    tracks = {
        v.vm: _follow_vm(
            state.tracks.get(v.vm),
            v,
            sample.timing.pages_per_block,
            keep,
            latency_bound=v.vm in latency_bound,
        )
        for v in sample.vms
    }
    received = sum(
        max(0, v.ops_blocks - before.ops_blocks)
        for v in sample.vms
        if (before := state.tracks.get(v.vm)) is not None
    )
    return replace(
        state,
        tracks=tracks,
        drive_writes=state.drive_writes + drive_writes,
        plan_moved=state.plan_moved + received,
    )


def _follow_vm(
    track: OpsTrack | None, vm: VmSample, pages_per_block: int, keep: float, *, latency_bound: bool
) -> OpsTrack:
    if track is None or track.curve.logical_blocks != vm.logical_blocks:
        prior = GcCurve.prior(vm.logical_blocks, pages_per_block)
        written, read = (track.written, track.read) if track else (0.0, 0.0)
        track = OpsTrack(prior, vm.ops_blocks, written, read)
    if track.ops_blocks != vm.ops_blocks:
        track = replace(
            track,
            ops_blocks=vm.ops_blocks,
            gained=vm.ops_blocks > track.ops_blocks,
            victim_pages=0.0,
            victim_valid_pages=0.0,
            pool_writes=0.0,
        )
    owned = pages_per_block * max(1, vm.logical_blocks + vm.ops_blocks)
    settled = track.pool_writes >= SETTLED_FROM_POOL_WRITES
    track = replace(
        track,
        written=keep * track.written + vm.host_page_writes,
        read=keep * track.read + vm.host_page_reads,
        pool_writes=track.pool_writes + (vm.host_page_writes + vm.gc_page_writes) / owned,
        latency_bound=keep * track.latency_bound + (1.0 - keep if latency_bound else 0.0),
    )
    if vm.victim_pages == 0:
        return track
    if not settled:
        return _refuted(track, vm, pages_per_block)
    fade = 1.0 - 1.0 / _VICTIM_MEMORY_WINDOWS
    pages = fade * track.victim_pages + vm.victim_pages
    valid = fade * track.victim_valid_pages + vm.victim_valid_pages
    enough = pages >= FIT_FROM_VICTIMS * pages_per_block
    return replace(
        track,
        victim_pages=pages,
        victim_valid_pages=valid,
        curve=track.curve.fit(vm.ops_blocks, valid / pages) if enough else track.curve,
        fitted=track.fitted or enough,
    )


def _refuted(track: OpsTrack, vm: VmSample, pages_per_block: int) -> OpsTrack:
    """The track with a curve through u where u, still following a change of OPS, is beyond the curve already.

    u falls slowly after OPS has grown, and rises slowly after it has shrunk. Steps of a plan follow each
    other so quickly that u is never settled: a plan would go on whatever comes of it.
    """
    if vm.victim_pages < FIT_FROM_VICTIMS * pages_per_block:
        return track
    u, expected = vm.victim_valid_pages / vm.victim_pages, track.curve.u_at(vm.ops_blocks)
    beyond = expected - u if track.gained else u - expected
    return replace(track, curve=track.curve.fit(vm.ops_blocks, u)) if beyond > REFUTED_FROM else track


def best_blocks(
    state: OpsState, sample: DeviceSample, needs: Mapping[str, int] | None = None
) -> dict[str, int]:
    """The split with the least GC at the write rates there are, within the floors; or within `needs`."""
    floors = _floors(state, sample) if needs is None else needs
    writers = [
        Writer(state.tracks[v.vm].curve, state.tracks[v.vm].written, float(floors[v.vm])) for v in sample.vms
    ]
    ideal = best_split(writers, sample.total_ops_blocks)
    return allocate(
        sample.total_ops_blocks,
        {v.vm: blocks for v, blocks in zip(sample.vms, ideal, strict=True)},
        floors,
    )


def initial_moves(
    state: OpsState, sample: DeviceSample, needs: Mapping[str, int] | None = None
) -> tuple[OpsMove, ...]:
    """The whole way to the best split, before the device is used."""
    blocks = {v.vm: v.ops_blocks for v in sample.vms}
    return moves_between(blocks, best_blocks(state, sample, needs), sample.spare_blocks)


def next_moves(
    state: OpsState, sample: DeviceSample, needs: Mapping[str, int] | None = None
) -> tuple[OpsState, tuple[OpsMove, ...], tuple[MovePlan, ...]]:
    """The next step towards the best split, if it pays; and the plan that it is a part of.

    `needs`: what VMs must have, whatever it saves.
    """
    idle = replace(state, plan_moved=0, plan_left=0)
    writing = [state.tracks[v.vm] for v in sample.vms if v.host_page_writes > 0]
    known = state.drive_writes >= KNOWN_FROM_DRIVE_WRITES and all(track.fitted for track in writing)
    if not sample.vms or not known or not sum(t.written for t in state.tracks.values()):
        return idle, (), ()
    blocks = {v.vm: v.ops_blocks for v in sample.vms}
    best = best_blocks(state, sample, needs)
    lacking = {vm: max(0, least - blocks[vm]) for vm, least in (needs or {}).items()}
    wanted = moves_between(blocks, best, sample.spare_blocks)
    step = max(1, sample.total_ops_blocks // STEPS_PER_OPS)
    most = sample.total_ops_blocks if sample.max_move_blocks is None else sample.max_move_blocks
    steps: list[OpsMove] = []
    plans: list[MovePlan] = []
    for move in wanted:
        # Unallocated blocks cost no VM anything.
        at_once = min(step, most) if move.source else most
        if move.blocks == 0 or at_once == 0:
            continue
        plan = _paying_part(state, sample, move, step, lacking.get(move.target or "", 0))
        if plan.blocks:
            steps.append(replace(move, blocks=min(at_once, plan.blocks)))
            plans.append(plan)
    left = sum(plan.blocks for plan in plans)
    if not left:
        return idle, (), ()
    # The plan may grow meanwhile, so that what has been moved is counted.
    moved = state.plan_moved if state.plan_left else 0
    plans = [replace(plan, share_done=moved / (moved + left)) for plan in plans]
    return replace(state, plan_moved=moved, plan_left=left), tuple(steps), tuple(plans)


def _paying_part(state: OpsState, sample: DeviceSample, move: OpsMove, step: int, needed: int) -> MovePlan:
    """As much of a move as pays, step by step, and the blocks that are `needed` whether or not they pay."""
    if move.source is None:
        cost, saving = _worth(state, sample, move)
        return MovePlan(None, move.target, move.blocks, cost_s=cost, saving_s=saving)
    done, cost, saving = 0, 0.0, 0.0
    while done < move.blocks:
        part = replace(move, blocks=min(step, move.blocks - done))
        step_cost, step_saving = _worth(state, sample, part, done)
        if step_saving <= step_cost and done >= needed:
            break
        done, cost, saving = done + part.blocks, cost + step_cost, saving + step_saving
    return MovePlan(move.source, move.target, done, cost_s=cost, saving_s=saving)


def _worth(state: OpsState, sample: DeviceSample, move: OpsMove, done: int = 0) -> tuple[float, float]:
    """Device time that a move costs, and what it saves over the next drive write; in seconds, or in pages
    copied. Before it, `done` blocks have moved the same way."""
    timing, total = sample.timing, sum(track.written for track in state.tracks.values())
    pages = _logical_pages(sample)
    saving = cost = 0.0
    for vm, sign in ((move.source, -1), (move.target, 1)):
        if vm is None:
            continue
        track = state.tracks[vm]
        before = _gc_cost(timing, track.curve.u_at(track.ops_blocks + sign * done))
        after = _gc_cost(timing, track.curve.u_at(track.ops_blocks + sign * (done + move.blocks)))
        saving += pages * track.written / total * (before - after)
        if sign < 0:
            # To free a block, GC collects what as many host writes would have made it collect.
            cost += move.blocks * timing.pages_per_block * after
    return cost, saving


def _gc_cost(timing: FlashTiming, u: float) -> float:
    """GC time of one host page write."""
    if timing.model is TimingModel.NONE:
        return gc_model.gc_write_ratio(u)
    return gc_time_us(timing, u) * 1e-6


def _floors(state: OpsState, sample: DeviceSample) -> dict[str, int]:
    tracks, total, pages_per_block = state.tracks, sample.total_ops_blocks, sample.timing.pages_per_block
    own = own_blocks(tuple((v.slo.weight, v.logical_blocks) for v in sample.vms), total, pages_per_block)
    bound = {v.vm for v in sample.vms if tracks[v.vm].latency_bound >= LATENCY_BOUND_FROM}
    mixed = own
    if bound:
        writes = tuple((v.slo.weight * tracks[v.vm].write_share, v.logical_blocks) for v in sample.vms)
        mixed = own_blocks(writes, total, pages_per_block)
    logical = sum(v.logical_blocks for v in sample.vms)
    floors = {}
    for v, blocks, blocks_as_mixed in zip(sample.vms, own, mixed, strict=True):
        even = total * v.logical_blocks / max(1, logical)
        kept = FLOOR_OF_OWN_OPS * min(blocks, even)
        if v.vm in bound:
            kept = max(kept, blocks_as_mixed)
        floors[v.vm] = max(v.min_ops_blocks, math.floor(kept))
    if sum(floors.values()) > sample.total_ops_blocks:
        return {v.vm: v.min_ops_blocks for v in sample.vms}
    return floors


@lru_cache(maxsize=64)
def own_blocks(vms: tuple[tuple[float, int], ...], total_blocks: int, pages_per_block: int) -> list[float]:
    """The split with the least GC if VMs of these weights and logical blocks write uniformly by weight."""
    writers = [Writer(GcCurve.prior(blocks, pages_per_block), weight) for weight, blocks in vms]
    return best_split(writers, total_blocks)


def _logical_pages(sample: DeviceSample) -> int:
    return sample.timing.pages_per_block * sum(v.logical_blocks for v in sample.vms)


def summary(plans: Sequence[MovePlan]) -> str:
    """One sentence on the moves under way."""
    parts = [
        f"{p.blocks} block{'' if p.blocks == 1 else 's'} from {p.source or 'the spare'} to "
        f"{p.target or 'the spare'}"
        for p in plans
    ]
    return f"moving OPS: {', '.join(parts)}" if parts else ""
