"""`proportional-strict`: exact proportions among all that want more, whatever that costs in throughput.

Everybody is slowed down to the level of the slowest (`entitle_exactly`), by weights of the device's fair
queue and by rate limits that even out leads (`pace`). OPS is planned as by `proportional`, for the fewest
GC at the rates that result; but where the slowest VM waits for its own GC rather than in the device's queue,
every VM has the OPS first that its own speed needs (`needs`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from slo_ctl.decide.entitlement import Entitlements, claim_of, entitle_exactly
from slo_ctl.decide.gc_model import GcCurve, gc_time_us, u_at_gc_time
from slo_ctl.decide.limit_control import AT_LIMIT, LIFT_FROM, MISSED_FROM, MOST_INCREASE, ROOM
from slo_ctl.decide.ops_plan import (
    LATENCY_BOUND_FROM,
    SETTLED_FROM_POOL_WRITES,
    OpsState,
    assume_rates,
    follow,
    initial_moves,
    next_moves,
)
from slo_ctl.decide.policies.proportional import MEMORY_WINDOWS, Meter, Sums, fair_weights, read_all
from slo_ctl.model import Decision, DeviceSample, FlashTiming, Placement, Slo, TimingModel, VmSample

EVENED_PER_WINDOW = 0.25
"""Part of a difference in leads that limits take back in a window."""
LEAST_PACE, MOST_PACE = 0.3, 2.0
"""Times its share: what a VM may have while it falls back or catches up, and the bottleneck in case a fast
phase comes."""
LEAD_MEMORY_WINDOWS = 200.0
"""Leads fade over this many windows."""
LEAST_OPS = 0.01
"""OPS that an active VM keeps, relative to its logical size: below, GC thrashes."""
_US_PER_S = 1e6
_BISECTIONS = 40


# Rate limits that hold VMs down to their share.
#
# The slowest of the VMs to be kept level, the bottleneck, sets what the others may have: when it speeds up,
# their limits follow in the next step. Its own limit leaves it room to.
#
# Workloads have phases, and another VM may be the bottleneck in each. So shares are kept over time, not
# window by window: every VM has a lead, the requests per unit of weight it had beyond the others recently,
# and its limit lets it fall back, or catch up, by a part of the difference to the bottleneck's.


@dataclass(frozen=True, slots=True)
class Paced:
    """One active VM as the pacing sees it; rates in requests per second."""

    vm: str
    weight: float
    iops: float
    """Average over a few windows."""
    last_iops: float
    """In the last window, under `limit_iops`."""
    window_s: float
    limit_iops: float | None
    saturating: bool
    min_iops: float = 0.0
    max_iops: float = math.inf
    unheld_iops: float | None = None
    """Rate without its limit; None: not known."""

    @property
    def throttled(self) -> bool:
        """Whether the limit, not the device, sets this VM's IOPS."""
        return self.limit_iops is not None and self.last_iops >= AT_LIMIT * self.limit_iops

    @property
    def paced(self) -> bool:
        """Whether the limit in force is tighter than the SLO's maximum."""
        return self.limit_iops is not None and self.limit_iops < self.max_iops

    @property
    def to_be_level(self) -> bool:
        """Whether its IOPS per weight are to equal the others': it wants more, and its maximum allows it."""
        return self.saturating and self.last_iops < AT_LIMIT * self.max_iops

    @property
    def able_iops(self) -> float | None:
        """Rate that the device could deliver; None: not known."""
        return self.iops if self.unheld_iops is None and not self.throttled else self.unheld_iops


def new_leads(leads: Mapping[str, float], vms: Sequence[Paced]) -> dict[str, float]:
    """Every VM's lead after one more window, in requests per unit of weight; 0 for who is furthest behind.

    A VM that asked for less than its share, or had its maximum, has no lead, and nothing to catch up.
    """
    level = [v for v in vms if v.to_be_level]
    if not level:
        return {}
    keep = 1.0 - 1.0 / LEAD_MEMORY_WINDOWS
    had = {v.vm: keep * leads.get(v.vm, 0.0) + v.last_iops * v.window_s / v.weight for v in level}
    least = min(had.values())
    return {vm: requests - least for vm, requests in had.items()}


def pace(vms: Sequence[Paced], leads: Mapping[str, float]) -> dict[str, float | None]:
    """The limit every VM should have in the next window; None for none."""
    able = {v.vm: v.able_iops / v.weight for v in vms if v.vm in leads and v.able_iops is not None}
    in_force = max((v.limit_iops / v.weight for v in vms if v.paced and v.limit_iops), default=math.inf)
    least_lead = min(leads.values(), default=0.0)
    behind = min(able, key=lambda vm: able[vm], default=None)
    if behind is None:
        share, lead = (1.0 + MOST_INCREASE) * in_force, max(leads.values(), default=0.0)
    else:
        share, lead = able[behind], leads[behind]
    limits = {}
    for v in vms:
        if v.vm == behind:
            pace = _evened(MOST_PACE * share, lead - least_lead, v.window_s, (1.0 + ROOM) * share)
        elif v.vm in leads:
            pace = min(_evened(share, leads[v.vm] - lead, v.window_s, LEAST_PACE * share), MOST_PACE * share)
        else:
            pace = MOST_PACE * share
        limits[v.vm] = min(max(v.weight * pace, (1.0 + MISSED_FROM) * v.min_iops), v.max_iops)
    if not any(v.throttled or limits[v.vm] < LIFT_FROM * v.iops for v in vms):
        limits = {v.vm: v.max_iops for v in vms}
    return {vm: limit if math.isfinite(limit) else None for vm, limit in limits.items()}


def _evened(pace: float, ahead: float, window_s: float, least: float) -> float:
    return max(pace - EVENED_PER_WINDOW * ahead / window_s, least)


# OPS that each VM's own speed needs, where requests wait for their own VM's GC.
#
# A request's mean time is what is left without GC, plus its page writes times the GC time of a page (equation
# 1). With q requests outstanding a VM does q / time requests per second. So a level (units per second and
# weight) costs a known number of OPS blocks, which grows with it; the largest level for which all fit is
# found by bisection. Where requests mostly wait in the device's queue this is not so: there OPS only has to
# save GC.


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast a VM's requests are."""

    base_us: float
    """Time of a request without GC."""
    gc_pages: float = 1.0
    """Pages whose GC a request waits for."""
    outstanding: float = 1.0

    @classmethod
    def measured(
        cls, timing: FlashTiming, time_us: float, writes_per_request: float, outstanding: float, u: float
    ) -> Speed:
        """The speed for a mean request time while victims had the utilization `u`."""
        gc_us = gc_time_us(timing, u)
        least_us = min(1.0, writes_per_request) * (timing.transfer_us + timing.program_us)
        base_us = max(time_us - writes_per_request * gc_us, min(least_us, 0.5 * time_us))
        # What of GC runs beside the request is not waited for.
        return cls(base_us, (time_us - base_us) / gc_us if gc_us > 0.0 else writes_per_request, outstanding)


@dataclass(frozen=True, slots=True)
class Need:
    """One active VM."""

    vm: str
    weight: float
    curve: GcCurve
    speed: Speed
    least_blocks: int
    units_per_request: float = 1.0
    min_iops: float = 0.0
    max_iops: float = math.inf

    def blocks(self, timing: FlashTiming, level: float) -> float:
        """OPS that the level takes; infinite beyond reach."""
        iops = min(max(level * self.weight / self.units_per_request, self.min_iops), self.max_iops)
        if iops <= 0.0:
            return float(self.least_blocks)
        spare_us = self.speed.outstanding * _US_PER_S / iops - self.speed.base_us
        if spare_us < 0.0:
            return math.inf
        if self.speed.gc_pages <= 0.0:
            return float(self.least_blocks)
        u = u_at_gc_time(timing, spare_us / self.speed.gc_pages)
        return max(float(self.least_blocks), self.curve.ops_at(u))

    def level(self, timing: FlashTiming, blocks: float) -> float:
        """Rate with this many blocks."""
        gc_us = self.speed.gc_pages * gc_time_us(timing, self.curve.u_at(blocks))
        iops = self.speed.outstanding * _US_PER_S / (self.speed.base_us + gc_us)
        return iops * self.units_per_request / self.weight if iops < self.max_iops else math.inf


def needs(timing: FlashTiming, vms: Sequence[Need], total_blocks: float) -> tuple[float, dict[str, int]]:
    """The largest level that OPS can give all, and what it takes."""

    def fits(level: float, part: float = 1.0) -> bool:
        return sum(_scaled(v, part).blocks(timing, level) for v in vms) <= total_blocks

    part = 1.0 if fits(0.0) else _largest(lambda part: fits(0.0, part), 1.0)
    vms = [_scaled(v, part) for v in vms]
    top = max((v.level(timing, total_blocks) for v in vms if v.max_iops == math.inf), default=0.0)
    top = top if math.isfinite(top) and top > 0.0 else max((v.max_iops / v.weight for v in vms), default=0.0)
    # The last part would cost the others most of their OPS, and is within the noise.
    level = (1.0 - MISSED_FROM) * _largest(fits, top)
    return level, {v.vm: math.floor(v.blocks(timing, level)) for v in vms}


def _scaled(vm: Need, part: float) -> Need:
    if part == 1.0:
        return vm
    return Need(
        *(vm.vm, vm.weight, vm.curve, vm.speed, vm.least_blocks, vm.units_per_request),
        part * vm.min_iops,
        vm.max_iops,
    )


def _largest(holds: Callable[[float], bool], high: float) -> float:
    if holds(high):
        return high
    low = 0.0
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


# The policy: what it remembers, and its step.


@dataclass(frozen=True, slots=True)
class Service:
    """Requests of one VM on the device, and throttled by its limit; older windows fade."""

    requests: float = 0.0
    pages_written: float = 0.0
    on_device_s: float = 0.0
    held_s: float = 0.0
    busy_s: float = 0.0

    def add(self, v: VmSample) -> Service:
        """With one more window, in which requests on the device were counted."""
        keep = 1.0 - 1.0 / MEMORY_WINDOWS
        return Service(
            requests=keep * self.requests + v.requests,
            pages_written=keep * self.pages_written + v.host_page_writes,
            on_device_s=keep * self.on_device_s + v.window_s * (v.outstanding or 0.0),
            held_s=keep * self.held_s + v.window_s * (v.throttled or 0.0),
            busy_s=keep * self.busy_s + v.window_s * v.backlog_share,
        )

    @property
    def slowed(self) -> float | None:
        """How many times more it would do without its limit; None: not known."""
        return 1.0 + self.held_s / self.on_device_s if self.on_device_s > 0.0 else None

    def speed(self, sample: DeviceSample, u: float) -> Speed | None:
        """At victim utilization `u`; None: not known."""
        if self.requests <= 0.0 or self.on_device_s <= 0.0 or self.busy_s <= 0.0:
            return None
        return Speed.measured(
            sample.timing,
            1e6 * self.on_device_s / self.requests,
            self.pages_written / self.requests,
            (self.on_device_s + self.held_s) / self.busy_s,
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
                unheld_iops=None if slowed is None else did.rate * slowed,
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
    level, wanted = needs(sample.timing, vms, free)
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
