"""Division of a group's minimum and maximum among its VMs by weight: water-filling.

The parts of a maximum add up to it, so that the VMs together never exceed it, wherever their disks are. What
a VM does not use of its part goes to the others, except for a little headroom that makes a growing demand
visible. The VMs' own bounds are kept; minimums leave a little of a maximum to each VM.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from slo_ctl.decide.entitlement import LEAST_SHARE, Claim, fitting_minimums, water_level
from slo_ctl.decide.objectives import ROOM, at_limit
from slo_ctl.model.slo import GROUP_FIELDS, Slo, SloGroup


@dataclass(frozen=True, slots=True)
class Rates:
    """Measured rates of a VM; infinite without measurements."""

    iops: float = math.inf
    bytes_s: float = math.inf
    wants_more: bool = True
    """Whether the VM wanted more from its device, apart from its limits in the group."""


def divide(total: float, members: Sequence[Claim]) -> dict[str, float]:
    """Parts of `total` by VM. They add up to it, or to less if all VMs have reached their own maximum.

    `members`: the VMs with their own bounds. All values have the same unit, requests or bytes per second.
    """
    minimums = {m.vm: min(m.minimum, m.maximum) for m in members}
    least = fitting_minimums(minimums, (1.0 - LEAST_SHARE) * total)
    weights = sum(m.weight for m in members)
    demand = {m.vm: m.maximum for m in members}
    for m in members:
        if not m.wants_more:
            # Twice as far above its rate as where it counts as throttled, and so as wanting more.
            ample = m.used / (1.0 - 2.0 * ROOM)
            enough = max(ample, LEAST_SHARE * total * m.weight / weights, least[m.vm])
            demand[m.vm] = min(enough, m.maximum)
    level = water_level([(m.weight, least[m.vm], demand[m.vm]) for m in members], total)
    if math.isinf(level):
        # The demand is below the total: the rest is divided, too, for VMs whose demand grows.
        least, demand = demand, {m.vm: m.maximum for m in members}
        level = water_level([(m.weight, least[m.vm], demand[m.vm]) for m in members], total)
    return {m.vm: min(max(level * m.weight, least[m.vm]), demand[m.vm]) for m in members}


def slos_in_group(
    group: SloGroup,
    own: Mapping[str, Slo],
    measured: Mapping[str, Rates],
    before: Mapping[str, Slo],
    *,
    changed: bool = False,
) -> dict[str, Slo]:
    """SLOs of a group's VMs, with their parts of the group's bounds, by VM.

    `own`: the VMs' SLOs without the group. `measured`: rates of the last seconds. `before`: the last result
    for the same group. `changed`: since then `own` has, which takes effect however small the change is.
    """
    parts = {field: _parts(field, total, own, measured, before) for field, total in group.fields.items()}
    slos = {}
    for vm, slo in own.items():
        part = replace(slo, **{field: by_vm[vm] for field, by_vm in parts.items()})
        if part.min_iops is not None and slo.min_iops is not None:
            part = replace(part, min_iops=max(part.min_iops, slo.min_iops))
        if part.min_iops is not None and part.max_iops is not None:
            # Minimum and maximum are divided by different demands, so that the parts may contradict.
            part = replace(part, min_iops=min(part.min_iops, part.max_iops))
        slos[vm] = part
    # A change takes effect only after some time: small ones are not made.
    same = not changed and slos.keys() == before.keys() and all(_close(slos[vm], before[vm]) for vm in slos)
    return dict(before) if same else slos


def _parts(
    field: str,
    total: float,
    own: Mapping[str, Slo],
    measured: Mapping[str, Rates],
    before: Mapping[str, Slo],
) -> dict[str, float]:
    """Parts of the group's bound `field` by VM."""
    members = []
    for vm, slo in own.items():
        rates = measured.get(vm, Rates())
        used = rates.bytes_s if field == "max_bandwidth_bytes_s" else rates.iops
        part = getattr(before[vm], field) if vm in before else None
        minimum = field == "min_iops"
        members.append(
            Claim(
                vm=vm,
                weight=slo.weight,
                used=used,
                # A VM that its device limits needs a larger minimum, but could not use a larger maximum.
                wants_more=rates.wants_more if minimum else part is None or at_limit(used, part),
                minimum=0.0 if field == "max_bandwidth_bytes_s" else slo.min_iops or 0.0,
                maximum=_own_maximum(slo, field),
            )
        )
    parts = divide(total, members)
    # Limits are whole numbers; rounding down keeps the sum within the total.
    return {vm: float(math.floor(part)) if part >= 1.0 else part for vm, part in parts.items()}


def _own_maximum(slo: Slo, field: str) -> float:
    """The VM's own maximum in the unit of `field`; infinite without one."""
    own = slo.max_bandwidth_bytes_s if field == "max_bandwidth_bytes_s" else slo.max_iops
    return math.inf if own is None else own


def _close(after: Slo, before: Slo) -> bool:
    """Whether two SLOs differ so little that the change is not worth making."""
    pairs = [(getattr(after, field), getattr(before, field)) for field in GROUP_FIELDS]
    if (after.weight, after.p99_latency_us) != (before.weight, before.p99_latency_us):
        return False
    return all(a == b or (a is not None and b is not None and abs(a - b) <= ROOM / 2.0 * b) for a, b in pairs)
