"""Distribution of OPS for the least GC, and the moves towards it whose saving exceeds their cost.

OPS is a slow lever: to move a block, the donor's garbage collection has to free one, and the benefit comes
only as the drive is overwritten. So the split follows each VM's write rate over the last drive write, not its
current rate. A few blocks move at a time, and only if the device time that they save over the next drive
write exceeds their cost. The device itself bounds the time that moves take while requests are outstanding.

On a device without a timing model, pages copied stand for device time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import NamedTuple

from slo_ctl.decide import gc_model
from slo_ctl.decide.entitlement import MOSTLY_FROM
from slo_ctl.decide.gc_model import GcCurve, Writer, best_split, gc_time_us
from slo_ctl.model.decision import MovePlan, OpsMove
from slo_ctl.model.sample import DeviceSample, FlashTiming, TimingModel, VmSample

# Rounding of an ideal split to whole blocks, and the moves that turn one split into another.


def allocate(total_blocks: int, ideal: Mapping[str, float], minimum: Mapping[str, int]) -> dict[str, int]:
    """Whole blocks per VM, close to `ideal`: they add up to `total_blocks`, and none is below its minimum.

    The excess of `ideal` over the minimums is scaled to the blocks that remain after these, then rounded by
    largest remainder (ties: the earlier VM). Raises ValueError when the minimums exceed the total, or there
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
    # Rounding errors of floats must not change an ideal of whole blocks.
    exact = {vm: round(rest * s, 9) for vm, s in share.items()}
    blocks = {vm: minimum[vm] + math.floor(e) for vm, e in exact.items()}
    remainder = sorted(exact, key=lambda vm: math.floor(exact[vm]) - exact[vm])
    for vm in remainder[: total_blocks - sum(blocks.values())]:
        blocks[vm] += 1
    return blocks


def moves_between(
    current: Mapping[str, int], wanted: Mapping[str, int], spare_blocks: int = 0
) -> tuple[OpsMove, ...]:
    """The moves that turn `current` into `wanted`: spare blocks first, then from the VM with the most excess.

    If these are less than the receivers lack, they are divided in proportion to that.
    """
    receivers = {vm: wanted[vm] - blocks for vm, blocks in current.items() if wanted[vm] > blocks}
    donors = {vm: blocks - wanted[vm] for vm, blocks in current.items() if wanted[vm] < blocks}
    available = spare_blocks + sum(donors.values())
    total = min(sum(receivers.values()), available)
    if total <= 0:
        return ()
    granted = allocate(total, receivers, dict.fromkeys(receivers, 0))
    sources: list[tuple[str | None, int]] = [(None, spare_blocks)] if spare_blocks > 0 else []
    sources += sorted(donors.items(), key=lambda donor: -donor[1])
    moves = []
    for target, needed in granted.items():
        while needed > 0:
            source, available = sources.pop(0)
            blocks = min(needed, available)
            moves.append(OpsMove(source, target, blocks))
            needed -= blocks
            if available > blocks:
                sources.insert(0, (source, available - blocks))
    return tuple(moves)


def split_to_restore(
    before: Mapping[str, int], growth: Mapping[str, int], available: int, least: Mapping[str, int]
) -> dict[str, int]:
    """The split `before` a policy moved OPS, after namespaces were resized by `growth` blocks since.

    A namespace that shrank got these blocks as OPS. One that grew took unallocated blocks, and what these
    lacked of its own OPS; so it alone gets less back, and no less than `least`.
    """
    wanted = {name: blocks + max(0, -growth[name]) for name, blocks in before.items()}
    lacking = max(0, sum(wanted.values()) - available)
    for name, grown in growth.items():
        taken = max(0, min(grown, lacking, wanted[name] - least[name]))
        wanted[name] -= taken
        lacking -= taken
    return wanted


FLOOR_OF_OWN_OPS = 0.5
"""Fraction of its own OPS that every VM keeps, also while it is idle, so that its WAF recovers quickly.

A VM's own OPS is its part of the split with the least GC when all VMs write uniformly by their weights, or
its part by logical size, if that is less. A VM that is below its share because of its own latency (few
requests outstanding) keeps its whole part of that split, computed with the measured ratios of writes to
reads: a fair queue could not compensate for its GC."""
KNOWN_FROM_DRIVE_WRITES = 0.1
"""Drive writes that have to be observed before write rates count."""
SETTLED_FROM_POOL_WRITES = 0.7
"""Page writes since a VM's OPS changed, relative to the pages it owns, from which on its u is measured."""
FIT_FROM_VICTIMS = 20
"""Least number of victim blocks for a measurement of u."""
REFUTED_FROM = 0.05
"""Difference in u that is more than noise: from the fitted curve while u is not settled, and between two
measurements with different OPS.
"""
MEASURED_FOR_DRIVE_WRITES = 3.0
"""Age up to which a measurement of u with other OPS counts: longer than OPS takes to come back."""
STEPS_PER_OPS = 256
"""OPS moves in steps of all OPS blocks / this, so that a plan can be abandoned after any step."""
_VICTIM_MEMORY_WINDOWS = 32.0
"""Time constant of the average of u, in windows."""


class Measurement(NamedTuple):
    """u of a VM with some number of OPS blocks."""

    ops_blocks: int
    u: float
    age_drive_writes: float = 0.0


class OpsTrack(NamedTuple):
    """Write activity and GC curve of one VM."""

    curve: GcCurve
    ops_blocks: int
    written: float = 0.0
    """Host page writes, with a decay of one drive write."""
    read: float = 0.0
    """Host page reads, with the same decay."""
    victim_pages: float = 0.0
    """Pages in victim blocks since OPS last changed, with the decay of u."""
    victim_valid_pages: float = 0.0
    """Valid pages among `victim_pages`."""
    gained: bool = False
    """Whether the last change of OPS was an increase."""
    pool_writes: float = math.inf
    """Host and GC page writes since OPS last changed, relative to the pages that the VM owns."""
    fitted: bool = False
    """Whether the curve was measured; otherwise it is assumed."""
    measured: tuple[Measurement, ...] = ()
    """Measurements of u that count, the latest with each number of OPS blocks."""
    observed: float = 0.0
    """Fraction of the last drive write in which the VM was observed, with the same decay."""
    latency_bound: float = 0.0
    """Fraction in which it was below its share because of its own latency, likewise."""

    @property
    def is_latency_bound(self) -> bool:
        """Whether the VM was mostly below its share because of its own latency."""
        return self.observed > 0.0 and self.latency_bound >= MOSTLY_FROM * self.observed

    @property
    def write_share(self) -> float:
        """Writes as a fraction of all pages read and written; 1 before any I/O."""
        pages = self.written + self.read
        return self.written / pages if pages else 1.0


@dataclass(frozen=True, slots=True)
class OpsState:
    """Activity of the VMs on a device, and progress of the current plan of moves."""

    tracks: dict[str, OpsTrack] = field(default_factory=dict)
    """By VM."""
    drive_writes: float = 0.0
    """Drive writes observed so far."""
    plan_moved: int = 0
    """Blocks that VMs have received since the current plan began."""
    plan_left: int = 0
    """Blocks that the current plan has still to move; 0 without a plan."""


def assume_rates(sample: DeviceSample) -> OpsState:
    """The state of an unused device on the assumption that the active VMs write by their weights."""
    weights = sum(v.slo.weight for v in sample.vms if v.active)
    pages = _logical_pages(sample)
    state = next_ops_state(OpsState(), sample)
    tracks = {
        v.vm: state.tracks[v.vm]._replace(
            written=pages * v.slo.weight / weights if v.active and weights else 0.0,
            fitted=True,
        )
        for v in sample.vms
    }
    return replace(state, tracks=tracks, drive_writes=1.0)


def next_ops_state(state: OpsState, sample: DeviceSample, latency_bound: Set[str] = frozenset()) -> OpsState:
    """The state one window later.

    `latency_bound`: VMs that are below their share although none of their requests waits in the queue.
    """
    drive_writes = sum(v.host_page_writes for v in sample.vms) / max(1, _logical_pages(sample))
    tracks = {
        v.vm: _update_track(
            state.tracks.get(v.vm),
            v,
            sample.timing.pages_per_block,
            drive_writes,
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


def _update_track(
    track: OpsTrack | None, vm: VmSample, pages_per_block: int, drive_writes: float, *, latency_bound: bool
) -> OpsTrack:
    """The track of a VM one window later; `drive_writes`: those of the window."""
    keep = math.exp(-drive_writes)
    if track is None or track.curve.logical_blocks != vm.logical_blocks:
        prior = GcCurve.prior(vm.logical_blocks, pages_per_block)
        written, read = (track.written, track.read) if track else (0.0, 0.0)
        track = OpsTrack(prior, vm.ops_blocks, written, read)
    if track.ops_blocks != vm.ops_blocks:
        track = track._replace(
            ops_blocks=vm.ops_blocks,
            gained=vm.ops_blocks > track.ops_blocks,
            victim_pages=0.0,
            victim_valid_pages=0.0,
            pool_writes=0.0,
        )
    owned = pages_per_block * max(1, vm.logical_blocks + vm.ops_blocks)
    settled = track.pool_writes >= SETTLED_FROM_POOL_WRITES
    track = track._replace(
        written=keep * track.written + vm.host_page_writes,
        read=keep * track.read + vm.host_page_reads,
        pool_writes=track.pool_writes + (vm.host_page_writes + vm.gc_page_writes) / owned,
        measured=_aged(track.measured, drive_writes),
        observed=keep * track.observed + 1.0 - keep,
        latency_bound=keep * track.latency_bound + (1.0 - keep if latency_bound else 0.0),
    )
    if vm.victim_pages == 0:
        return track
    if not settled:
        return _refit_if_refuted(track, vm, pages_per_block)
    decay = 1.0 - 1.0 / _VICTIM_MEMORY_WINDOWS
    pages = decay * track.victim_pages + vm.victim_pages
    valid = decay * track.victim_valid_pages + vm.victim_valid_pages
    enough = pages >= FIT_FROM_VICTIMS * pages_per_block
    track = track._replace(victim_pages=pages, victim_valid_pages=valid)
    if not enough:
        return track
    return _fitted(track, Measurement(vm.ops_blocks, valid / pages))._replace(fitted=True)


def _refit_if_refuted(track: OpsTrack, vm: VmSample, pages_per_block: int) -> OpsTrack:
    """The track, with its curve fitted again if u, while it still changes, has already passed the curve.

    u falls slowly after OPS has grown, and rises slowly after it has shrunk. The steps of a plan follow each
    other so quickly that u never settles: without this, a plan would continue whatever its effect.
    """
    if vm.victim_pages < FIT_FROM_VICTIMS * pages_per_block:
        return track
    u, expected = vm.victim_valid_pages / vm.victim_pages, track.curve.u_at(vm.ops_blocks)
    excess = expected - u if track.gained else u - expected
    return _fitted(track, Measurement(vm.ops_blocks, u)) if excess > REFUTED_FROM else track


def _aged(measured: tuple[Measurement, ...], drive_writes: float) -> tuple[Measurement, ...]:
    older = (each._replace(age_drive_writes=each.age_drive_writes + drive_writes) for each in measured)
    return tuple(each for each in older if each.age_drive_writes < MEASURED_FOR_DRIVE_WRITES)


def _fitted(track: OpsTrack, now: Measurement) -> OpsTrack:
    """The track, with its curve through this measurement and the one with the nearest OPS whose u differs."""
    others = [each for each in track.measured if each.ops_blocks != now.ops_blocks]
    unlike = [each for each in others if abs(each.u - now.u) > REFUTED_FROM]
    if unlike:
        nearest = min(unlike, key=lambda each: abs(each.ops_blocks - now.ops_blocks))
        curve = track.curve.fit_two(now.ops_blocks, now.u, nearest.ops_blocks, nearest.u)
    else:
        curve = track.curve.fit(now.ops_blocks, now.u)
    return track._replace(curve=curve, measured=(*others, now))


def best_blocks(
    state: OpsState, sample: DeviceSample, needs: Mapping[str, int] | None = None
) -> dict[str, int]:
    """The split with the least GC at the measured write rates.

    No VM gets less than its blocks in `needs`; None: its floor by `FLOOR_OF_OWN_OPS`.
    """
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
    """All moves to the best split at once, for an unused device."""
    blocks = {v.vm: v.ops_blocks for v in sample.vms}
    return moves_between(blocks, best_blocks(state, sample, needs), sample.spare_blocks)


def next_moves(
    state: OpsState, sample: DeviceSample, needs: Mapping[str, int] | None = None
) -> tuple[OpsState, tuple[OpsMove, ...], tuple[MovePlan, ...]]:
    """The next step towards the best split, if it saves more than it costs, and the plan it is a part of.

    `needs`: blocks that VMs must have whether or not these save anything; None: their floors.
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
    worth = _worth(state, sample)
    steps: list[OpsMove] = []
    plans: list[MovePlan] = []
    for move in wanted:
        # Spare blocks move without GC, all at once.
        at_once = step if move.source else move.blocks
        plan = _paying_part(worth, move, step, lacking.get(move.target or "", 0))
        if plan.blocks:
            steps.append(replace(move, blocks=min(at_once, plan.blocks)))
            plans.append(plan)
    left = sum(plan.blocks for plan in plans)
    if not left:
        return idle, (), ()
    # The plan may have grown since it began: progress is relative to the blocks moved and those left.
    moved = state.plan_moved if state.plan_left else 0
    plans = [replace(plan, share_done=moved / (moved + left)) for plan in plans]
    return replace(state, plan_moved=moved, plan_left=left), tuple(steps), tuple(plans)


_Worth = Callable[[OpsMove, int], tuple[float, float]]


def _paying_part(worth: _Worth, move: OpsMove, step: int, needed: int) -> MovePlan:
    """The first steps of a move, as long as each saves more than it costs; `needed` blocks move anyway."""
    if move.source is None:
        cost, saving = worth(move, 0)
        return MovePlan(None, move.target, move.blocks, cost_s=cost, saving_s=saving)
    done, cost, saving = 0, 0.0, 0.0
    while done < move.blocks:
        part = replace(move, blocks=min(step, move.blocks - done))
        step_cost, step_saving = worth(part, done)
        if step_saving <= step_cost and done >= needed:
            break
        done, cost, saving = done + part.blocks, cost + step_cost, saving + step_saving
    return MovePlan(move.source, move.target, done, cost_s=cost, saving_s=saving)


def _worth(state: OpsState, sample: DeviceSample) -> _Worth:
    """Device time that a move costs and that it saves over the next drive write, after so many blocks of it.

    In seconds; without a timing model in pages copied.
    """
    timing, total = sample.timing, sum(track.written for track in state.tracks.values())
    pages = _logical_pages(sample)

    @cache  # A step begins where the one before it ended.
    def gc_cost(vm: str, more_blocks: int) -> float:
        track = state.tracks[vm]
        return _gc_cost(timing, track.curve.u_at(track.ops_blocks + more_blocks))

    def worth(move: OpsMove, done: int) -> tuple[float, float]:
        saving = cost = 0.0
        for vm, sign in ((move.source, -1), (move.target, 1)):
            if vm is None:
                continue
            before, after = gc_cost(vm, sign * done), gc_cost(vm, sign * (done + move.blocks))
            saving += pages * state.tracks[vm].written / total * (before - after)
            if sign < 0:
                # Freeing a block costs as much GC as writing a block of host pages.
                cost += move.blocks * timing.pages_per_block * after
        return cost, saving

    return worth


def _gc_cost(timing: FlashTiming, u: float) -> float:
    """GC time of one host page write in seconds; without a timing model in pages copied."""
    if timing.model is TimingModel.NONE:
        return gc_model.gc_write_ratio(u)
    return gc_time_us(timing, u) * 1e-6


def _floors(state: OpsState, sample: DeviceSample) -> dict[str, int]:
    """The least blocks per VM by `FLOOR_OF_OWN_OPS`; the minimums alone if these exceed the OPS."""
    tracks, total, pages_per_block = state.tracks, sample.total_ops_blocks, sample.timing.pages_per_block
    own = own_blocks(tuple((v.slo.weight, v.logical_blocks) for v in sample.vms), total, pages_per_block)
    bound = {v.vm for v in sample.vms if tracks[v.vm].is_latency_bound}
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
    """One sentence on the moves in progress; empty without any."""
    parts = [
        f"{p.blocks} block{'' if p.blocks == 1 else 's'} from {p.source or 'the spare blocks'} to "
        f"{p.target or 'the spare blocks'}"
        for p in plans
    ]
    return f"moving OPS: {', '.join(parts)}" if parts else ""
