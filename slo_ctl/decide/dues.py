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
HELD_FROM = 0.93
"""Of its limit: a VM that does so much is held back by it; limiters are not exact."""
_LEAST_SHARE = 0.05
"""Of its share by weight: what everybody is due, even where the minimums exceed the device."""
_OWED_OF_SHARE = 0.95
"""Where shares are kept by limits. Others are held back for all of it (`AIM`), and get something back once a
VM has an eighth more (`ROOMY`)."""
_FAR_ABOVE = 1.1
"""Of what it is due: while a VM has more, nobody has to put up with less than its share."""


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
    minimums: Mapping[str, float]
    """By VM with a minimum: that, or the same part of everybody's where the device cannot keep them all."""
    shares: Mapping[str, float]
    """By VM that wants more: its share by weight; empty unless weights are kept by limits."""
    due: Mapping[str, float]
    """By VM: its minimum, or its share by weight of what all minimums leave. Nobody is held below it."""
    held: Mapping[str, float]
    """By VM that its own limit holds back: that limit."""
    far_above: bool
    """Somebody who could be limited has far more than it is due."""
    rest_is_taken: bool
    """Somebody whom no limit holds back has more than it is due."""

    @property
    def part(self) -> float:
        """Of the minimums, that can be kept."""
        return part_kept(self.wanted_minimum_iops, self.total_iops)

    @property
    def owed(self) -> dict[str, float]:
        """By VM that is owed anything: its minimum or, where shares are kept, most of its share."""
        shares = {vm: _OWED_OF_SHARE * share for vm, share in self.shares.items()}
        vms = [*self.minimums, *(vm for vm in shares if vm not in self.minimums)]
        return {vm: max(self.minimums.get(vm, 0.0), shares.get(vm, 0.0)) for vm in vms}

    def short(self, each: Contender) -> bool:
        """Whether it wants more and misses what it was promised."""
        minimum = self.minimums.get(each.vm)
        misses = minimum is not None and each.iops < SHORT * minimum
        return (misses and self._wants(each)) or self._short_of_share(each) or each.over_p99 > 1.0

    def _wants(self, each: Contender) -> bool:
        # What its own limit holds back is no sign of how much it asks for.
        own = self.held.get(each.vm)
        return each.wants_more or (own is not None and own < SHORT * self.minimums.get(each.vm, 0.0))

    def _short_of_share(self, each: Contender) -> bool:
        share = self.shares.get(each.vm)
        if share is None:
            return False
        least = SHORT * (share if self.far_above else _OWED_OF_SHARE * share)
        own = self.held.get(each.vm)
        if own is None:
            return each.iops < least
        # Limiters are not exact: only a limit that is too low itself has to be raised. And that only takes
        # from whoever has more than is due; from others it is tried when all is calm.
        return own < least and self.rest_is_taken

    def content(self, each: Contender) -> bool:
        """Whether others may have something back as far as it is concerned."""
        minimum, share = self.minimums.get(each.vm), self.shares.get(each.vm)
        if each.over_p99 > _ROOMY_P99:
            return False
        if share is not None and each.vm not in self.held and each.iops < ROOMY * _OWED_OF_SHARE * share:
            return False
        if minimum is None or each.iops >= ROOMY * minimum:
            return True
        if self.shares and self.held.get(each.vm, 0.0) >= minimum:
            return True
        # With less than it is owed it has all that it asks for; near it, it may have that by limits only.
        return not each.wants_more and each.iops < SHORT * minimum


def part_kept(minimum_iops: float, total_iops: float) -> float:
    """How much of minimums that add up to so much can be kept."""
    return min(1.0, total_iops / minimum_iops) if minimum_iops > 0 else 1.0


def dues(
    vms: Sequence[Contender], limits: Mapping[str, float], total_iops: float, *, by_weight: bool = False
) -> Dues:
    """Out of `total_iops`; `limits` are those in force, which hide what a VM wants.

    `by_weight`: shares by weight are owed too, as nothing else keeps them.
    """
    held = {each.vm: limits[each.vm] for each in vms if _is_held(each, limits.get(each.vm))}
    wishes = {each.vm: _wish(each, held=each.vm in held) for each in vms}
    minimum = sum(slo.min_iops or 0.0 for slo in wishes.values())
    part = part_kept(minimum, total_iops)
    minimums = {each.vm: part * each.slo.min_iops for each in vms if each.slo.min_iops is not None}
    for each in vms:
        # Only what was promised is kept free for who is short: the rest is between it and the others.
        owed = minimums.get(each.vm)
        if owed is not None and not by_weight and each.wants_more and each.iops < AIM * owed:
            wish = wishes[each.vm]
            most = min(wish.max_iops or math.inf, max(AIM * owed, wish.min_iops or 0.0))
            wishes[each.vm] = replace(wish, max_iops=most)
    shares = {vm: share * total_iops for vm, share in due_shares(wishes, total_iops).items()}
    weights = sum(each.slo.weight for each in vms)
    due = {
        each.vm: max(
            shares[each.vm],
            minimums.get(each.vm, 0.0),
            _LEAST_SHARE * each.slo.weight / weights * total_iops,
            1.0,
        )
        for each in vms
    }
    asking = {each.vm: shares[each.vm] for each in vms if by_weight and (each.wants_more or each.vm in held)}
    far_above = any(each.limitable and each.iops > _FAR_ABOVE * due[each.vm] for each in vms)
    rest_is_taken = any(each.vm not in held and each.iops > due[each.vm] for each in vms)
    return Dues(total_iops, minimum, minimums, asking, due, held, far_above, rest_is_taken)


def _is_held(each: Contender, limit_iops: float | None) -> bool:
    return limit_iops is not None and each.iops >= HELD_FROM * limit_iops


def _wish(each: Contender, *, held: bool) -> Slo:
    """Its bounds, as far as it wants that much."""
    most = each.slo.max_iops or math.inf
    if not (each.wants_more or held):
        most = min(most, max(_GROWS * each.iops, 1.0))
    return replace(each.slo, min_iops=min(each.slo.min_iops or 0.0, most), max_iops=most)
