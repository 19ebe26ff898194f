"""The line for `io.cost.model`, straight from a device's access-time curves. Pure.

The kernel's linear model (Documentation/admin-guide/cgroup-v2.rst, "IO Interface Files") takes, for reads and
writes, the most bytes per second in sequence and the most 4 KiB requests per second in sequence and at
random: the ratio of the last two is what SeRRa measures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slo_ctl.serra.measurement import Access, Direction, Order

if TYPE_CHECKING:
    from slo_ctl.serra.analysis import Analysis

PAGE_BYTES = 4096
"""What the kernel means by an I/O operation in this model."""


@dataclass(frozen=True, slots=True)
class IoCostModel:
    """Coefficients; None for what was not measured: the kernel then keeps its own."""

    rbps: int | None
    rseqiops: int | None
    rrandiops: int | None
    wbps: int | None
    wseqiops: int | None
    wrandiops: int | None

    def line(self, device: str) -> str | None:
        """What to write into io.cost.model for `device` (`MAJOR:MINOR`); None when nothing is known."""
        known = [f"{name}={value}" for name in self.__slots__ if (value := getattr(self, name)) is not None]
        return f"{device} ctrl=user model=linear {' '.join(known)}" if known else None


def iocost_model(analysis: Analysis) -> IoCostModel:
    """The coefficients of a profile. Times below its smallest size are read off its first line."""
    read, write = (_coefficients(analysis, direction) for direction in (Direction.READ, Direction.WRITE))
    return IoCostModel(*read, *write)


def page_time_s(analysis: Analysis, access: Access) -> float | None:
    """Access time of 4 KiB; of the smallest size of the profile where the line has no positive time before
    it."""
    time = analysis.time_s(access, PAGE_BYTES)
    if time is not None:
        return time
    curve = analysis.curve(access, PAGE_BYTES)
    return None if curve is None else analysis.time_s(access, curve.interval.low_bytes)


def _coefficients(analysis: Analysis, direction: Direction) -> tuple[int | None, int | None, int | None]:
    sequential, random = (Access(order, direction) for order in (Order.SEQUENTIAL, Order.RANDOM))
    rates = [
        size / time
        for curve in analysis.curves
        if curve.access == sequential
        for size in curve.interval.sizes()
        if (time := analysis.time_s(sequential, size)) is not None
    ]
    bps = max(rates, default=None)
    return (
        None if bps is None else max(1, math.floor(bps)),
        _iops(page_time_s(analysis, sequential)),
        _iops(page_time_s(analysis, random)),
    )


def _iops(time_s: float | None) -> int | None:
    return None if time_s is None else max(1, math.floor(1 / time_s))
