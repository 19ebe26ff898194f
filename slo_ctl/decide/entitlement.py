"""Entitlements of VMs, given who wants more and what the device delivers: water-filling.

The device's total is divided by weight among the VMs that want more than they get. A VM that does not want
more keeps what it uses, as long as that is not above its own share; what it does not use goes to the others.
Minimums come before weights, maximums bound everybody. The unit (pages, requests, device time) is the
caller's: it only has to be the same throughout.

An entitlement depends on weights, bounds, and on what the device as a whole delivers, never on how slow the
VM itself happens to be. Entitlements add up to the total that was measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slo_ctl.model import Slo

WANTS_MORE_FROM = 0.5
"""A VM with a request waiting in the device's queue for this share of the time would take more than it gets.

With less, its own queue depth or pace limits it: whenever it asks, it is served soon."""
BUSY_FROM = 0.95
"""A VM with requests outstanding for this share of the time is not limited by its own pace. Where nobody
reports who waits in a queue, it is taken to want more. A verdict asks for as much: who misses its entitlement
has wanted more for the whole window, not now and then."""
LEAST_SHARE = 0.05
"""Of its share by weight: what minimums and limits for others leave every VM."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One VM. Rates are per second, in the unit of shares."""

    vm: str
    weight: float
    used: float
    """Delivered."""
    wants_more: bool
    minimum: float = 0.0
    maximum: float = math.inf


def claim_of(vm: str, slo: Slo, rate: float, units_per_request: float, *, wants_more: bool) -> Claim:
    """A VM's claim, its bounds turned from requests into units."""
    return Claim(
        vm=vm,
        weight=slo.weight,
        used=rate,
        wants_more=wants_more,
        minimum=(slo.min_iops or 0.0) * units_per_request,
        maximum=math.inf if slo.max_iops is None else slo.max_iops * units_per_request,
    )


@dataclass(frozen=True, slots=True)
class Entitlements:
    """The solver's answer."""

    rates: dict[str, float]
    """By VM, per second; they add up to the total, or to less if no VM wants the rest."""
    level: float
    """The rate per unit of weight of a VM that wants more and is neither raised by a minimum nor bounded."""
    overcommitted: bool
    """The minimums of the VMs that want more exceed what the device delivers."""

    @property
    def shares(self) -> dict[str, float]:
        """Of the sum of all entitlements; 0 for every VM if the sum is 0."""
        total = sum(self.rates.values())
        return {vm: rate / total if total > 0 else 0.0 for vm, rate in self.rates.items()}


def entitle(claims: Sequence[Claim], total: float | None = None) -> Entitlements:
    """Divide what all VMs got together; or `total`, where limits keep the device from delivering more."""
    if total is None:
        total = sum(claim.used for claim in claims)
    most = {c.vm: c.maximum if c.wants_more else min(c.used, c.maximum) for c in claims}
    least = {c.vm: min(c.minimum, most[c.vm]) for c in claims}
    reserved = sum(least.values())
    available = (1.0 - LEAST_SHARE) * total
    overcommitted = reserved > available
    if overcommitted:
        least = {vm: minimum * available / reserved for vm, minimum in least.items()}
    level = water_level([(c.weight, least[c.vm], most[c.vm]) for c in claims], total)
    rates = {c.vm: min(max(level * c.weight, least[c.vm]), most[c.vm]) for c in claims}
    if math.isinf(level):  # no VM wants more than the device delivers
        weights = sum(c.weight for c in claims)
        level = total / weights if weights > 0 else 0.0
    return Entitlements(rates, level, overcommitted)


def entitle_exactly(claims: Sequence[Claim], able: Mapping[str, float]) -> Entitlements:
    """Exact proportions: no VM that wants more has a higher level than the slowest of them can reach.

    `able` is what a VM would do if nothing but the device held it back. A VM that could exceed its maximum,
    or does not want more, does not slow down others.
    """
    reach = [able[c.vm] / c.weight for c in claims if c.wants_more and able[c.vm] < c.maximum]
    level = min(reach, default=max((c.maximum / c.weight for c in claims if c.wants_more), default=0.0))
    most = {c.vm: c.maximum if c.wants_more else min(c.used, c.maximum) for c in claims}
    rates = {c.vm: min(max(level * c.weight, c.minimum), most[c.vm]) for c in claims}
    missed = any(c.wants_more and able[c.vm] < c.minimum for c in claims)
    return Entitlements(rates, level, missed)


def shares_of(slos: Mapping[str, Slo], total: float | None) -> dict[str, float]:
    """Shares of VMs that all want more, within minimums and maximums; by weight alone without a total."""
    if not total:
        weights = sum(slo.weight for slo in slos.values())
        return {vm: slo.weight / weights for vm, slo in slos.items()}
    claims = [claim_of(vm, slo, 0.0, 1.0, wants_more=True) for vm, slo in slos.items()]
    return {vm: rate / total for vm, rate in entitle(claims, total).rates.items()}


def water_level(bounds: Sequence[tuple[float, float, float]], total: float) -> float:
    """The level at which weight x level, kept within (least, most), adds up to the total.

    `bounds` are (weight, least, most) of each VM.

    Infinite where all may have their most. The sum grows with the level in straight lines that change their
    slope where some VM leaves its least or reaches its most.
    """
    if sum(most for _, _, most in bounds) <= total:
        return math.inf
    changes = sorted(
        [(least / weight, weight) for weight, least, _ in bounds]
        + [(most / weight, -weight) for weight, _, most in bounds if math.isfinite(most)]
    )
    delivered, slope, level = sum(least for _, least, _ in bounds), 0.0, 0.0
    for at, change in changes:
        if slope > 0.0 and delivered + slope * (at - level) >= total:
            break
        delivered += slope * (at - level)
        level = at
        slope += change
    return level + (total - delivered) / slope if slope > 0.0 else level
