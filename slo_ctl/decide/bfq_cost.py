"""Whether a device is so fast that BFQ's own time for each request counts. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slo_ctl.decide.iocost_model import page_time_s
from slo_ctl.decide.scheduler_thresholds import THRESHOLDS
from slo_ctl.serra.measurement import Access, Direction, Order

if TYPE_CHECKING:
    from slo_ctl.serra.analysis import Analysis


def too_fast_for_bfq(analysis: Analysis | None) -> str:
    """Why BFQ would slow the device down; empty when it would not."""
    if analysis is None:
        return ""
    times = [
        time
        for direction in Direction
        if (time := page_time_s(analysis, Access(Order.RANDOM, direction))) is not None
    ]
    if not times:
        return ""
    share = THRESHOLDS["bfq_cost_us"].value / (min(times) * 1e6)
    limit = THRESHOLDS["bfq_share"].value
    return f"bfq would cost {share:.0%} of an access of {min(times) * 1e6:.0f} us" if share > limit else ""
