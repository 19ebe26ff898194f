"""`proportional`: shares by weight, work-conserving (the default).

There are two time scales. Shares are kept from the first window on by levers that act at once: weights of the
device's fair queue, and rate limits where a minimum or a p99 needs them. OPS follows the long-term write
rates, within a budget, and only if a move saves more than it costs (`ops_plan`).

A fair queue divides device time, GC included. A VM's weight there is its entitlement, in the unit of shares,
times the device time per unit; an integral term corrects the error of that estimate. What a VM does not use,
because of its queue depth or low demand, goes to the others: no VM is slowed down because another one cannot
use its share. For exact proportions at any cost there is `proportional-strict`.

The weight of VM i is phi_i = e_i c_i exp(g_i), with its entitlement e_i, the measured device time per unit
c_i and the integral term g' = g + K y', y' = 3/4 y + 1/4 x, x = (d_i - r_i) / mean d_i, of its rate r_i and
its entitled rate d_i in the window. While all VMs want more, r_i c_i is proportional to phi_i, so that
x' = x - K y' near 0. The characteristic polynomial z^2 - (7/4 - K/4) z + 3/4 has its roots inside the unit
circle for 0 < K < 14; at K = 0.15 they are 0.86 +- 0.13i. No x is clipped: g is K times the sum of errors, in
which a burst of pages counts in full, as the windows without any do.
"""

import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from slo_ctl.base.text import and_list
from slo_ctl.decide.entitlement import (
    BUSY_FROM,
    MEMORY_WINDOWS,
    MOSTLY_FROM,
    SLOW_MEMORY_WINDOWS,
    Entitlements,
    claim_of,
    entitle,
)
from slo_ctl.decide.limit_control import LimitState, control, not_helped_text
from slo_ctl.decide.move_pause import MovePause, next_pause
from slo_ctl.decide.objectives import ControlledVm, at_limit, tighter
from slo_ctl.decide.ops_plan import (
    OpsState,
    assume_rates,
    initial_moves,
    next_moves,
    next_ops_state,
    summary,
)
from slo_ctl.decide.policies.interface import limits_by_slo
from slo_ctl.model.decision import Decision
from slo_ctl.model.sample import DeviceSample, Placement, ShareBy, TimingModel, VmSample
from slo_ctl.model.slo import Slo

COST_MEMORY_REQUESTS = 1000.0
"""Least number of requests in the average of costs per unit. In a smaller sample GC delays a few requests and
most not at all, and as weights are relative, the noise of one VM would change those of all."""
INTEGRAL_GAIN = 0.15
"""Change of the integral term per window, for a relative error of a share of 1."""
WORTH_SETTING = 0.03
"""Least relative change of a weight that is applied; the integral term corrects the error that remains."""
LONGEST_TRIM = math.log(4.0)
"""Bound of the integral term, which is the logarithm of a factor."""
COSTLY_FROM = 2.0
"""Cost per unit, relative to that of the cheapest VM, from which on `status` reports it: such shares lower
the total."""


class Activity(NamedTuple):
    """Activity of one VM, as sums over the last windows with an exponential decay."""

    seconds: float = 0.0
    amount: float = 0.0
    """In units of shares."""
    requests: float = 0.0
    device_s: float = 0.0
    """Device time, GC included."""
    queued_s: float = 0.0
    """Time with a request waiting in the device's queue."""
    backlog_s: float = 0.0
    """Time with a request outstanding."""
    outstanding_s: float = 0.0
    """Time on the device, summed over requests; 0 where it is not known."""
    throttled_s: float = 0.0
    """Time held by the VM's limit, summed over requests."""
    pages_written: float = 0.0

    def add(self, vm: VmSample, share_by: ShareBy, keep: float) -> "Activity":
        """The sums with one more window; `keep`: the decay of the previous ones."""
        return Activity(
            seconds=keep * self.seconds + vm.window_s,
            amount=keep * self.amount + vm.amount(share_by),
            requests=keep * self.requests + vm.requests,
            device_s=keep * self.device_s + vm.device_s,
            queued_s=keep * self.queued_s + vm.window_s * vm.queued_share,
            backlog_s=keep * self.backlog_s + vm.window_s * vm.backlog_share,
            outstanding_s=keep * self.outstanding_s + vm.window_s * (vm.outstanding or 0.0),
            throttled_s=keep * self.throttled_s + vm.window_s * (vm.throttled or 0.0),
            pages_written=keep * self.pages_written + vm.host_page_writes,
        )

    @property
    def rate(self) -> float:
        """Units per second."""
        return self.amount / self.seconds if self.seconds else 0.0

    @property
    def iops(self) -> float:
        return self.requests / self.seconds if self.seconds else 0.0

    @property
    def wants_more(self) -> bool:
        """Whether the VM would have got more with a higher weight, as its requests waited in the queue."""
        return self.seconds > 0 and self.queued_s >= MOSTLY_FROM * self.seconds

    @property
    def busy(self) -> bool:
        """Whether the VM had requests outstanding nearly all the time."""
        return self.seconds > 0 and self.backlog_s >= BUSY_FROM * self.seconds

    @property
    def depends_on_latency(self) -> bool:
        """Whether the VM mostly had requests outstanding but none waiting: its rate follows its latency.

        Not BUSY_FROM: a client that has one request outstanding takes its time before the next one.
        """
        outstanding = self.seconds > 0 and self.backlog_s >= MOSTLY_FROM * self.seconds
        return outstanding and not self.wants_more

    @property
    def units_per_request(self) -> float:
        """Mean size of a request in units of shares; 1 before any request."""
        return self.amount / self.requests if self.requests and self.amount else 1.0

    @property
    def unit_cost_s(self) -> float | None:
        """Device time per unit; None before any was measured."""
        return self.device_s / self.amount if self.amount and self.device_s else None


class Meter(NamedTuple):
    """Measurements of one VM, and the integral term of its weight."""

    recent: Activity = Activity()
    """With the decay `MEMORY_WINDOWS`, since the set of active VMs or an SLO changed."""
    costs: Activity = Activity()
    """With the decay `SLOW_MEMORY_WINDOWS`; of windows in which the VM got anything."""
    due_amount: float = 0.0
    """Sum of the entitlements of the last windows, with the decay `SLOW_MEMORY_WINDOWS`."""
    due_s: float = 0.0
    """Windows in `due_amount`, with the same decay."""
    missed: float = 0.0
    """Average of the error relative to the mean entitlement, with the decay `MEMORY_WINDOWS`."""
    trim: float = 0.0
    """Integral term: logarithm of the factor on the VM's weight."""


@dataclass(frozen=True, slots=True)
class ProportionalState:
    """State of the policy between windows."""

    meters: dict[str, Meter] = field(default_factory=dict)
    """By VM."""
    ops: OpsState = field(default_factory=OpsState)
    limits: LimitState = field(default_factory=LimitState)
    pause: MovePause = field(default_factory=MovePause)
    moving: str = ""
    """Sentence on the moves of the last window; empty without any."""
    active_slos: dict[str, Slo] = field(default_factory=dict)
    """SLOs of the active VMs, by VM."""
    resumed_windows: int | None = None
    """Windows since a device was taken over, while its weights stay until costs are measured; None after."""
    level: float = 0.0
    """Average level of the entitlements, with the decay of costs: minimums can leave a small rest to the
    weights, which varies strongly."""


@dataclass(frozen=True, slots=True)
class Proportional:
    """The policy `proportional`: gives every VM its entitlement; unused shares go to the others."""

    name: str = "proportional"
    placement: Placement = Placement.ISOLATED
    keeps_own_ops: bool = True
    """Whether each VM keeps a part of its own OPS even where it would save more GC elsewhere."""

    def start(self, sample: DeviceSample) -> tuple[ProportionalState, Decision]:
        """Split the OPS of an unused device for writes by weight; ValueError when the minimums exceed it."""
        ops = assume_rates(sample)
        decision = Decision(
            moves=initial_moves(ops, sample, self._needs(sample)),
            limits_iops=limits_by_slo(sample),
            scheduler_weights={v.vm: v.slo.weight for v in sample.vms},
            reasons=("OPS split for the fewest GC writes when VMs write by their weights",),
        )
        return ProportionalState(ops=next_ops_state(OpsState(), sample)), decision

    def resume(self, sample: DeviceSample) -> tuple[ProportionalState, Decision]:
        """Keep the split of OPS, and lift the limits of another policy."""
        state = ProportionalState(ops=next_ops_state(OpsState(), sample), resumed_windows=0)
        return state, Decision(limits_iops=limits_by_slo(sample))

    def step(self, state: ProportionalState, sample: DeviceSample) -> tuple[ProportionalState, Decision]:
        """Weights and limits for the next window, and the next moves, if any save more than they cost."""
        active_slos = {v.vm: v.slo for v in sample.vms if v.active}
        changed = active_slos != state.active_slos
        meters = state.meters
        if any(slo != state.active_slos.get(vm, slo) for vm, slo in active_slos.items()):
            # The integral terms belong to the previous SLOs.
            meters = {vm: meter._replace(trim=0.0) for vm, meter in meters.items()}
        meters = next_meters(meters, sample, reset=changed)
        due = _entitlements(sample, meters)
        keep = 0.0 if changed or not state.level else 1.0 - 1.0 / SLOW_MEMORY_WINDOWS
        level = keep * state.level + (1.0 - keep) * due.level
        ops = next_ops_state(state.ops, sample, _latency_bound(sample, meters, due))
        ops, moves, plans = next_moves(ops, sample, self._needs(sample))
        moving = summary(plans)
        reasons = _reasons_of_moves(state.moving, moving)
        if sample.timing.model is TimingModel.NONE:
            state = replace(state, meters=meters, ops=ops, moving=moving, active_slos=active_slos)
            return state, Decision(moves=moves, plans=plans, reasons=reasons)
        resumed = state.resumed_windows
        if resumed is None and not changed:
            # After a change, the measured rates are not yet due to the weights in force.
            meters = _trimmed(meters, sample)
        if resumed is not None:
            resumed = resumed + 1 if resumed < MEMORY_WINDOWS else None
        controlled = _controlled_vms(sample, meters)
        pause = next_pause(state.pause, controlled, moving=bool(plans), changed=changed)
        if pause.vms:
            # Spare blocks move without GC.
            moves = tuple(move for move in moves if move.source is None)
        limited, change = control(state.limits, controlled, {v.vm for v in sample.vms if not v.active})
        wanted = {v.vm: tighter(limited.limits.get(v.vm), v.slo.max_iops) for v in sample.vms}
        decision = Decision(
            moves=moves,
            plans=plans,
            pause=pause.reason,
            limits_iops={v.vm: wanted[v.vm] for v in sample.vms if wanted[v.vm] != v.limit_iops},
            scheduler_weights=fair_weights(sample, meters, due, level) if resumed is None else {},
            remarks=_remarks(sample, meters, limited, pause),
            reasons=reasons + tuple(text for text in (change, pause.text) if text) + _overcommitted(due),
        )
        return ProportionalState(meters, ops, limited, pause, moving, active_slos, resumed, level), decision

    def _needs(self, sample: DeviceSample) -> dict[str, int] | None:
        return None if self.keeps_own_ops else {v.vm: v.min_ops_blocks for v in sample.vms}


def next_meters(meters: dict[str, Meter], sample: DeviceSample, *, reset: bool) -> dict[str, Meter]:
    """The meters one window later, by VM.

    `reset`: active VMs or SLOs have changed, so that all but the costs and integral terms starts anew.
    """
    result = {}
    for v in sample.vms:
        meter, amount = meters.get(v.vm, Meter()), v.amount(sample.share_by)
        if v.window_s <= 0.0:
            result[v.vm] = meter
            continue
        keep = 1.0 - min(1.0 / SLOW_MEMORY_WINDOWS, v.requests / COST_MEMORY_REQUESTS)
        result[v.vm] = Meter(
            recent=(Activity() if reset else meter.recent).add(
                v, sample.share_by, 1.0 - 1.0 / MEMORY_WINDOWS
            ),
            costs=meter.costs.add(v, sample.share_by, keep) if amount else meter.costs,
            due_amount=0.0 if reset else meter.due_amount,
            due_s=0.0 if reset else meter.due_s,
            missed=0.0 if reset else meter.missed,
            trim=meter.trim,
        )
    return result


def _entitlements(sample: DeviceSample, meters: dict[str, Meter]) -> Entitlements:
    """Entitlements of the active VMs, in units of shares per second."""
    claims = []
    for v in sample.vms:
        meter = meters[v.vm]
        if v.active:
            rate, wants_more = meter.recent.rate, meter.recent.wants_more
            claims.append(claim_of(v.vm, v.slo, rate, meter.costs.units_per_request, wants_more=wants_more))
    return entitle(claims)


def _trimmed(meters: dict[str, Meter], sample: DeviceSample) -> dict[str, Meter]:
    """The meters with the integral terms one window later: each integrates the error of its VM's rate.

    As in a fluid queue, a VM is entitled to its share while it has requests waiting. In a window in which it
    wanted no more, or paused, its entitlement is its rate and its error 0: it does not get more later to
    compensate for a pause, and the terms stay where no VM takes more than its share. The same holds for a VM
    whose term is at its bound: no weight helps it, and otherwise the terms of all others would fall to their
    lower bound, where they correct nothing.

    A minimum or maximum is converted by the average size of a request, not by that in the window: if the VM's
    share is near its minimum, the larger of the two is on average larger when one of them varies.
    """
    claims, keep = [], 1.0 - 1.0 / SLOW_MEMORY_WINDOWS
    for v in sample.vms:
        if v.active and v.window_s > 0.0 and (amount := v.amount(sample.share_by)):
            wants_more = v.backlog_share >= BUSY_FROM and v.queued_share >= MOSTLY_FROM
            wants_more = wants_more and meters[v.vm].trim < LONGEST_TRIM
            per_request = meters[v.vm].costs.units_per_request
            claims.append(claim_of(v.vm, v.slo, amount / v.window_s, per_request, wants_more=wants_more))
    due = entitle(claims).rates
    trimmed = dict(meters)
    for claim in claims:
        meter, due_rate = meters[claim.vm], due[claim.vm]
        due_amount, due_s = keep * meter.due_amount + due_rate, keep * meter.due_s + 1.0
        # Relative to the mean entitlement: a window counts in proportion to its absolute error.
        error = (due_rate - claim.used) * due_s / due_amount if due_amount else 0.0
        missed = meter.missed + (error - meter.missed) / MEMORY_WINDOWS
        trim = min(max(meter.trim + INTEGRAL_GAIN * missed, -LONGEST_TRIM), LONGEST_TRIM)
        trimmed[claim.vm] = meter._replace(due_amount=due_amount, due_s=due_s, missed=missed, trim=trim)
    return trimmed


def _reasons_of_moves(before: str, now: str) -> tuple[str, ...]:
    """Sentences where moves of OPS begin or end; each argument describes the moves, or is empty."""
    if now and not before:
        return (now,)
    return ("no further OPS move saves more than it costs",) if before and not now else ()


def _remarks(
    sample: DeviceSample, meters: dict[str, Meter], limited: LimitState, pause: MovePause
) -> dict[str, str]:
    """Remarks by VM that is limited, for which others are limited, or whose requests are costly."""
    verb = "is" if len(limited.limits) == 1 else "are"
    limited_for = and_list(limited.beneficiaries)
    remarks = {
        **dict.fromkeys(limited.protected_vms, f"{and_list(limited.limits)} {verb} limited for it"),
        **_costly(sample, meters),
        **_not_helped(sample, limited),
        **{vm: f"limited to {limit:,.0f} IOPS for {limited_for}" for vm, limit in limited.limits.items()},
    }
    for vm in pause.vms:
        remarks[vm] = "; ".join(text for text in (remarks.get(vm), pause.text) if text)
    return remarks


def _costly(sample: DeviceSample, meters: dict[str, Meter]) -> dict[str, str]:
    """Remarks by VM whose units take much more device time than the cheapest VM's, which lowers the total."""
    if sample.share_by is ShareBy.DEVICE_TIME:
        return {}
    recent = {v.vm: meters[v.vm].recent for v in sample.vms if v.active}
    measured = {
        vm: cost
        for vm, activity in recent.items()
        if (activity.wants_more or activity.depends_on_latency) and (cost := meters[vm].costs.unit_cost_s)
    }
    slowed_down = [vm for vm in measured if recent[vm].wants_more]
    if not slowed_down:
        return {}
    cheapest = min(slowed_down, key=lambda vm: measured[vm])
    unit = str(sample.share_by).removesuffix("s")
    return {
        vm: f"each {unit} takes {cost / measured[cheapest]:,.1f} times the device time of one of {cheapest}"
        for vm, cost in measured.items()
        if cost >= COSTLY_FROM * measured[cheapest]
    }


def _not_helped(sample: DeviceSample, limited: LimitState) -> dict[str, str]:
    """Remarks by VM that limits on other VMs did not help."""
    return {
        v.vm: not_helped_text(limited, v.vm)
        for v in sample.vms
        if v.vm in limited.retry_delays and v.vm not in limited.protected_vms
    }


def fair_weights(
    sample: DeviceSample, meters: dict[str, Meter], due: Entitlements, level: float
) -> dict[str, float]:
    """Weights of the fair queue that are worth setting: each VM's entitlement in device time.

    VMs that want no more get the weight of their entitlement, too, not of their use, as the weight
    determines how soon their requests are served.
    """
    costs = {vm: meter.costs.unit_cost_s for vm, meter in meters.items()}
    measured = [cost for cost in costs.values() if cost]
    mean_cost = sum(measured) / len(measured) if measured else 1.0
    ideal = {}
    for v in sample.vms:
        meter = meters[v.vm]
        minimum = (v.slo.min_iops or 0.0) * meter.costs.units_per_request
        rate = max(level * v.slo.weight, min(minimum, due.rates.get(v.vm, 0.0)), 1e-9)
        ideal[v.vm] = rate * (costs[v.vm] or mean_cost) * math.exp(meter.trim)
    scale = sum(v.slo.weight for v in sample.vms) / sum(ideal.values()) if ideal else 1.0
    return {
        v.vm: scale * ideal[v.vm]
        for v in sample.vms
        if abs(math.log(scale * ideal[v.vm] / v.scheduler_weight)) > WORTH_SETTING
    }


def _controlled_vms(sample: DeviceSample, meters: dict[str, Meter]) -> list[ControlledVm]:
    """The active VMs for the limit controller.

    A minimum counts only once a higher weight in the fair queue cannot help to keep it.
    """
    active = [v for v in sample.vms if v.active]
    level = sum(meters[v.vm].recent.rate for v in active) / max(sum(v.slo.weight for v in active), 1e-9)
    controlled = []
    for v in active:
        recent = meters[v.vm].recent
        queue_helps = recent.wants_more and meters[v.vm].trim < LONGEST_TRIM
        controlled.append(
            ControlledVm(
                vm=v.vm,
                iops=recent.iops,
                fair_iops=level * v.slo.weight / recent.units_per_request,
                busy=recent.busy,
                min_iops=0.0 if queue_helps else v.slo.min_iops or 0.0,
                # The latency of a throttled VM includes the wait for its own limit.
                p99_us=None if at_limit(recent.iops, v.limit_iops) else v.p99_us,
                max_p99_us=v.slo.p99_latency_us,
                quiet=not v.requests,
                effect_windows=_effect_windows(v),
            )
        )
    return controlled


def _effect_windows(v: VmSample) -> int:
    """Windows until the measurements show the effect of a change: those of the p99, if there is a target."""
    if v.slo.p99_latency_us is None or v.window_s <= 0.0:
        return 2
    return max(2, round(v.p99_window_s / v.window_s))


def _latency_bound(sample: DeviceSample, meters: dict[str, Meter], due: Entitlements) -> set[str]:
    """VMs below their share by weight because of their own latency."""
    return {
        v.vm
        for v in sample.vms
        if v.active
        and meters[v.vm].recent.depends_on_latency
        and v.limit_iops is None
        and 0 < meters[v.vm].recent.rate < due.level * v.slo.weight
    }


def _overcommitted(due: Entitlements) -> tuple[str, ...]:
    if not due.overcommitted:
        return ()
    return ("the minimums exceed the capacity of the device, and the largest are reduced",)
