"""`proportional`: shares by weight, work-conserving (the default).

Two time scales. Shares are kept from the first window on by levers that act at once: weights of the device's
fair queue, and rate limits where a minimum or a p99 needs them. OPS follows the long-term write rates, within
a budget, and only where a move pays (`ops_plan`).

A fair queue divides device time, GC included. A VM's weight there is its entitlement in the unit of shares,
times the device time that a unit costs it; an integral term takes out what that estimate misses. What a VM
leaves, because of its queue depth or its own pace, goes to the others: no VM is slowed down for being faster
than a VM that cannot use more. For exact proportions at any cost there is `proportional-strict`.

The weight of VM i is phi_i = e_i c_i exp(g_i), with its entitlement e_i, the measured device time per unit
c_i and the integral term g' = g + K y', y' = 3/4 y + 1/4 x, x = (d_i - r_i) / mean d_i, of its rate r_i and
the rate d_i that is due. While all VMs want more, r_i c_i is proportional to phi_i, so that x' = x - K y'
near 0. The characteristic polynomial z^2 - (7/4 - K/4) z + 3/4 has its roots inside the unit circle for
0 < K < 14; at K = 0.15 they are 0.86 +- 0.13i.
"""

import math
from dataclasses import dataclass, field, replace

from slo_ctl.base.text import and_list
from slo_ctl.decide.entitlement import (
    BUSY_FROM,
    WANTS_MORE_FROM,
    Entitlements,
    claim_of,
    entitle,
)
from slo_ctl.decide.limit_control import ControlledVm, LimitState, control, not_helped_text
from slo_ctl.decide.ops_plan import (
    OpsState,
    assume_rates,
    follow,
    initial_moves,
    next_moves,
    summary,
)
from slo_ctl.model import Decision, DeviceSample, Placement, ShareBy, Slo, TimingModel, VmSample

MEMORY_WINDOWS, COST_MEMORY_WINDOWS = 4.0, 16.0
"""Windows over which rates and queueing, and the costs of a unit, are averaged."""
COST_MEMORY_REQUESTS = 1000.0
"""The cost of a unit is an average over no fewer requests: of a few, some wait for a step of GC and most do
not, and as weights are relative, the noise of one VM would change those of all."""
INTEGRAL_GAIN = 0.15
"""Of the relative error of a share, per window."""
WORTH_SETTING = 0.03
"""Relative change of a weight from which on it is set; the integral term takes out what that leaves."""
LONGEST_TRIM = math.log(4.0)
"""The most that the integral term may change a weight by."""
COSTLY_FROM = 2.0
"""Times the time of the cheapest VM for a unit: status says so, as shares then make the total smaller."""


@dataclass(frozen=True, slots=True)
class Sums:
    """Activity of one VM in the last windows; older ones fade."""

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
    """State of one VM."""

    did: Sums = Sums()
    windows: int = 0
    """Since circumstances changed."""
    cost_amount: float = 0.0
    cost_s: float = 0.0
    cost_requests: float = 0.0
    due_amount: float = 0.0
    due_s: float = 0.0
    """Its entitlement, and for how long, fading as costs do."""
    missed: float = 0.0
    """Of its entitlement, relative to it: an average over some windows."""
    trim: float = 0.0
    """Integral term: log of the factor on its weight."""

    @property
    def unit_cost_s(self) -> float | None:
        """Device time that a unit takes; None before any."""
        return self.cost_s / self.cost_amount if self.cost_amount and self.cost_s else None

    @property
    def units_per_request(self) -> float:
        """Over as long as costs; 1 before any request."""
        return self.cost_amount / self.cost_requests if self.cost_requests and self.cost_amount else 1.0


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
    level: float = 0.0
    """Of the entitlements, over as long as costs: minimums leave little, which varies much."""


@dataclass(frozen=True, slots=True)
class Proportional:
    """Keeps every VM at its entitlement; what one does not use goes to the others."""

    name: str = "proportional"
    placement: Placement = Placement.ISOLATED
    keeps_own_ops: bool = True
    """Each VM keeps part of its own OPS, even where it would save more GC elsewhere."""

    def start(self, sample: DeviceSample) -> tuple[ProportionalState, Decision]:
        """Split the OPS of an unused device for writes by weight; ValueError when the minimums exceed it."""
        ops = assume_rates(sample)
        decision = Decision(
            moves=initial_moves(ops, sample, self._needs(sample)),
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
            # The integral terms belong to the previous SLO.
            known = {vm: replace(meter, trim=0.0) for vm, meter in known.items()}
        meters = read_all(known, sample, reset=changed)
        due = _entitlements(sample, meters)
        keep = 0.0 if changed or not state.level else 1.0 - 1.0 / COST_MEMORY_WINDOWS
        level = keep * state.level + (1.0 - keep) * due.level
        ops = follow(state.ops, sample, _latency_bound(sample, meters, due))
        ops, moves, plans = next_moves(ops, sample, self._needs(sample))
        moving = summary(plans)
        reasons = (moving,) if moving and bool(moving) != bool(state.moving) else ()
        if state.moving and not moving:
            reasons = ("no further OPS move pays off",)
        if sample.timing.model is TimingModel.NONE:
            state = replace(state, meters=meters, ops=ops, moving=moving, circumstances=circumstances)
            return state, Decision(moves=moves, plans=plans, reasons=reasons)
        resumed = state.resumed_windows
        if resumed is None and not changed:
            # Else rates are not those of the weights in force.
            meters = _trimmed(meters, sample)
        if resumed is not None:
            resumed = resumed + 1 if resumed < MEMORY_WINDOWS else None
        limited, change = control(state.limits, _bounded(sample, meters))
        wanted = {v.vm: _lower(limited.limits.get(v.vm), v.slo.max_iops) for v in sample.vms}
        limited_for = and_list(limited.beneficiaries)
        remarks = dict.fromkeys(limited.protected_vms, f"{and_list(limited.limits)} limited for it")
        remarks |= _costly(sample, meters)
        remarks |= _not_helped(sample, limited)
        remarks |= {
            vm: f"limited to {limit:,.0f} IOPS for {limited_for}" for vm, limit in limited.limits.items()
        }
        decision = Decision(
            moves=moves,
            plans=plans,
            limits_iops={v.vm: wanted[v.vm] for v in sample.vms if wanted[v.vm] != v.limit_iops},
            scheduler_weights=fair_weights(sample, meters, due, level) if resumed is None else {},
            remarks=remarks,
            reasons=reasons + ((change,) if change else ()) + _overcommitted(due),
        )
        return ProportionalState(meters, ops, limited, moving, circumstances, resumed, level), decision

    def _needs(self, sample: DeviceSample) -> dict[str, int] | None:
        return None if self.keeps_own_ops else {v.vm: v.min_ops_blocks for v in sample.vms}


def read_all(meters: dict[str, Meter], sample: DeviceSample, *, reset: bool) -> dict[str, Meter]:
    """The meters with one more window; `reset`: what was measured before was under other circumstances."""
    read = {}
    for v in sample.vms:
        meter, amount = meters.get(v.vm, Meter()), v.amount(sample.share_by)
        if v.window_s <= 0.0:
            read[v.vm] = meter
            continue
        keep = 1.0 - min(1.0 / COST_MEMORY_WINDOWS, v.requests / COST_MEMORY_REQUESTS)
        read[v.vm] = Meter(
            did=(Sums() if reset else meter.did).add(v, sample.share_by, MEMORY_WINDOWS),
            windows=0 if reset else meter.windows + 1,
            cost_amount=keep * meter.cost_amount + amount if amount else meter.cost_amount,
            cost_s=keep * meter.cost_s + v.device_s if amount else meter.cost_s,
            cost_requests=keep * meter.cost_requests + v.requests if amount else meter.cost_requests,
            due_amount=0.0 if reset else meter.due_amount,
            due_s=0.0 if reset else meter.due_s,
            missed=0.0 if reset else meter.missed,
            trim=meter.trim,
        )
    return read


def _entitlements(sample: DeviceSample, meters: dict[str, Meter]) -> Entitlements:
    claims = []
    for v in sample.vms:
        did = meters[v.vm].did
        if v.active:
            claims.append(claim_of(v.vm, v.slo, did.rate, did.units_per_request, wants_more=did.wants_more))
    return entitle(claims)


def _trimmed(meters: dict[str, Meter], sample: DeviceSample) -> dict[str, Meter]:
    """The integral terms one window later: each adds up what its VM missed of its entitlement.

    As in a fluid queue, a VM is entitled to its share while it has requests waiting: of a window in which it
    wanted no more, or paused, it is due what it used. So a VM that pauses makes up for nothing, and where
    no VM takes more than its share all terms stay. A VM whose term is at its most is due what it used, too:
    no weight helps it, and the terms of all others would fall to their least, where they correct nothing.
    """
    claims, keep = [], 1.0 - 1.0 / COST_MEMORY_WINDOWS
    for v in sample.vms:
        if v.active and v.window_s > 0.0 and (amount := v.amount(sample.share_by)):
            full = v.backlog_share >= BUSY_FROM and v.queued_share >= WANTS_MORE_FROM
            full = full and meters[v.vm].trim < LONGEST_TRIM
            per_request = amount / v.requests if v.requests else 1.0
            claims.append(claim_of(v.vm, v.slo, amount / v.window_s, per_request, wants_more=full))
    due = entitle(claims).rates
    trimmed = dict(meters)
    for claim in claims:
        meter, rightful = meters[claim.vm], due[claim.vm]
        due_amount, due_s = keep * meter.due_amount + rightful, keep * meter.due_s + 1.0
        # Relative to the mean, so that windows of much and of little weigh as much as they are.
        error = (rightful - claim.used) * due_s / due_amount if due_amount else 0.0
        missed = meter.missed + (min(max(error, -1.0), 1.0) - meter.missed) / MEMORY_WINDOWS
        trim = min(max(meter.trim + INTEGRAL_GAIN * missed, -LONGEST_TRIM), LONGEST_TRIM)
        trimmed[claim.vm] = replace(meter, due_amount=due_amount, due_s=due_s, missed=missed, trim=trim)
    return trimmed


def _costly(sample: DeviceSample, meters: dict[str, Meter]) -> dict[str, str]:
    """Whose share makes the total smaller, as what it asks for takes the device longer than the others'."""
    if sample.share_by is ShareBy.DEVICE_TIME:
        return {}
    costs = {v.vm: meters[v.vm].unit_cost_s for v in sample.vms if v.active and meters[v.vm].did.wants_more}
    known = {vm: cost for vm, cost in costs.items() if cost}
    if not known:
        return {}
    cheapest = min(known, key=lambda vm: known[vm])
    unit = str(sample.share_by).removesuffix("s")
    return {
        vm: f"each {unit} takes {cost / known[cheapest]:,.1f} times the device time of one of {cheapest}"
        for vm, cost in known.items()
        if cost >= COSTLY_FROM * known[cheapest]
    }


def _not_helped(sample: DeviceSample, limited: LimitState) -> dict[str, str]:
    """What limits on others brought the VMs that miss their p99 or minimum all the same."""
    return {
        v.vm: not_helped_text(limited, v.vm)
        for v in sample.vms
        if v.vm in limited.retry_delays and v.vm not in limited.protected_vms
    }


def fair_weights(
    sample: DeviceSample, meters: dict[str, Meter], due: Entitlements, level: float
) -> dict[str, float]:
    """Weights of the fair queue that are worth setting: each VM's entitlement in device time.

    Of VMs that want no more, too: what they are entitled to, not what they use, decides how soon they are
    served.
    """
    costs = {vm: meter.unit_cost_s for vm, meter in meters.items()}
    known = [cost for cost in costs.values() if cost]
    usual = sum(known) / len(known) if known else 1.0
    ideal = {}
    for v in sample.vms:
        meter = meters[v.vm]
        minimum = (v.slo.min_iops or 0.0) * meter.units_per_request
        rate = max(level * v.slo.weight, min(minimum, due.rates.get(v.vm, 0.0)), 1e-9)
        ideal[v.vm] = rate * (costs[v.vm] or usual) * math.exp(meter.trim)
    scale = sum(v.slo.weight for v in sample.vms) / sum(ideal.values()) if ideal else 1.0
    return {
        v.vm: scale * ideal[v.vm]
        for v in sample.vms
        if abs(math.log(scale * ideal[v.vm] / v.scheduler_weight)) > WORTH_SETTING
    }


def _bounded(sample: DeviceSample, meters: dict[str, Meter]) -> list[ControlledVm]:
    """The active VMs, for the limit controller. While the queue can still prefer a VM, it has not failed."""
    active = [v for v in sample.vms if v.active]
    level = sum(meters[v.vm].did.rate for v in active) / max(sum(v.slo.weight for v in active), 1e-9)
    bounded = []
    for v in active:
        did = meters[v.vm].did
        queue_helps = did.wants_more and meters[v.vm].trim < LONGEST_TRIM
        bounded.append(
            ControlledVm(
                vm=v.vm,
                iops=did.iops,
                fair_iops=level * v.slo.weight / did.units_per_request,
                busy=did.busy,
                min_iops=0.0 if queue_helps else v.slo.min_iops or 0.0,
                p99_us=v.p99_us,
                max_p99_us=v.slo.p99_latency_us,
                effect_windows=_effect_windows(v),
            )
        )
    return bounded


def _effect_windows(v: VmSample) -> int:
    """Window of a p99; rates show a change sooner."""
    if v.slo.p99_latency_us is None or v.window_s <= 0.0:
        return 2
    return max(2, round(v.p99_window_s / v.window_s))


def _latency_bound(sample: DeviceSample, meters: dict[str, Meter], due: Entitlements) -> set[str]:
    """VMs below their share by weight that have requests outstanding all the time, and none waiting."""
    return {
        v.vm
        for v in sample.vms
        if v.active
        and meters[v.vm].did.busy
        and not meters[v.vm].did.wants_more
        and v.limit_iops is None
        and 0 < meters[v.vm].did.rate < due.level * v.slo.weight
    }


def _lower(one: float | None, other: float | None) -> float | None:
    known = [limit for limit in (one, other) if limit is not None]
    return min(known, default=None)


def _overcommitted(due: Entitlements) -> tuple[str, ...]:
    if not due.overcommitted:
        return ()
    return ("the minimums exceed the capacity of the device: they are reduced in proportion",)
