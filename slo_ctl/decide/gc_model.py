"""Write amplification of page-mapped flash in closed form.

Two ratios, never one name: `gc_write_ratio` = u / (1 - u) counts GC writes per host write (the FAST'15
paper's "WAF(u)", equation 2); WAF = 1 / (1 - u) counts host and GC writes per host write (NVMe's and OCP's
meaning).

alpha is physical over live pages, blocks held free for GC not counted. Under uniform random writes one
formula covers both victim policies. Desnoyers' greedy result ("Analytic models of SSD write performance",
2012) is, with Np pages per block and Lambert's W,

    A = Np / (Np - (X0 - 1)),    X0 = 1/2 - (Np / alpha) W0(-k alpha e^(-k alpha)),    k = 1 + 1 / (2 Np),

and can be solved for alpha without W:

    alpha(u) = ln((1 + eps) / (u + eps)) / (1 - u),    eps = 1 / (2 Np),

and Np -> infinity gives the LRU/FIFO formula alpha(u) = -ln(u) / (1 - u). `LRU` stands for that limit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from slo_ctl.model import FlashTiming, TimingModel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LRU = math.inf
"""Pass as `pages_per_block` for LRU/FIFO victims."""

_MAX_ALPHA_LRU = 700.0
"""exp(-alpha) still is a normal float; u is 0 to every digit long before."""


def waf(u: float) -> float:
    """Host and GC page writes per host page write, at victim utilization 0 <= u < 1. Raises ValueError."""
    return 1.0 / (1.0 - _valid_u(u))


def gc_write_ratio(u: float) -> float:
    """GC page writes per host page write, at 0 <= u < 1 (FAST'15, equation 2). Raises ValueError."""
    return _valid_u(u) / (1.0 - u)


def u_at_gc_write_ratio(gc_write_ratio: float) -> float:
    """Victim utilization that gives this many GC page writes per host page write (>= 0).

    Raises ValueError.
    """
    if not gc_write_ratio >= 0.0:
        raise ValueError(f"a gc_write_ratio is at least 0, not {gc_write_ratio}")
    return 1.0 - 1.0 / (1.0 + gc_write_ratio)


def alpha_at_u(u: float, pages_per_block: float) -> float:
    """Physical over live pages that leaves victims at utilization 0 <= u < 1 (see the module's formula).

    Infinite for LRU at u = 0; finite for greedy, which finds an empty victim from some alpha on. Raises
    ValueError.
    """
    _valid_u(u)
    eps = 0.5 / pages_per_block
    if u + eps == 0.0:
        return math.inf
    return math.log((1.0 + eps) / (u + eps)) / (1.0 - u)


def u_at_alpha(alpha: float, pages_per_block: float) -> float:
    """Victim utilization at `alpha` > 1 under uniform random writes. Raises ValueError."""
    if not alpha > 1.0:
        raise ValueError(f"alpha, physical over live pages, must exceed 1, not {alpha}")
    if alpha > _MAX_ALPHA_LRU:
        return 0.0
    eps = 0.5 / pages_per_block
    k_alpha = (1.0 + eps) * alpha
    return max(0.0, -lambert_w0(-k_alpha * math.exp(-k_alpha)) / alpha - eps)


def lambert_w0(x: float) -> float:
    """Principal branch of Lambert's W on [-1/e, 0]: w >= -1 with w e^w = x. Raises ValueError."""
    if not -1.0 / math.e - 1e-15 <= x <= 0.0:
        raise ValueError(f"W0 is computed on [-1/e, 0] only, not at {x}")
    p = math.sqrt(max(0.0, 2.0 * (1.0 + math.e * x)))
    if p < 1e-6:
        return -1.0 + p
    # The branch-point series is within 0.08 everywhere; Halley triples the digits per step.
    w = -1.0 + p - p * p / 3.0 + 11.0 / 72.0 * p**3
    for _ in range(4):
        e_w = math.exp(w)
        error = w * e_w - x
        w -= error / (e_w * (w + 1.0) - (w + 2.0) * error / (2.0 * w + 2.0))
    return w


def _valid_u(u: float) -> float:
    if not 0.0 <= u < 1.0:
        raise ValueError(f"victim utilization u must be in [0, 1), not {u}")
    return u


# u as a function of OPS, for one VM: one parameter, refitted whenever there is evidence.
#
# Whatever the VM's workload, near its present OPS it behaves like uniform random writes over some effective
# number of live blocks L: u = u_at_alpha((logical + OPS) / L). Unwritten or trimmed space lowers L; skew and
# blocks that GC holds free raise it. The fit is exact where it was taken; further away it is a prediction
# that the next fit corrects.

_MAX_U = 0.9999
"""Beyond, GC hardly makes progress and the formula's slope means nothing."""


@dataclass(frozen=True, slots=True)
class GcCurve:
    """Victim utilization of a VM with `logical_blocks` + OPS blocks, of which `live_blocks` act as live."""

    logical_blocks: int
    live_blocks: float
    pages_per_block: float

    @classmethod
    def prior(cls, logical_blocks: int, pages_per_block: int) -> GcCurve:
        """The curve of uniform random writes over the whole logical size: to start from, and pessimistic."""
        return cls(logical_blocks, float(logical_blocks), pages_per_block)

    def fit(self, ops_blocks: float, u: float | None) -> GcCurve:
        """The curve through the measured point; unchanged when nothing was measured (u is None)."""
        if u is None:
            return self
        alpha = alpha_at_u(min(max(u, 0.0), _MAX_U), self.pages_per_block)
        live_blocks = (self.logical_blocks + ops_blocks) / alpha
        return GcCurve(self.logical_blocks, live_blocks, self.pages_per_block)

    def u_at(self, ops_blocks: float) -> float:
        """Victim utilization expected with this many OPS blocks."""
        alpha = (self.logical_blocks + ops_blocks) / self.live_blocks
        return min(u_at_alpha(alpha, self.pages_per_block), _MAX_U) if alpha > 1.0 else _MAX_U

    def ops_at(self, u: float) -> float:
        """OPS blocks with which victims come down to u; negative when the logical size has room."""
        return self.live_blocks * alpha_at_u(min(u, _MAX_U), self.pages_per_block) - self.logical_blocks

    def gc_writes_saved(self, u: float) -> float:
        """GC page writes per host page write that one more block saves, at utilization u.

        -d(gc_write_ratio)/d(OPS), by differentiating alpha(u): 1 / (L (1 - u) (1 / (u + eps) - alpha)).
        """
        u = min(u, _MAX_U)
        reciprocal_gap = 1.0 / (u + 0.5 / self.pages_per_block) - alpha_at_u(u, self.pages_per_block)
        if reciprocal_gap <= 0.0:
            return math.inf
        return 1.0 / (self.live_blocks * (1.0 - u) * reciprocal_gap)


# What garbage collection costs in time, and the IOPS left (FAST'15, equation 1).
#
# t_gc(u) is linear in r = gc_write_ratio(u), because 1 / (1 - u) = 1 + r. So both ways are exact:
#
#     paper  t_gc = r t_prog
#     full   t_gc = r (t_read + t_prog [+ 2 t_xfer unless copied back]) + (1 + r) t_erase / Np

_US_PER_S = 1e6


def gc_time_us(timing: FlashTiming, u: float) -> float:
    """GC time per host page write in microseconds at victim utilization 0 <= u < 1 (ValueError)."""
    per_copy_us, per_reclaimed_page_us = _gc_costs_us(timing)
    ratio = gc_write_ratio(u)
    return ratio * per_copy_us + (1.0 + ratio) * per_reclaimed_page_us


def u_at_gc_time(timing: FlashTiming, gc_time_us: float) -> float:
    """Victim utilization at which GC takes this long per host page write; 0 if it cannot be that short."""
    per_copy_us, per_reclaimed_page_us = _gc_costs_us(timing)
    per_ratio_us = per_copy_us + per_reclaimed_page_us
    if per_ratio_us == 0.0:
        return 0.0
    return u_at_gc_write_ratio(max(0.0, (gc_time_us - per_reclaimed_page_us) / per_ratio_us))


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


# The OPS split with the fewest GC writes for given write rates.
#
# The total is convex in the split, so at the optimum one more block saves the same number of GC writes per
# second everywhere, except at tenants that already stand at their minimum.

_LEAST_LOGIT, _MOST_LOGIT, _POINTS = -25.0, 9.2, 16384
"""Of u: from 1e-11 to 0.9999, beyond which a curve's slope means nothing."""


@dataclass(frozen=True, slots=True)
class Writer:
    """One tenant: how its u depends on OPS, and host page writes in any unit common to all tenants."""

    curve: GcCurve
    write_rate: float
    min_ops_blocks: float = 0.0


def best_split(writers: Sequence[Writer], total_ops_blocks: float) -> list[float]:
    """Fractional OPS blocks per tenant, adding up to the total, with the least write_rate x gc_write_ratio.

    The tenants are of one device, so that their blocks have the same size. Raises ValueError when the
    minimums exceed the total.
    """
    import numpy as np

    missing = sum(w.min_ops_blocks for w in writers) - total_ops_blocks
    if missing > 0:
        raise ValueError(f"the minimums exceed the {total_ops_blocks} OPS blocks by {missing:g}")
    least = np.array([w.min_ops_blocks for w in writers])
    live = np.array([w.curve.live_blocks for w in writers])
    logical = np.array([w.curve.logical_blocks for w in writers])
    with np.errstate(divide="ignore"):
        worth = np.log(np.array([w.write_rate for w in writers]) / live)
    log_saved, alpha = _saved(writers[0].curve.pages_per_block)

    def split(log_price: float) -> NDArray[np.float64]:
        alphas = np.interp(log_price - worth, log_saved, alpha)
        blocks: NDArray[np.float64] = np.maximum(least, live * alphas - logical)
        return blocks

    # The price (GC writes saved per block) sums the demand to the total; it spans decades, so bisect its log.
    low, high = -70.0, 70.0
    for _ in range(45):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if split(middle).sum() > total_ops_blocks else (low, middle)
    blocks = split(high)
    # Left over only if no VM can save more GC: then in proportion.
    rest = total_ops_blocks - blocks.sum()
    return [float(each) for each in blocks + rest * live / live.sum()]


@lru_cache(maxsize=16)
def _saved(pages_per_block: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Log of the GC writes that one more block saves per host write, times the live blocks, in rising order;
    and the alpha (physical over live pages) at which it does. Both depend on u alone."""
    import numpy as np

    curve = GcCurve(0, 1.0, pages_per_block)
    u = 1.0 / (1.0 + np.exp(-np.linspace(_LEAST_LOGIT, _MOST_LOGIT, _POINTS)))
    log_saved = np.log([curve.gc_writes_saved(float(each)) for each in u])
    return log_saved, np.array([curve.ops_at(float(each)) for each in u])
