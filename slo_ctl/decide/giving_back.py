"""Limits are given back: pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from slo_ctl.decide.dues import AIM, SHORT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slo_ctl.decide.dues import Contender, Dues
    from slo_ctl.decide.protection import Protection

_STEP_UP = 1.25
WORTH_FILLING = 0.03
"""Of what the device delivers: more is given to those held back, as nobody has to give it."""
_GIVEN_BACK = 0.5
"""Of what a VM has beyond its aim, in one step."""
_LOOSE_BELOW = 0.75
"""Of its limit: a VM that does no more than that is not held back, and the limit goes."""


def filled(now: Protection, look: Dues, idle_iops: float) -> Protection:
    """What the device has to spare goes to those held back, as they are due it."""
    whole = sum(look.due[vm] for vm in look.held)
    more = {vm: idle_iops * look.due[vm] / whole for vm in look.held}
    limits = {vm: limit + more.get(vm, 0.0) for vm, limit in now.limits.items()}
    return replace(now, limits=limits, unchanged_s=0.0) if more else now


def released(now: Protection, vms: Sequence[Contender], look: Dues) -> Protection:
    """Limits that hold nobody back go; the others grow, by no more than who is protected can spare."""
    spare = [
        each.iops - AIM * look.owed[each.vm]
        for each in vms
        if each.vm in look.owed and each.vm in now.served and each.iops >= SHORT * look.owed[each.vm]
        if not (look.shares and each.vm in look.held)
    ]
    grown = _STEP_UP
    if spare:
        grown = min(grown, 1.0 + max(0.0, _GIVEN_BACK * sum(spare)) / sum(now.limits.values()))
    done = {each.vm: each.iops for each in vms}
    limits = {vm: limit * grown for vm, limit in now.limits.items() if done[vm] > _LOOSE_BELOW * limit}
    return replace(
        now,
        limits=limits,
        served=now.served if limits else (),
        had_iops=now.had_iops if limits else {},
        unchanged_s=0.0,
        # One step at a time for who may miss it; whoever is gone needs no such care.
        calm_s=0.0 if spare else now.calm_s,
        released=True,
    )
