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

MEMORY_WINDOWS, LONG_MEMORY_WINDOWS = 4.0, 32.0
"""Averages are over so many windows: of what limits need at once, and of shares and costs."""
SHARE_DEAD_BAND, FIRST_WINDOW_BAND = 0.01, 0.3
"""Weights are corrected when a share is off by the first, relatively, plus the second divided by the number
of windows that it was averaged over: a single window has to be far off, a long time must not."""
LONGEST_TRIM = math.log(4.0)
"""The most that corrections may change a weight by."""
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

    recent: Sums = Sums()
    steady: Sums = Sums()
    """Since weights or circumstances changed last."""
    cost_amount: float = 0.0
    cost_s: float = 0.0
    trim: float = 0.0
    """Log of what corrections have made of its weight."""

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
    circumstances: tuple[object, ...] = ()
    """Who is active, and with which SLO."""
    steady_windows: int = 0
    """Windows since they, or weights, changed."""


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
        return ProportionalState(ops=follow(OpsState(), sample)), Decision(limits_iops=limits)

    def step(self, state: ProportionalState, sample: DeviceSample) -> tuple[ProportionalState, Decision]:
        """Weights and limits for the next window, and the next step of moves, if any pays."""
        circumstances = tuple((v.vm, v.slo) for v in sample.vms if v.active)
        changed = circumstances != state.circumstances
        meters = {
            v.vm: _read(state.meters.get(v.vm, Meter()), v, sample.share_by, anew=changed) for v in sample.vms
        }
        due = _entitlements(sample, meters)
        ops, moves, plans = next_moves(follow(state.ops, sample, _latency_bound(sample, meters, due)), sample)
        moving = summary(plans)
        reasons = (moving,) if moving and bool(moving) != bool(state.moving) else ()
        if state.moving and not moving:
            reasons = ("no further move of OPS pays",)
        if sample.timing.model is TimingModel.NONE:
            state = replace(state, meters=meters, ops=ops, moving=moving, circumstances=circumstances)
            return state, Decision(moves=moves, plans=plans, reasons=reasons)
        windows = 1 if changed else state.steady_windows + 1
        weights: dict[str, float] = {}
        if changed:
            weights = _weights(sample, meters, due)
        elif _off(meters, due) > SHARE_DEAD_BAND + FIRST_WINDOW_BAND / min(windows, LONG_MEMORY_WINDOWS):
            meters = {vm: _corrected(meter, due.rates.get(vm)) for vm, meter in meters.items()}
            weights = _weights(sample, meters, due)
            meters = {vm: replace(meter, steady=Sums()) for vm, meter in meters.items()}
            windows = 0
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
            scheduler_weights=weights,
            targets=_targets(sample, meters, due),
            asides=asides,
            reasons=reasons + ((limits.reason,) if limits.reason else ()) + _overcommitted(due),
        )
        return ProportionalState(meters, ops, limited, moving, circumstances, windows), decision


def _read(meter: Meter, vm: VmSample, share_by: ShareBy, *, anew: bool) -> Meter:
    """The meter with one more window; `anew`: what was measured before was under other circumstances."""
    if vm.window_s <= 0.0:
        return meter
    amount = vm.amount(share_by)
    recent, steady = (Sums(), Sums()) if anew else (meter.recent, meter.steady)
    keep = 1.0 - 1.0 / LONG_MEMORY_WINDOWS
    return Meter(
        recent=recent.add(vm, share_by, MEMORY_WINDOWS),
        steady=steady.add(vm, share_by, LONG_MEMORY_WINDOWS),
        cost_amount=keep * meter.cost_amount + amount if amount else meter.cost_amount,
        cost_s=keep * meter.cost_s + vm.device_s if amount else meter.cost_s,
        trim=meter.trim,
    )


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
        did = meters[v.vm].steady
        if v.active:
            claims.append(claim_of(v.vm, v.slo, did.rate, did.units_per_request, wants_more=did.wants_more))
    return entitle(claims)


def _off(meters: dict[str, Meter], due: Entitlements) -> float:
    """The largest relative error of a VM that wants more; weights can only help where two do."""
    errors = [
        abs(math.log(due.rates[vm] / meters[vm].steady.rate))
        for vm in due.rates
        if meters[vm].steady.wants_more and due.rates[vm] > 0 and meters[vm].steady.rate > 0
    ]
    return max(errors) if len(errors) > 1 else 0.0


def _corrected(meter: Meter, due: float | None) -> Meter:
    """The correction that makes the error 0 while everybody wants more; it fades where nobody does."""
    rate = meter.steady.rate
    if not meter.steady.wants_more or not due or not rate:
        return replace(meter, trim=0.5 * meter.trim)
    trim = meter.trim + math.log(due / rate)
    return replace(meter, trim=min(max(trim, -LONGEST_TRIM), LONGEST_TRIM))


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
        minimum = (v.slo.min_iops or 0.0) * meter.steady.units_per_request
        rate = max(level, min(minimum, due.rates.get(v.vm, 0.0)), 1e-9)
        ideal[v.vm] = rate * (costs[v.vm] or usual) * math.exp(meter.trim)
    scale = sum(v.slo.weight for v in sample.vms) / sum(ideal.values()) if ideal else 1.0
    return {vm: scale * weight for vm, weight in ideal.items()}


def _bounded(sample: DeviceSample, meters: dict[str, Meter]) -> list[Bounded]:
    """The active VMs, for the limit controller. While the queue can still prefer a VM, it has not failed."""
    active = [v for v in sample.vms if v.active]
    level = sum(meters[v.vm].recent.rate for v in active) / max(sum(v.slo.weight for v in active), 1e-9)
    bounded = []
    for v in active:
        did = meters[v.vm].recent
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


def _latency_bound(sample: DeviceSample, meters: dict[str, Meter], due: Entitlements) -> set[str]:
    """VMs below their share by weight that have requests outstanding all the time, and none waiting."""
    return {
        v.vm
        for v in sample.vms
        if v.active
        and meters[v.vm].steady.busy
        and not meters[v.vm].steady.wants_more
        and meters[v.vm].steady.rate < due.level * v.slo.weight
    }


def _targets(sample: DeviceSample, meters: dict[str, Meter], due: Entitlements) -> dict[str, Target]:
    shares = due.shares
    return {
        v.vm: Target(
            share=shares.get(v.vm, 0.0), iops=due.rates.get(v.vm, 0.0) / meters[v.vm].steady.units_per_request
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
