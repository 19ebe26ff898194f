"""Write amplification and GC time of page-mapped flash in closed form, and the OPS split with the least GC.

Two ratios have different names: `gc_write_ratio` = u / (1 - u) counts GC writes per host write (the FAST'15
paper's "WAF(u)", equation 2); WAF = 1 / (1 - u) counts host and GC writes per host write (NVMe's and OCP's
meaning).

alpha is the ratio of physical to live pages, without the blocks that are kept free for GC. Under uniform
random writes one formula covers both victim policies. Desnoyers' greedy result ("Analytic models of SSD write
performance", 2012) is, with Np pages per block and Lambert's W,

    A = Np / (Np - (X0 - 1)),    X0 = 1/2 - (Np / alpha) W0(-k alpha e^(-k alpha)),    k = 1 + 1 / (2 Np),

and can be solved for alpha without W:

    alpha(u) = ln((1 + eps) / (u + eps)) / (1 - u),    eps = 1 / (2 Np),

and Np -> infinity gives the LRU/FIFO formula alpha(u) = -ln(u) / (1 - u). `LRU` stands for that limit.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from slo_ctl.model.sample import FlashTiming, TimingModel

LRU = math.inf
"""Pass as `pages_per_block` for LRU/FIFO victims."""

_MAX_ALPHA_LRU = 700.0
"""Largest alpha for which exp(-alpha) is a normal float; u is 0 in double precision far below it."""


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
    """Ratio of physical to live pages that gives victim utilization 0 <= u < 1 (formula above).

    At u = 0 it is infinite for LRU, and finite for greedy, which finds an empty victim from some alpha on.
    Raises ValueError.
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
    # The branch-point series has an error below 0.08 everywhere; a Halley step triples the correct digits.
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


# u as a function of OPS for one VM, with one or two parameters that are fitted to measurements.
#
# Near its current OPS, any workload of a VM behaves like uniform random writes over some effective number of
# live blocks L, beside C cold blocks that GC never collects: u = u_at_alpha((logical - C + OPS) / L).
# Unwritten or trimmed space lowers L; skew and blocks that GC keeps free raise it. One measurement gives L
# for C = 0, two give both: u of sequential writes depends much more on OPS than that of uniform ones. The
# curve is exact at the measured points; further away it is a prediction that the next fit corrects.

_MAX_U = 0.9999
"""Upper bound of u; above it, GC hardly makes progress and the slope of the formula is meaningless."""


@dataclass(frozen=True, slots=True)
class GcCurve:
    """Victim utilization u of a VM as a function of its OPS blocks."""

    logical_blocks: int
    """The VM's blocks without OPS."""
    live_blocks: float
    """Effective number of live blocks, L above."""
    pages_per_block: float
    cold_blocks: float = 0.0
    """C above; negative if u depends less on OPS than that of uniform writes."""

    @classmethod
    def prior(cls, logical_blocks: int, pages_per_block: int) -> GcCurve:
        """The initial, pessimistic curve: uniform random writes over the whole logical size."""
        return cls(logical_blocks, float(logical_blocks), pages_per_block)

    def fit(self, ops_blocks: float, u: float | None) -> GcCurve:
        """The curve through the measured u; the same curve if nothing was measured (None)."""
        if u is None:
            return self
        live_blocks = (self.logical_blocks + ops_blocks) / self._alpha(u)
        return GcCurve(self.logical_blocks, live_blocks, self.pages_per_block)

    def fit_two(self, ops_blocks: float, u: float, other_ops_blocks: float, other_u: float) -> GcCurve:
        """The curve through two measurements; through the first alone unless u is less with more OPS."""
        alpha = self._alpha(u)
        more_blocks, more_alpha = other_ops_blocks - ops_blocks, self._alpha(other_u) - alpha
        if not more_blocks * more_alpha > 0.0 or math.isinf(more_alpha):
            return self.fit(ops_blocks, u)
        live_blocks = more_blocks / more_alpha
        cold_blocks = self.logical_blocks + ops_blocks - alpha * live_blocks
        return GcCurve(self.logical_blocks, live_blocks, self.pages_per_block, cold_blocks)

    def _alpha(self, u: float) -> float:
        return alpha_at_u(min(max(u, 0.0), _MAX_U), self.pages_per_block)

    def u_at(self, ops_blocks: float) -> float:
        """Victim utilization expected with this many OPS blocks."""
        alpha = (self.logical_blocks - self.cold_blocks + ops_blocks) / self.live_blocks
        return min(u_at_alpha(alpha, self.pages_per_block), _MAX_U) if alpha > 1.0 else _MAX_U

    def ops_at(self, u: float) -> float:
        """OPS blocks for a victim utilization of u; negative if the logical size has unused space."""
        return self.live_blocks * self._alpha(u) - self.logical_blocks + self.cold_blocks

    def gc_writes_saved(self, u: float) -> float:
        """GC page writes that one more OPS block saves per host page write, at victim utilization u.

        -d(gc_write_ratio)/d(OPS), by differentiating alpha(u): 1 / (L (1 - u) (1 / (u + eps) - alpha)).
        """
        u = min(u, _MAX_U)
        reciprocal_gap = 1.0 / (u + 0.5 / self.pages_per_block) - alpha_at_u(u, self.pages_per_block)
        if reciprocal_gap <= 0.0:
            return math.inf
        return 1.0 / (self.live_blocks * (1.0 - u) * reciprocal_gap)


# Time of garbage collection, and IOPS with it (FAST'15, equation 1).
#
# t_gc(u) is linear in r = gc_write_ratio(u), because 1 / (1 - u) = 1 + r, and its inverse is exact:
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
    """Victim utilization at which GC takes this time per host page write; 0 if no u gives so short a time."""
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
    """Victim utilization for `iops` (> 0) page writes/s (inverse of equation 1); 0 if no u allows so many."""
    if not iops > 0.0:
        raise ValueError(f"target IOPS must be positive, not {iops}")
    return u_at_gc_time(timing, _US_PER_S / iops - timing.transfer_us - timing.program_us)


def _gc_costs_us(timing: FlashTiming) -> tuple[float, float]:
    """GC time per copied page and per reclaimed page, in microseconds. ValueError without a timing model."""
    match timing.model:
        case TimingModel.PAPER:
            return timing.program_us, 0.0
        case TimingModel.FULL:
            return timing.copy_us, timing.erase_us / timing.pages_per_block
        case TimingModel.NONE:
            raise ValueError("a count-only device has no clock, so no IOPS")


# The OPS split with the fewest GC writes for given write rates.
#
# The number of GC writes is convex in the split, so at the optimum one more block saves the same number of GC
# writes per second for every tenant, except for tenants at their minimum.

_LEAST_LOGIT, _MOST_LOGIT, _POINTS = -25.0, 9.2, 16384
"""Range of the logit of u in the table of `_saved`, which is u from 1e-11 to 0.9999; and its length."""


@dataclass(frozen=True, slots=True)
class Writer:
    """GC curve and write rate of one tenant."""

    curve: GcCurve
    write_rate: float
    """Host page writes, in any unit that is common to all tenants."""
    min_ops_blocks: float = 0.0


def best_split(writers: Sequence[Writer], total_ops_blocks: float) -> list[float]:
    """OPS blocks (fractional) per tenant for the fewest GC writes; they add up to the total.

    All tenants are on one device, with blocks of one size. Raises ValueError when the minimums exceed the
    total.
    """
    missing = sum(w.min_ops_blocks for w in writers) - total_ops_blocks
    if missing > 0:
        raise ValueError(f"the minimums exceed the {total_ops_blocks} OPS blocks by {missing:g}")
    log_saved, alphas = _saved(writers[0].curve.pages_per_block)
    tenants = [
        (
            w.min_ops_blocks,
            w.curve.live_blocks,
            w.curve.logical_blocks - w.curve.cold_blocks,
            math.log(w.write_rate / w.curve.live_blocks) if w.write_rate else -math.inf,
        )
        for w in writers
    ]

    def split(log_price: float) -> list[float]:
        return [
            max(least, live * _interpolated(log_saved, alphas, log_price - log_rate) - logical)
            for least, live, logical, log_rate in tenants
        ]

    # Bisection for the price, in GC writes saved per block, at which the demand for blocks equals the total.
    # The price spans decades, so its logarithm is used.
    low, high = -70.0, 70.0
    for _ in range(45):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if sum(split(middle)) > total_ops_blocks else (low, middle)
    blocks = split(high)
    # Blocks remain only if no tenant can save more GC: they are divided by live blocks.
    rest_per_live_block = (total_ops_blocks - sum(blocks)) / sum(w.curve.live_blocks for w in writers)
    return [
        count + rest_per_live_block * w.curve.live_blocks for count, w in zip(blocks, writers, strict=True)
    ]


@lru_cache(maxsize=16)
def _saved(pages_per_block: float) -> tuple[list[float], list[float]]:
    """Table of log(GC writes saved by one more block per host write x live blocks), ascending, and of alpha.

    Both depend on u alone, for a given number of pages per block. In lists: to import numpy would cost the
    daemon 12 MB.
    """
    curve = GcCurve(0, 1.0, pages_per_block)
    step = (_MOST_LOGIT - _LEAST_LOGIT) / (_POINTS - 1)
    utilizations = [1.0 / (1.0 + math.exp(-(_LEAST_LOGIT + step * point))) for point in range(_POINTS)]
    log_saved = [math.log(curve.gc_writes_saved(u)) for u in utilizations]
    return log_saved, [curve.ops_at(u) for u in utilizations]


def _interpolated(xs: Sequence[float], ys: Sequence[float], x: float) -> float:
    """The value at `x` on the line through points with these ascending `xs`; constant beyond both ends."""
    after = bisect_right(xs, x)
    if after == 0 or after == len(xs):
        return ys[0 if after == 0 else -1]
    share = (x - xs[after - 1]) / (xs[after] - xs[after - 1])
    return ys[after - 1] + share * (ys[after] - ys[after - 1])
