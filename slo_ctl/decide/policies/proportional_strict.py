"""`proportional-strict`: IOPS_i / w_i equal for all active VMs, whatever that costs in throughput.

One rule throughout: refit every VM's model to steady evidence, solve for the feasible split
(`targets.solve`), go a part of the way there, wait until u has settled, repeat. Far from the goal these are
jumps of many blocks; near it, single blocks; within the dead band, nothing. As the fitted models reproduce
what was measured, the only split that the rule leaves alone is one with equal IOPS_i / w_i. It cannot
starve: a VM that gets less than its share is given blocks whatever its u is.

A change of weights, a VM that comes, goes, wakes or sleeps is answered at once, by the models there are.

It counts requests: rate limits are of requests, and shares of anything else would depend on their sizes.

When OPS cannot do it (a VM exceeds its share though all blocks it can give are given, or the shares still
are off after a drive write and a half), rate limits hold those above their share down to it (`pacing`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from slo_ctl.decide.allocation import moves_between
from slo_ctl.decide.policies.proportional_limits import TRANSITION_DEVICE_SHARE, limits_for
from slo_ctl.decide.policies.proportional_split import plan_split
from slo_ctl.decide.policies.proportional_state import ProportionalState, max_iops, settled
from slo_ctl.decide.relief import relieve
from slo_ctl.decide.targets import Claim, Feasible, solve
from slo_ctl.decide.track import VmTrack, follow, new_tracks
from slo_ctl.model import Decision, DeviceSample, OpsMove, Placement, TimingModel

_RESOLVE_WINDOWS = 4
_FLOOR_SHARE = 0.01
"""OPS an active VM keeps at least, relative to its logical size: below, GC thrashes and hurts everybody."""
_ABOVE_MINIMUM = 1.02
"""What OPS aims at above a minimum, as IOPS fluctuate."""


@dataclass(frozen=True, slots=True)
class ProportionalStrict:
    """Equalises IOPS per weight, by OPS first and rate limits second."""

    name: str = "proportional-strict"
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
            device_share_since_event=TRANSITION_DEVICE_SHARE,
            pacing=any(v.limit_iops is not None and v.limit_iops < max_iops(v.slo) for v in sample.vms),
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
    state, reasons = plan_split(state, sample, feasible, event)
    moves: tuple[OpsMove, ...] = ()
    if state.plan:
        blocks = {v.vm: v.ops_blocks for v in sample.vms}
        moves = moves_between(blocks, state.plan, sample.spare_blocks, sample.max_move_blocks)
    state, limits, more_reasons = limits_for(state, sample, feasible, event)
    state = replace(state, last_blocks={v.vm: v.ops_blocks for v in sample.vms})
    shortfalls = tuple(
        f"{vm}: min_iops overcommitted, {missing:.0f} IOPS short"
        for vm, missing in feasible.overcommitted.items()
    )
    return state, Decision(
        moves, limits, targets=feasible.targets, reasons=reasons + more_reasons + shortfalls
    )


def _feasible(
    state: ProportionalState, sample: DeviceSample, event: str | None
) -> tuple[ProportionalState, Feasible]:
    """What the VMs are due: anew after events, and every few windows once u has settled."""
    known, age = state.feasible, state.feasible_age_windows + 1
    if known and not event and (age < _RESOLVE_WINDOWS or state.plan or not settled(state.tracks, sample)):
        return replace(state, feasible_age_windows=age), known
    claims = _claims(state.tracks, sample)
    feasible = solve(claims, sample.total_ops_blocks)
    feasible = relieve(claims, sample.total_ops_blocks, feasible, {v.vm: v.ops_blocks for v in sample.vms})
    return replace(state, feasible=feasible, feasible_age_windows=0), feasible


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
            min_iops=min(_ABOVE_MINIMUM * (v.slo.min_iops or 0.0), max_iops(v.slo)),
            max_iops=min(max_iops(v.slo), tracks[v.vm].demand_iops if v.requests > 0 else math.inf),
        )
        for v in sample.vms
    ]
