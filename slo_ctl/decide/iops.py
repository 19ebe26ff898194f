"""What garbage collection costs in time, and the IOPS left (FAST'15, equation 1).

t_gc(u) is linear in r = gc_write_ratio(u), because 1 / (1 - u) = 1 + r. So both ways are exact:

    paper  t_gc = r t_prog
    full   t_gc = r (t_read + t_prog [+ 2 t_xfer unless copied back]) + (1 + r) t_erase / Np
"""

from __future__ import annotations

from slo_ctl.decide import waf
from slo_ctl.model import FlashTiming, TimingModel

_US_PER_S = 1e6


def gc_time_us(timing: FlashTiming, u: float) -> float:
    """GC time per host page write in microseconds at victim utilization 0 <= u < 1 (ValueError)."""
    per_copy_us, per_reclaimed_page_us = _gc_costs_us(timing)
    ratio = waf.gc_write_ratio(u)
    return ratio * per_copy_us + (1.0 + ratio) * per_reclaimed_page_us


def u_at_gc_time(timing: FlashTiming, gc_time_us: float) -> float:
    """Victim utilization at which GC takes this long per host page write; 0 if it cannot be that short."""
    per_copy_us, per_reclaimed_page_us = _gc_costs_us(timing)
    per_ratio_us = per_copy_us + per_reclaimed_page_us
    if per_ratio_us == 0.0:
        return 0.0
    return waf.u_at_gc_write_ratio(max(0.0, (gc_time_us - per_reclaimed_page_us) / per_ratio_us))


def write_time_us(timing: FlashTiming, u: float) -> float:
    """Device time per host page write, t_xfer + t_prog + t_gc(u), in microseconds.

    ValueError unless 0 <= u < 1.
    """
    return timing.transfer_us + timing.program_us + gc_time_us(timing, u)


def iops(timing: FlashTiming, u: float) -> float:
    """Page writes per second of one outstanding write at utilization u (FAST'15, equation 1).

    Raises ValueError.
    """
    return _US_PER_S / write_time_us(timing, u)


def u_at_iops(timing: FlashTiming, iops: float) -> float:
    """Utilization that `iops` (> 0) page writes/s need (equation 1 inverted); 0 if even that is too much."""
    if not iops > 0.0:
        raise ValueError(f"target IOPS must be positive, not {iops}")
    return u_at_gc_time(timing, _US_PER_S / iops - timing.transfer_us - timing.program_us)


def _gc_costs_us(timing: FlashTiming) -> tuple[float, float]:
    """(per page copied, per page reclaimed), in microseconds. Raises ValueError without a timing model."""
    match timing.model:
        case TimingModel.PAPER:
            return timing.program_us, 0.0
        case TimingModel.FULL:
            return timing.copy_us, timing.erase_us / timing.pages_per_block
        case TimingModel.NONE:
            raise ValueError("a count-only device has no clock, so no IOPS")
