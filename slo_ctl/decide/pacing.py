"""The second lever: rate limits that hold VMs down to their share when OPS cannot.

The slowest saturating VM is never limited, so its IOPS_j / w_j always tells what the others may have: when
it speeds up, the limits follow in the next step. When it goes idle or runs out of requests, every limit
rises until some VM no longer reaches its own; that one then is the slowest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_BINDING_FROM = 0.93
"""A VM that reaches this share of its limit is taken to be held back by it: rate limiters are not exact."""
_EXACTLY_BINDING_FROM = 0.985
"""In between, it may as well be just too slow for its limit, and so the slowest of all: then probe."""
_ABOVE_SHARE = 1.015
"""An unlimited VM must exceed its share by this much before it is limited."""
_PROBE = 1.05
"""What a doubtful limit exceeds the share by, for one window."""
_RELEASE = 1.1
"""Growth of all limits per step while none of the VMs is unlimited."""


@dataclass(frozen=True, slots=True)
class Paced:
    """One active VM as the pacing sees it; rates in requests per second."""

    vm: str
    weight: float
    iops: float
    """Average over a few windows."""
    last_iops: float
    """In the last window, under `limit_iops`."""
    limit_iops: float | None
    saturating: bool
    min_iops: float = 0.0
    max_iops: float = math.inf

    @property
    def held_back(self) -> bool:
        """Whether the limit, not the device, sets this VM's IOPS."""
        return self.limit_iops is not None and self.last_iops >= _BINDING_FROM * self.limit_iops

    @property
    def paced(self) -> bool:
        """Whether the limit in force is tighter than the SLO's maximum."""
        return self.limit_iops is not None and self.limit_iops < self.max_iops

    @property
    def doubtful(self) -> bool:
        """Whether a VM that counts as held back may as well be too slow for its limit."""
        return self.limit_iops is not None and self.last_iops < _EXACTLY_BINDING_FROM * self.limit_iops


def pace(vms: Sequence[Paced]) -> dict[str, float | None]:
    """The limit every VM should have in the next window; None for none."""
    level = _level(vms)
    return {v.vm: _limit(v, level) for v in vms}


def _level(vms: Sequence[Paced]) -> float:
    """IOPS per unit of weight that everybody may have; infinite when nobody needs protection."""
    free = [v for v in vms if v.saturating and not v.held_back]
    if free:
        return min(v.iops / v.weight for v in free)
    limited = [v.limit_iops / v.weight for v in vms if v.paced and v.limit_iops]
    return _RELEASE * max(limited, default=math.inf)


def _limit(vm: Paced, level: float) -> float | None:
    share = max(level * vm.weight, vm.min_iops)
    if vm.paced and vm.held_back:
        limit = _PROBE * share if vm.doubtful else share
    else:
        limit = share if vm.iops > _ABOVE_SHARE * share else math.inf
    limit = min(limit, vm.max_iops)
    return limit if math.isfinite(limit) else None
