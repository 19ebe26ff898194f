"""Who is held back for others, and how far: pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from slo_ctl.decide.dues import AIM, HELD_FROM

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from slo_ctl.decide.dues import Contender, Dues

_LEAST_TAKEN = 0.1
"""Of what is missing to a share: so much is taken in a step for a VM that does next to nothing."""


def missing_of(each: Contender, look: Dues) -> float:
    """What is to be taken from others for a VM in one step."""
    minimum = AIM * look.minimums.get(each.vm, 0.0) - each.iops
    share = AIM * look.owed.get(each.vm, 0.0) - each.iops
    # It may want hardly more than it has, and far less than its share.
    return max(0.0, minimum, min(share, max(each.iops, _LEAST_TAKEN * share)))


def level_of(above: Sequence[Contender], due_iops: Mapping[str, float], missing_iops: float) -> float:
    """How many times its due each may have at the most, for so much to be left: the most above pay first."""
    ordered = sorted(above, key=lambda each: each.iops / due_iops[each.vm], reverse=True)
    iops = due = 0.0
    for place, each in enumerate(ordered):
        iops, due = iops + each.iops, due + due_iops[each.vm]
        after = ordered[place + 1] if place + 1 < len(ordered) else None
        level = (iops - missing_iops) / due
        if after is not None and level >= after.iops / due_iops[after.vm]:
            return max(1.0, level)
    return max(1.0, (iops - missing_iops) / due) if due > 0 else 1.0


def to_be_left_free(
    limits: Mapping[str, float], vms: Sequence[Contender], look: Dues, weakest: str
) -> str | None:
    """Who must not be limited: were all held back, nobody would take what the device has to spare.

    It is the one that takes least from others.
    """
    if any(each.iops > 0 and each.vm not in look.shares for each in vms):
        # It could take from those who have all that they want: that is tried when all is calm.
        return None
    asking = [each for each in vms if each.vm in look.shares]
    if not asking or any(each.iops < HELD_FROM * limits.get(each.vm, math.inf) for each in asking):
        return None
    return max(asking, key=lambda each: (each.vm == weakest, look.due[each.vm], each.vm)).vm
