"""OPS that each VM needs for a rate, where requests wait for their own VM's GC.

The mean time of a request is its time without GC plus its page writes times the GC time per page (equation
1), and a VM with q requests outstanding does q / time requests per second. So each level, in units per second
and weight, needs a known number of OPS blocks that grows with the level. Bisection finds the highest level
for which the blocks of all VMs fit. This does not apply where requests mostly wait in the device's queue:
there OPS only has to minimise GC.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

from slo_ctl.decide.gc_model import GcCurve, gc_time_us, u_at_gc_time
from slo_ctl.decide.objectives import MISSED_FROM
from slo_ctl.model.sample import FlashTiming

_US_PER_S = 1e6
_BISECTIONS = 40


@dataclass(frozen=True, slots=True)
class Speed:
    """Model of the request time of one VM."""

    base_us: float
    """Mean time of a request without GC."""
    gc_pages: float = 1.0
    """Mean number of page writes whose GC a request waits for."""
    outstanding: float = 1.0
    """Mean number of requests outstanding."""

    @classmethod
    def measured(
        cls, timing: FlashTiming, time_us: float, writes_per_request: float, outstanding: float, u: float
    ) -> Self:
        """The model that explains the mean request time `time_us`, measured at victim utilization `u`."""
        gc_us = gc_time_us(timing, u)
        least_us = min(1.0, writes_per_request) * (timing.transfer_us + timing.program_us)
        base_us = max(time_us - writes_per_request * gc_us, min(least_us, 0.5 * time_us))
        # GC that runs in parallel does not delay the request: only the measured delay counts.
        return cls(base_us, (time_us - base_us) / gc_us if gc_us > 0.0 else writes_per_request, outstanding)


@dataclass(frozen=True, slots=True)
class Need:
    """What determines the OPS that one active VM needs for a rate."""

    vm: str
    weight: float
    curve: GcCurve
    speed: Speed
    least_blocks: int
    """OPS blocks that the VM keeps in any case."""
    units_per_request: float = 1.0
    min_iops: float = 0.0
    max_iops: float = math.inf

    def blocks(self, timing: FlashTiming, level: float) -> float:
        """OPS blocks that the VM needs for a level; infinite where no OPS is enough."""
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
        """Level that the VM reaches with this many OPS blocks; infinite where its maximum bounds it."""
        gc_us = self.speed.gc_pages * gc_time_us(timing, self.curve.u_at(blocks))
        iops = self.speed.outstanding * _US_PER_S / (self.speed.base_us + gc_us)
        return iops * self.units_per_request / self.weight if iops < self.max_iops else math.inf


def highest_level(
    timing: FlashTiming, vms: Sequence[Need], total_blocks: float
) -> tuple[float, dict[str, int]]:
    """The highest level that all VMs can reach with the OPS, and the blocks that each needs for it.

    Of minimums that do not fit the largest are cut to one level.
    """

    def fit(vms: Sequence[Need], level: float) -> bool:
        return sum(v.blocks(timing, level) for v in vms) <= total_blocks

    if not fit(vms, 0.0):
        highest = max(v.min_iops * v.units_per_request for v in vms)
        highest = _largest(lambda units: fit(_with_minimums_up_to(vms, units), 0.0), highest)
        vms = _with_minimums_up_to(vms, highest)
    top = max((v.level(timing, total_blocks) for v in vms if v.max_iops == math.inf), default=0.0)
    if not math.isfinite(top) or top <= 0.0:
        top = max((v.max_iops * v.units_per_request / v.weight for v in vms), default=0.0)
    # The last 2 % are within the noise, and would take most of the OPS from the other VMs.
    level = (1.0 - MISSED_FROM) * _largest(lambda level: fit(vms, level), top)
    return level, {v.vm: math.floor(v.blocks(timing, level)) for v in vms}


def _with_minimums_up_to(vms: Sequence[Need], units: float) -> Sequence[Need]:
    return [replace(vm, min_iops=min(vm.min_iops, units / vm.units_per_request)) for vm in vms]


def _largest(holds: Callable[[float], bool], high: float) -> float:
    """The largest value in 0..`high` for which `holds`, by bisection; it must hold for all smaller ones."""
    if holds(high):
        return high
    low = 0.0
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
