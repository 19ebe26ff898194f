"""Weights as people promise them, as the whole numbers that kernels take."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

EQUAL = 100
"""What equal weights become: the kernel's default, so that nothing is changed for them."""


@dataclass(frozen=True, slots=True)
class ScaledWeights:
    """Whole numbers that keep the proportions of weights as well as their range allows."""

    values: dict[float, int]
    """By the weight promised."""
    worst_rounding: float
    """The largest relative distance of a number from its exact proportion."""


def scale_weights(weights: Iterable[float], low: int, high: int) -> ScaledWeights:
    """Scale positive weights into low..high, the largest near the top, where whole numbers are finest.

    Of all tops in the upper half the one with the smallest worst relative rounding is taken, the highest of
    equals; lower tops cannot be better, as twice such a one rounds no worse. Equal weights all become 100.
    """
    return _scaled(tuple(sorted(set(weights))), low, high)


@lru_cache(maxsize=64)
def _scaled(weights: tuple[float, ...], low: int, high: int) -> ScaledWeights:
    if len(weights) < 2:
        return ScaledWeights(dict.fromkeys(weights, min(high, max(low, EQUAL))), 0.0)
    tops = np.arange(high, high // 2, -1, dtype=np.float64)
    exact = tops[:, None] * (np.array(weights) / weights[-1])
    rounded = np.maximum(np.rint(exact), low)
    worst = np.abs(rounded / exact - 1).max(axis=1)
    # The last digits of a float must not decide which of two exact tops is the best one.
    best = int(np.argmax(worst <= worst.min() + 1e-12))
    values = {weight: int(value) for weight, value in zip(weights, rounded[best], strict=True)}
    return ScaledWeights(values, float(worst[best]))
