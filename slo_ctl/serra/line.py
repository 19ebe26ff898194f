"""Straight lines through access times: least squares as in the paper, and Theil-Sen against outliers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Fit(StrEnum):
    """How a line is found."""

    THEIL_SEN = "theil-sen"
    """Median of the slopes of all pairs (Theil 1950, Sen 1968): good with up to 29 % outliers."""
    LEAST_SQUARES = "least-squares"
    """The paper's linear regression (SAC'15, section 3, step 3)."""


@dataclass(frozen=True, slots=True)
class Line:
    """Access time = slope x size + intercept."""

    slope_s_per_byte: float
    intercept_s: float

    def at_s(self, size_bytes: float) -> float:
        """Access time of a request of this size; not positive where the line is no good there."""
        return self.slope_s_per_byte * size_bytes + self.intercept_s


def fit(method: Fit, sizes_bytes: NDArray[np.float64], times_s: NDArray[np.float64]) -> Line:
    """The line through measured times. Raises ValueError for fewer than two different sizes."""
    if len(np.unique(sizes_bytes)) < 2:
        raise ValueError("a line needs two different sizes")
    return (_theil_sen if method is Fit.THEIL_SEN else _least_squares)(sizes_bytes, times_s)


def _least_squares(x: NDArray[np.float64], y: NDArray[np.float64]) -> Line:
    centred = x - x.mean()
    slope = float((centred * (y - y.mean())).sum() / (centred**2).sum())
    return Line(slope, float(y.mean()) - slope * float(x.mean()))


def _theil_sen(x: NDArray[np.float64], y: NDArray[np.float64]) -> Line:
    first, second = np.triu_indices(len(x), 1)
    run = x[second] - x[first]
    apart = run != 0
    slope = float(np.median((y[second] - y[first])[apart] / run[apart]))
    # Ratios are compared relatively, so the intercept heeds short times as much as long ones.
    rest = y - slope * x
    return Line(slope, _weighted_median(rest, 1 / np.maximum(y, np.finfo(float).tiny)))


def _weighted_median(values: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    order = np.argsort(values, kind="stable")
    share = np.cumsum(weights[order]) / weights.sum()
    at = int(np.searchsorted(share, 0.5))
    if at + 1 < len(values) and np.isclose(share[at], 0.5):
        return float(values[order][at : at + 2].mean())
    return float(values[order][at])
