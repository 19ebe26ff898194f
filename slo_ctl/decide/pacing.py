"""The second lever: rate limits that hold VMs down to their share when OPS cannot.

The slowest saturating VM is never limited, so its IOPS_j / w_j always tells what the others may have: when it speeds
up, the limits follow in the next step. When it goes idle or runs out of requests, every limit rises until some VM no
longer reaches its own; that one then is the slowest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_BINDING_FROM = 0.93
_ABOVE_SHARE = 1.015
"""An unlimited VM must exceed its share by this much before it is limited."""
_PROBE = 1.1
"""Growth of all limits per step while none of the VMs is unlimited."""


@dataclass(frozen=True, slots=True)
class Paced:
    """One active VM as the pacing sees it; rates in requests per second."""

    vm: str
    weight: float
    iops: float
    limit_iops: float | None
    saturating: bool
    min_iops: float = 0.0
    max_iops: float = math.inf

    @property
    def held_back(self) -> bool:
        """Whether the limit, not the device, sets this VM's IOPS."""
        return self.limit_iops is not None and self.iops >= _BINDING_FROM * self.limit_iops


def pace(vms: Sequence[Paced]) -> dict[str, float | None]:
    """The limit every VM should have in the next window; None for none."""
    level = _level(vms)
    return {v.vm: _limit(v, level) for v in vms}


def _level(vms: Sequence[Paced]) -> float:
    """IOPS per unit of weight that everybody may have; infinite when nobody needs protection."""
    free = [v for v in vms if v.saturating and not v.held_back]
    if free:
        return min(v.iops / v.weight for v in free)
    limited = [v.limit_iops / v.weight for v in vms if v.limit_iops is not None and v.limit_iops < v.max_iops]
    return _PROBE * max(limited, default=math.inf)


def _limit(vm: Paced, level: float) -> float | None:
    share = max(level * vm.weight, vm.min_iops)
    if vm.held_back and vm.limit_iops is not None and vm.limit_iops < vm.max_iops and math.isfinite(share):
        # Half of the way each time: limiting one VM may itself change what the slowest one reaches.
        share = math.sqrt(share * vm.limit_iops)
    elif vm.iops <= _ABOVE_SHARE * share:
        share = math.inf
    limit = min(share, vm.max_iops)
    return limit if math.isfinite(limit) else None
