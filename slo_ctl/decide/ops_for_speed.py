"""OPS that each VM needs for its own speed, where requests wait for their own VM's GC.

The mean time of a request is its time without GC, plus its page writes times the GC time of a page
(equation 1). With q requests outstanding a VM does q / time requests per second. So a level (units per
second and weight) takes a known number of OPS blocks, which grows with it, and the largest level for which
all VMs' blocks fit is found by bisection. Where requests mostly wait in the device's queue this does not
apply: there OPS only has to save GC.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

from slo_ctl.decide.gc_model import GcCurve, gc_time_us, u_at_gc_time
from slo_ctl.decide.limit_control import MISSED_FROM
from slo_ctl.model import FlashTiming

_US_PER_S = 1e6
_BISECTIONS = 40


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast a VM's requests are."""

    base_us: float
    """Time of a request without GC."""
    gc_pages: float = 1.0
    """Pages whose GC a request waits for."""
    outstanding: float = 1.0

    @classmethod
    def measured(
        cls, timing: FlashTiming, time_us: float, writes_per_request: float, outstanding: float, u: float
    ) -> Self:
        """The speed for a mean request time while victims had the utilization `u`."""
        gc_us = gc_time_us(timing, u)
        least_us = min(1.0, writes_per_request) * (timing.transfer_us + timing.program_us)
        base_us = max(time_us - writes_per_request * gc_us, min(least_us, 0.5 * time_us))
        # What of GC runs beside the request is not waited for.
        return cls(base_us, (time_us - base_us) / gc_us if gc_us > 0.0 else writes_per_request, outstanding)


@dataclass(frozen=True, slots=True)
class Need:
    """One active VM."""

    vm: str
    weight: float
    curve: GcCurve
    speed: Speed
    least_blocks: int
    units_per_request: float = 1.0
    min_iops: float = 0.0
    max_iops: float = math.inf

    def blocks(self, timing: FlashTiming, level: float) -> float:
        """Blocks that the level takes; infinite where no OPS is enough."""
        iops = min(max(level * self.weight / self.units_per_request, self.min_iops), self.max_iops)
        if iops <= 0.0:
            return float(self.least_blocks)
        spare_us = self.speed.outstanding * _US_PER_S / iops - self.speed.base_us
        if spare_us < 0.0:
            return math.inf
        if self.speed.gc_pages <= 0.0:
            return float(self.least_blocks)
        u = u_at_gc_time(timing, spare_us / self.speed.gc_pages)
        return max(float(self.least_blocks), self.curve.ops_at(u))

    def level(self, timing: FlashTiming, blocks: float) -> float:
        """Rate with this many blocks."""
        gc_us = self.speed.gc_pages * gc_time_us(timing, self.curve.u_at(blocks))
        iops = self.speed.outstanding * _US_PER_S / (self.speed.base_us + gc_us)
        return iops * self.units_per_request / self.weight if iops < self.max_iops else math.inf


def highest_level(
    timing: FlashTiming, vms: Sequence[Need], total_blocks: float
) -> tuple[float, dict[str, int]]:
    """The highest level that OPS allows all VMs, and the blocks that each needs for it."""

    def fits(level: float, part: float = 1.0) -> bool:
        return sum(_scaled(v, part).blocks(timing, level) for v in vms) <= total_blocks

    part = 1.0 if fits(0.0) else _largest(lambda part: fits(0.0, part), 1.0)
    vms = [_scaled(v, part) for v in vms]
    top = max((v.level(timing, total_blocks) for v in vms if v.max_iops == math.inf), default=0.0)
    top = top if math.isfinite(top) and top > 0.0 else max((v.max_iops / v.weight for v in vms), default=0.0)
    # The last part of the level would cost the others most of their OPS, and is within the noise.
    level = (1.0 - MISSED_FROM) * _largest(fits, top)
    return level, {v.vm: math.floor(v.blocks(timing, level)) for v in vms}


def _scaled(vm: Need, part: float) -> Need:
    return replace(vm, min_iops=part * vm.min_iops)


def _largest(holds: Callable[[float], bool], high: float) -> float:
    if holds(high):
        return high
    low = 0.0
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
