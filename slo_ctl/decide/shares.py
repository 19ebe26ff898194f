"""Which share of a device's IOPS each VM is due, given what the device delivers altogether."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slo_ctl.model import Slo

_BISECTIONS = 60


def due_shares(slos: Mapping[str, Slo], total_iops: float | None) -> dict[str, float]:
    """Shares of the active VMs that `slos` names, adding up to 1 unless all are capped below the total.

    In proportion to weight, between each VM's minimum and maximum (design: IOPS_i = lambda w_i, clipped, with
    the lambda at which they add up to the total). Without a total the bounds cannot be compared with anything
    and only weights count. Minimums that exceed the total shrink in proportion.
    """
    if not slos:
        return {}
    bounded = any(slo.min_iops is not None or slo.max_iops is not None for slo in slos.values())
    if not total_iops or not bounded:
        weights = sum(slo.weight for slo in slos.values())
        return {vm: slo.weight / weights for vm, slo in slos.items()}
    minimums = sum(slo.min_iops or 0.0 for slo in slos.values())
    if minimums >= total_iops:
        return {vm: (slo.min_iops or 0.0) / minimums for vm, slo in slos.items()}
    low, high = 0.0, total_iops / min(slo.weight for slo in slos.values())
    for _ in range(_BISECTIONS):
        level = (low + high) / 2
        if sum(_clipped(level, slo) for slo in slos.values()) < total_iops:
            low = level
        else:
            high = level
    return {vm: _clipped(high, slo) / total_iops for vm, slo in slos.items()}


def _clipped(level: float, slo: Slo) -> float:
    return min(max(level * slo.weight, slo.min_iops or 0.0), slo.max_iops or math.inf)
