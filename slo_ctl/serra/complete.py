"""The profile that SeRRa estimates: every size measured, until each mean is known (SAC'15, section 4.2)."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING

from slo_ctl.serra.measurement import ACCESSES, Access, Direction, Order, accesses_of
from slo_ctl.serra.student import half_width

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from slo_ctl.serra.analysis import RatioSummary
    from slo_ctl.serra.measurement import Benchmark, Measurement

MAX_ERROR = 0.10
MIN_REPETITIONS = 6
MAX_REPETITIONS = 500
"""Against a test that never settles."""


@dataclass(frozen=True, slots=True)
class Complete:
    """Mean access times of every size."""

    times_s: Mapping[tuple[Access, int], float]
    spent_s: float
    """What measuring took."""
    repetitions: float
    """Mean over all sizes."""

    def ratio(self, direction: Direction, size_bytes: int) -> float:
        """Sequential over random throughput."""
        sequential, random = (Access(order, direction) for order in (Order.SEQUENTIAL, Order.RANDOM))
        return self.times_s[random, size_bytes] / self.times_s[sequential, size_bytes]

    def average_ratio(self, direction: Direction) -> float:
        """Over all sizes."""
        return fmean(
            self.ratio(direction, size)
            for access, size in self.times_s
            if access == Access(Order.RANDOM, direction)
        )

    def errors(self, summary: RatioSummary) -> list[float]:
        """Relative error of each estimated ratio, as an absolute value; a ratio that is missing is all
        wrong."""
        return [
            1.0
            if each.value is None
            else abs(each.value / self.ratio(summary.direction, each.size_bytes) - 1)
            for each in summary.ratios
        ]

    def median_error(self, summary: RatioSummary) -> float:
        """Of the errors over all sizes: the paper's measure."""
        return median(self.errors(summary))


def measure_completely(
    benchmark: Benchmark, sizes_bytes: Sequence[int], directions: tuple[Direction, ...]
) -> Complete:
    """Measure every size with whole tests, each repeated until its mean is known to 10 % with 90 %
    confidence.

    At least six times (SAC'15, section 4.2).
    """
    start = benchmark.now_s()
    accesses = accesses_of(directions)
    means: dict[tuple[Access, int], float] = {}
    repetitions: list[int] = []
    for size in sizes_bytes:
        times: dict[Access, list[float]] = {access: [] for access in accesses}
        for repetition in range(MAX_REPETITIONS):
            unsettled = [access for access in accesses if not _settled(times[access])]
            if not unsettled:
                break
            for access in unsettled:
                times[access].append(benchmark.measure(access, size, repetition, None).access_time_s)
        means |= {(access, size): fmean(values) for access, values in times.items()}
        repetitions += [len(values) for values in times.values()]
    return Complete(means, benchmark.now_s() - start, fmean(repetitions))


def measure_as_the_paper(
    benchmark: Benchmark, sizes_bytes: Sequence[int], repetitions: int
) -> list[Measurement]:
    """SeRRa's benchmark phase as published: all four tests of a size, whole, a given number of times (SAC'15,
    section 3, step 2)."""
    return [
        benchmark.measure(access, size, repetition, None)
        for repetition in range(repetitions)
        for size in sorted(sizes_bytes, reverse=True)
        for access in ACCESSES
    ]


def _settled(times: Sequence[float]) -> bool:
    return len(times) >= MIN_REPETITIONS and half_width(times) <= MAX_ERROR * fmean(times)
