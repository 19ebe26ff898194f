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
_ANCHORED_ROUNDING = 0.005
"""The default weight becomes the kernel's default where that rounds no weight by more."""


@dataclass(frozen=True, slots=True)
class ScaledWeights:
    """Whole numbers that keep the proportions of weights as well as their range allows."""

    values: dict[float, int]
    """By the weight promised."""
    worst_rounding: float
    """The largest relative distance of a number from its exact proportion."""


def scale_weights(
    weights: Iterable[float], low: int, high: int, default: float | None = None
) -> ScaledWeights:
    """Scale positive weights into low..high. Equal weights all become 100.

    Where `default`, the weight of those whom nobody promised anything, can become 100 with all others in the
    range and rounded by half a per cent at the most, it does: such a VM has that number already. Otherwise
    the largest comes near the top, where whole numbers are finest: of all tops in the upper half the one
    with the smallest worst relative rounding, the highest of equals; lower tops cannot be better, as twice
    such a one rounds no worse.
    """
    return _scaled(tuple(sorted(set(weights))), low, high, default)


@lru_cache(maxsize=64)
def _scaled(weights: tuple[float, ...], low: int, high: int, default: float | None) -> ScaledWeights:
    if len(weights) < 2:
        return ScaledWeights(dict.fromkeys(weights, min(high, max(low, EQUAL))), 0.0)
    if default is not None and (anchored := _anchored(weights, low, high, default)) is not None:
        return anchored
    tops = np.arange(high, high // 2, -1, dtype=np.float64)
    exact = tops[:, None] * (np.array(weights) / weights[-1])
    rounded = np.maximum(np.rint(exact), low)
    worst = np.abs(rounded / exact - 1).max(axis=1)
    # The last digits of a float must not decide which of two exact tops is the best one.
    best = int(np.argmax(worst <= worst.min() + 1e-12))
    values = {weight: int(value) for weight, value in zip(weights, rounded[best], strict=True)}
    return ScaledWeights(values, float(worst[best]))


def _anchored(weights: tuple[float, ...], low: int, high: int, default: float) -> ScaledWeights | None:
    """With 100 for `default`, if that is exact enough."""
    exact = [EQUAL / default * weight for weight in weights]
    if exact[-1] > high or exact[0] < low:
        return None
    values = [round(each) for each in exact]
    worst = max(abs(value / each - 1) for value, each in zip(values, exact, strict=True))
    if worst > _ANCHORED_ROUNDING:
        return None
    return ScaledWeights(dict(zip(weights, values, strict=True)), worst)
