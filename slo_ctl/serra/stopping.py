"""What to measure next, and when it is enough. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slo_ctl.serra.analysis import paired_log_ratios
from slo_ctl.serra.student import half_width

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slo_ctl.serra.measurement import Access, Direction, Measurement


@dataclass(frozen=True, slots=True)
class StoppingRule:
    """A size is done when the confidence interval of its ratio is narrow enough, in every direction."""

    precision: float = 0.05
    """Half-width of the 90 % interval, relative to the ratio."""
    min_repetitions: int = 3
    max_repetitions: int = 20


@dataclass(frozen=True, slots=True)
class Task:
    """All tests of one size, once: what is handed out as a unit (parallel SeRRa, section 4)."""

    size_bytes: int
    repetition: int
    """Numbered from 0 for each size."""


def width(measurements: Sequence[Measurement], directions: Sequence[Direction], size_bytes: int) -> float:
    """Widest relative half-width of the ratio at a size; infinite below two repetitions."""
    widest = 0.0
    for direction in directions:
        values = paired_log_ratios(measurements, direction).get(size_bytes, [])
        widest = max(widest, half_width(values))
    return math.expm1(widest) if widest < 700 else math.inf


def next_task(
    measurements: Sequence[Measurement],
    sizes: Sequence[int],
    accesses: Sequence[Access],
    rule: StoppingRule,
) -> Task | None:
    """The task to do now; None when the rule is content with every size.

    Every size once before any twice, so that a profile cut short has whole lines; small requests last within
    a round, since their tests tell least about the slope and may take longest.
    """
    done = _repetitions(measurements, accesses)
    open_: list[tuple[int, int]] = []
    directions = sorted({access.direction for access in accesses})
    for size in sizes:
        count = done.get(size, 0)
        enough = count >= rule.max_repetitions or (
            count >= rule.min_repetitions and width(measurements, directions, size) <= rule.precision
        )
        if not enough:
            open_.append((count, -size))
    if not open_:
        return None
    count, negative = min(open_)
    used = {each.repetition for each in measurements if each.size_bytes == -negative}
    return Task(-negative, max(used, default=-1) + 1)


def tasks_at_most(
    measurements: Sequence[Measurement], sizes: Sequence[int], accesses: Sequence[Access], rule: StoppingRule
) -> int:
    """How many more tasks there can be."""
    done = _repetitions(measurements, accesses)
    return sum(max(0, rule.max_repetitions - done.get(size, 0)) for size in sizes)


def _repetitions(measurements: Sequence[Measurement], accesses: Sequence[Access]) -> dict[int, int]:
    """Whole repetitions by size: those that have every test of `accesses`."""
    tests: dict[tuple[int, int], set[Access]] = defaultdict(set)
    for each in measurements:
        tests[each.size_bytes, each.repetition].add(each.access)
    whole: dict[int, int] = defaultdict(int)
    for (size, _), found in tests.items():
        whole[size] += set(accesses) <= found
    return dict(whole)
