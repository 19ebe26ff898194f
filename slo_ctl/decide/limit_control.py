"""Rate limits on the others, for a VM that misses its minimum or its p99 although the queue prefers it.

Multiplicative decrease, multiplicative increase with a dead band in between (the scheme of TCP's and PARDA's
rate control): while a protected VM misses its objective, the VMs above their own bounds are slowed by a part
of their rate in proportion to how much is missing; while it is met with room to spare they are let go again,
slowly. Where limits have not helped, they are lifted, and tried again after a time that doubles.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

MISSED_FROM = 0.02
"""Relative to the objective: less is noise."""
CONFIRMED_AFTER = 2
"""Windows in a row that an objective is missed before anybody is limited for it."""
GAIN, MOST_DECREASE = 0.5, 0.3
"""Relative decrease of a limit per window, per relative miss; and at most."""
ROOM = 0.1
"""By so much must an objective be exceeded before limits are raised."""
INCREASE = 1.1
LIFT_FROM = 1.5
"""A limit so much above what its VM does is lifted."""
LEAST_SHARE = 0.05
"""Of its share by weight: what everybody keeps."""
JUDGED_AFTER = 12
"""Windows after which limits must have helped."""
LEAST_HELP = 0.25
"""Gain of a protected VM that still misses its objective, relative to what its limits take from the
others."""
RETRY_AFTER, LONGEST_RETRY = 60, 600
"""Windows for which limits that did not help are not tried again: at first, and at most."""


@dataclass(frozen=True, slots=True)
class Bounded:
    """One VM as the controller sees it. Rates in requests per second."""

    vm: str
    iops: float
    fair_iops: float
    """Its share by weight."""
    busy: bool
    """It had requests outstanding nearly all the time, so that a miss is not its own doing."""
    min_iops: float = 0.0
    p99_us: float | None = None
    max_p99_us: float | None = None
    p99_windows: int = 1
    """What the p99 is measured over: the effect of a change is seen only after so long."""

    @property
    def miss(self) -> float:
        """How far it is from its objectives, relative to them: positive where one is missed."""
        misses = [-1.0]
        if self.min_iops > 0.0:
            misses.append(self.min_iops / max(self.iops, 1e-9) - 1.0)
        if self.max_p99_us and self.p99_us is not None:
            misses.append(self.p99_us / self.max_p99_us - 1.0)
        return min(max(misses), 1.0)

    @property
    def misses_p99(self) -> bool:
        """Whether the p99 is its worst miss."""
        p99 = self.p99_us / self.max_p99_us - 1.0 if self.max_p99_us and self.p99_us is not None else -1.0
        return p99 > -1.0 and min(p99, 1.0) >= self.miss

    @property
    def protected(self) -> bool:
        """Whether it has an objective that limits on others may help to meet."""
        return self.busy and (self.min_iops > 0.0 or bool(self.max_p99_us and self.p99_us is not None))


@dataclass(frozen=True, slots=True)
class LimitState:
    """All that is remembered between windows."""

    limits: dict[str, float] = field(default_factory=dict)
    """In force, by VM."""
    missed_windows: int = 0
    limited_windows: int = 0
    before: dict[str, float] = field(default_factory=dict)
    """IOPS of every VM when limiting began."""
    miss_before: float = 0.0
    hold_windows: int = 0
    """Until the effect of the last change is measured."""
    wait_windows: int = 0
    """Until limits that did not help may be tried again."""
    last_wait_windows: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """What should be in force."""

    limits: dict[str, float]
    protected: str = ""
    """The VM that they are for."""
    reason: str = ""
    """One sentence when something changed in kind."""


def control(state: LimitState, vms: Sequence[Bounded]) -> tuple[LimitState, Limits]:
    """One window later."""
    names = {v.vm for v in vms}
    state = replace(
        state,
        limits={vm: limit for vm, limit in state.limits.items() if vm in names},
        wait_windows=max(0, state.wait_windows - 1),
        hold_windows=max(0, state.hold_windows - 1),
    )
    worst = max((v for v in vms if v.protected), key=lambda v: v.miss, default=None)
    if worst is None:
        reason = "limits lifted: nobody needs them" if state.limits else ""
        return LimitState(), Limits({}, reason=reason)
    if state.hold_windows and worst.misses_p99:
        return _counted(state), Limits(state.limits, worst.vm)
    if worst.miss > MISSED_FROM:
        return _tighten(state, vms, worst)
    state = replace(state, missed_windows=0)
    if worst.miss > -ROOM or not state.limits:
        return _counted(state), Limits(state.limits, worst.vm)
    rates = {v.vm: v.iops for v in vms}
    raised = {vm: INCREASE * limit for vm, limit in state.limits.items()}
    kept = {vm: limit for vm, limit in raised.items() if limit < LIFT_FROM * max(rates[vm], 1.0)}
    reason = "" if kept else f"limits lifted: {worst.vm} does without"
    return _counted(_changed(state, kept, worst)), Limits(kept, worst.vm, reason)


def _tighten(state: LimitState, vms: Sequence[Bounded], worst: Bounded) -> tuple[LimitState, Limits]:
    state = replace(state, missed_windows=state.missed_windows + 1)
    if state.missed_windows < CONFIRMED_AFTER or state.wait_windows:
        return _counted(state), Limits(state.limits, worst.vm)
    rates = {v.vm: v.iops for v in vms}
    if not state.limits:
        state = replace(state, before=rates, miss_before=worst.miss, limited_windows=0)
    elif state.limited_windows >= JUDGED_AFTER and not _helps(state, vms, worst):
        wait = min(max(RETRY_AFTER, 2 * state.last_wait_windows), LONGEST_RETRY)
        reason = f"limits lifted: they do not help {worst.vm}, which its own queue depth or pace holds back"
        return LimitState(wait_windows=wait, last_wait_windows=wait), Limits({}, reason=reason)
    decrease = min(GAIN * worst.miss, MOST_DECREASE)
    limits = dict(state.limits)
    for v in vms:
        floor = max(v.min_iops * (1.0 + MISSED_FROM), LEAST_SHARE * v.fair_iops)
        if v.vm == worst.vm or (v.protected and v.miss > 0.0) or v.iops <= floor:
            continue
        limits[v.vm] = max(floor, (1.0 - decrease) * min(v.iops, limits.get(v.vm, v.iops)))
    reason = "" if state.limits else f"limiting others, as {worst.vm} misses its objective"
    return _counted(_changed(state, limits, worst)), Limits(limits, worst.vm, reason)


def _changed(state: LimitState, limits: dict[str, float], worst: Bounded) -> LimitState:
    hold = worst.p99_windows - 1 if worst.misses_p99 else 0
    return replace(state, limits=limits, hold_windows=hold)


def _helps(state: LimitState, vms: Sequence[Bounded], worst: Bounded) -> bool:
    """Whether what the protected VM has gained is worth what the others have lost."""
    if worst.max_p99_us and state.miss_before - worst.miss > LEAST_HELP * (1.0 + state.miss_before):
        return True
    gained = worst.iops - state.before.get(worst.vm, worst.iops)
    taken = sum(max(0.0, state.before.get(v.vm, 0.0) - v.iops) for v in vms if v.vm in state.limits)
    return gained > LEAST_HELP * taken


def _counted(state: LimitState) -> LimitState:
    return replace(state, limited_windows=state.limited_windows + 1 if state.limits else 0)
