"""Write amplification of page-mapped flash in closed form.

Two ratios, never one name: `gc_write_ratio` = u / (1 - u) counts GC writes per host write (the FAST'15
paper's "WAF(u)", equation 2); WAF = 1 / (1 - u) counts host and GC writes per host write (NVMe's and OCP's
meaning).

alpha is physical over live pages, blocks held free for GC not counted. Under uniform random writes one
formula covers both victim policies. Desnoyers' greedy result ("Analytic models of SSD write performance",
2012, as quoted in docs/validation.md) can be solved for alpha without Lambert's W:

    alpha(u) = ln((1 + eps) / (u + eps)) / (1 - u),    eps = 1 / (2 Np),

and Np -> infinity gives the LRU/FIFO formula alpha(u) = -ln(u) / (1 - u). `LRU` stands for that limit.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

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


def u_at_waf(waf: float) -> float:
    """Victim utilization that gives this WAF >= 1. Raises ValueError."""
    if not waf >= 1.0:
        raise ValueError(f"a WAF is at least 1, not {waf}")
    return 1.0 - 1.0 / waf


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


def lru_waf(alpha: float) -> float:
    """WAF with LRU/FIFO victims:

    alpha / (alpha + W0(-alpha e^-alpha)). Raises ValueError unless alpha > 1.
    """
    return waf(u_at_alpha(alpha, LRU))


def greedy_waf(alpha: float, pages_per_block: int) -> float:
    """WAF with greedy victims (Desnoyers 2012). Raises ValueError unless alpha > 1."""
    return waf(u_at_alpha(alpha, pages_per_block))


def mixed_lru_waf(alpha: float, groups: Sequence[tuple[float, float]]) -> float:
    """WAF of one LRU pool shared by groups of pages, each (share of the writes, share of the live pages).

    The fixed point of A = sum r / (1 - exp(-alpha r / (f A))) (docs/validation.md, hot/cold).
    Raises ValueError unless alpha > 1 and each kind of share adds up to 1.
    """
    if not alpha > 1.0:
        raise ValueError(f"alpha, physical over live pages, must exceed 1, not {alpha}")
    for shares in zip(*groups, strict=True):
        if min(shares) < 0.0 or not math.isclose(sum(shares), 1.0, rel_tol=1e-9):
            raise ValueError(f"shares {shares} must not be negative and must add up to 1")

    def amplified(a: float) -> float:
        return sum(r / -math.expm1(-alpha * r / (f * a)) for r, f in groups if r > 0.0 and f > 0.0)

    # amplified(a) > a at 1 and < a far out, where it tends to a / alpha.
    low, high = 1.0, 2.0
    while amplified(high) > high:
        high *= 2.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if amplified(middle) > middle else (low, middle)
    return 0.5 * (low + high)


def hotcold_lru_waf(alpha: float, write_share: float, space_share: float) -> float:
    """WAF of one shared LRU pool where `write_share` of the writes go to `space_share` of the pages.

    ValueError.
    """
    return mixed_lru_waf(alpha, [(write_share, space_share), (1.0 - write_share, 1.0 - space_share)])


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
