"""Closed forms of write amplification, for comparison with measurements."""

from __future__ import annotations

import math
from collections.abc import Sequence

from slo_ctl.decide.gc_model import LRU, u_at_alpha, waf


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

    The fixed point of A = sum r / (1 - exp(-alpha r / (f A))).
    Raises ValueError unless alpha > 1 and each kind of share adds up to 1.
    """
    if not alpha > 1.0:
        raise ValueError(f"alpha, physical over live pages, must exceed 1, not {alpha}")
    for shares in zip(*groups, strict=True):
        if min(shares) < 0.0 or not math.isclose(sum(shares), 1.0, rel_tol=1e-9):
            raise ValueError(f"shares {shares} must not be negative and must add up to 1")

    def amplified(a: float) -> float:
        return sum(r / -math.expm1(-alpha * r / (f * a)) for r, f in groups if r > 0.0 and f > 0.0)

    # amplified(a) > a at 1 and < a for large a, where it tends to a / alpha.
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
