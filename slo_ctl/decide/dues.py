"""What VMs are owed and due out of what a device delivers, and who goes short: pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from slo_ctl.decide.shares import due_shares

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from slo_ctl.model import Slo

SHORT = 1.0
"""Of what it is owed: a VM with less is short."""
AIM = 1.06
"""Of what it is owed: what others are held back for, so that noise leaves it above."""
ROOMY = 1.18
"""Of what it is owed: from here on others may have something back."""
_ROOMY_P99 = 0.7
"""Of the p99 promised: below it others may have something back."""
_GROWS = 1.1
"""What a VM that wants no more may want next."""
_HELD_FROM = 0.93
"""Of its limit: a VM that does so much is held back by it; limiters are not exact."""
_LEAST_SHARE = 0.05
"""Of its share by weight: what everybody is due, even where the minimums exceed the device."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One VM on the device, in a window that began after the last change of a limit."""

    vm: str
    slo: Slo
    iops: float
    wants_more: bool
    """It would have taken more."""
    limitable: bool = True
    """Its IOPS can be limited there."""
    p99_us: float | None = None
    """The worse one of reads and writes; None: not measured."""

    @property
    def over_p99(self) -> float:
        """Its p99 relative to the one promised; 0 where either is not known."""
        if self.slo.p99_latency_us is None or self.p99_us is None:
            return 0.0
        return self.p99_us / self.slo.p99_latency_us


@dataclass(frozen=True, slots=True)
class Dues:
    """Of all VMs on a device, in IOPS."""

    total_iops: float
    """What the device delivers."""
    wanted_minimum_iops: float
    """All minimums together, of those who want as much."""
    owed: Mapping[str, float]
    """By VM with a minimum: that, or the same part of everybody's where the device cannot keep them all."""
    due: Mapping[str, float]
    """By VM: its minimum, or its share by weight of what all minimums leave. Nobody is held below it."""

    @property
    def part(self) -> float:
        """Of the minimums, that can be kept."""
        return part_kept(self.wanted_minimum_iops, self.total_iops)

    def short(self, each: Contender) -> bool:
        """Whether it wants more and misses what it was promised."""
        owed = self.owed.get(each.vm)
        misses = owed is not None and each.wants_more and each.iops < SHORT * owed
        return misses or each.over_p99 > 1.0

    def content(self, each: Contender) -> bool:
        """Whether others may have something back as far as it is concerned."""
        owed = self.owed.get(each.vm)
        if each.over_p99 > _ROOMY_P99:
            return False
        if owed is None or each.iops >= ROOMY * owed:
            return True
        # With less than it is owed it has all that it asks for; near it, it may have that by limits only.
        return not each.wants_more and each.iops < SHORT * owed


def part_kept(minimum_iops: float, total_iops: float) -> float:
    """How much of minimums that add up to so much can be kept."""
    return min(1.0, total_iops / minimum_iops) if minimum_iops > 0 else 1.0


def dues(vms: Sequence[Contender], limits: Mapping[str, float], total_iops: float) -> Dues:
    """Out of `total_iops`; `limits` are those in force, which hide what a VM wants."""
    wishes = {each.vm: _wish(each, limits.get(each.vm)) for each in vms}
    minimum = sum(slo.min_iops or 0.0 for slo in wishes.values())
    part = part_kept(minimum, total_iops)
    owed = {each.vm: part * each.slo.min_iops for each in vms if each.slo.min_iops is not None}
    for each in vms:
        # Only what was promised is kept free for who is short: the rest is between it and the others.
        if each.vm in owed and each.wants_more and each.iops < AIM * owed[each.vm]:
            wish = wishes[each.vm]
            most = min(wish.max_iops or math.inf, max(AIM * owed[each.vm], wish.min_iops or 0.0))
            wishes[each.vm] = replace(wish, max_iops=most)
    shares = due_shares(wishes, total_iops)
    weights = sum(each.slo.weight for each in vms)
    due = {
        each.vm: max(
            shares[each.vm] * total_iops,
            owed.get(each.vm, 0.0),
            _LEAST_SHARE * each.slo.weight / weights * total_iops,
            1.0,
        )
        for each in vms
    }
    return Dues(total_iops, minimum, owed, due)


def _wish(each: Contender, limit_iops: float | None) -> Slo:
    """Its bounds, as far as it wants that much."""
    most = each.slo.max_iops or math.inf
    held = limit_iops is not None and each.iops >= _HELD_FROM * limit_iops
    if not (each.wants_more or held):
        most = min(most, max(_GROWS * each.iops, 1.0))
    return replace(each.slo, min_iops=min(each.slo.min_iops or 0.0, most), max_iops=most)
