"""Entitlements of VMs, from their demand and the total that the device delivers: water-filling.

The total is divided by weight among the VMs that want more than they get. A VM that does not want more keeps
what it uses, up to its share; what it does not use goes to the others. Minimums have priority over weights;
where they do not fit, the largest are cut. No VM gets more than its maximum. The caller chooses the unit
(pages, requests, device time), which has to be the same for all VMs.

An entitlement depends on weights, bounds and the total that the device delivers, never on how slow the VM
itself is. Entitlements add up to the measured total.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from slo_ctl.model.slo import Slo

MOSTLY_FROM = 0.5
"""Fraction of the time from which on a state of a VM counts. With a request waiting in the device's queue it
wants more than it gets; with less, its own queue depth or request rate limits it."""
BUSY_FROM = 0.95
"""Fraction of the time with requests outstanding from which on a VM is not limited by its own request rate.
On devices that do not report waiting requests, such a VM counts as wanting more. A verdict requires as much
of a VM that misses its entitlement."""
MEMORY_WINDOWS, SLOW_MEMORY_WINDOWS = 4.0, 16.0
"""Time constants of averages: of rates and queueing; and of what changes slowly, as costs per unit, sizes of
requests and the capacity of a device."""
LEAST_SHARE = 0.05
"""Fraction of its share by weight that minimums of others and limits leave to every VM."""


class Claim(NamedTuple):
    """Weight, bounds and demand of one VM. Rates are in units of shares per second."""

    vm: str
    weight: float
    used: float
    """Measured rate."""
    wants_more: bool
    """Whether the VM would use more than its measured rate."""
    minimum: float = 0.0
    maximum: float = math.inf

    @property
    def most(self) -> float:
        """The highest rate that it can use."""
        return self.maximum if self.wants_more else min(self.used, self.maximum)


def claim_of(vm: str, slo: Slo, rate: float, units_per_request: float, *, wants_more: bool) -> Claim:
    """The claim of a VM, with the bounds of its SLO converted from requests into units of shares."""
    return Claim(
        vm=vm,
        weight=slo.weight,
        used=rate,
        wants_more=wants_more,
        minimum=(slo.min_iops or 0.0) * units_per_request,
        maximum=math.inf if slo.max_iops is None else slo.max_iops * units_per_request,
    )


def with_bandwidth_as_iops(slo: Slo, bandwidth_bytes_s: float | None, iops: float | None) -> Slo:
    """The SLO with its maximum bandwidth as a maximum of IOPS, by the mean size of the VM's requests."""
    if slo.max_bandwidth_bytes_s is None or not bandwidth_bytes_s or not iops:
        return slo
    most = slo.max_bandwidth_bytes_s * iops / bandwidth_bytes_s
    return slo if slo.max_iops is not None and slo.max_iops <= most else replace(slo, max_iops=most)


@dataclass(frozen=True, slots=True)
class Entitlements:
    """Entitlements of all VMs on a device."""

    rates: dict[str, float]
    """Units per second by VM; they add up to the total, or to less if no VM wants the rest."""
    level: float
    """Rate per unit of weight of a VM that wants more and is at neither its minimum nor its maximum."""
    overcommitted: bool
    """Whether the device delivers less than the minimums, and a VM that wants more gets less than its own."""

    @property
    def shares(self) -> dict[str, float]:
        """Entitlements as fractions of their sum, by VM; all 0 if the sum is 0."""
        total = sum(self.rates.values())
        return {vm: rate / total if total > 0 else 0.0 for vm, rate in self.rates.items()}


def entitle(claims: Sequence[Claim], total: float | None = None) -> Entitlements:
    """Divide `total`; None: the sum of the measured rates.

    A total is needed where limits keep the device from delivering what it could.
    """
    if total is None:
        total = sum(claim.used for claim in claims)
    most = {c.vm: c.most for c in claims}
    minimums = {c.vm: min(c.minimum, most[c.vm]) for c in claims}
    available = (1.0 - LEAST_SHARE) * total
    least = fitting_minimums(minimums, available)
    level = water_level([(c.weight, least[c.vm], most[c.vm]) for c in claims], total)
    rates = {c.vm: min(max(level * c.weight, least[c.vm]), most[c.vm]) for c in claims}
    if math.isinf(level):  # no VM wants more than the device delivers
        weights = sum(c.weight for c in claims)
        level = total / weights if weights > 0 else 0.0
    # VMs that use all that an idle device delivers may need less than their minimums.
    missed = sum(minimums.values()) > available and any(
        c.wants_more and rates[c.vm] < min(c.minimum, c.maximum) for c in claims
    )
    return Entitlements(rates, level, missed)


def fitting_minimums(minimums: Mapping[str, float], available: float) -> dict[str, float]:
    """The minimums by VM; if their sum exceeds `available`, the largest are cut to one level.

    This is max-min fairness: an equal part of `available` is kept for each VM if it asks for it, whatever
    others ask for, and asking for more than the level gains nothing.
    """
    level = water_level([(1.0, 0.0, minimum) for minimum in minimums.values()], available)
    return {vm: min(minimum, level) for vm, minimum in minimums.items()}


def entitle_exactly(claims: Sequence[Claim], attainable: Mapping[str, float]) -> Entitlements:
    """Exact proportions: all VMs that want more get the level that the slowest of them can reach.

    `attainable`: the rate by VM without limits. A VM that does not want more, or can reach its maximum, does
    not slow down the others.
    """
    levels = [attainable[c.vm] / c.weight for c in claims if c.wants_more and attainable[c.vm] < c.maximum]
    level = min(levels, default=max((c.maximum / c.weight for c in claims if c.wants_more), default=0.0))
    most = {c.vm: c.most for c in claims}
    rates = {c.vm: min(max(level * c.weight, c.minimum), most[c.vm]) for c in claims}
    missed = any(c.wants_more and attainable[c.vm] < c.minimum for c in claims)
    return Entitlements(rates, level, missed)


def shares_of(slos: Mapping[str, Slo], total: float | None) -> dict[str, float]:
    """Shares by VM if all want more, with minimums and maximums; by weight alone without a total."""
    if not total:
        weights = sum(slo.weight for slo in slos.values())
        return {vm: slo.weight / weights for vm, slo in slos.items()}
    claims = [claim_of(vm, slo, 0.0, 1.0, wants_more=True) for vm, slo in slos.items()]
    return {vm: rate / total for vm, rate in entitle(claims, total).rates.items()}


def water_level(bounds: Sequence[tuple[float, float, float]], total: float) -> float:
    """The level for which the rates of all VMs add up to `total`; infinite if their upper bounds fit.

    `bounds`: (weight, least, most) of each VM, whose rate is weight x level, clamped to least..most. The sum
    of rates is piecewise linear in the level: its slope changes where a VM leaves its lower bound or reaches
    its upper bound.
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
