"""From measured access times to curves and ratios for every size (SAC'15, section 3, steps 3 and 4). Pure."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING

import numpy as np

from slo_ctl.serra.line import Fit, Line, fit
from slo_ctl.serra.measurement import Access, Direction, Measurement, Order
from slo_ctl.serra.points import Interval, all_sizes
from slo_ctl.serra.student import half_width

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LACK_OF_FIT = 0.10
"""A line is flagged where it is off by more than this, which is the error the paper's complete profile
accepts (SAC'15, section 4.2: 10 %), and by more than repetitions differ."""


@dataclass(frozen=True, slots=True)
class Misfit:
    """Where a line does not describe what was measured."""

    size_bytes: int
    """Of the worst."""
    error: float
    """There, relative to what was measured; positive where the line is too slow."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Access times of one test over one interval."""

    access: Access
    interval: Interval
    line: Line
    points: int
    """Sizes that were measured."""
    measurements: int
    misfit: Misfit | None
    """None: the line fits, as far as anything was measured between the extremes."""

    @property
    def checked(self) -> bool:
        """A size between the extremes was measured: two points always lie on a line."""
        return self.points > 2


@dataclass(frozen=True, slots=True)
class Ratio:
    """Sequential over random throughput at one size; over 1: access in sequence is faster."""

    size_bytes: int
    value: float | None
    """None: the curve has no positive time there."""
    low: float | None
    high: float | None
    """90 % confidence (Student's t over the logarithms of the repetitions' ratios); None: too few
    repetitions."""
    repetitions: int
    """Measured at this size; 0: estimated."""


@dataclass(frozen=True, slots=True)
class RatioSummary:
    """All sizes of one direction."""

    direction: Direction
    ratios: tuple[Ratio, ...]
    average: float | None
    minimum: float | None
    maximum: float | None
    half_width: float | None
    """Of the average's confidence interval, relative; None: too few repetitions."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """What a profile says."""

    fit: Fit
    curves: tuple[Curve, ...]
    summaries: tuple[RatioSummary, ...]

    def curve(self, access: Access, size_bytes: int) -> Curve | None:
        """The curve that holds at `size_bytes`: beyond the intervals the nearest one, None when not measured.

        A size that two intervals share belongs to the lower one.
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
    """Fit every test in every interval that has two measured sizes, and work out the ratios of every size."""
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
    for each in measurements:
        if each.access.direction is direction and each.access_time_s > 0:
            times[each.size_bytes, each.repetition][each.access.order] = each.access_time_s
    found: dict[int, list[float]] = defaultdict(list)
    for (size, _), pair in sorted(times.items()):
        if len(pair) == 2:
            found[size].append(math.log(pair[Order.RANDOM] / pair[Order.SEQUENTIAL]))
    return dict(found)


def _curve(
    interval: Interval, access: Access, measurements: Sequence[Measurement], method: Fit
) -> Curve | None:
    by_size: dict[int, list[float]] = defaultdict(list)
    for each in measurements:
        if each.access == access and interval.low_bytes <= each.size_bytes <= interval.high_bytes:
            by_size[each.size_bytes].append(each.access_time_s)
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
        # What repetitions cannot tell from noise is not the line's fault.
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
    sequential, random = (Access(order, direction) for order in (Order.SEQUENTIAL, Order.RANDOM))
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
        known = value is not None and math.isfinite(width)
        ratios.append(
            Ratio(
                size,
                value,
                value * math.exp(-width) if known and value is not None else None,
                value * math.exp(width) if known and value is not None else None,
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
        # Estimates stand on the same few measurements: their errors do not cancel.
        fmean(relative) if values and len(relative) == len(values) else None,
    )


def _covers(curve: Curve | None, size: int) -> bool:
    return curve is not None and curve.interval.low_bytes <= size <= curve.interval.high_bytes


def _width_at(size: int, measured: Sequence[int], widths: Mapping[int, float]) -> float:
    """Half-width of ln(ratio) at a size: its own, or the wider one of the measured neighbours'."""
    if size in widths:
        return widths[size]
    at = bisect_left(measured, size)
    neighbours = [widths[each] for each in measured[max(0, at - 1) : at + 1]]
    return max(neighbours, default=math.inf)
