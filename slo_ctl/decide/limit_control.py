"""Rate limits on other VMs for a VM that misses its objective: a minimum, a p99 or a share.

The same controller serves emulated and block devices. Once per window:

- Limits of the VMs with the highest rate per weight fall (water-filling, as for entitlements) by what the
  protected VM misses, and grow by what it gets above its objective. In between is a dead band, whose middle
  is the aim. A share is an objective only where no fair queue of the device keeps shares.
- For a p99 its relative error is the relative change of the limits, and half of it upwards.
- No limit falls by more than 30 % in a step, or grows by more than 10 %; for a p99 alone, which hardly
  changes before the load is too high, by 43 %, as much as a step down takes.
- The next step waits until the effect of the last one is measured.
- After a step up that was too early, the delay before the next one doubles; for a p99 it is also taken back,
  and the bound of the next one is halved.
- Limits that in six steps down have not removed half of the miss are lifted, and tried again after a delay
  that doubles each time.

If the protected VM gains G requests/s for each request/s taken from the others, a step leaves 1 - G of the
error, which converges for 0 < G < 2. Where rates are averages (emulated SSDs), z^2 - (1.56 - 0.44 G) z + 0.56
is stable for 0 < G < 7.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from slo_ctl.base import numbers
from slo_ctl.base.text import and_list
from slo_ctl.decide.entitlement import LEAST_SHARE, water_level
from slo_ctl.decide.objectives import MISSED_FROM, ROOM, ControlledVm

CONFIRMED_AFTER = 2
"""Consecutive measurements in which an objective is missed before limits begin."""
MOST_DECREASE = 0.3
"""Largest relative decrease of a limit in a step. The largest increase is ROOM, less than the dead band, and
for a p99 alone what makes up for one decrease."""
JUDGED_AFTER = 6
"""Steps after which half of the miss must be gone, or limits do not help; and windows with headroom before
limits are raised, doubled after they had been raised too early."""
RETRY_AFTER, LONGEST_RETRY = 60, 600
"""Windows until limits that did not help are tried again: after the first time, and at most. Longer in
proportion where an effect takes more than two windows to be measured."""


@dataclass(frozen=True, slots=True)
class Effect:
    """What steps down have done for a VM since it missed its objective."""

    miss_before: float
    """Relative error before the first step."""
    others_iops: float
    """Rate of all other VMs before the first step."""
    steps: int = 1
    least_p99_us: float | None = None
    """Lowest p99; None: not measured."""

    def after_step(self, v: ControlledVm) -> "Effect":
        """The effect with one more step, as measured before it."""
        measured = [p99_us for p99_us in (v.p99_us, self.least_p99_us) if p99_us is not None]
        return replace(self, steps=self.steps + 1, least_p99_us=min(measured, default=None))

    def helps(self, v: ControlledVm, others_iops: float) -> bool:
        """Whether half of the miss is gone; also if it is too early to judge or the others lost nothing."""
        if self.steps <= JUDGED_AFTER or others_iops >= (1.0 - ROOM) * self.others_iops:
            return True
        return v.miss <= self.miss_before / 2.0


@dataclass(frozen=True, slots=True)
class RetryDelay:
    """Delay until limits that did not help a VM are tried again."""

    windows: int
    """Windows that remain."""
    length_windows: int
    """Whole length of the delay."""
    max_p99_us: float | None = None
    """Target of the VM's p99 that was missed: another one is tried at once."""
    result: str = ""
    """Text with the limits and what the VM reached under them."""


@dataclass(frozen=True, slots=True)
class LimitsInForce:
    """Limits, and what decides on their next step."""

    iops: dict[str, float]
    """By limited VM; empty only before the first step."""
    protected_vms: tuple[str, ...]
    """VMs for which they are limited; none if these no longer exist."""
    unlimited_iops: float
    """Rate of all VMs before the limits."""
    lowering: bool = False
    """Whether the last step was smaller than needed, because a step is bounded."""
    calm_windows: int = 0
    """Consecutive windows with headroom, so that limits could be raised."""
    raise_after: int = JUDGED_AFTER
    """Windows with headroom before limits are raised."""
    raised_from: dict[str, float] = field(default_factory=dict)
    """Limits before they were raised last; empty if they have been lowered since."""


@dataclass(frozen=True, slots=True)
class LimitState:
    """State of the controller between windows."""

    in_force: LimitsInForce | None = None
    """None: no limits."""
    missed_windows: int = 0
    """Consecutive windows in which an objective was missed."""
    hold_windows: int = 0
    """Windows until the effect of the last change is measured."""
    effects: dict[str, Effect] = field(default_factory=dict)
    """By protected VM."""
    retry_delays: dict[str, RetryDelay] = field(default_factory=dict)
    """Delays, also expired ones, by VM that limits on others did not help."""

    @property
    def limits(self) -> Mapping[str, float]:
        """Limits in force: IOPS by limited VM."""
        return self.in_force.iops if self.in_force else {}

    @property
    def protected_vms(self) -> tuple[str, ...]:
        """VMs for which others are limited."""
        return self.in_force.protected_vms if self.in_force else ()

    @property
    def not_helped(self) -> tuple[str, ...]:
        """VMs for which limits on others are not tried at the moment, because they did not help."""
        return tuple(sorted(vm for vm, delay in self.retry_delays.items() if delay.windows))

    @property
    def beneficiaries(self) -> tuple[str, ...]:
        """Protected VMs that are not limited themselves; all protected VMs if there is none."""
        return tuple(vm for vm in self.protected_vms if vm not in self.limits) or self.protected_vms


def control(
    state: LimitState, vms: Sequence[ControlledVm], idle: Collection[str] = ()
) -> tuple[LimitState, str]:
    """The state one window later, with the limits to set; and a sentence when limiting starts or ends.

    `idle`: other VMs of the device. Limits of VMs that pause stay with those of the others: otherwise a VM
    could free itself by pausing, and the search for the limits would begin anew after each pause.
    """
    state = _advance_window(state, vms, idle)
    protected = [v for v in vms if v.protected and v.vm not in state.not_helped]
    if not protected or (state.limits and not state.protected_vms):
        reason = "limits lifted: no VM has an objective that they help to meet" if state.limits else ""
        return LimitState(retry_delays=state.retry_delays), reason
    missing = _missing(state, protected)
    state = replace(state, missed_windows=state.missed_windows + 1 if missing else 0)
    state = replace(state, effects=_without(state.effects, {v.vm for v in vms if v.miss <= 0.0}))
    if state.hold_windows:
        return state, ""
    state = _raised_to_minimums(state, vms)
    if missing:
        if _confirmed(state, missing):
            return _lower(state, vms, missing)
        return replace(state, in_force=state.in_force and replace(state.in_force, calm_windows=0)), ""
    if state.in_force:
        return _raise(state, replace(state.in_force, lowering=False), vms, protected)
    running = {vm: delay for vm, delay in state.retry_delays.items() if delay.windows}
    return replace(state, effects={}, retry_delays=running), ""


def _missing(state: LimitState, protected: Sequence[ControlledVm]) -> list[ControlledVm]:
    """VMs that miss an objective: a p99, or a rate that neither their own limit nor low demand explains."""
    # Limits that are being lowered continue to fall until the middle of the dead band is reached.
    lowering = state.in_force is not None and state.in_force.lowering
    missed_from = MISSED_FROM - ROOM / 2.0 if lowering else MISSED_FROM
    return [
        v
        for v in protected
        if v.misses_p99 or (v.busy and v.miss > missed_from and not v.is_throttled(state.limits))
    ]


def _confirmed(state: LimitState, missing: Sequence[ControlledVm]) -> bool:
    """Whether a miss was measured again; a p99 is measured once in `effect_windows`.

    Not so while limits are in force, as the step that follows is small, or takes back the last one.
    """
    again = min(v.effect_windows if v.misses_p99 and not state.limits else 1 for v in missing)
    return state.missed_windows > again * (CONFIRMED_AFTER - 1)


def _advance_window(state: LimitState, vms: Sequence[ControlledVm], idle: Collection[str]) -> LimitState:
    """The state with its counters advanced by one window, and without VMs that no longer exist."""
    now = {v.vm: v for v in vms}
    limits = {vm: limit for vm, limit in state.limits.items() if vm in now or vm in idle}
    protected_vms = tuple(vm for vm in state.protected_vms if vm in now)
    kept = state.in_force and replace(state.in_force, iops=limits, protected_vms=protected_vms)
    return replace(
        state,
        in_force=kept if limits else None,
        hold_windows=max(0, state.hold_windows - 1),
        retry_delays={
            vm: replace(delay, windows=max(0, delay.windows - 1))
            for vm, delay in state.retry_delays.items()
            if vm in now and now[vm].max_p99_us == delay.max_p99_us
        },
    )


def _raised_to_minimums(state: LimitState, vms: Sequence[ControlledVm]) -> LimitState:
    """The state with no limit below its VM's own minimum, which may have been raised since."""
    least = {v.vm: (1.0 + ROOM / 2.0) * v.min_iops for v in vms}
    limits = {vm: max(limit, least.get(vm, 0.0)) for vm, limit in state.limits.items()}
    return replace(state, in_force=state.in_force and replace(state.in_force, iops=limits))


def _lower(
    state: LimitState, vms: Sequence[ControlledVm], missing_vms: Sequence[ControlledVm]
) -> tuple[LimitState, str]:
    """One step down: the state with lower limits on the other VMs, and a sentence when limiting starts."""
    # Minimums and p99 targets have priority over shares.
    urgent = [v for v in missing_vms if not v.misses_share_alone] or missing_vms
    total_iops = sum(v.iops for v in vms)
    state = _with_step(state, urgent, total_iops)
    if not_helped := [v for v in urgent if not state.effects[v.vm].helps(v, total_iops - v.iops)]:
        return _back_off(state, not_helped)
    before = state.in_force or LimitsInForce({}, (), total_iops)
    if before.raised_from:
        before = replace(before, raise_after=min(LONGEST_RETRY, 2 * before.raise_after))
        state = replace(state, in_force=before)
        if all(v.misses_p99 for v in urgent):
            return _taken_back(state, before, urgent), ""
    donors = _donors(before, vms, urgent)
    left_iops = sum(donor.rate_iops - donor.floor_iops for donor in donors)
    at_floors = left_iops <= MISSED_FROM * sum(_rate_iops(v, before) for v in vms)
    if at_floors and (missed := [v for v in urgent if v.misses_p99 and state.effects[v.vm].steps > 1]):
        # Limits that do not bring the p99 to its target are of no use.
        return _back_off(state, missed)
    wanted = _wanted_limits(donors, urgent)
    lowered = {
        donor.vm: max(wanted[donor.vm], (1.0 - MOST_DECREASE) * donor.rate_iops)
        for donor in donors
        if wanted[donor.vm] < donor.rate_iops
    }
    # A VM below its minimum or share loses its own limit, so that it can use what the others release.
    released = {v.vm for v in urgent if not v.misses_p99}
    limits = {vm: limit for vm, limit in before.iops.items() if vm not in released} | lowered
    names = {v.vm for v in urgent}
    in_force = LimitsInForce(
        limits,
        protected_vms=tuple(sorted({*before.protected_vms, *names})),
        unlimited_iops=before.unlimited_iops,
        lowering=any(limit > wanted[vm] for vm, limit in lowered.items()),
        raise_after=before.raise_after,
    )
    starts = bool(limits) and not before.iops
    reason = f"limiting other VMs: objective missed by {and_list(names)}" if starts else ""
    hold_windows = _effect_windows(urgent) - 1
    return replace(state, in_force=in_force if limits else None, hold_windows=hold_windows), reason


def _with_step(state: LimitState, urgent: Sequence[ControlledVm], total_iops: float) -> LimitState:
    """The state with one more step down counted for the urgent VMs."""
    effects = {
        v.vm: effect.after_step(v) if effect else Effect(v.miss, total_iops - v.iops)
        for v in urgent
        for effect in (state.effects.get(v.vm),)
    }
    return replace(state, effects=state.effects | effects)


def _taken_back(state: LimitState, before: LimitsInForce, urgent: Sequence[ControlledVm]) -> LimitState:
    """The state with the limits before the last step up, which was too much for a p99."""
    limits = {vm: before.raised_from.get(vm, limit) for vm, limit in before.iops.items()}
    # A measurement that began before this does not show its effect.
    hold_windows = 2 * _effect_windows(urgent) - 1
    in_force = replace(before, iops=limits, calm_windows=0, raised_from={})
    return replace(state, in_force=in_force, hold_windows=hold_windows)


def _effect_windows(vms: Sequence[ControlledVm]) -> int:
    """Windows until the measurements of all these VMs show the effect of a change."""
    return max((v.effect_windows for v in vms), default=1)


@dataclass(frozen=True, slots=True)
class _Donor:
    """A VM that can be limited for others. Rates in requests per second."""

    vm: str
    fair_iops: float
    floor_iops: float
    """No limit is lower."""
    rate_iops: float


def _donors(
    before: LimitsInForce, vms: Sequence[ControlledVm], urgent: Sequence[ControlledVm]
) -> list[_Donor]:
    """VMs whose limits may be lowered for the urgent ones."""
    names = {v.vm for v in urgent}
    share_only = all(v.misses_share_alone for v in urgent)
    # Limits lower the total, but not what each VM keeps of it.
    kept = LEAST_SHARE * max(1.0, before.unlimited_iops / max(sum(v.fair_iops for v in vms), 1e-9))
    found = []
    for v in vms:
        least_iops = max((1.0 + ROOM / 2.0) * v.min_iops, kept * v.fair_iops)
        floor_iops = max(least_iops, v.due_iops) if share_only else least_iops
        donor = _Donor(v.vm, v.fair_iops, floor_iops, _rate_iops(v, before))
        if v.limitable and v.vm not in names and donor.rate_iops > floor_iops:
            found.append(donor)
    return found


def _rate_iops(v: ControlledVm, before: LimitsInForce) -> float:
    """The VM's rate, or its limit if the limiter let more pass."""
    return min(v.iops, before.iops.get(v.vm, v.iops))


def _wanted_limits(donors: Sequence[_Donor], urgent: Sequence[ControlledVm]) -> dict[str, float]:
    """Limits of the donors that release what the urgent VMs miss, without the bound of a step."""
    donor_iops = sum(donor.rate_iops for donor in donors)
    missing_iops = sum(v.missing_iops for v in urgent if v.busy)
    p99_miss = max(v.miss if v.misses_p99 else 0.0 for v in urgent)
    missing_iops = max(missing_iops, min(p99_miss, MOST_DECREASE) * donor_iops)
    claims = [(donor.fair_iops, donor.floor_iops, donor.rate_iops) for donor in donors]
    level = water_level(claims, donor_iops - missing_iops)
    return {donor.vm: max(donor.floor_iops, level * donor.fair_iops) for donor in donors}


def _back_off(state: LimitState, not_helped: Sequence[ControlledVm]) -> tuple[LimitState, str]:
    """The state without protection of these VMs until their retry delays expire, and a sentence why."""
    delays = dict(state.retry_delays)
    names = {v.vm for v in not_helped}
    for v in not_helped:
        windows = retry_windows(v.effect_windows, delays[v.vm].length_windows if v.vm in delays else 0)
        delays[v.vm] = RetryDelay(windows, windows, v.max_p99_us, _result_text(state, v))
    protected_vms = tuple(vm for vm in state.protected_vms if vm not in names)
    kept = state.in_force and replace(state.in_force, protected_vms=protected_vms, calm_windows=0)
    state = replace(
        state,
        in_force=kept if protected_vms else None,
        missed_windows=0,
        effects=_without(state.effects, names),
        retry_delays=delays,
    )
    results = "; ".join(f"{v.vm}: {delays[v.vm].result}" for v in not_helped)
    return state, f"limits on other VMs lifted, because they did not help ({results})"


def retry_windows(effect_windows: int, last_windows: int) -> int:
    """Windows until what did not help is tried again, after a delay of `last_windows`, or 0."""
    scale = max(1.0, effect_windows / 2.0)
    return round(min(max(RETRY_AFTER * scale, 2 * last_windows), LONGEST_RETRY * scale))


def _without(effects: Mapping[str, Effect], vms: Collection[str]) -> dict[str, Effect]:
    return {vm: effect for vm, effect in effects.items() if vm not in vms}


def _result_text(state: LimitState, v: ControlledVm) -> str:
    """What a VM reached under the limits on others, and these limits."""
    least_us = state.effects[v.vm].least_p99_us if v.misses_p99 else None
    reached = f"{v.iops:,.0f} IOPS" if least_us is None else f"p99 at least {numbers.latency(least_us)}"
    others = {vm: limit for vm, limit in sorted(state.limits.items()) if vm != v.vm}
    if not others:
        return f"{reached}; no other VM can be limited"
    figures = and_list([f"{limit:,.0f}" for limit in others.values()], in_order=True)
    return f"{reached} with {and_list(others, in_order=True)} limited to {figures} IOPS"


def not_helped_text(state: LimitState, vm: str) -> str:
    """Why other VMs are not limited for this one, which must have a retry delay."""
    return f"limits on other VMs did not help: {state.retry_delays[vm].result}"


def _raise(
    state: LimitState,
    before: LimitsInForce,
    vms: Sequence[ControlledVm],
    protected: Sequence[ControlledVm],
) -> tuple[LimitState, str]:
    """One step up where there is headroom, and a sentence when all limits are lifted."""
    throttled = {v.vm for v in vms if v.is_throttled(before.iops)}
    unthrottled = [v for v in protected if (v.busy or v.p99_miss > -1.0) and v.vm not in throttled]
    calm = all((v.miss if v.busy else v.p99_miss) <= -ROOM / (1.0 + ROOM) for v in unthrottled)
    before = replace(before, calm_windows=before.calm_windows + 1 if calm else 0)
    at_once = _growth_at_once(before, protected, throttled)
    if at_once is None and before.calm_windows < before.raise_after:
        return replace(state, in_force=before), ""
    if not throttled:
        reason = f"limits lifted: no longer needed for {and_list(before.protected_vms)}"
        return LimitState(retry_delays=state.retry_delays), reason
    growth = min(
        _growth_by_headroom(before, unthrottled) if at_once is None else min(1.0 + ROOM, at_once),
        _growth_by_p99(before, unthrottled),
    )
    growth = growth if math.isfinite(growth) else 1.0 + ROOM
    running = {v.vm for v in vms if not v.quiet}
    in_force = replace(
        before,
        iops={vm: growth * at for vm, at in before.iops.items() if vm in throttled or vm not in running},
        # Headroom is confirmed again before the next step if that could make a VM miss its objective.
        calm_windows=0 if unthrottled else before.calm_windows,
        raised_from=before.iops if at_once is None else {},
    )
    return replace(state, in_force=in_force, hold_windows=_effect_windows(protected) - 1), ""


def _growth_at_once(
    before: LimitsInForce, protected: Sequence[ControlledVm], throttled: Collection[str]
) -> float | None:
    """Factor by which limits have to grow without waiting for headroom; None: they do not have to."""
    sharing = [v for v in protected if v.keeps_share]
    if sharing and all(v.vm in throttled for v in sharing):
        # Limits throttle all VMs that share the device, which has spare capacity.
        return math.inf
    too_low = [
        v.due_iops / before.iops[v.vm]
        for v in sharing
        if v.vm in throttled and before.iops[v.vm] < (1.0 - ROOM) * v.objective_iops
    ]
    return max(too_low, default=None)


def _growth_by_headroom(before: LimitsInForce, unthrottled: Sequence[ControlledVm]) -> float:
    """Factor that restores what the VMs get above the middle of the dead band."""
    excess_iops = [
        v.iops - (1.0 + ROOM / 2.0) * v.objective_iops
        for v in unthrottled
        if v.busy and v.objective_iops > 0.0
    ]
    if not excess_iops:
        return math.inf
    return 1.0 + min(ROOM, max(0.0, min(excess_iops)) / sum(before.iops.values()))


def _growth_by_p99(before: LimitsInForce, unthrottled: Sequence[ControlledVm]) -> float:
    """Factor that restores half of the headroom of the highest p99: a p99 grows faster than the load.

    At most what makes up for the largest step down; less after limits had been raised too early.
    """
    misses = [v.p99_miss for v in unthrottled if v.p99_miss > -1.0]
    if not misses:
        return math.inf
    headroom = max(0.0, -max(misses) - ROOM / 2.0)
    most = (1.0 / (1.0 - MOST_DECREASE) - 1.0) * JUDGED_AFTER / before.raise_after
    return 1.0 + min(headroom / 2.0, most)


def limits_text(
    limits: Mapping[str, float], protected_vms: Collection[str], limited_vms: Collection[str] | None = None
) -> str:
    """A sentence such as `db is limited to 300 IOPS for web`; empty without limits.

    `limited_vms`: only limits of these VMs; None: all limits.
    """
    shown = {vm: limit for vm, limit in sorted(limits.items()) if limited_vms is None or vm in limited_vms}
    if not shown:
        return ""
    figures = and_list([f"{limit:,.0f}" for limit in shown.values()], in_order=True)
    verb = "is" if len(shown) == 1 else "are"
    return f"{and_list(shown)} {verb} limited to {figures} IOPS for {and_list(protected_vms)}"
