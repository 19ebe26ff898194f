"""Student's t: how far the mean of a few repetitions may be from the truth."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

CONFIDENCE = 0.90
"""SAC'15, section 4.2: repeated until a 90 % confidence by Student's t."""
_STEPS = 200


def half_width(values: Sequence[float], confidence: float = CONFIDENCE) -> float:
    """Half the two-sided confidence interval of the mean of `values`; infinite for fewer than two."""
    count = len(values)
    if count < 2:
        return math.inf
    mean = math.fsum(values) / count
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    return t_quantile(0.5 + confidence / 2, count - 1) * math.sqrt(variance / count)


@lru_cache(maxsize=1024)
def t_quantile(probability: float, freedom: int) -> float:
    """The t that a share `probability` (over 0.5) of Student's distribution lies below."""
    if not 0.5 < probability < 1 or freedom < 1:
        raise ValueError(f"no quantile {probability} for {freedom} degrees of freedom")
    low, high = 0.0, 1.0
    while t_cdf(high, freedom) < probability:
        high *= 2
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if t_cdf(middle, freedom) < probability else (low, middle)
    return (low + high) / 2


def t_cdf(t: float, freedom: int) -> float:
    """Share of Student's distribution below `t`, t >= 0 (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan2(t, math.sqrt(freedom))
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = freedom % 2 == 1
    if freedom == 1:
        return 0.5 + angle / math.pi
    term, total = (cosine, cosine) if odd else (1.0, 1.0)
    for k in range(3 if odd else 2, freedom - 1, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    within = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return 0.5 + within / 2
