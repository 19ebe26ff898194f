"""Minimums on devices that guarantee none: the VMs furthest above their share are held back, for a while.

No kernel mechanism keeps a minimum. But where IOPS can be limited, holding back the others does: while a VM
that wants more misses its minimum, those above what they are due are limited, the most above first, in
steps. Nobody is held below what it is due itself: its minimum, or its share by weight of what all minimums
leave. Where the minimums exceed what the device delivers, each is owed the same part of its own.

Limits are given back as carefully. Between 1 and 1.18 times the minimum (`decide.dues`) nothing changes,
so that neither noise nor the device's own answer to a step brings the next one. Whoever has to be held back
again right after it was let go waits twice as long the next time. And where holding others back brings
nothing, since the VM has too few requests or wants no more, that is noticed, told, and ended.

Where nothing in the kernel shares by weight, as between the namespaces of one NVMe drive, shares are kept by
the same means: a VM that wants more is also owed its share by weight, and is short below 95 % of it, or below
all of it while somebody has 10 % more than is due. Who is held back by a limit of its own takes nothing from
others, and never are all held back: somebody has to take what the device has to spare.

All of it is arithmetic on windows: no I/O, no clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from slo_ctl.decide.dues import AIM, dues
from slo_ctl.decide.giving_back import WORTH_FILLING, filled, released
from slo_ctl.decide.in_vain import who_gains_nothing
from slo_ctl.decide.who_pays import level_of, missing_of, to_be_left_free

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from slo_ctl.decide.dues import Contender, Dues

_STEP_DOWN = 0.6
"""Of what a VM does: no step takes more."""
_DWELL_S, _MAX_DWELL_S = 5.0, 300.0
"""All is well for so long before anything is given back; doubled when that was too soon."""
_QUIET_DWELLS = 4.0
"""So many times the dwell without a change: what was given back too soon is forgotten."""
_NOT_TRIED_DWELLS = 6.0
"""So many times the dwell nobody is held back for a VM for which that did nothing."""
_FELL = 0.97
"""Of what the device delivered when limits were set: below it they follow."""
_WORTH_IT = 0.01
"""Relative change of a limit: less is not written."""
_LEAST_STEP = 0.025
"""Of what those above their due do together."""
_LATENCY_STEP = 0.3
"""Of what others have above their due: at most so much is taken in a step for a p99."""


@dataclass(frozen=True, slots=True)
class Protection:
    """What is in force, and what has to be known for the next step. The first one holds nobody back."""

    limits: Mapping[str, float] = field(default_factory=dict)
    """IOPS, by VM held back."""
    served: tuple[str, ...] = ()
    """For whom."""
    at_due: bool = False
    """Somebody is short, and nobody is above what it is due, though the minimums fit."""
    told: tuple[str, ...] = ()
    """What has to be known, one sentence each."""
    deliverable_iops: float = 0.0
    """When limits were set last, or now where there are none."""
    unchanged_s: float = math.inf
    """Since limits were changed."""
    short_s: Mapping[str, float] = field(default_factory=dict)
    """By VM that is short: since when."""
    had_iops: Mapping[str, float] = field(default_factory=dict)
    """By VM for whose sake others are held back: what it had before."""
    weakest: str = ""
    """Who missed its share by weight most when others were held back last."""
    at_due_s: float = 0.0
    """Since that was so first, while somebody is short."""
    at_due_iops: Mapping[str, float] = field(default_factory=dict)
    """What each VM did then."""
    gave_up: bool = False
    """Just now, somebody was."""
    given_up_s: Mapping[str, float] = field(default_factory=dict)
    """By VM for whom holding others back does nothing: how long it is not tried."""
    calm_s: float = 0.0
    dwell_s: float = _DWELL_S
    released: bool = False
    """Something was given back since others were held back last."""

    @property
    def beneficiaries(self) -> tuple[str, ...]:
        """For whom others are limited, as far as they are not limited themselves."""
        return tuple(vm for vm in self.served if vm not in self.limits) or self.served


def step(
    before: Protection,
    vms: Sequence[Contender],
    deliverable_iops: float | None,
    length_s: float,
    window_s: float,
    *,
    by_weight: bool = False,
) -> Protection:
    """What is in force from now on.

    `length_s` has passed since the last step, `window_s` is what the contenders' figures are means over.
    `deliverable_iops` is what the device can be counted on to do; None: what it does.
    `by_weight`: shares by weight have to be kept too, as nothing else does it.
    """
    total = deliverable_iops or sum(each.iops for each in vms)
    if by_weight:
        # A share that a VM cannot use is everybody else's.
        vms = [replace(v, wants_more=v.wants_more and v.vm not in before.given_up_s) for v in vms]
    look = dues(vms, before.limits, total, by_weight=by_weight)
    now = _passed(before, vms, look, length_s)
    if now.unchanged_s <= window_s:
        return now
    short = [each for each in vms if each.vm in now.short_s and each.vm not in now.given_up_s]
    urgent = [each for each in short if now.short_s[each.vm] >= window_s]
    if urgent:
        return _squeezed(now, vms, look, urgent)
    now = replace(now, at_due=False, at_due_s=0.0, at_due_iops={})
    if now.limits and (free := to_be_left_free(now.limits, vms, look, now.weakest)):
        limits = {vm: limit for vm, limit in now.limits.items() if vm != free}
        return replace(now, limits=limits, unchanged_s=0.0)
    # Where shares are kept, who is left free notices first.
    if now.limits and not by_weight and total < _FELL * now.deliverable_iops:
        return _lowered(now, look, total / now.deliverable_iops)
    idle = total - sum(each.iops for each in vms)
    if look.shares and look.held and now.calm_s >= _DWELL_S and idle > WORTH_FILLING * total:
        return filled(now, look, idle)
    if now.limits and now.calm_s >= now.dwell_s:
        return released(now, vms, look)
    return now if short or now.limits else replace(now, served=(), had_iops={})


def _passed(before: Protection, vms: Sequence[Contender], look: Dues, length_s: float) -> Protection:
    """Time passes; nothing is changed but that VMs that are gone are forgotten."""
    here = {each.vm for each in vms}
    short = {each.vm for each in vms if look.short(each)}
    given_up = {vm: s - length_s for vm, s in before.given_up_s.items() if s > length_s and vm in here}
    calm = all(look.content(each) for each in vms if each.vm not in given_up)
    calm_s = before.calm_s + length_s if calm else 0.0
    free_long = not before.limits and not given_up and calm_s >= 2 * before.dwell_s
    # Where shares are kept somebody is limited all the time.
    free_long = free_long or (bool(look.shares) and before.unchanged_s > _QUIET_DWELLS * before.dwell_s)
    return replace(
        before,
        limits={vm: limit for vm, limit in before.limits.items() if vm in here},
        served=tuple(vm for vm in before.served if vm in here),
        told=tuple(_told(look, short, given_up)),
        deliverable_iops=before.deliverable_iops if before.limits else look.total_iops,
        unchanged_s=before.unchanged_s + length_s,
        short_s={vm: before.short_s.get(vm, -length_s) + length_s for vm in short},
        at_due_s=before.at_due_s + length_s if before.at_due or before.at_due_s else 0.0,
        gave_up=False,
        given_up_s=given_up,
        calm_s=calm_s,
        dwell_s=_DWELL_S if free_long else before.dwell_s,
        released=before.released and not free_long,
    )


def _told(look: Dues, short: Collection[str], given_up: Collection[str]) -> Iterator[str]:
    if look.part < 1.0 and short:
        yield (
            f"the minimums of the VMs that want so much are {look.wanted_minimum_iops:,.0f} IOPS together, "
            f"and the device delivers {look.total_iops:,.0f}: each is owed {look.part:.0%} of its own"
        )
    for vm in sorted(given_up):
        yield (
            f"{vm} got no more when others were held back for it: it has too few requests at a time, "
            "or wants no more"
        )


def _squeezed(
    now: Protection, vms: Sequence[Contender], look: Dues, short: Sequence[Contender]
) -> Protection:
    """Take what is missing from those above what they are due, as far as one step goes."""
    if in_vain := who_gains_nothing(now, vms, look, short):
        return _given_up(now, in_vain)
    names = {each.vm for each in short}
    above = [v for v in vms if v.limitable and v.vm not in names and v.iops > look.due[v.vm]]
    missing = sum(missing_of(each, look) for each in short)
    slow = max(each.over_p99 for each in short)
    if slow > 1.0:
        excess = sum(each.iops - look.due[each.vm] for each in above)
        missing = max(missing, min(_LATENCY_STEP, slow - 1.0) * excess)
    # A step too small to be written would be none, and the next one the same.
    missing = max(missing, _LEAST_STEP * sum(each.iops for each in above))
    level = level_of(above, look.due, missing)
    # Who is short may be held back itself, since it was owed less before.
    limits = {
        vm: max(limit, AIM * look.owed.get(vm, 0.0)) if vm in names else limit
        for vm, limit in now.limits.items()
    }
    for each in above:
        limit = limits.get(each.vm, math.inf)
        wanted = max(look.due[each.vm] * level, _STEP_DOWN * min(limit, each.iops))
        if wanted < min(limit, each.iops):
            # Limiters let through a little less.
            more = AIM if look.part >= 1.0 else 1.0
            least = max(look.due[each.vm], more * look.minimums.get(each.vm, 0.0))
            limits[each.vm] = max(wanted, min(least, limit))
    if free := to_be_left_free(limits, vms, look, now.weakest):
        del limits[free]
    of_share = [each for each in short if each.vm in look.shares and each.vm not in now.limits]
    if of_share:
        weakest = min(of_share, key=lambda each: each.iops / look.shares[each.vm]).vm
        now = replace(now, weakest=weakest)
    had = {each.vm: now.had_iops.get(each.vm, each.iops) for each in short}
    now = replace(now, served=tuple(sorted({*now.served, *names})), had_iops={**now.had_iops, **had})
    if not _differ(limits, now.limits):
        # Where not all minimums can be kept what is owed has shrunk already. And who misses a share by its
        # own limit says nothing of what the device can do.
        missed = any(each.vm not in look.held or each.vm in look.minimums for each in short)
        began = now.at_due_iops or {each.vm: each.iops for each in vms}
        return replace(now, at_due=look.part >= 1.0 and missed, at_due_iops=began)
    return replace(
        now,
        limits=limits,
        at_due=False,
        deliverable_iops=look.total_iops,
        unchanged_s=0.0,
        calm_s=0.0,
        dwell_s=min(_MAX_DWELL_S, 2 * now.dwell_s) if now.released else now.dwell_s,
        released=False,
    )


def _differ(limits: Mapping[str, float], before: Mapping[str, float]) -> bool:
    """By so much that it is worth writing."""
    return any(vm not in before or abs(limit / before[vm] - 1) > _WORTH_IT for vm, limit in limits.items())


def _given_up(now: Protection, in_vain: Collection[str]) -> Protection:
    served = tuple(vm for vm in now.served if vm not in in_vain)
    dwell_s = min(_MAX_DWELL_S, 2 * now.dwell_s)
    return replace(
        now,
        limits=now.limits if served else {},
        served=served,
        had_iops={vm: had for vm, had in now.had_iops.items() if vm in served},
        at_due=False,
        at_due_s=0.0,
        at_due_iops={},
        unchanged_s=now.unchanged_s if served else 0.0,
        gave_up=True,
        given_up_s={**now.given_up_s, **dict.fromkeys(in_vain, _NOT_TRIED_DWELLS * dwell_s)},
        dwell_s=dwell_s,
    )


def _lowered(now: Protection, look: Dues, part: float) -> Protection:
    """The device delivers less than when the limits were set: they follow, before anybody is short."""
    limits = {
        vm: min(limit, max(limit * part, look.due.get(vm, 0.0), 1.0)) for vm, limit in now.limits.items()
    }
    changed = _differ(limits, now.limits)
    return replace(
        now,
        limits=limits if changed else now.limits,
        deliverable_iops=now.deliverable_iops * part,
        unchanged_s=0.0 if changed else now.unchanged_s,
        calm_s=0.0,
    )
