"""`proportional-strict`: exact proportions among all VMs that want more, whatever that costs in throughput.

All are slowed down to the level of the slowest (`entitle_exactly`), by weights of the device's fair queue
and by rate limits (`pacing`). OPS is planned as by `proportional`, for the fewest GC writes at the rates
that result; but where the slowest VM waits for its own GC rather than in the device's queue, every VM has
the OPS first that its own speed needs (`ops_for_speed`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from slo_ctl.decide.entitlement import Entitlements, claim_of, entitle_exactly
from slo_ctl.decide.limit_control import MISSED_FROM, ROOM
from slo_ctl.decide.ops_for_speed import Need, Speed, highest_level
from slo_ctl.decide.ops_plan import (
    LATENCY_BOUND_FROM,
    SETTLED_FROM_POOL_WRITES,
    OpsState,
    assume_rates,
    follow,
    initial_moves,
    next_moves,
)
from slo_ctl.decide.pacing import Paced, new_leads, pace
from slo_ctl.decide.policies.proportional import MEMORY_WINDOWS, Meter, Sums, fair_weights, read_all
from slo_ctl.model import Decision, DeviceSample, Placement, Slo, TimingModel, VmSample

LEAST_OPS = 0.01
"""OPS that an active VM keeps, relative to its logical size: below, GC thrashes."""


@dataclass(frozen=True, slots=True)
class Service:
    """Requests of one VM on the device, and throttled by its limit; older windows fade."""

    requests: float = 0.0
    pages_written: float = 0.0
    on_device_s: float = 0.0
    throttled_s: float = 0.0
    busy_s: float = 0.0

    def add(self, v: VmSample) -> Service:
        """With one more window, in which requests on the device were counted."""
        keep = 1.0 - 1.0 / MEMORY_WINDOWS
        return Service(
            requests=keep * self.requests + v.requests,
            pages_written=keep * self.pages_written + v.host_page_writes,
            on_device_s=keep * self.on_device_s + v.window_s * (v.outstanding or 0.0),
            throttled_s=keep * self.throttled_s + v.window_s * (v.throttled or 0.0),
            busy_s=keep * self.busy_s + v.window_s * v.backlog_share,
        )

    @property
    def slowed(self) -> float | None:
        """How many times more it would do without its limit; None: not known."""
        return 1.0 + self.throttled_s / self.on_device_s if self.on_device_s > 0.0 else None

    def speed(self, sample: DeviceSample, u: float) -> Speed | None:
        """At victim utilization `u`; None: not known."""
        if self.requests <= 0.0 or self.on_device_s <= 0.0 or self.busy_s <= 0.0:
            return None
        return Speed.measured(
            sample.timing,
            1e6 * self.on_device_s / self.requests,
            self.pages_written / self.requests,
            (self.on_device_s + self.throttled_s) / self.busy_s,
            u,
        )


@dataclass(frozen=True, slots=True)
class StrictState:
    """All that is remembered between windows."""

    circumstances: tuple[object, ...] = ()
    """Who is active, and what the SLOs are: a change is answered at once."""
    meters: dict[str, Meter] = field(default_factory=dict)
    services: dict[str, Service] = field(default_factory=dict)
    speeds: dict[str, Speed] = field(default_factory=dict)
    """As of the last time when u had settled."""
    ops: OpsState = field(default_factory=OpsState)
    needs: dict[str, int] | None = None
    """OPS that VMs must have for their own speed; None: wherever it saves most."""
    notes: tuple[str, ...] = ()
    """Of minimums that OPS cannot keep."""
    leads: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProportionalStrict:
    """Keeps exact proportions."""

    name: str = "proportional-strict"
    placement: Placement = Placement.ISOLATED

    def start(self, sample: DeviceSample) -> tuple[StrictState, Decision]:
        """Split the OPS by the prior models; ValueError when the minimums exceed it."""
        if sample.timing.model is TimingModel.NONE:
            return StrictState(), Decision(reasons=("count-only device: no rates to keep in proportion",))
        state = StrictState(_circumstances(sample), ops=follow(OpsState(), sample))
        wanted, notes = _needs(state, sample)
        moves = initial_moves(assume_rates(sample), sample, wanted) if sample.vms else ()
        limits = {v.vm: v.slo.max_iops for v in sample.vms if v.limit_iops != v.slo.max_iops}
        state = replace(state, needs=wanted, notes=notes)
        return state, Decision(moves=moves, limits_iops=limits, reasons=("initial split", *notes))

    def resume(self, sample: DeviceSample) -> tuple[StrictState, Decision]:
        """Take over a split and limits as they are."""
        if sample.timing.model is TimingModel.NONE:
            return StrictState(), Decision()
        return StrictState(_circumstances(sample), ops=follow(OpsState(), sample)), Decision()

    def step(self, state: StrictState, sample: DeviceSample) -> tuple[StrictState, Decision]:
        """Weights and limits for the next window, and the next step of moves."""
        if sample.timing.model is TimingModel.NONE or not sample.vms:
            return state, Decision()
        circumstances = _circumstances(sample)
        event = bool(state.circumstances) and circumstances != state.circumstances
        meters = read_all(state.meters, sample, reset=event)
        services = {
            v.vm: known.add(v) if v.outstanding is not None and v.requests else known
            for v in sample.vms
            for known in (state.services.get(v.vm, Service()),)
        }
        dids = {v.vm: meters[v.vm].did for v in sample.vms if v.active}
        bound = {vm for vm, did in dids.items() if did.busy and not did.wants_more}
        state = replace(
            state,
            circumstances=circumstances,
            meters=meters,
            services=services,
            ops=follow(state.ops, sample, bound),
            leads={} if event else state.leads,
        )
        paced = _paced(sample, state)
        due = _entitlements(sample, state, paced)
        state = _with_needs(state, sample, paced, event=event)
        ops, moves, plans = next_moves(state.ops, sample, state.needs)
        leads = new_leads(state.leads, paced)
        limits: dict[str, float | None] = {v.vm: v.slo.max_iops for v in sample.vms}
        for vm, limit in pace(paced, leads).items():
            limits[vm] = None if limit is None else limit / meters[vm].did.units_per_request
        decision = Decision(
            moves=moves,
            plans=plans,
            limits_iops={v.vm: limits[v.vm] for v in sample.vms if limits[v.vm] != v.limit_iops},
            scheduler_weights=fair_weights(sample, meters, due, due.level),
            reasons=state.notes,
        )
        return replace(state, ops=ops, leads=leads), decision


def _circumstances(sample: DeviceSample) -> tuple[object, ...]:
    return (sample.total_ops_blocks, *((v.vm, v.active, v.slo, v.logical_blocks) for v in sample.vms))


def _most(slo: Slo) -> float:
    return math.inf if slo.max_iops is None else slo.max_iops


def _paced(sample: DeviceSample, state: StrictState) -> list[Paced]:
    """Rates in the unit of shares."""
    paced = []
    for v in sample.vms:
        did = state.meters[v.vm].did
        if not v.active or v.window_s <= 0.0 or did.rate <= 0.0:
            continue
        slowed, units = state.services[v.vm].slowed, did.units_per_request
        paced.append(
            Paced(
                vm=v.vm,
                weight=v.slo.weight,
                iops=did.rate,
                last_iops=v.amount(sample.share_by) / v.window_s,
                window_s=v.window_s,
                limit_iops=None if v.limit_iops is None else v.limit_iops * units,
                saturating=did.busy,
                min_iops=(v.slo.min_iops or 0.0) * units,
                max_iops=_most(v.slo) * units,
                unlimited_iops=None if slowed is None else did.rate * slowed,
            )
        )
    return paced


def _entitlements(sample: DeviceSample, state: StrictState, paced: list[Paced]) -> Entitlements:
    by_vm = {each.vm: each for each in paced}
    claims = [
        claim_of(v.vm, v.slo, did.rate, did.units_per_request, wants_more=by_vm[v.vm].saturating)
        for v in sample.vms
        if v.vm in by_vm
        for did in (state.meters[v.vm].did,)
    ]
    able = {each.vm: each.iops if each.able_iops is None else each.able_iops for each in paced}
    return entitle_exactly(claims, able)


def _with_needs(state: StrictState, sample: DeviceSample, paced: list[Paced], *, event: bool) -> StrictState:
    """What VMs need for their own speed, found again after events and once u has settled."""
    tracks = state.ops.tracks
    busy = [v for v in sample.vms if v.active and v.requests > 0]
    settled = bool(busy) and all(tracks[v.vm].pool_writes >= SETTLED_FROM_POOL_WRITES for v in busy)
    if settled:
        found = {
            v.vm: state.services[v.vm].speed(sample, tracks[v.vm].curve.u_at(v.ops_blocks)) for v in busy
        }
        state = replace(state, speeds=state.speeds | {vm: s for vm, s in found.items() if s is not None})
    elif not event:
        return state
    slowest = min(
        (each for each in paced if each.to_be_level and each.able_iops is not None),
        key=lambda each: (each.able_iops or 0.0) / each.weight,
        default=None,
    )
    observed = -math.expm1(-state.ops.drive_writes)
    if slowest and tracks[slowest.vm].latency_bound < LATENCY_BOUND_FROM * observed and not event:
        return replace(state, needs=None, notes=())
    wanted, notes = _needs(state, sample)
    return replace(state, needs=wanted, notes=notes)


def _demand_iops(did: Sums) -> float:
    """The most that a VM may come to ask for; infinite where it always has requests outstanding.

    A client that waits for its requests spends a part of its time on that. Were the device infinitely fast,
    it would do its IOPS / (1 - that part) (the utilization law).
    """
    if did.seconds <= 0.0 or did.busy or did.iops <= 0.0:
        return math.inf
    return did.iops * max(1.0 + ROOM, did.seconds / (did.seconds - did.backlog_s))


def _needs(state: StrictState, sample: DeviceSample) -> tuple[dict[str, int], tuple[str, ...]]:
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
            units_per_request=state.meters.get(v.vm, Meter()).did.units_per_request,
            min_iops=min((1.0 + MISSED_FROM) * (v.slo.min_iops or 0.0), _most(v.slo)),
            max_iops=min(_most(v.slo), _demand_iops(state.meters.get(v.vm, Meter()).did)),
        )
        for v in sample.vms
        if v.active
    ]
    free = sample.total_ops_blocks - sum(least[v.vm] for v in sample.vms if not v.active)
    level, wanted = highest_level(sample.timing, vms, free)
    notes = tuple(
        f"{v.vm}: min_iops overcommitted, OPS cannot give it {v.min_iops:,.0f} IOPS"
        for v in vms
        if v.min_iops > 0.0
        and v.level(sample.timing, wanted[v.vm]) * v.weight < (1.0 - MISSED_FROM) * v.min_iops
    )
    now = {v.vm: v.ops_blocks for v in sample.vms}
    reached = min((v.level(sample.timing, now[v.vm]) for v in vms if v.max_iops == math.inf), default=0.0)
    if reached >= (1.0 - MISSED_FROM) * level and not notes:
        # Good enough: no VM needs more than it has.
        wanted = {vm: min(blocks, now[vm]) for vm, blocks in wanted.items()}
    return {vm: wanted.get(vm, least[vm]) for vm in least}, notes
