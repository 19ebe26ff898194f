"""`proportional`: shares by weight, work-conserving (the default).

Two time scales. Shares are kept from the first window on by levers that act at once: weights of the device's
fair queue, and rate limits where a minimum or a p99 needs them. OPS follows the long-term write rates, within
a budget, and only where a move pays (`ops_plan`).

A fair queue divides device time, GC included. A VM's weight there is its entitlement in the unit of shares,
times the device time that a unit costs it; an integral term takes out what that estimate misses. What a VM
leaves, because of its queue depth or its own pace, goes to the others: nobody is slowed down for being faster
than somebody who cannot use more. For exact proportions at any cost there is `proportional-strict`.
"""

import math
from dataclasses import dataclass, field, replace

from slo_ctl.decide.entitlement import WANTS_MORE_FROM, Claim, Entitlements, entitle
from slo_ctl.decide.limit_control import Bounded, LimitState, control
from slo_ctl.decide.ops_plan import (
    OpsState,
    assume_rates,
    follow,
    initial_moves,
    next_moves,
    summary,
)
from slo_ctl.model import Decision, DeviceSample, Placement, ShareBy, Slo, Target, TimingModel, VmSample

MEMORY_WINDOWS, COST_MEMORY_WINDOWS = 4.0, 32.0
"""Rates and queueing are averages over so many windows; what a unit costs, over so many."""
INTEGRAL_GAIN = 0.1
"""Of the relative error of a share, per window."""
WORTH_SETTING = 0.03
"""Relative change of a weight from which on it is set; the integral term takes out what that leaves."""
LONGEST_TRIM = math.log(4.0)
"""The most that the integral term may change a weight by."""
BUSY_FROM = 0.9
"""A VM with requests outstanding for this share of the time is not held back by its own pace."""


@dataclass(frozen=True, slots=True)
class Sums:
    """What one VM did in the last windows; older ones fade."""

    seconds: float = 0.0
    amount: float = 0.0
    requests: float = 0.0
    queued_s: float = 0.0
    backlog_s: float = 0.0

    def add(self, vm: VmSample, share_by: ShareBy, memory_windows: float) -> "Sums":
        """The sums with one more window."""
        keep = 1.0 - 1.0 / memory_windows
        return Sums(
            seconds=keep * self.seconds + vm.window_s,
            amount=keep * self.amount + vm.amount(share_by),
            requests=keep * self.requests + vm.requests,
            queued_s=keep * self.queued_s + vm.window_s * vm.queued_share,
            backlog_s=keep * self.backlog_s + vm.window_s * vm.backlog_share,
        )

    @property
    def rate(self) -> float:
        """Units per second."""
        return self.amount / self.seconds if self.seconds else 0.0

    @property
    def iops(self) -> float:
        """Requests per second."""
        return self.requests / self.seconds if self.seconds else 0.0

    @property
    def wants_more(self) -> bool:
        """Whether more weight would have meant more service."""
        return self.seconds > 0 and self.queued_s >= WANTS_MORE_FROM * self.seconds

    @property
    def busy(self) -> bool:
        """Whether it had requests outstanding nearly all the time."""
        return self.seconds > 0 and self.backlog_s >= BUSY_FROM * self.seconds

    @property
    def units_per_request(self) -> float:
        """1 before any request."""
        return self.amount / self.requests if self.requests and self.amount else 1.0


@dataclass(frozen=True, slots=True)
class Meter:
    """What is known of one VM."""

    did: Sums = Sums()
    windows: int = 0
    """Since circumstances changed."""
    cost_amount: float = 0.0
    cost_s: float = 0.0
    trim: float = 0.0
    """Integral term: log of the factor on its weight."""

    @property
    def unit_cost_s(self) -> float | None:
        """Device time that a unit takes; None before any."""
        return self.cost_s / self.cost_amount if self.cost_amount and self.cost_s else None


@dataclass(frozen=True, slots=True)
class ProportionalState:
    """All that is remembered between windows."""

    meters: dict[str, Meter] = field(default_factory=dict)
    ops: OpsState = field(default_factory=OpsState)
    limits: LimitState = field(default_factory=LimitState)
    moving: str = ""
    """The moves that were reported last."""
    circumstances: dict[str, Slo] = field(default_factory=dict)
    """Who is active, and with which SLO."""
    resumed_windows: int | None = None
    """Since a device was taken over whose weights stay until costs have been measured; None: long ago."""


@dataclass(frozen=True, slots=True)
class Proportional:
    """Keeps every VM at its entitlement; what somebody leaves goes to the others."""

    name: str = "proportional"
    placement: Placement = Placement.ISOLATED

    def start(self, sample: DeviceSample) -> tuple[ProportionalState, Decision]:
        """Split the OPS of an unused device for writes by weight; ValueError when the minimums exceed it."""
        ops = assume_rates(sample)
        decision = Decision(
            moves=initial_moves(ops, sample),
            limits_iops={v.vm: v.slo.max_iops for v in sample.vms if v.limit_iops != v.slo.max_iops},
            scheduler_weights={v.vm: v.slo.weight for v in sample.vms},
            reasons=("OPS split for the fewest GC writes when VMs write by their weights",),
        )
        return ProportionalState(ops=follow(OpsState(), sample)), decision

    def resume(self, sample: DeviceSample) -> tuple[ProportionalState, Decision]:
        """Leave the split as it is; limits that another policy set go."""
        limits = {v.vm: v.slo.max_iops for v in sample.vms if v.limit_iops != v.slo.max_iops}
        state = ProportionalState(ops=follow(OpsState(), sample), resumed_windows=0)
        return state, Decision(limits_iops=limits)

    def step(self, state: ProportionalState, sample: DeviceSample) -> tuple[ProportionalState, Decision]:
        """Weights and limits for the next window, and the next step of moves, if any pays."""
        circumstances = {v.vm: v.slo for v in sample.vms if v.active}
        changed = circumstances != state.circumstances
        known = state.meters
        if any(slo != state.circumstances.get(vm, slo) for vm, slo in circumstances.items()):
            # What the integral terms have made up for was another SLO's.
            known = {vm: replace(meter, trim=0.0) for vm, meter in known.items()}
        meters = _read_all(known, sample, anew=changed)
        due = _entitlements(sample, meters)
        ops, moves, plans = next_moves(follow(state.ops, sample, _latency_bound(sample, meters, due)), sample)
        moving = summary(plans)
        reasons = (moving,) if moving and bool(moving) != bool(state.moving) else ()
        if state.moving and not moving:
            reasons = ("no further move of OPS pays",)
        if sample.timing.model is TimingModel.NONE:
            state = replace(state, meters=meters, ops=ops, moving=moving, circumstances=circumstances)
            return state, Decision(moves=moves, plans=plans, reasons=reasons)
        meters = _trimmed(meters, due)
        resumed = state.resumed_windows
        if resumed is not None:
            resumed = resumed + 1 if resumed < MEMORY_WINDOWS else None
        limited, limits = control(state.limits, _bounded(sample, meters))
        wanted = {v.vm: _lower(limits.limits.get(v.vm), v.slo.max_iops) for v in sample.vms}
        asides = {
            vm: f"limited to {limit:,.0f} IOPS for {limits.protected}" for vm, limit in limits.limits.items()
        }
        if limits.limits:
            asides[limits.protected] = f"{', '.join(limits.limits)} limited for it"
        decision = Decision(
            moves=moves,
            plans=plans,
            limits_iops={v.vm: wanted[v.vm] for v in sample.vms if wanted[v.vm] != v.limit_iops},
            scheduler_weights=_weights(sample, meters, due) if resumed is None else {},
            targets=_targets(sample, meters, due),
            asides=asides,
            reasons=reasons + ((limits.reason,) if limits.reason else ()) + _overcommitted(due),
        )
        return ProportionalState(meters, ops, limited, moving, circumstances, resumed), decision


def _read_all(meters: dict[str, Meter], sample: DeviceSample, *, anew: bool) -> dict[str, Meter]:
    """The meters with one more window; `anew`: what was measured before was under other circumstances."""
    keep = 1.0 - 1.0 / COST_MEMORY_WINDOWS
    read = {}
    for v in sample.vms:
        meter, amount = meters.get(v.vm, Meter()), v.amount(sample.share_by)
        if v.window_s <= 0.0:
            read[v.vm] = meter
            continue
        read[v.vm] = Meter(
            did=(Sums() if anew else meter.did).add(v, sample.share_by, MEMORY_WINDOWS),
            windows=0 if anew else meter.windows + 1,
            cost_amount=keep * meter.cost_amount + amount if amount else meter.cost_amount,
            cost_s=keep * meter.cost_s + v.device_s if amount else meter.cost_s,
            trim=meter.trim,
        )
    return read


def claim_of(vm: str, slo: Slo, rate: float, units_per_request: float, *, wants_more: bool) -> Claim:
    """A VM's claim, its bounds turned from requests into units."""
    return Claim(
        vm=vm,
        weight=slo.weight,
        used=rate,
        wants_more=wants_more,
        minimum=(slo.min_iops or 0.0) * units_per_request,
        maximum=math.inf if slo.max_iops is None else slo.max_iops * units_per_request,
    )


def _entitlements(sample: DeviceSample, meters: dict[str, Meter]) -> Entitlements:
    claims = []
    for v in sample.vms:
        did = meters[v.vm].did
        if v.active:
            claims.append(claim_of(v.vm, v.slo, did.rate, did.units_per_request, wants_more=did.wants_more))
    return entitle(claims)


def _trimmed(meters: dict[str, Meter], due: Entitlements) -> dict[str, Meter]:
    """The integral terms one window later. One fades where it has no effect: there, the VM takes what it
    wants."""
    contended = sum(meters[vm].did.wants_more for vm in due.rates) > 1
    trimmed = {}
    for vm, meter in meters.items():
        rate, rightful = meter.did.rate, due.rates.get(vm, 0.0)
        trim = (1.0 - INTEGRAL_GAIN) * meter.trim
        if contended and meter.did.wants_more and rate and rightful:
            # Before, rates are not those of the weights in force.
            # Not of its logarithm: what a bursty VM gets is judged by its mean.
            error = max(1.0 - rate / rightful, -1.0) if meter.windows >= MEMORY_WINDOWS else 0.0
            trim = min(max(meter.trim + INTEGRAL_GAIN * error, -LONGEST_TRIM), LONGEST_TRIM)
        trimmed[vm] = replace(meter, trim=trim)
    return trimmed


def _weights(sample: DeviceSample, meters: dict[str, Meter], due: Entitlements) -> dict[str, float]:
    """Weights of the fair queue that are worth setting: each VM's entitlement in device time.

    Of VMs that want no more, too: what they are entitled to, not what they use, decides how soon they are
    served.
    """
    costs = {vm: meter.unit_cost_s for vm, meter in meters.items()}
    known = [cost for cost in costs.values() if cost]
    usual = sum(known) / len(known) if known else 1.0
    ideal = {}
    for v in sample.vms:
        meter, level = meters[v.vm], due.level * v.slo.weight
        minimum = (v.slo.min_iops or 0.0) * meter.did.units_per_request
        rate = max(level, min(minimum, due.rates.get(v.vm, 0.0)), 1e-9)
        ideal[v.vm] = rate * (costs[v.vm] or usual) * math.exp(meter.trim)
    scale = sum(v.slo.weight for v in sample.vms) / sum(ideal.values()) if ideal else 1.0
    return {
        v.vm: scale * ideal[v.vm]
        for v in sample.vms
        if abs(math.log(scale * ideal[v.vm] / v.scheduler_weight)) > WORTH_SETTING
    }


def _bounded(sample: DeviceSample, meters: dict[str, Meter]) -> list[Bounded]:
    """The active VMs, for the limit controller. While the queue can still prefer a VM, it has not failed."""
    active = [v for v in sample.vms if v.active]
    level = sum(meters[v.vm].did.rate for v in active) / max(sum(v.slo.weight for v in active), 1e-9)
    bounded = []
    for v in active:
        did = meters[v.vm].did
        queue_helps = did.wants_more and meters[v.vm].trim < LONGEST_TRIM
        bounded.append(
            Bounded(
                vm=v.vm,
                iops=did.iops,
                fair_iops=level * v.slo.weight / did.units_per_request,
                busy=did.busy,
                min_iops=0.0 if queue_helps else v.slo.min_iops or 0.0,
                p99_us=v.p99_us,
                max_p99_us=v.slo.p99_latency_us,
                p99_windows=max(1, round(v.p99_window_s / v.window_s)) if v.window_s else 1,
            )
        )
    return bounded


def _latency_bound(sample: DeviceSample, meters: dict[str, Meter], due: Entitlements) -> dict[str, float]:
    """VMs below their share by weight that have requests outstanding all the time, and none waiting.

    With the factor that they are below it by.
    """
    return {
        v.vm: due.level * v.slo.weight / meters[v.vm].did.rate
        for v in sample.vms
        if v.active
        and meters[v.vm].did.busy
        and not meters[v.vm].did.wants_more
        and v.limit_iops is None
        and 0 < meters[v.vm].did.rate < due.level * v.slo.weight
    }


def _targets(sample: DeviceSample, meters: dict[str, Meter], due: Entitlements) -> dict[str, Target]:
    shares = due.shares
    return {
        v.vm: Target(
            share=shares.get(v.vm, 0.0), iops=due.rates.get(v.vm, 0.0) / meters[v.vm].did.units_per_request
        )
        for v in sample.vms
    }


def _lower(one: float | None, other: float | None) -> float | None:
    known = [limit for limit in (one, other) if limit is not None]
    return min(known, default=None)


def _overcommitted(due: Entitlements) -> tuple[str, ...]:
    if not due.overcommitted:
        return ()
    return ("the minimums exceed what the device delivers: they are kept in proportion",)
