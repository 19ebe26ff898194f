"""For whom holding others back does nothing: pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slo_ctl.decide.dues import SHORT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slo_ctl.decide.dues import Contender, Dues
    from slo_ctl.decide.protection import Protection

_PATIENCE_S = 12.0
"""With nobody above what is due, before it is asked whether any of it helped. By then what the device is
counted on for has given way by a third or so."""
_HELPED = 0.1
"""Of what was missing: what must have come of it."""
_VAIN_S = 5.0
"""The same where shares are kept: what the device is counted on for has given way by a third by then."""
_LEFT_IDLE = 0.1
"""Of what all did: when others gave up so much, it is seen whether anybody is served instead."""
_TAKEN_UP = 0.5
"""Of what others gave up: what has to have come of it for a share."""


def who_gains_nothing(
    now: Protection, vms: Sequence[Contender], look: Dues, short: Sequence[Contender]
) -> set[str]:
    """VMs that are `short`, with nobody above what is due, and have nothing of it."""
    of_minimum = [each for each in short if each.iops < SHORT * look.minimums.get(each.vm, 0.0)]
    found = set()
    if now.at_due_s >= _PATIENCE_S:
        # They have hardly more than before.
        found = {
            each.vm
            for each in of_minimum
            if each.over_p99 <= 1.0
            and each.vm in now.had_iops
            and each.iops - now.had_iops[each.vm] < _HELPED * (look.owed[each.vm] - now.had_iops[each.vm])
        }
    names = {each.vm for each in short if each.vm in look.shares and each.over_p99 <= 1.0}
    if now.at_due_s >= _VAIN_S and names and not of_minimum:
        # What others gave up is left idle. A device that has become slower is not: it is as busy as before.
        gained = {each.vm: each.iops - now.at_due_iops.get(each.vm, each.iops) for each in vms}
        given = -sum(more for vm, more in gained.items() if vm not in names)
        if given > _LEFT_IDLE * sum(now.at_due_iops.values()):
            found |= {vm for vm in names if gained[vm] < _TAKEN_UP * given / len(names)}
    return found
