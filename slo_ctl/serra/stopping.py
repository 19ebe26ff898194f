"""What to measure next, and when it is enough. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slo_ctl.serra.analysis import paired_log_ratios
from slo_ctl.serra.measurement import Direction, Order
from slo_ctl.serra.student import half_width

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slo_ctl.serra.measurement import Access, Measurement

_LARGEST_EXPONENT = 700.0


@dataclass(frozen=True, slots=True)
class StoppingRule:
    """A size is done when the confidence interval of its ratio is narrow enough, in every direction."""

    precision: float = 0.05
    """Half-width of the 90 % interval, relative to the ratio."""
    min_repetitions: int = 3
    max_repetitions: int = 20


@dataclass(frozen=True, slots=True)
class Task:
    """The tests of one size in one direction, once."""

    size_bytes: int
    repetition: int
    """Numbered from 0 for each size and direction."""
    accesses: tuple[Access, ...]


def width(measurements: Sequence[Measurement], direction: Direction, size_bytes: int) -> float:
    """Relative half-width of the ratio at a size; infinite below two repetitions."""
    own = [each for each in measurements if each.size_bytes == size_bytes]
    return _expm1(half_width(paired_log_ratios(own, direction).get(size_bytes, [])))


def next_task(
    measurements: Sequence[Measurement],
    sizes: Sequence[int],
    accesses: Sequence[Access],
    rule: StoppingRule,
    *,
    by_round: bool = False,
) -> Task | None:
    """The task to do now; None when the rule is content with every size.

    All of the reads come before the writes: random writes scatter a file over an SSD's dies, and what is then
    read in sequence is no longer what was written in sequence. Every size comes once before any twice, the
    largest first (parallel SeRRa, section 5.2, ends with the small ones). `by_round`: both directions of
    every size come once before any twice, so that a profile cut short has whole lines of both.
    """
    counts = repetitions_by_size(measurements)
    best: tuple[tuple[int, int, int], int, Direction] | None = None
    for size in sizes:
        for direction in {access.direction for access in accesses}:
            count = counts[size, direction]
            if not _is_wanted(count, measurements, direction, size, rule):
                continue
            last = direction is Direction.WRITE
            key = (count, last, -size) if by_round else (last, count, -size)
            if best is None or key < best[0]:
                best = key, size, direction
    if best is None:
        return None
    _, size, direction = best
    used = {
        each.repetition
        for each in measurements
        if each.size_bytes == size and each.access.direction is direction
    }
    due = tuple(access for access in accesses if access.direction is direction)
    return Task(size, max(used, default=-1) + 1, due)


def tests_at_most(
    measurements: Sequence[Measurement], sizes: Sequence[int], accesses: Sequence[Access], rule: StoppingRule
) -> int:
    """How many more tests there can be."""
    counts = repetitions_by_size(measurements)
    return sum(
        max(0, rule.max_repetitions - counts[size, access.direction]) for size in sizes for access in accesses
    )


def _is_wanted(
    count: int, measurements: Sequence[Measurement], direction: Direction, size: int, rule: StoppingRule
) -> bool:
    if count >= rule.max_repetitions:
        return False
    return count < rule.min_repetitions or width(measurements, direction, size) > rule.precision


def repetitions_by_size(measurements: Sequence[Measurement]) -> dict[tuple[int, Direction], int]:
    """Whole repetitions by size and direction: those with both tests, whose ratio is a pair's."""
    found: dict[tuple[int, Direction, int], set[Access]] = defaultdict(set)
    for each in measurements:
        found[each.size_bytes, each.access.direction, each.repetition].add(each.access)
    counts: dict[tuple[int, Direction], int] = defaultdict(int)
    for (size, direction, _), tests in found.items():
        counts[size, direction] += len(tests) == len(Order)
    return counts


def _expm1(value: float) -> float:
    return math.expm1(value) if value < _LARGEST_EXPONENT else math.inf
