"""A group's minimum and maximum, divided among its VMs by weight: water-filling.

The parts of a maximum add up to it, so that the VMs together never exceed it, wherever their disks are. A VM
that does not use its part leaves what it does not ask for to the others, but for a little with which it can
show that it wants more. A VM's own bounds are kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from slo_ctl.decide.entitlement import Claim, water_level
from slo_ctl.model import Slo
from slo_ctl.model.slo import GROUP_FIELDS, SloGroup

AT_PART = 0.9
"""A VM that uses this share of its part is taken to want more."""
_HEADROOM = 1.25
"""Left to a VM that uses less: times what it used. More than 1 / AT_PART, so that it is not taken to want
more just because its part follows its use."""
_LEFT_TO_IDLE = 0.05
"""Share of its part by weight that even an idle VM keeps."""
_UNCHANGED = 0.05
"""Parts stay as they are while all new ones differ by less than this, relative."""


@dataclass(frozen=True, slots=True)
class Rates:
    """What a VM did, a second; of a VM of which nothing is known, infinite."""

    iops: float = math.inf
    bytes_s: float = math.inf
    wants_more: bool = True
    """Of its device, whatever its part of the group."""


def divide(total: float, members: Sequence[Claim]) -> dict[str, float]:
    """The parts by VM. They add up to the total, or to less where all have reached their own maximum.

    `members` have their own bounds; everything is in one unit, requests or bytes a second.
    """
    least = {m.vm: min(m.minimum, m.maximum) for m in members}
    reserved = sum(least.values())
    if reserved > total:
        least = {vm: bound * total / reserved for vm, bound in least.items()}
    weights = sum(m.weight for m in members)
    asked = {m.vm: m.maximum for m in members}
    for m in members:
        if not m.wants_more:
            enough = max(_HEADROOM * m.used, _LEFT_TO_IDLE * total * m.weight / weights, least[m.vm])
            asked[m.vm] = min(enough, m.maximum)
    level = water_level([(m.weight, least[m.vm], asked[m.vm]) for m in members], total)
    if math.isinf(level):
        # No VM asks for the rest: it is divided as well, so that a VM that becomes active finds its part.
        least, asked = asked, {m.vm: m.maximum for m in members}
        level = water_level([(m.weight, least[m.vm], asked[m.vm]) for m in members], total)
    return {m.vm: min(max(level * m.weight, least[m.vm]), asked[m.vm]) for m in members}


def slos_in_group(
    group: SloGroup, own: Mapping[str, Slo], did: Mapping[str, Rates], before: Mapping[str, Slo]
) -> dict[str, Slo]:
    """The SLOs of a group's VMs with their parts of its bounds.

    `own` are the SLOs of all its VMs without it, `did` what VMs did in the last seconds, `before` what this
    returned last, for the same group.
    """
    parts = {field: _parts(field, total, own, did, before) for field, total in group.fields.items()}
    found = {}
    for vm, slo in own.items():
        part = replace(slo, **{field: by_vm[vm] for field, by_vm in parts.items()})
        if part.min_iops is not None and part.max_iops is not None:
            # The two are divided by different needs.
            part = replace(part, min_iops=min(part.min_iops, part.max_iops))
        found[vm] = part
    # Each change is work, and settles only after a while.
    same = found.keys() == before.keys() and all(_close(found[vm], before[vm]) for vm in found)
    return dict(before) if same else found


def _parts(
    field: str, total: float, own: Mapping[str, Slo], did: Mapping[str, Rates], before: Mapping[str, Slo]
) -> dict[str, float]:
    members = []
    for vm, slo in own.items():
        rates = did.get(vm, Rates())
        used = rates.bytes_s if field == "max_bandwidth_bytes_s" else rates.iops
        part = getattr(before[vm], field) if vm in before else None
        at_part = math.isinf(used) or part is None or used >= AT_PART * part
        minimum = field == "min_iops"
        members.append(
            Claim(
                vm=vm,
                weight=slo.weight,
                used=used,
                # Who waits for its device needs a minimum, and could do nothing with more of a maximum.
                wants_more=rates.wants_more if minimum else at_part,
                minimum=0.0 if field == "max_bandwidth_bytes_s" else slo.min_iops or 0.0,
                maximum=_own_maximum(slo, field),
            )
        )
    parts = divide(total, members)
    # Levers take whole numbers; rounding down keeps the sum.
    return {vm: float(math.floor(part)) if part >= 1.0 else part for vm, part in parts.items()}


def _own_maximum(slo: Slo, field: str) -> float:
    own = slo.max_bandwidth_bytes_s if field == "max_bandwidth_bytes_s" else slo.max_iops
    return math.inf if own is None else own


def _close(after: Slo, before: Slo) -> bool:
    pairs = [(getattr(after, field), getattr(before, field)) for field in GROUP_FIELDS]
    if (after.weight, after.p99_latency_us) != (before.weight, before.p99_latency_us):
        return False
    return all(a == b or (a is not None and b is not None and abs(a - b) <= _UNCHANGED * b) for a, b in pairs)
