"""The second lever: rate limits that hold VMs down to their share when OPS cannot.

The slowest of the VMs to be kept level, the bottleneck, tells what the others may have: when it speeds up,
their limits follow in the next step. Its own limit leaves it room to.

Workloads have phases, and another VM may be the bottleneck in each. So shares are kept over time, not window
by window: every VM has a lead, the requests per unit of weight that it has had beyond others of late, and its
limit lets it fall back, or catch up, by a part of the difference to the bottleneck's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_EVENED_PER_WINDOW = 0.25
"""Of a difference in leads."""
_LEAST_PACE, _MOST_PACE = 0.3, 1.6
"""Of its share: what a VM may have while it falls back or catches up."""
_ROOM, _LEAST_ROOM = 2.0, 1.1
"""Of its share: what the bottleneck, and who is not above its share, may have in case a fast phase comes."""
_ABOVE_MINIMUM = 1.02
"""What a limit leaves above a minimum: what it takes away now is not made up for later."""
_LOOSE = 1.5
"""Limits that hold nobody back, and all exceed what the VMs do by so much, are not needed."""
_BINDING_FROM = 0.93
"""A VM that reaches this share of its limit is taken to be held back by it: rate limiters are not exact."""
_ABOVE_SHARE = 1.015
"""An unlimited VM must exceed its share by this much, or lead by much, before it is limited."""
_MUCH_LEAD_WINDOWS = 0.3
_RELEASE = 1.1
_FAST_RELEASE = 1.6
"""Growth of all limits per step while every VM is held back: blindly, and where their ability is known."""


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
    unheld_iops: float | None = None
    """What it would do if its limit did not hold it back; None: not known."""

    @property
    def held_back(self) -> bool:
        """Whether the limit, not the device, sets this VM's IOPS."""
        return self.limit_iops is not None and self.last_iops >= _BINDING_FROM * self.limit_iops

    @property
    def paced(self) -> bool:
        """Whether the limit in force is tighter than the SLO's maximum."""
        return self.limit_iops is not None and self.limit_iops < self.max_iops

    @property
    def to_be_level(self) -> bool:
        """Whether its IOPS per weight are to equal the others': it wants more, and its maximum allows it."""
        return self.saturating and self.last_iops < _BINDING_FROM * self.max_iops

    @property
    def able_iops(self) -> float | None:
        """What the device would give it; None: not known."""
        return self.iops if self.unheld_iops is None and not self.held_back else self.unheld_iops


def new_leads(leads: Mapping[str, float], vms: Sequence[Paced], memory_windows: float) -> dict[str, float]:
    """Every VM's lead after one more window, in requests per unit of weight; 0 for who is furthest behind.

    A VM that asked for less than its share, or had its maximum, has no lead, and nothing to catch up.
    """
    level = [v for v in vms if v.to_be_level]
    if not level:
        return {}
    keep = 1.0 - 1.0 / memory_windows
    had = {v.vm: keep * leads.get(v.vm, 0.0) + v.last_iops * v.window_s / v.weight for v in level}
    least = min(had.values())
    return {vm: requests - least for vm, requests in had.items()}


def longest_lead_windows(leads: Mapping[str, float], vms: Sequence[Paced]) -> float:
    """The largest lead of all, relative to what the slowest VM gets in a window."""
    slowest = min((v.iops * v.window_s / v.weight for v in vms if v.vm in leads), default=0.0)
    return max(leads.values(), default=0.0) / slowest if slowest > 0.0 else 0.0


def pace(vms: Sequence[Paced], leads: Mapping[str, float]) -> dict[str, float | None]:
    """The limit every VM should have in the next window; None for none."""
    able = {v.vm: v.able_iops / v.weight for v in vms if v.vm in leads and v.able_iops is not None}
    in_force = max((v.limit_iops / v.weight for v in vms if v.paced and v.limit_iops), default=math.inf)
    least_lead = min(leads.values(), default=0.0)
    behind = min(able, key=lambda vm: able[vm], default=None)
    if behind is None:
        share, lead = _RELEASE * in_force, max(leads.values(), default=0.0)
    else:
        share, lead = able[behind], leads[behind]
        if all(v.held_back for v in vms if v.vm in leads):
            share = min(share, _FAST_RELEASE * in_force)
    limits = {}
    for v in vms:
        if v.vm == behind:
            pace = _evened(_ROOM * share, lead - least_lead, v.window_s, _LEAST_ROOM * share)
        else:
            pace = _pace_beside(v, share, leads.get(v.vm, lead) - lead)
        limits[v.vm] = min(max(v.weight * pace, _ABOVE_MINIMUM * v.min_iops), v.max_iops)
    if not any(v.held_back or limits[v.vm] < _LOOSE * v.iops for v in vms):
        limits = {v.vm: v.max_iops for v in vms}
    return {vm: limit if math.isfinite(limit) else None for vm, limit in limits.items()}


def _pace_beside(vm: Paced, share: float, ahead: float) -> float:
    """IOPS per weight of a VM that is `ahead` of the bottleneck, where everybody may have `share`."""
    above = vm.iops > _ABOVE_SHARE * vm.weight * share
    much_ahead = ahead > _MUCH_LEAD_WINDOWS * share * vm.window_s
    if (vm.paced and vm.held_back) or above or much_ahead:
        return min(_evened(share, ahead, vm.window_s, _LEAST_PACE * share), _MOST_PACE * share)
    return _ROOM * share


def _evened(pace: float, ahead: float, window_s: float, least: float) -> float:
    return max(pace - _EVENED_PER_WINDOW * ahead / window_s, least)
