"""`proportional-strict`: exact proportions among all VMs that want more, whatever that costs in throughput.

All are slowed down to the level of the slowest (`entitle_exactly`), by weights of the device's fair queue
and by rate limits (`pacing`). As with `proportional`, OPS is planned for the fewest GC writes at the
resulting rates; but if the slowest VM waits for its own GC rather than in the device's queue, every VM first
gets the OPS that its own rate needs (`ops_for_speed`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from slo_ctl.decide.entitlement import Entitlements, claim_of, entitle_exactly
from slo_ctl.decide.objectives import MISSED_FROM, ROOM
from slo_ctl.decide.ops_for_speed import Need, Speed, highest_level
from slo_ctl.decide.ops_plan import (
    SETTLED_FROM_POOL_WRITES,
    OpsState,
    assume_rates,
    initial_moves,
    next_moves,
    next_ops_state,
)
from slo_ctl.decide.pacing import Paced, new_leads, pace
from slo_ctl.decide.policies.interface import limits_by_slo
from slo_ctl.decide.policies.proportional import Activity, Meter, fair_weights, next_meters
from slo_ctl.model.decision import Decision
from slo_ctl.model.sample import DeviceSample, Placement, TimingModel
from slo_ctl.model.slo import Slo

LEAST_OPS = 0.01
"""Least OPS of an active VM, relative to its logical size; with less, GC thrashes."""


@dataclass(frozen=True, slots=True)
class StrictState:
    """State of the policy between windows."""

    configuration: tuple[object, ...] = ()
    """Total OPS, and VMs with their SLOs, sizes and whether they are active; empty before any window."""
    meters: dict[str, Meter] = field(default_factory=dict)
    """By VM."""
    speeds: dict[str, Speed] = field(default_factory=dict)
    """Models of the request time by VM, from when u was last settled."""
    ops: OpsState = field(default_factory=OpsState)
    needs: dict[str, int] | None = None
    """OPS blocks by VM that it needs for its own rate; None: OPS only minimises GC."""
    notes: tuple[str, ...] = ()
    """A sentence for each minimum that OPS cannot keep."""
    leads: dict[str, float] = field(default_factory=dict)
    """Leads by VM, in units of shares per unit of weight (`pacing`)."""


@dataclass(frozen=True, slots=True)
class ProportionalStrict:
    """The policy `proportional-strict`: keeps exact proportions."""

    name: str = "proportional-strict"
    placement: Placement = Placement.ISOLATED

    def start(self, sample: DeviceSample) -> tuple[StrictState, Decision]:
        """Split the OPS for writes by weight; ValueError when the minimums exceed it."""
        if sample.timing.model is TimingModel.NONE:
            reason = "the device has no timing model, so that there are no rates to keep in proportion"
            return StrictState(), Decision(reasons=(reason,))
        state = StrictState(_configuration(sample), ops=next_ops_state(OpsState(), sample))
        wanted, notes = _needs(state, sample)
        moves = initial_moves(assume_rates(sample), sample, wanted) if sample.vms else ()
        state = replace(state, needs=wanted, notes=notes)
        return state, Decision(
            moves=moves, limits_iops=limits_by_slo(sample), reasons=("initial split of OPS", *notes)
        )

    def resume(self, sample: DeviceSample) -> tuple[StrictState, Decision]:
        """Keep the split of OPS and the limits."""
        if sample.timing.model is TimingModel.NONE:
            return StrictState(), Decision()
        return StrictState(_configuration(sample), ops=next_ops_state(OpsState(), sample)), Decision()

    def step(self, state: StrictState, sample: DeviceSample) -> tuple[StrictState, Decision]:
        """Weights and limits for the next window, and the next moves."""
        if sample.timing.model is TimingModel.NONE or not sample.vms:
            return state, Decision()
        configuration = _configuration(sample)
        changed = bool(state.configuration) and configuration != state.configuration
        meters = next_meters(state.meters, sample, reset=changed)
        recent = {v.vm: meters[v.vm].recent for v in sample.vms if v.active}
        latency_bound = {vm for vm, activity in recent.items() if activity.busy and not activity.wants_more}
        state = replace(
            state,
            configuration=configuration,
            meters=meters,
            ops=next_ops_state(state.ops, sample, latency_bound),
            leads={} if changed else state.leads,
        )
        paced = _paced(sample, state)
        due = _entitlements(sample, state, paced)
        state = _with_needs(state, sample, paced, changed=changed)
        ops, moves, plans = next_moves(state.ops, sample, state.needs)
        leads = new_leads(state.leads, paced)
        limits: dict[str, float | None] = {v.vm: v.slo.max_iops for v in sample.vms}
        for vm, limit in pace(paced, leads).items():
            limits[vm] = None if limit is None else limit / meters[vm].recent.units_per_request
        decision = Decision(
            moves=moves,
            plans=plans,
            limits_iops={v.vm: limits[v.vm] for v in sample.vms if limits[v.vm] != v.limit_iops},
            scheduler_weights=fair_weights(sample, meters, due, due.level),
            reasons=state.notes,
        )
        return replace(state, ops=ops, leads=leads), decision


def _configuration(sample: DeviceSample) -> tuple[object, ...]:
    """What the policy responds to at once when it changes; compared for equality only."""
    return (sample.total_ops_blocks, *((v.vm, v.active, v.slo, v.logical_blocks) for v in sample.vms))


def _max_iops(slo: Slo) -> float:
    """The maximum of an SLO; infinite without one."""
    return math.inf if slo.max_iops is None else slo.max_iops


def _paced(sample: DeviceSample, state: StrictState) -> list[Paced]:
    """The active VMs for `pacing`."""
    paced = []
    for v in sample.vms:
        recent = state.meters[v.vm].recent
        if not v.active or v.window_s <= 0.0 or recent.rate <= 0.0:
            continue
        units = recent.units_per_request
        paced.append(
            Paced(
                vm=v.vm,
                weight=v.slo.weight,
                rate=recent.rate,
                last_rate=v.amount(sample.share_by) / v.window_s,
                window_s=v.window_s,
                limit=None if v.limit_iops is None else v.limit_iops * units,
                saturating=recent.busy,
                min_rate=(v.slo.min_iops or 0.0) * units,
                max_rate=_max_iops(v.slo) * units,
                unlimited_rate=_unlimited_rate(recent),
            )
        )
    return paced


def _unlimited_rate(recent: Activity) -> float | None:
    """Rate in units that a VM would have without its limit; None: not known."""
    if recent.outstanding_s <= 0.0:
        return None
    return recent.rate * (1.0 + recent.throttled_s / recent.outstanding_s)


def _speed(recent: Activity, sample: DeviceSample, u: float) -> Speed | None:
    """The model of a VM's request time, measured at victim utilization `u`; None: no measurement."""
    if recent.requests <= 0.0 or recent.outstanding_s <= 0.0 or recent.backlog_s <= 0.0:
        return None
    return Speed.measured(
        sample.timing,
        1e6 * recent.outstanding_s / recent.requests,
        recent.pages_written / recent.requests,
        (recent.outstanding_s + recent.throttled_s) / recent.backlog_s,
        u,
    )


def _entitlements(sample: DeviceSample, state: StrictState, paced: list[Paced]) -> Entitlements:
    """Entitlements of the VMs in `paced`, in units of shares per second."""
    by_vm = {p.vm: p for p in paced}
    claims = [
        claim_of(v.vm, v.slo, recent.rate, recent.units_per_request, wants_more=by_vm[v.vm].saturating)
        for v in sample.vms
        if v.vm in by_vm
        for recent in (state.meters[v.vm].recent,)
    ]
    attainable = {p.vm: p.rate if p.attainable_rate is None else p.attainable_rate for p in paced}
    return entitle_exactly(claims, attainable)


def _with_needs(
    state: StrictState, sample: DeviceSample, paced: list[Paced], *, changed: bool
) -> StrictState:
    """The state with the needs computed again, if u has settled or the configuration has `changed`."""
    tracks = state.ops.tracks
    busy = [v for v in sample.vms if v.active and v.requests > 0]
    settled = bool(busy) and all(tracks[v.vm].pool_writes >= SETTLED_FROM_POOL_WRITES for v in busy)
    if settled:
        speeds = {
            v.vm: _speed(state.meters[v.vm].recent, sample, tracks[v.vm].curve.u_at(v.ops_blocks))
            for v in busy
        }
        state = replace(
            state, speeds=state.speeds | {vm: speed for vm, speed in speeds.items() if speed is not None}
        )
    elif not changed:
        return state
    slowest = min(
        (p for p in paced if p.proportional and p.attainable_rate is not None),
        key=lambda p: (p.attainable_rate or 0.0) / p.weight,
        default=None,
    )
    if slowest and not tracks[slowest.vm].is_latency_bound and not changed:
        return replace(state, needs=None, notes=())
    wanted, notes = _needs(state, sample)
    return replace(state, needs=wanted, notes=notes)


def _demand_iops(recent: Activity) -> float:
    """Upper bound of a VM's demand; infinite if it has requests outstanding nearly all the time.

    A client that waits for its requests for a fraction f of the time would do its IOPS / (1 - f) on an
    infinitely fast device (utilization law).
    """
    if recent.seconds <= 0.0 or recent.busy or recent.iops <= 0.0:
        return math.inf
    return recent.iops * max(1.0 + ROOM, recent.seconds / (recent.seconds - recent.backlog_s))


def _needs(state: StrictState, sample: DeviceSample) -> tuple[dict[str, int], tuple[str, ...]]:
    """OPS blocks by VM for the highest level that all can reach, and a note for each minimum not kept."""
    prior = Speed(sample.timing.transfer_us + sample.timing.program_us)
    least = {
        v.vm: max(v.min_ops_blocks, math.ceil(LEAST_OPS * v.logical_blocks)) if v.active else v.min_ops_blocks
        for v in sample.vms
    }
    if sum(least.values()) > sample.total_ops_blocks:
        least = {v.vm: v.min_ops_blocks for v in sample.vms}
    vms = [
        Need(
            vm=v.vm,
            weight=v.slo.weight,
            curve=state.ops.tracks[v.vm].curve,
            speed=state.speeds.get(v.vm, prior),
            least_blocks=least[v.vm],
            units_per_request=state.meters.get(v.vm, Meter()).recent.units_per_request,
            min_iops=min((1.0 + MISSED_FROM) * (v.slo.min_iops or 0.0), _max_iops(v.slo)),
            max_iops=min(_max_iops(v.slo), _demand_iops(state.meters.get(v.vm, Meter()).recent)),
        )
        for v in sample.vms
        if v.active
    ]
    free = sample.total_ops_blocks - sum(least[v.vm] for v in sample.vms if not v.active)
    level, wanted = highest_level(sample.timing, vms, free)
    notes = tuple(
        f"{v.vm}: minimum overcommitted: no amount of OPS that is available allows {v.min_iops:,.0f} IOPS"
        for v in vms
        if v.min_iops > 0.0
        and v.level(sample.timing, wanted[v.vm]) * v.weight / v.units_per_request
        < (1.0 - MISSED_FROM) * v.min_iops
    )
    now = {v.vm: v.ops_blocks for v in sample.vms}
    reached = min((v.level(sample.timing, now[v.vm]) for v in vms if v.max_iops == math.inf), default=0.0)
    if reached >= (1.0 - MISSED_FROM) * level and not notes:
        # The current split suffices: no VM needs more blocks than it has.
        wanted = {vm: min(blocks, now[vm]) for vm, blocks in wanted.items()}
    return {vm: wanted.get(vm, least[vm]) for vm in least}, notes
