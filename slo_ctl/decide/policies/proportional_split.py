"""The first lever of `proportional`: where OPS should go, how far at a time, and when that made it worse."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from slo_ctl.decide.allocation import allocate
from slo_ctl.decide.policies.proportional_state import MAX_GAIN, ProportionalState, settled

if TYPE_CHECKING:
    from slo_ctl.decide.targets import Feasible
    from slo_ctl.decide.track import VmTrack
    from slo_ctl.model import DeviceSample

_DEAD_BAND = 0.01
"""A split that changes nobody's IOPS by more is not worth moving blocks for."""
_SINGLE_BLOCK_FROM = 0.02
"""Change of some VM's IOPS for which a block moves even where the part of the way to go is less than one."""
_MIN_STEADY_SAMPLES = 2.0
_MIN_GAIN = 0.2
_UNSEEN_GAIN = 0.5
"""On top, while a limit hides how fast some VM could be."""
_MAX_DONATION = 0.5
"""Of a VM's OPS: the most that one correction takes (not after events, which the models foresee)."""
_SETBACK = 0.05
"""A correction that costs the slowest VM more of its IOPS is taken back."""
_KEPT = 0.99
"""Of a minimum: kept."""
_MAX_SETBACKS = 2
_FREEZE_DEVICE_SHARE = 10.0
"""Drive writes for which the split then stays as it was at best."""
_STUCK_AFTER = 3
"""Windows without any of the planned moves carried out, after which a plan is dropped."""


def plan_split(
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
    steady = settled(state.tracks, sample) and all(t.steady.samples >= _MIN_STEADY_SAMPLES for t in active)
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
    return min(MAX_GAIN, 1.3 * state.gain) if cosine > 0.3 else state.gain


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
