"""What a VM is to get on a device, and how far it is from it."""

from collections.abc import Mapping
from typing import NamedTuple

MISSED_FROM = 0.02
"""An objective is missed when the relative error exceeds this; less is noise."""
ROOM = 0.1
"""What noise and inexact limiters leave uncertain, relative to a rate: a VM within it of its limit counts as
throttled, and limits are raised from this much headroom above an objective on."""


def at_limit(iops: float, limit_iops: float | None, granted_iops: float | None = None) -> bool:
    """Whether a VM's rate is set by its limit and not by the device; False without a limit.

    `granted_iops`: the rate that the limit really allows; None: exactly the limit.
    """
    if limit_iops is None:
        return False
    return iops >= (1.0 - ROOM) * (limit_iops if granted_iops is None else granted_iops)


def tighter(one: float | None, other: float | None) -> float | None:
    """The lower of two limits, of which None is no limit."""
    return min((limit for limit in (one, other) if limit is not None), default=None)


class ControlledVm(NamedTuple):
    """Measurements and objectives of one VM in a window. Rates in requests per second."""

    vm: str
    iops: float
    fair_iops: float
    """Share of the total rate by weight."""
    busy: bool
    """Whether the VM wanted more than it got; otherwise a low rate is no miss."""
    min_iops: float = 0.0
    due_iops: float = 0.0
    """Entitlement: no VM is limited below it for another VM's share."""
    keeps_share: bool = False
    """Whether the entitlement is an objective, because no fair queue keeps shares on the device."""
    p99_us: float | None = None
    """None: not measured."""
    max_p99_us: float | None = None
    """Target of the SLO; None: no target."""
    quiet: bool = False
    """Whether the VM had no request in the window, so that its p99 is of an earlier one."""
    limitable: bool = True
    """Whether the VM's IOPS can be limited."""
    effect_windows: int = 1
    """Windows until the measurements show the effect of a change."""
    granted_iops: float | None = None
    """Rate that the limit in force really allows; None: exactly the limit."""

    @property
    def objective_iops(self) -> float:
        """The least rate that meets the minimum and, where it is an objective, the share; 0 without both."""
        return max(self.min_iops, self.due_iops * (1.0 - MISSED_FROM) if self.keeps_share else 0.0)

    @property
    def miss(self) -> float:
        """Relative error of the objective that is furthest from being met; positive when it is missed."""
        misses = [-1.0, self.p99_miss]
        if self.objective_iops > 0.0:
            misses.append(self.objective_iops / max(self.iops, 1e-9) - 1.0)
        return max(misses)

    @property
    def p99_miss(self) -> float:
        """Relative error of the p99, positive above the target; -1 without a measurement or a target."""
        return self.p99_us / self.max_p99_us - 1.0 if self.max_p99_us and self.p99_us is not None else -1.0

    @property
    def misses_p99(self) -> bool:
        """Whether the p99 exceeds its target by more than noise."""
        return self.p99_miss > MISSED_FROM and not self.quiet

    @property
    def misses_share_alone(self) -> bool:
        """Whether neither the p99 nor the minimum is missed, so that a miss can only be of the share."""
        return self.keeps_share and not self.misses_p99 and self.min_iops <= (1.0 + MISSED_FROM) * self.iops

    def is_throttled(self, limits: Mapping[str, float]) -> bool:
        """Whether the VM's rate is set by its limit in `limits` (IOPS by VM)."""
        return at_limit(self.iops, limits.get(self.vm), self.granted_iops)

    @property
    def protected(self) -> bool:
        """Whether the VM has an objective that limits on other VMs may help to meet."""
        return self.objective_iops > 0.0 or bool(self.max_p99_us and self.p99_us is not None)

    @property
    def missing_iops(self) -> float:
        """Rate that the VM lacks to the middle of the dead band; 0 above it."""
        missing = (1.0 + ROOM / 2.0) * self.objective_iops - self.iops
        if self.misses_share_alone:
            # The VM's demand is unknown and may be far below its share: at most double its rate.
            missing = min(missing, max(self.iops, ROOM * self.due_iops))
        return max(0.0, missing)
