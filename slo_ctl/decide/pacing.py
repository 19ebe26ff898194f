"""Rate limits that keep exact proportions: each VM is held at its share of what the slowest one reaches.

The slowest of the VMs that are kept level, the bottleneck, sets what the others may have: when it speeds
up, their limits follow in the next step. Its own limit leaves it room for that.

Workloads have phases, and the bottleneck may be another VM in each. So shares are kept over time rather
than window by window: every VM has a lead, the requests per unit of weight that it had beyond the others
recently, and its limit lets it fall back, or catch up, by a part of the difference from the lead of the
bottleneck.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slo_ctl.decide.limit_control import AT_LIMIT, LIFT_FROM, MISSED_FROM, MOST_INCREASE, ROOM

EVENED_PER_WINDOW = 0.25
"""Part of a difference between leads that limits remove in a window."""
LEAST_PACE, MOST_PACE = 0.3, 2.0
"""Times its share: what a VM may have while it falls back or catches up, and the bottleneck, in case it
becomes faster."""
LEAD_MEMORY_WINDOWS = 200.0
"""Leads fade over this many windows."""


@dataclass(frozen=True, slots=True)
class Paced:
    """One active VM as the pacing sees it; rates in requests per second."""

    vm: str
    weight: float
    iops: float
    """Average over a few windows."""
    last_iops: float
    """In the last window, under `limit_iops`."""
    window_s: float
    limit_iops: float | None
    saturating: bool
    min_iops: float = 0.0
    max_iops: float = math.inf
    unlimited_iops: float | None = None
    """Rate without its limit; None: not known."""

    @property
    def throttled(self) -> bool:
        """Whether the limit, not the device, sets this VM's IOPS."""
        return self.limit_iops is not None and self.last_iops >= AT_LIMIT * self.limit_iops

    @property
    def paced(self) -> bool:
        """Whether the limit in force is tighter than the SLO's maximum."""
        return self.limit_iops is not None and self.limit_iops < self.max_iops

    @property
    def to_be_level(self) -> bool:
        """Whether its IOPS per weight are to equal the others': it wants more, and its maximum allows it."""
        return self.saturating and self.last_iops < AT_LIMIT * self.max_iops

    @property
    def able_iops(self) -> float | None:
        """Rate that the device could deliver; None: not known."""
        return self.iops if self.unlimited_iops is None and not self.throttled else self.unlimited_iops


def new_leads(leads: Mapping[str, float], vms: Sequence[Paced]) -> dict[str, float]:
    """Every VM's lead after one more window, in requests per unit of weight; 0 for the VM furthest behind.

    A VM that asked for less than its share, or had its maximum, has no lead, and nothing to catch up.
    """
    level = [v for v in vms if v.to_be_level]
    if not level:
        return {}
    keep = 1.0 - 1.0 / LEAD_MEMORY_WINDOWS
    had = {v.vm: keep * leads.get(v.vm, 0.0) + v.last_iops * v.window_s / v.weight for v in level}
    least = min(had.values())
    return {vm: requests - least for vm, requests in had.items()}


def pace(vms: Sequence[Paced], leads: Mapping[str, float]) -> dict[str, float | None]:
    """The limit every VM should have in the next window; None for none."""
    able = {v.vm: v.able_iops / v.weight for v in vms if v.vm in leads and v.able_iops is not None}
    in_force = max((v.limit_iops / v.weight for v in vms if v.paced and v.limit_iops), default=math.inf)
    least_lead = min(leads.values(), default=0.0)
    bottleneck = min(able, key=lambda vm: able[vm], default=None)
    if bottleneck is None:
        share, lead = (1.0 + MOST_INCREASE) * in_force, max(leads.values(), default=0.0)
    else:
        share, lead = able[bottleneck], leads[bottleneck]
    limits = {}
    for v in vms:
        if v.vm == bottleneck:
            pace = _evened(MOST_PACE * share, lead - least_lead, v.window_s, (1.0 + ROOM) * share)
        elif v.vm in leads:
            pace = min(_evened(share, leads[v.vm] - lead, v.window_s, LEAST_PACE * share), MOST_PACE * share)
        else:
            pace = MOST_PACE * share
        limits[v.vm] = min(max(v.weight * pace, (1.0 + MISSED_FROM) * v.min_iops), v.max_iops)
    if not any(v.throttled or limits[v.vm] < LIFT_FROM * v.iops for v in vms):
        limits = {v.vm: v.max_iops for v in vms}
    return {vm: limit if math.isfinite(limit) else None for vm, limit in limits.items()}


def _evened(pace: float, ahead: float, window_s: float, least: float) -> float:
    return max(pace - EVENED_PER_WINDOW * ahead / window_s, least)
