"""Rate limits that keep exact proportions: the slowest VM per weight determines the rates of the others.

The bottleneck is the VM with the lowest attainable rate per weight among those in proportion. When it becomes
faster, the limits of the others follow in the next window; its own limit leaves headroom for that.

Workloads have phases, and the bottleneck may be another VM in each. So proportions are kept over many windows
rather than in each: every VM has a lead, the work per unit of weight that it recently had more than the VM
furthest behind, and its limit removes a part of the difference from the lead of the bottleneck.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slo_ctl.decide.entitlement import MEMORY_WINDOWS
from slo_ctl.decide.objectives import MISSED_FROM, ROOM, at_limit

MOST_PACE = 2.0
"""Highest limit of a VM that is behind or of the bottleneck, relative to its share; the lowest limit of a VM
that is ahead is its share divided by this."""
LEAD_MEMORY_WINDOWS = 200.0
"""Time constant of leads, in windows."""


@dataclass(frozen=True, slots=True)
class Paced:
    """Measurements and bounds of one active VM; rates and limits in units of shares per second."""

    vm: str
    weight: float
    rate: float
    """Average rate of the last windows."""
    last_rate: float
    """Rate in the last window, under `limit`."""
    window_s: float
    limit: float | None
    """Limit in force; None: no limit."""
    saturating: bool
    """Whether the VM had requests outstanding nearly all the time."""
    min_rate: float = 0.0
    max_rate: float = math.inf
    unlimited_rate: float | None = None
    """Estimated rate without a limit; None: not known."""

    @property
    def throttled(self) -> bool:
        """Whether the VM's rate is set by its limit and not by the device."""
        return at_limit(self.last_rate, self.limit)

    @property
    def paced(self) -> bool:
        """Whether the limit in force is below the SLO's maximum."""
        return self.limit is not None and self.limit < self.max_rate

    @property
    def proportional(self) -> bool:
        """Whether the VM's rate is kept in proportion: it wants more, and its maximum allows it."""
        return self.saturating and not at_limit(self.last_rate, self.max_rate)

    @property
    def attainable_rate(self) -> float | None:
        """Rate that the VM would reach without a limit; None: not known."""
        return self.rate if self.unlimited_rate is None and not self.throttled else self.unlimited_rate


def new_leads(leads: Mapping[str, float], vms: Sequence[Paced]) -> dict[str, float]:
    """Leads one window later, in units of shares per unit of weight; 0 for the VM furthest behind.

    Only VMs that are kept in proportion have a lead: not those that want no more or reached their maximum.
    """
    proportional = [v for v in vms if v.proportional]
    if not proportional:
        return {}
    keep = 1.0 - 1.0 / LEAD_MEMORY_WINDOWS
    work_by_vm = {
        v.vm: keep * leads.get(v.vm, 0.0) + v.last_rate * v.window_s / v.weight for v in proportional
    }
    least = min(work_by_vm.values())
    return {vm: work - least for vm, work in work_by_vm.items()}


def pace(vms: Sequence[Paced], leads: Mapping[str, float]) -> dict[str, float | None]:
    """The limit of every VM for the next window, in units of shares per second; None: no limit."""
    # Rates per unit of weight from here on.
    attainable = {
        v.vm: v.attainable_rate / v.weight for v in vms if v.vm in leads and v.attainable_rate is not None
    }
    in_force = max((v.limit / v.weight for v in vms if v.paced and v.limit), default=math.inf)
    least_lead = min(leads.values(), default=0.0)
    bottleneck = min(attainable, key=lambda vm: attainable[vm], default=None)
    if bottleneck is None:
        share, lead = (1.0 + ROOM) * in_force, max(leads.values(), default=0.0)
    else:
        share, lead = attainable[bottleneck], leads[bottleneck]
    limits = {}
    for v in vms:
        if v.vm == bottleneck:
            rate = _corrected(MOST_PACE * share, lead - least_lead, v.window_s, (1.0 + ROOM) * share)
        elif v.vm in leads:
            rate = _corrected(share, leads[v.vm] - lead, v.window_s, share / MOST_PACE)
            rate = min(rate, MOST_PACE * share)
        else:
            rate = MOST_PACE * share
        limits[v.vm] = min(max(v.weight * rate, (1.0 + MISSED_FROM) * v.min_rate), v.max_rate)
    if not any(v.throttled or limits[v.vm] < MOST_PACE * v.rate for v in vms):
        limits = {v.vm: v.max_rate for v in vms}
    return {vm: limit if math.isfinite(limit) else None for vm, limit in limits.items()}


def _corrected(rate: float, ahead: float, window_s: float, least: float) -> float:
    """A rate that removes the work by which a VM is ahead, in `MEMORY_WINDOWS`; at least `least`."""
    return max(rate - ahead / (MEMORY_WINDOWS * window_s), least)
