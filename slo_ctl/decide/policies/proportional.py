"""`proportional`: IOPS_i / w_i equal for all active VMs (ours, the default).

One rule throughout: refit every VM's model to steady evidence, solve for the feasible split
(`targets.solve`), go a part of the way there, wait until u has settled, repeat. Far from the goal these are
jumps of many blocks; near it, single blocks; within the dead band, nothing. As the fitted models reproduce
what was measured, the only split that the rule leaves alone is one with equal IOPS_i / w_i. It cannot
starve: a VM that gets less than its share is given blocks whatever its u is.

A change of weights, a VM that comes, goes, wakes or sleeps is answered at once, by the models there are.

When OPS cannot do it (a VM exceeds its share though all blocks it can give are given, or the shares still
are off after a drive write and a half), rate limits hold those above their share down to it (`pacing`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from slo_ctl.decide.allocation import allocate, moves_between
from slo_ctl.decide.pacing import Paced, longest_lead_windows, new_leads, pace
from slo_ctl.decide.relief import relieve
from slo_ctl.decide.targets import Claim, Feasible, solve
from slo_ctl.decide.track import VmTrack, follow, new_tracks
from slo_ctl.model import Decision, DeviceSample, OpsMove, Placement, Slo, TimingModel

_DEAD_BAND = 0.01
"""A split that changes nobody's IOPS by more is not worth moving blocks for."""
_RESOLVE_WINDOWS = 4
_SINGLE_BLOCK_FROM = 0.02
"""Change of some VM's IOPS for which a block moves even where the part of the way to go is less than one."""
_MIN_STEADY_SAMPLES = 2.0
_MAX_GAIN = 0.9
_MIN_GAIN = 0.2
_UNSEEN_GAIN = 0.5
"""On top, while a limit hides how fast some VM could be."""
_FLOOR_SHARE = 0.01
"""OPS an active VM keeps at least, relative to its logical size: below, GC thrashes and hurts everybody."""
_MAX_DONATION = 0.5
"""Of a VM's OPS: the most that one correction takes (not after events, which the models foresee)."""
_PATIENCE_DEVICE_SHARE = 1.25
"""Drive writes after which shares that still are off are the second lever's business."""
_NO_LEAD_WINDOWS, _ALIKE = 0.3, 1.02
"""Limits are lifted when no lead exceeds this and the split by itself keeps the shares as closely as this."""
_LEAD_MEMORY_WINDOWS, _LEAD_MEMORY_WINDOWS_UNPACED = 200.0, 40.0
_LEAD_MEMORY_WINDOWS_IN_TRANSITION = 1.0
_TRANSITION_DEVICE_SHARE = 2.0
"""Drive writes after an event whose leads are forgiven at once: nobody pays for the time OPS took."""
_PACE_FROM_WINDOWS = 0.8
"""The lead of some VM from which on shares are off: 2 % over the memory of a VM not yet paced."""
_SETBACK = 0.05
"""A correction that costs the slowest VM more of its IOPS is taken back."""
_ABOVE_MINIMUM = 1.02
"""What OPS aims at above a minimum, as IOPS fluctuate."""
_KEPT = 0.99
"""Of a minimum: kept."""
_MAX_SETBACKS = 2
_FREEZE_DEVICE_SHARE = 10.0
"""Drive writes for which the split then stays as it was at best."""
_STUCK_AFTER = 3
"""Windows without any of the planned moves carried out, after which a plan is dropped."""


@dataclass(frozen=True, slots=True)
class ProportionalState:
    """All that is remembered between windows."""

    tracks: dict[str, VmTrack]
    circumstances: tuple[object, ...]
    """Who is there, awake, and promised what: a change is answered at once."""
    feasible: Feasible | None = None
    """What the VMs are due, and the split it needs."""
    feasible_age_windows: int = 0
    plan: dict[str, int] = field(default_factory=dict)
    """OPS blocks per VM to arrive at; empty when nothing is under way."""
    last_blocks: dict[str, int] = field(default_factory=dict)
    """OPS blocks per VM in the previous window."""
    stuck_windows: int = 0
    last_step: dict[str, int] = field(default_factory=dict)
    """Blocks gained (or lost) per VM by the last correction, to notice a change of direction."""
    gain: float = _MAX_GAIN
    """Share of a correction that is carried out; halved when corrections alternate."""
    device_share_since_event: float = 0.0
    """Drive writes since the circumstances changed."""
    pacing: bool = False
    leads: dict[str, float] = field(default_factory=dict)
    """What each VM has had beyond its share of late (`pacing`)."""
    best_level: float = 0.0
    """The highest lambda (lowest IOPS_i / w_i) seen since the circumstances changed, and with which split."""
    best_blocks: dict[str, int] = field(default_factory=dict)
    setbacks: int = 0
    """How often a correction lowered lambda."""
    frozen_until: float = 0.0
    """`device_share_since_event` until which the split stays, because corrections only lower lambda."""


@dataclass(frozen=True, slots=True)
class Proportional:
    """Equalises IOPS per weight, by OPS first and rate limits second."""

    name: str = "proportional"
    placement: Placement = Placement.ISOLATED

    def start(self, sample: DeviceSample) -> tuple[ProportionalState | None, Decision]:
        """Split the OPS by the prior models; ValueError when the minimums exceed it."""
        if sample.timing.model is TimingModel.NONE:
            return None, Decision(reasons=("count-only device: no IOPS to equalise",))
        state = ProportionalState(new_tracks(sample), _circumstances(sample))
        return _decide(state, sample, "initial split")

    def resume(self, sample: DeviceSample) -> tuple[ProportionalState | None, Decision]:
        """Take over a split and limits as they are; evidence decides from the next window on.

        The time that OPS is given after an event counts as over, so that limits in force are kept.
        """
        if sample.timing.model is TimingModel.NONE:
            return None, Decision()
        state = ProportionalState(
            new_tracks(sample),
            _circumstances(sample),
            last_blocks={v.vm: v.ops_blocks for v in sample.vms},
            device_share_since_event=_TRANSITION_DEVICE_SHARE,
            pacing=any(v.limit_iops is not None and v.limit_iops < _max_iops(v.slo) for v in sample.vms),
        )
        return state, Decision()

    def step(
        self, state: ProportionalState | None, sample: DeviceSample
    ) -> tuple[ProportionalState | None, Decision]:
        """Follow the samples, and correct the split or the limits when that is due."""
        if state is None or sample.timing.model is TimingModel.NONE:
            return self.start(sample)
        circumstances = _circumstances(sample)
        event = "who is active or promised what has changed" if circumstances != state.circumstances else None
        pages = sample.timing.pages_per_block * sum(v.logical_blocks for v in sample.vms)
        written = sum(v.host_page_writes for v in sample.vms) / max(1, pages)
        state = replace(
            state,
            tracks=follow(state.tracks, sample),
            circumstances=circumstances,
            device_share_since_event=0.0 if event else state.device_share_since_event + written,
        )
        return _decide(state, sample, event)


def _decide(
    state: ProportionalState, sample: DeviceSample, event: str | None
) -> tuple[ProportionalState, Decision]:
    if not sample.vms:
        return state, Decision()
    state, feasible = _feasible(state, sample, event)
    state, reasons = _plan(state, sample, feasible, event)
    moves: tuple[OpsMove, ...] = ()
    if state.plan:
        blocks = {v.vm: v.ops_blocks for v in sample.vms}
        moves = moves_between(blocks, state.plan, sample.spare_blocks, sample.max_move_blocks)
    state, limits, more_reasons = _limits(state, sample, feasible, event)
    state = replace(state, last_blocks={v.vm: v.ops_blocks for v in sample.vms})
    shortfalls = tuple(
        f"{vm}: min_iops overcommitted, {missing:.0f} IOPS short"
        for vm, missing in feasible.overcommitted.items()
    )
    return state, Decision(moves, limits, {}, feasible.targets, reasons + more_reasons + shortfalls)


def _feasible(
    state: ProportionalState, sample: DeviceSample, event: str | None
) -> tuple[ProportionalState, Feasible]:
    """What the VMs are due: anew after events, and every few windows once u has settled."""
    known, age = state.feasible, state.feasible_age_windows + 1
    if known and not event and (age < _RESOLVE_WINDOWS or state.plan or not _settled(state.tracks, sample)):
        return replace(state, feasible_age_windows=age), known
    claims = _claims(state.tracks, sample)
    feasible = solve(claims, sample.total_ops_blocks)
    feasible = relieve(claims, sample.total_ops_blocks, feasible, {v.vm: v.ops_blocks for v in sample.vms})
    return replace(state, feasible=feasible, feasible_age_windows=0), feasible


def _settled(tracks: dict[str, VmTrack], sample: DeviceSample) -> bool:
    return all(tracks[v.vm].settled for v in sample.vms if v.active and v.requests > 0)


def _circumstances(sample: DeviceSample) -> tuple[object, ...]:
    return (sample.total_ops_blocks, *((v.vm, v.active, v.slo, v.logical_blocks) for v in sample.vms))


def _claims(tracks: dict[str, VmTrack], sample: DeviceSample) -> list[Claim]:
    floors = {
        v.vm: max(v.min_ops_blocks, math.ceil(_FLOOR_SHARE * v.logical_blocks))
        if v.active
        else v.min_ops_blocks
        for v in sample.vms
    }
    if sum(floors.values()) > sample.total_ops_blocks:
        floors = {v.vm: v.min_ops_blocks for v in sample.vms}
    return [
        Claim(
            vm=v.vm,
            weight=v.slo.weight,
            model=tracks[v.vm].model,
            min_ops_blocks=floors[v.vm],
            active=v.active,
            min_iops=min(_ABOVE_MINIMUM * (v.slo.min_iops or 0.0), _max_iops(v.slo)),
            max_iops=min(_max_iops(v.slo), tracks[v.vm].demand_iops if v.requests > 0 else math.inf),
        )
        for v in sample.vms
    ]


def _max_iops(slo: Slo) -> float:
    return math.inf if slo.max_iops is None else slo.max_iops


def _plan(
    state: ProportionalState, sample: DeviceSample, feasible: Feasible, event: str | None
) -> tuple[ProportionalState, tuple[str, ...]]:
    """Where the OPS should go from here, if anywhere."""
    blocks = {v.vm: v.ops_blocks for v in sample.vms}
    best = {vm: target.ops_blocks or 0 for vm, target in feasible.targets.items()}
    if event:
        plan = best if best != blocks else {}
        state = ProportionalState(
            state.tracks, state.circumstances, feasible, plan=plan, last_blocks=state.last_blocks
        )
        return state, (event,)
    if state.plan:
        return _pursue(state, blocks), ()
    active = [state.tracks[v.vm] for v in sample.vms if v.active and v.requests > 0]
    steady = _settled(state.tracks, sample) and all(t.steady.samples >= _MIN_STEADY_SAMPLES for t in active)
    if not active or not steady:
        return state, ()
    error = _iops_change(state.tracks, feasible, blocks, best)
    state, setback = _judge(state, sample, feasible, blocks)
    if setback:
        return state, (setback,)
    if error <= _DEAD_BAND or state.device_share_since_event < state.frozen_until:
        return state, ()

    step = {vm: best[vm] - blocks[vm] for vm in blocks}
    gain = _next_gain(state, step)
    if not all(t.steady.tells_service_time for t in active):
        gain *= _UNSEEN_GAIN
    # Trust an error only as far as it stands out of the noise.
    noise = max(t.relative_error for t in active)
    plan = _part_of_the_way(sample, step, gain * error**2 / (error**2 + noise**2))
    if plan == blocks:
        if error < _SINGLE_BLOCK_FROM + 2.0 * noise:
            return replace(state, gain=gain), ()
        plan = _single_block(blocks, step)
    moved = sum(max(0, plan[vm] - blocks[vm]) for vm in blocks)
    reason = f"shares off by up to {100 * error:.1f} %: moving {moved} OPS blocks"
    return replace(state, plan=plan, stuck_windows=0, last_step=step, gain=gain), (reason,)


def _pursue(state: ProportionalState, blocks: dict[str, int]) -> ProportionalState:
    """Keep a plan until it is carried out, or nothing of it has been for some windows."""
    if state.plan == blocks or state.plan.keys() != blocks.keys():
        return replace(state, plan={})
    stuck = state.stuck_windows + 1 if blocks == state.last_blocks else 0
    return replace(state, plan={}) if stuck >= _STUCK_AFTER else replace(state, stuck_windows=stuck)


def _judge(
    state: ProportionalState, sample: DeviceSample, feasible: Feasible, blocks: dict[str, int]
) -> tuple[ProportionalState, str | None]:
    """Take the last corrections back when lambda has fallen with them.

    The models know nothing of VMs that wait for each other's GC. Where they do, blocks taken from a slow VM
    may cost the fast ones more, in waiting, than the blocks bring; what was measured then overrules what
    was predicted.
    """
    if any(state.tracks[v.vm].recent_iops < _KEPT * (v.slo.min_iops or 0.0) for v in sample.vms if v.active):
        return state, None  # minimums come first, whatever they cost
    levels = _levels(state, sample, feasible)
    level = min(levels.values(), default=0.0)
    noise = max((state.tracks[vm].relative_error for vm in levels), default=0.0)
    much_lower = level < state.best_level * (1.0 - _SETBACK - 2.0 * noise)
    if blocks == state.best_blocks and much_lower:  # not as good as it seemed while u still drifted
        return replace(state, best_level=level, setbacks=0, frozen_until=0.0), None
    if level >= state.best_level:
        return replace(state, best_level=level, best_blocks=blocks), None
    if not much_lower:
        return state, None
    setbacks = state.setbacks + 1
    final = setbacks >= _MAX_SETBACKS
    state = replace(
        state,
        plan=state.best_blocks,
        setbacks=0 if final else setbacks,
        gain=max(_MIN_GAIN, 0.5 * state.gain),
        frozen_until=state.device_share_since_event + _FREEZE_DEVICE_SHARE if final else 0.0,
        pacing=True,
    )
    return state, "the slowest VM lost by the last correction: back to the best split so far"


def _levels(state: ProportionalState, sample: DeviceSample, feasible: Feasible) -> dict[str, float]:
    """Measured IOPS per weight of the VMs to be kept level: saturating, neither clipped nor raised."""
    return {
        v.vm: state.tracks[v.vm].recent_iops / v.slo.weight
        for v in sample.vms
        if v.active
        and v.requests > 0
        and state.tracks[v.vm].saturating
        and math.isclose(feasible.targets[v.vm].iops or 0.0, feasible.level * v.slo.weight, rel_tol=0.01)
    }


def _iops_change(
    tracks: dict[str, VmTrack], feasible: Feasible, blocks: dict[str, int], best: dict[str, int]
) -> float:
    """The largest relative change of any VM's IOPS that the best split promises.

    What a VM could do beyond its target does not count when OPS cannot take it away anyway.
    """
    worst = 0.0
    for vm, target in feasible.targets.items():
        if not target.iops:
            continue
        now, then = (tracks[vm].model.iops_at(split[vm]) for split in (blocks, best))
        if then > 1.01 * target.iops:
            now, then = min(now, target.iops), target.iops
        worst = max(worst, abs(math.log(then / now)))
    return worst


def _next_gain(state: ProportionalState, step: dict[str, int]) -> float:
    """Half the gain when this correction takes back the last one, somewhat more when it continues it."""
    both = sum(blocks * state.last_step.get(vm, 0) for vm, blocks in step.items())
    lengths = math.hypot(*step.values()) * math.hypot(*state.last_step.values())
    if lengths == 0.0:
        return state.gain
    cosine = both / lengths
    if cosine < -0.3:
        return max(_MIN_GAIN, 0.5 * state.gain)
    return min(_MAX_GAIN, 1.3 * state.gain) if cosine > 0.3 else state.gain


def _part_of_the_way(sample: DeviceSample, step: dict[str, int], gain: float) -> dict[str, int]:
    """The split after `gain` of the step, less when that would take too much of somebody at once."""
    for v in sample.vms:
        if step[v.vm] < 0:
            gain = min(gain, _MAX_DONATION * v.ops_blocks / -step[v.vm])
    ideal = {v.vm: v.ops_blocks + gain * step[v.vm] for v in sample.vms}
    return allocate(sample.total_ops_blocks, ideal, {v.vm: v.min_ops_blocks for v in sample.vms})


def _single_block(blocks: dict[str, int], step: dict[str, int]) -> dict[str, int]:
    """The split after one block went where most are missing."""
    giver, taker = min(step, key=lambda vm: step[vm]), max(step, key=lambda vm: step[vm])
    return blocks | {giver: blocks[giver] - 1, taker: blocks[taker] + 1}


def _limits(
    state: ProportionalState, sample: DeviceSample, feasible: Feasible, event: str | None
) -> tuple[ProportionalState, dict[str, float | None], tuple[str, ...]]:
    """Rate limits: the SLOs' maximums always, the others' shares while OPS does not keep them."""
    vms = [
        Paced(
            vm=v.vm,
            weight=v.slo.weight,
            iops=state.tracks[v.vm].recent_iops,
            last_iops=v.iops,
            window_s=v.window_s,
            limit_iops=v.limit_iops,
            saturating=state.tracks[v.vm].saturating,
            min_iops=v.slo.min_iops or 0.0,
            max_iops=_max_iops(v.slo),
            unheld_iops=state.tracks[v.vm].unheld_iops,
        )
        for v in sample.vms
        if v.active and v.window_s > 0.0 and state.tracks[v.vm].recent_iops > 0.0
    ]
    maximums: dict[str, float | None] = {v.vm: v.slo.max_iops for v in sample.vms}
    memory_windows = _LEAD_MEMORY_WINDOWS if state.pacing else _LEAD_MEMORY_WINDOWS_UNPACED
    if state.device_share_since_event < _TRANSITION_DEVICE_SHARE:
        memory_windows = _LEAD_MEMORY_WINDOWS_IN_TRANSITION
    was_pacing = state.pacing
    ops_has_its_time = state.device_share_since_event < _PATIENCE_DEVICE_SHARE and not was_pacing
    leads = {} if event or ops_has_its_time else new_leads(state.leads, vms, memory_windows)
    still_off = longest_lead_windows(leads, vms) > _PACE_FROM_WINDOWS
    wanted = maximums
    pacing = not event and (was_pacing or not feasible.ops_suffices or still_off)
    if was_pacing and longest_lead_windows(leads, vms) < _NO_LEAD_WINDOWS:
        pacing = not _ops_does_it(state.tracks, sample, feasible)
    if pacing:
        wanted = maximums | pace(vms, leads)
        pacing = wanted != maximums or not feasible.ops_suffices
    state = replace(state, pacing=pacing, leads=leads)
    in_force = {v.vm: v.limit_iops for v in sample.vms}
    limits = {vm: limit for vm, limit in wanted.items() if limit != in_force[vm]}
    reasons: tuple[str, ...] = ()
    if state.pacing and not was_pacing:
        reasons = ("OPS alone does not keep the shares: limiting those above theirs",)
    elif was_pacing and not state.pacing:
        reasons = ("limits lifted",)
    return state, limits, reasons


def _ops_does_it(tracks: dict[str, VmTrack], sample: DeviceSample, feasible: Feasible) -> bool:
    """Whether the present split by itself would keep the shares, by the models."""
    if not feasible.ops_suffices or not all(tracks[v.vm].settled for v in sample.vms if v.active):
        return False
    by_model = [
        tracks[v.vm].model.iops_at(v.ops_blocks) / (feasible.targets[v.vm].iops or math.inf)
        for v in sample.vms
        if v.active
    ]
    return max(by_model) < _ALIKE * min(by_model)
