"""Rate limits on the others, for a VM that misses a minimum, a p99, or its share where no queue keeps shares.

One controller for emulated and for block devices. It takes what is missing from those that have most per
weight (water-filling, as for entitlements), and restores half of what can be spared; in between is a dead
band. No limit falls by more than 30 % or grows by more than 20 % in a step, and the next step waits until
the effect of the last one is measured. Having restored too soon doubles the time before it is tried again.
Where limits do not help the VM that they are for, they are lifted, and tried again after a time that doubles.

With a gain of G for the VM for each request/s taken from the others, a step leaves 1 - G of the miss, and
restoring 1 - G/2 of what can be spared: both converge for 0 < G < 2. Where rates are averages (emulated
SSDs), z^2 - (1.56 - 0.44 G) z + 0.56 is stable for 0 < G < 7.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from slo_ctl.base.text import and_list
from slo_ctl.decide.entitlement import LEAST_SHARE, water_level

AT_LIMIT = 0.9
"""A VM that does this part of its limit is throttled by it: neither limiters nor short windows are exact."""
MISSED_FROM, CONFIRMED_AFTER = 0.02, 2
"""Relative to the objective, and windows in a row: less is noise."""
ROOM = 0.1
"""An objective exceeded by so much leaves something to restore; limits aim at half of it."""
GAIN = 0.5
"""Of what a VM can spare, restored in a step; and of the relative distance of a p99 from its target, taken
from the others or restored."""
MOST_DECREASE, MOST_INCREASE = 0.3, 0.2
"""Of a limit, in a step."""
LIFT_FROM = 1.5
"""A limit so much above what its VM does is lifted."""
RAISE_AFTER = 5
"""Windows that objectives are met with room before anything is restored; doubled when that was too soon."""
JUDGED_AFTER = 6
"""Steps after which limits must have helped."""
LEAST_HELP = 0.05
"""Gain of a VM, relative to what is taken from the others for it. So small a part of what all do is not
judged."""
LEAST_SHARE_HELP = 0.5
"""The same for a mere share: what others give up must be of use to another VM."""
RETRY_AFTER, LONGEST_RETRY = 60, 600
"""Windows for which limits that did not help are not tried again: at first, and at most. Where an effect
takes more than two windows to be seen, as much longer."""


def at_limit(iops: float, limit_iops: float | None, granted_iops: float | None = None) -> bool:
    """Whether a VM's limit, if it has one, sets its rate, and not the device.

    `granted_iops` is what the limit really grants; None: all of it.
    """
    if limit_iops is None:
        return False
    return iops >= AT_LIMIT * (limit_iops if granted_iops is None else granted_iops)


@dataclass(frozen=True, slots=True)
class Bounded:
    """One VM as the controller sees it. Rates in requests per second."""

    vm: str
    iops: float
    fair_iops: float
    """Its share by weight."""
    busy: bool
    """It would have taken more, so that a miss is not its own doing."""
    min_iops: float = 0.0
    due_iops: float = 0.0
    """Its entitlement: no VM is limited below it for a share."""
    keeps_share: bool = False
    """That is an objective, as nothing but limits keeps shares there."""
    p99_us: float | None = None
    max_p99_us: float | None = None
    limitable: bool = True
    effect_windows: int = 1
    """Window of its figures: the effect of a change is seen only after so long."""
    granted_iops: float | None = None
    """What its limit in force really grants; None: all of it."""

    @property
    def objective_iops(self) -> float:
        """Its minimum."""
        return max(self.min_iops, self.due_iops * (1.0 - MISSED_FROM) if self.keeps_share else 0.0)

    @property
    def miss(self) -> float:
        """How far it is from its objectives, relative to them: positive where one is missed."""
        misses = [-1.0, self.p99_miss]
        if self.objective_iops > 0.0:
            misses.append(self.objective_iops / max(self.iops, 1e-9) - 1.0)
        return max(misses)

    @property
    def p99_miss(self) -> float:
        """How far its p99 is above its target, relative to it; -1 without either."""
        return self.p99_us / self.max_p99_us - 1.0 if self.max_p99_us and self.p99_us is not None else -1.0

    @property
    def misses_p99(self) -> bool:
        """Whether its p99 is missed."""
        return self.p99_miss > MISSED_FROM

    @property
    def misses_share_alone(self) -> bool:
        """Whether all that it misses is a share."""
        return self.keeps_share and not self.misses_p99 and self.min_iops <= (1.0 + MISSED_FROM) * self.iops

    def is_throttled(self, limits: Mapping[str, float]) -> bool:
        """Whether one of these limits, by VM, sets its rate."""
        return at_limit(self.iops, limits.get(self.vm), self.granted_iops)

    @property
    def protected(self) -> bool:
        """Whether it has an objective that limits on others may help to meet."""
        return self.objective_iops > 0.0 or bool(self.max_p99_us and self.p99_us is not None)

    @property
    def missing_iops(self) -> float:
        """To the middle of the dead band."""
        missing = (1.0 + ROOM / 2.0) * self.objective_iops - self.iops
        if self.misses_share_alone:
            # It may want hardly more than it has, and far less than its share.
            missing = min(missing, max(self.iops, ROOM * self.due_iops))
        return max(0.0, missing)


@dataclass(frozen=True, slots=True)
class Wait:
    """Limits for a VM that did not help."""

    windows: int
    """Left until they are tried again."""
    length_windows: int
    found: str = ""
    """What was measured with them, for people."""


@dataclass(frozen=True, slots=True)
class LimitState:
    """All that is remembered between windows."""

    limits: dict[str, float] = field(default_factory=dict)
    """In force, by VM."""
    served: tuple[str, ...] = ()
    """The VM that they protect."""
    missed_windows: int = 0
    hold_windows: int = 0
    """Until the effect of the last change is measured."""
    calm_windows: int = 0
    """Since limits could be raised."""
    raise_after: int = RAISE_AFTER
    lowering: bool = False
    """The last step was not all that was needed."""
    raised: bool = False
    """Something was restored since limits were lowered last."""
    before: dict[str, float] = field(default_factory=dict)
    """IOPS of every VM when one of them fell below its entitlement."""
    steps: dict[str, int] = field(default_factory=dict)
    """Taken so far, by VM that they were for."""
    misses_before: dict[str, float] = field(default_factory=dict)
    least_p99_us: dict[str, float] = field(default_factory=dict)
    """While others are limited, by VM that misses it."""
    waits: dict[str, Wait] = field(default_factory=dict)
    """By VM that limits did not help."""

    @property
    def not_helped(self) -> tuple[str, ...]:
        """VMs that limits did not help, recently."""
        return tuple(sorted(vm for vm, wait in self.waits.items() if wait.windows))

    @property
    def beneficiaries(self) -> tuple[str, ...]:
        """For whom others are limited, as far as they are not limited themselves."""
        return tuple(vm for vm in self.served if vm not in self.limits) or self.served


def control(state: LimitState, vms: Sequence[Bounded]) -> tuple[LimitState, str]:
    """One window later: the state with the limits to set, and a sentence when something changed in kind."""
    state = _advance_window(state, {v.vm for v in vms})
    protected = [v for v in vms if v.protected and v.vm not in state.not_helped]
    if not protected:
        reason = "limits lifted: no VM needs them" if state.limits else ""
        return LimitState(waits=state.waits), reason
    # What was begun is finished; and who is throttled by its own limit is not short for the others' sake.
    # A p99 is missed whatever the VM's own pace.
    missed_from = MISSED_FROM - ROOM / 2.0 if state.lowering else MISSED_FROM
    short = [
        v
        for v in protected
        if v.misses_p99 or (v.busy and v.miss > missed_from and not v.is_throttled(state.limits))
    ]
    state = replace(state, missed_windows=state.missed_windows + 1 if short else 0)
    # Who reaches what limits aim at is helped by them.
    reached = {v.vm for v in vms if v.miss <= (0.0 if v.keeps_share else MISSED_FROM - ROOM / 2.0)}
    state = replace(state, steps={vm: n for vm, n in state.steps.items() if vm not in reached})
    if state.hold_windows:
        return state, ""
    state = _own_minimums(state, vms)
    if short:
        state = replace(state, calm_windows=0)
        if state.missed_windows < CONFIRMED_AFTER:
            return state, ""
        return _lower(state, vms, short)
    state = replace(state, lowering=False)
    if not state.limits:
        waits = {vm: wait for vm, wait in state.waits.items() if wait.windows}
        return replace(state, served=(), waits=waits), ""
    return _raise(state, vms, protected)


def _advance_window(state: LimitState, names: Collection[str]) -> LimitState:
    """A window later; VMs that are gone are forgotten."""
    return replace(
        state,
        limits={vm: limit for vm, limit in state.limits.items() if vm in names},
        served=tuple(vm for vm in state.served if vm in names),
        hold_windows=max(0, state.hold_windows - 1),
        waits={
            vm: replace(wait, windows=max(0, wait.windows - 1))
            for vm, wait in state.waits.items()
            if vm in names
        },
    )


def _own_minimums(state: LimitState, vms: Sequence[Bounded]) -> LimitState:
    """Who is limited has been given a higher minimum since."""
    least = {v.vm: (1.0 + ROOM / 2.0) * v.min_iops for v in vms}
    return replace(state, limits={vm: max(limit, least[vm]) for vm, limit in state.limits.items()})


def _lower(state: LimitState, vms: Sequence[Bounded], short: Sequence[Bounded]) -> tuple[LimitState, str]:
    """Take what is missing, as far as one step goes."""
    # Minimums come before shares.
    urgent = [v for v in short if not v.misses_share_alone] or short
    by_vm = {v.vm: v for v in vms}
    if not state.steps:
        state = replace(state, before={v.vm: v.iops for v in vms}, misses_before={}, least_p99_us={})
    p99s_us = {v.vm: v.p99_us for v in urgent if v.p99_us is not None and v.vm in state.steps}
    state = replace(
        state,
        steps=state.steps | {v.vm: state.steps.get(v.vm, 0) + 1 for v in urgent},
        misses_before={v.vm: v.miss for v in urgent} | state.misses_before,
        least_p99_us=state.least_p99_us
        | {vm: min(p99_us, state.least_p99_us.get(vm, p99_us)) for vm, p99_us in p99s_us.items()},
    )
    if not_helped := [v for v in urgent if state.steps[v.vm] > JUDGED_AFTER and not _helps(state, vms, v)]:
        return _back_off(state, not_helped)
    names = {v.vm for v in urgent}
    of_share = all(v.misses_share_alone for v in urgent)
    has = {v.vm: min(v.iops, state.limits.get(v.vm, v.iops)) for v in vms}
    least = {
        v.vm: max((1.0 + ROOM / 2.0) * v.min_iops, v.due_iops if of_share else 0.0, LEAST_SHARE * v.fair_iops)
        for v in vms
    }
    payers = [v.vm for v in vms if v.limitable and v.vm not in names and has[v.vm] > least[v.vm]]
    rates = sum(has[vm] for vm in payers)
    exhausted = sum(has[vm] - least[vm] for vm in payers) <= MISSED_FROM * sum(has.values())
    if exhausted and (missed := [v for v in urgent if v.misses_p99 and v.vm in state.least_p99_us]):
        # A part of the way to a p99 is of no use.
        return _back_off(state, missed)
    missing = sum(v.missing_iops for v in urgent if v.busy)
    p99 = max(v.miss if v.misses_p99 else 0.0 for v in urgent)
    missing = max(missing, min(GAIN * p99, MOST_DECREASE) * rates)
    level = water_level([(by_vm[vm].fair_iops, least[vm], has[vm]) for vm in payers], rates - missing)
    wanted = {vm: max(least[vm], level * by_vm[vm].fair_iops) for vm in payers}
    lowered = {vm: max(wanted[vm], (1.0 - MOST_DECREASE) * has[vm]) for vm in payers if wanted[vm] < has[vm]}
    # Who is short of a share takes what the device has to spare, and is not limited.
    limits = {vm: limit for vm, limit in state.limits.items() if vm not in names} | lowered
    limits |= {vm: state.limits[vm] for vm in names & state.limits.keys() if by_vm[vm].misses_p99}
    began = bool(limits) and not state.limits
    reason = f"limiting others, as {and_list(names)} misses its objective" if began else ""
    after = min(LONGEST_RETRY, 2 * state.raise_after) if state.raised else state.raise_after
    hold = max(v.effect_windows for v in urgent) - 1
    state = replace(
        state,
        limits=limits,
        served=tuple(sorted({*state.served, *names})) if limits else (),
        hold_windows=hold,
        lowering=any(limit > wanted[vm] for vm, limit in lowered.items()),
        raise_after=after,
        raised=False,
    )
    return state, reason


def _helps(state: LimitState, vms: Sequence[Bounded], short: Bounded) -> bool:
    """Whether what a protected VM has gained is worth what the others have lost."""
    before = state.misses_before[short.vm]
    if short.misses_p99:
        # The others have little left to give: half of the way must be done.
        return before - short.p99_miss > max(LEAST_HELP * (1.0 + before), short.p99_miss)
    gained = {v.vm: v.iops - state.before.get(v.vm, v.iops) for v in vms}
    taken = -sum(gained[v.vm] for v in vms if v.is_throttled(state.limits) and gained[v.vm] < 0.0)
    if taken <= LEAST_HELP * sum(v.iops for v in vms):
        return True
    if short.misses_share_alone:
        # What others gave up must have been used.
        return sum(each for each in gained.values() if each > 0.0) > LEAST_SHARE_HELP * taken
    return gained[short.vm] > LEAST_HELP * taken


def _back_off(state: LimitState, not_helped: Sequence[Bounded]) -> tuple[LimitState, str]:
    waits = dict(state.waits)
    names = {v.vm for v in not_helped}
    for v in not_helped:
        last = waits[v.vm].length_windows if v.vm in waits else 0
        longer = max(1.0, v.effect_windows / 2.0)
        wait = round(min(max(RETRY_AFTER * longer, 2 * last), LONGEST_RETRY * longer))
        waits[v.vm] = Wait(wait, wait, _found(state, v))
    served = tuple(vm for vm in state.served if vm not in names)
    kept = state.limits if served else {}
    state = replace(
        state,
        limits=kept,
        served=served,
        missed_windows=0,
        steps={vm: n for vm, n in state.steps.items() if vm not in names},
        waits=waits,
    )
    found = "; ".join(f"{v.vm}: {waits[v.vm].found}" for v in not_helped)
    return state, f"limits on others lifted, as they do not help ({found})"


def _found(state: LimitState, v: Bounded) -> str:
    """What limits on others brought a VM that they did not help."""
    least_us = state.least_p99_us.get(v.vm) if v.misses_p99 else None
    what = f"{v.iops:,.0f} IOPS" if least_us is None else f"p99 at least {least_us / 1000:,.3g} ms"
    others = {vm: limit for vm, limit in state.limits.items() if vm != v.vm}
    if not others:
        return f"{what}; there is nobody to limit"
    figures = and_list([f"{limit:,.0f}" for limit in others.values()], in_order=True)
    return f"{what} with {and_list(others, in_order=True)} limited to {figures} IOPS"


def not_helped_text(state: LimitState, vm: str) -> str:
    """Why limits for this VM, one of those that wait, were lifted."""
    return f"limits on others did not help: {state.waits[vm].found}"


def _raise(state: LimitState, vms: Sequence[Bounded], protected: Sequence[Bounded]) -> tuple[LimitState, str]:
    """Restore what can be spared."""
    rates = {v.vm: v.iops for v in vms}
    throttled = {v.vm for v in vms if v.is_throttled(state.limits)}
    sharing = [v for v in protected if v.keeps_share]
    # A VM has to take what the device has to spare; and a limit may have become too low for a share.
    idle = bool(sharing) and all(v.vm in throttled for v in sharing)
    low = [
        v.due_iops / state.limits[v.vm]
        for v in sharing
        if v.vm in throttled and state.limits[v.vm] < AT_LIMIT * v.objective_iops
    ]
    free = [v for v in protected if (v.busy or v.p99_miss > -1.0) and v.vm not in throttled]
    calm = all((v.miss if v.busy else v.p99_miss) <= -ROOM / (1.0 + ROOM) for v in free)
    state = replace(state, calm_windows=state.calm_windows + 1 if calm else 0)
    if not idle and not low and state.calm_windows < state.raise_after:
        return state, ""
    growth = min(1.0 + MOST_INCREASE, max(low) if low and not idle else math.inf)
    spare = [
        v.iops - (1.0 + ROOM / 2.0) * v.objective_iops for v in free if v.busy and v.objective_iops > 0.0
    ]
    if spare and not idle and not low:
        growth = min(growth, 1.0 + GAIN * max(0.0, min(spare)) / sum(state.limits.values()))
    if p99s := [v.p99_miss for v in free if v.p99_miss > -1.0]:
        growth = min(growth, 1.0 + GAIN * max(0.0, -max(p99s) - ROOM / 2.0))
    raised = {vm: growth * limit for vm, limit in state.limits.items()}
    kept = {
        vm: limit
        for vm, limit in raised.items()
        if vm in throttled or limit < LIFT_FROM * max(rates[vm], 1.0)
    }
    state = replace(
        state,
        limits=kept,
        hold_windows=max((v.effect_windows for v in protected), default=1) - 1,
        # One step at a time for who may miss it.
        calm_windows=0 if free else state.calm_windows,
        raised=state.raised or not (idle or low),
    )
    if kept:
        return state, ""
    return LimitState(waits=state.waits), f"limits lifted: {and_list(state.served)} can do without"


def limits_text(
    limits: Mapping[str, float], served: Collection[str], of: Collection[str] | None = None
) -> str:
    """The limited VMs, their limits and the protected VMs; `of`: only these VMs. Empty without limits."""
    shown = {vm: limit for vm, limit in sorted(limits.items()) if of is None or vm in of}
    if not shown:
        return ""
    figures = and_list([f"{limit:,.0f}" for limit in shown.values()], in_order=True)
    verb = "is" if len(shown) == 1 else "are"
    return f"{and_list(shown)} {verb} limited to {figures} IOPS for {and_list(served)}"
