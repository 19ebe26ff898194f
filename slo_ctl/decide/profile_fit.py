"""Analysis of a profile: from access times at a few request sizes to those at every size. Pure.

Straight lines are fitted to repeated measurements; the results are ratios of sequential to random throughput
with confidence intervals (SAC'15, section 3, steps 3 and 4).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from statistics import fmean, median
from typing import TYPE_CHECKING

from slo_ctl.decide.request_sizes import Interval, all_sizes
from slo_ctl.model.measurement import Access, Direction, Measurement, Order, accesses_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Confidence intervals of means by Student's t distribution.

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


# Straight lines through access times: least squares as in the paper, and Theil-Sen against outliers.


class Fit(StrEnum):
    """Method of fitting a line."""

    THEIL_SEN = "theil-sen"
    """Median of the slopes of all pairs (Theil 1950, Sen 1968): robust against up to 29 % of outliers."""
    LEAST_SQUARES = "least-squares"
    """The paper's linear regression (SAC'15, section 3, step 3)."""


@dataclass(frozen=True, slots=True)
class Line:
    """Access time = slope x size + intercept."""

    slope_s_per_byte: float
    intercept_s: float

    def at_s(self, size_bytes: float) -> float:
        """Access time of a request of this size; not positive if the line is not valid for it."""
        return self.slope_s_per_byte * size_bytes + self.intercept_s


def fit(method: Fit, sizes_bytes: NDArray[np.float64], times_s: NDArray[np.float64]) -> Line:
    """The line through measured times. Raises ValueError for fewer than two different sizes."""
    import numpy as np

    if len(np.unique(sizes_bytes)) < 2:
        raise ValueError("a line needs two different sizes")
    return (_theil_sen if method is Fit.THEIL_SEN else _least_squares)(sizes_bytes, times_s)


def _least_squares(x: NDArray[np.float64], y: NDArray[np.float64]) -> Line:
    centred = x - x.mean()
    slope = float((centred * (y - y.mean())).sum() / (centred**2).sum())
    return Line(slope, float(y.mean()) - slope * float(x.mean()))


def _theil_sen(x: NDArray[np.float64], y: NDArray[np.float64]) -> Line:
    import numpy as np

    first, second = np.triu_indices(len(x), 1)
    run = x[second] - x[first]
    apart = run != 0
    slope = float(np.median((y[second] - y[first])[apart] / run[apart]))
    # Ratios depend on relative errors: residuals are weighted by the reciprocal of the time.
    rest = y - slope * x
    return Line(slope, _weighted_median(rest, 1 / np.maximum(y, np.finfo(float).tiny)))


def _weighted_median(values: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    import numpy as np

    order = np.argsort(values, kind="stable")
    share = np.cumsum(weights[order]) / weights.sum()
    at = int(np.searchsorted(share, 0.5))
    if at + 1 < len(values) and np.isclose(share[at], 0.5):
        return float(values[order][at : at + 2].mean())
    return float(values[order][at])


# Curves and ratios for every size (SAC'15, section 3, steps 3 and 4).

LACK_OF_FIT = 0.10
"""Relative error of a line, beyond the confidence interval of the measurements, from which on it is reported:
the error that the paper accepts for a complete profile (SAC'15, section 4.2: 10 %)."""


@dataclass(frozen=True, slots=True)
class Misfit:
    """The largest error of a line that does not fit the measurements."""

    size_bytes: int
    """Request size with the largest error."""
    error: float
    """Error relative to the measured time; positive if the time of the line is too long."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Access times of one test over one interval."""

    access: Access
    interval: Interval
    line: Line
    points: int
    """Number of measured sizes."""
    measurements: int
    """Number of measurements of all sizes."""
    misfit: Misfit | None
    """None: the line fits all measured sizes."""

    @property
    def checked(self) -> bool:
        """Whether more than two sizes were measured, so that a misfit would be visible."""
        return self.points > 2


@dataclass(frozen=True, slots=True)
class Ratio:
    """Ratio of sequential to random throughput at one size; above 1, sequential access is faster."""

    size_bytes: int
    value: float | None
    """None: the line has no positive time at this size."""
    low: float | None
    high: float | None
    """Bounds of the 90 % confidence interval (Student's t, logarithms of the ratios of repetitions); None:
    too few repetitions."""
    repetitions: int
    """Number of measurements at this size; 0: the ratio is estimated from the lines."""


@dataclass(frozen=True, slots=True)
class RatioSummary:
    """Ratios of all sizes of one direction, and their statistics."""

    direction: Direction
    ratios: tuple[Ratio, ...]
    average: float | None
    """None, as the minimum and maximum: no size has a ratio."""
    minimum: float | None
    maximum: float | None
    half_width: float | None
    """Half the confidence interval of the average, relative to it; None: too few repetitions."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """Curves and ratios of a profile."""

    fit: Fit
    curves: tuple[Curve, ...]
    summaries: tuple[RatioSummary, ...]

    def curve(self, access: Access, size_bytes: int) -> Curve | None:
        """The curve for `size_bytes`, outside the intervals the nearest one; None when not measured.

        For a size that two intervals share, it is that of the lower one.
        """
        own = [curve for curve in self.curves if curve.access == access]
        if not own:
            return None
        return own[min(bisect_left([curve.interval.high_bytes for curve in own], size_bytes), len(own) - 1)]

    def time_s(self, access: Access, size_bytes: int) -> float | None:
        """Estimated access time; None when not measured or when the line has no positive time there."""
        curve = self.curve(access, size_bytes)
        if curve is None:
            return None
        time = curve.line.at_s(size_bytes)
        return time if time > 0 else None

    def summary(self, direction: Direction) -> RatioSummary | None:
        """Ratios of one direction; None when it was not measured."""
        return next((each for each in self.summaries if each.direction is direction), None)

    @property
    def misfits(self) -> tuple[Curve, ...]:
        """Curves whose line does not fit."""
        return tuple(curve for curve in self.curves if curve.misfit is not None)


def analyse(
    intervals: Sequence[Interval], measurements: Sequence[Measurement], method: Fit = Fit.THEIL_SEN
) -> Analysis:
    """Fit a line to each test and interval with at least two measured sizes, and compute all ratios."""
    curves = tuple(
        curve
        for access in sorted({m.access for m in measurements})
        for interval in intervals
        if (curve := _curve(interval, access, measurements, method)) is not None
    )
    partial = Analysis(method, curves, ())
    summaries = tuple(
        summary
        for direction in Direction
        if (summary := _summary(partial, direction, intervals, measurements)) is not None
    )
    return Analysis(method, curves, summaries)


def paired_log_ratios(measurements: Sequence[Measurement], direction: Direction) -> dict[int, list[float]]:
    """ln(random time / sequential time) of each repetition that has both, by size."""
    times: dict[tuple[int, int], dict[Order, float]] = defaultdict(dict)
    for m in measurements:
        if m.access.direction is direction and m.access_time_s > 0:
            times[m.size_bytes, m.repetition][m.access.order] = m.access_time_s
    log_ratios: dict[int, list[float]] = defaultdict(list)
    for (size, _), pair in sorted(times.items()):
        if len(pair) == 2:
            log_ratios[size].append(math.log(pair[Order.RANDOM] / pair[Order.SEQUENTIAL]))
    return dict(log_ratios)


def _curve(
    interval: Interval, access: Access, measurements: Sequence[Measurement], method: Fit
) -> Curve | None:
    import numpy as np

    by_size: dict[int, list[float]] = defaultdict(list)
    for m in measurements:
        if m.access == access and interval.low_bytes <= m.size_bytes <= interval.high_bytes:
            by_size[m.size_bytes].append(m.access_time_s)
    if len(by_size) < 2:
        return None
    if method is Fit.LEAST_SQUARES:
        # SAC'15, section 4.3: the arithmetic average of the executions is taken for each point.
        points = [(size, fmean(times)) for size, times in by_size.items()]
    else:
        points = [(size, time) for size, times in by_size.items() for time in times]
    x, y = (np.array(column, dtype=np.float64) for column in zip(*points, strict=True))
    line = fit(method, x, y)
    count = sum(map(len, by_size.values()))
    return Curve(access, interval, line, len(by_size), count, _misfit(line, by_size))


def _misfit(line: Line, by_size: Mapping[int, Sequence[float]]) -> Misfit | None:
    worst: Misfit | None = None
    for size, times in by_size.items():
        middle = median(times)
        if middle <= 0:
            continue
        error = line.at_s(size) / middle - 1
        # An error within the confidence interval of the measurements is no misfit.
        noise = half_width(times) / middle if len(times) > 1 else 0.0
        if abs(error) > LACK_OF_FIT + noise and (worst is None or abs(error) > abs(worst.error)):
            worst = Misfit(size, error)
    return worst


def _summary(
    analysis: Analysis,
    direction: Direction,
    intervals: Sequence[Interval],
    measurements: Sequence[Measurement],
) -> RatioSummary | None:
    sequential, random = accesses_of((direction,))
    pairs = paired_log_ratios(measurements, direction)
    widths = {size: half_width(values) for size, values in pairs.items()}
    measured = sorted(pairs)
    ratios = []
    for size in all_sizes(intervals):
        top, bottom = analysis.time_s(random, size), analysis.time_s(sequential, size)
        if not (
            _covers(analysis.curve(random, size), size) and _covers(analysis.curve(sequential, size), size)
        ):
            continue
        value = top / bottom if top is not None and bottom is not None else None
        width = _width_at(size, measured, widths)
        complete = value is not None and math.isfinite(width)
        ratios.append(
            Ratio(
                size,
                value,
                value * math.exp(-width) if complete and value is not None else None,
                value * math.exp(width) if complete and value is not None else None,
                len(pairs.get(size, ())),
            )
        )
    if not ratios:
        return None
    values = [ratio.value for ratio in ratios if ratio.value is not None]
    relative = [
        ratio.high / ratio.value - 1 for ratio in ratios if ratio.high is not None and ratio.value is not None
    ]
    return RatioSummary(
        direction,
        tuple(ratios),
        fmean(values) if values else None,
        min(values, default=None),
        max(values, default=None),
        # Errors of estimates do not cancel in the average: they derive from the same measurements.
        fmean(relative) if values and len(relative) == len(values) else None,
    )


def _covers(curve: Curve | None, size: int) -> bool:
    return curve is not None and curve.interval.low_bytes <= size <= curve.interval.high_bytes


def _width_at(size: int, measured: Sequence[int], widths: Mapping[int, float]) -> float:
    """Half the confidence interval of ln(ratio) at a size; where not measured, the wider neighbour's."""
    if size in widths:
        return widths[size]
    at = bisect_left(measured, size)
    neighbours = [widths[each] for each in measured[max(0, at - 1) : at + 1]]
    return max(neighbours, default=math.inf)
