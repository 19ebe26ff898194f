"""Which test is next, and when the estimate is good enough. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from slo_ctl.base.progress import Phase, ProgressSink
from slo_ctl.decide.profile_fit import half_width, paired_log_ratios
from slo_ctl.model.measurement import Access, Benchmark, Direction, Measurement, Order

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


# Measuring until it is enough: task by task, kept at once, ended by rule, budget or interruption.

LONG_ENOUGH = 100
SHORTEST_PART = 0.25
"""Of the longest time of a test. Starting fio takes a quarter of a second: less would save nothing."""


class Ended(StrEnum):
    """Why measuring ended."""

    PRECISE = "every ratio is known well enough, or repeated as often as allowed"
    BUDGET = "the budget is used up"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """Sizes and stopping rule."""

    sizes_bytes: Sequence[int]
    accesses: Sequence[Access]
    rule: StoppingRule
    test_s: float | None = None
    """The longest that one test may take; None: each runs over the whole span, as the paper's do. Tests end
    sooner, but not before a quarter of it, on a device where that is long enough: see `longest_s`."""
    budget_s: float | None = None


@dataclass(slots=True)
class SweepResult:
    """What came of it."""

    measurements: list[Measurement] = field(default_factory=list)
    """Those of before, and the new ones behind them."""
    new: int = 0
    ended: Ended = Ended.PRECISE


def run(
    plan: SweepPlan,
    benchmark: Benchmark,
    before: Sequence[Measurement],
    progress: ProgressSink,
    keep: Callable[[Sequence[Measurement]], None],
) -> SweepResult:
    """Do task after task; `keep` gets all measurements after each, and once more in the end, whatever ends
    it.

    KeyboardInterrupt ends it with what was measured; every other exception passes, after `keep`.
    """
    session = SweepResult(list(before))
    phase = progress.phase("profiling", _amount(plan, session), "s" if plan.budget_s is not None else "tests")
    start = benchmark.now_s()
    try:
        while (task := _next_task(plan, session.measurements)) is not None:
            for access in task.accesses:
                longest = longest_s(plan, session.measurements, access, task.size_bytes)
                limit = _limit(plan, longest, benchmark.now_s() - start)
                if limit is not None and limit <= 0:
                    session.ended = Ended.BUDGET
                    return session
                begun = benchmark.now_s()
                found = benchmark.measure(access, task.size_bytes, task.repetition, limit)
                session.measurements.append(found)
                session.new += 1
                _advance(plan, phase, benchmark.now_s() - begun)
            keep(session.measurements)
    except KeyboardInterrupt:
        session.ended = Ended.INTERRUPTED
    finally:
        phase.done()
        keep(session.measurements)
    return session


def _next_task(plan: SweepPlan, measurements: Sequence[Measurement]) -> Task | None:
    by_round = plan.budget_s is not None
    return next_task(measurements, plan.sizes_bytes, plan.accesses, plan.rule, by_round=by_round)


def _amount(plan: SweepPlan, session: SweepResult) -> float:
    """The total of the progress: seconds of a budget, else as many tests as there can be."""
    if plan.budget_s is not None:
        return plan.budget_s
    return float(tests_at_most(session.measurements, plan.sizes_bytes, plan.accesses, plan.rule))


def _advance(plan: SweepPlan, phase: Phase, took_s: float) -> None:
    phase.advance(1 if plan.budget_s is None else took_s)


def longest_s(
    plan: SweepPlan, measurements: Sequence[Measurement], access: Access, size_bytes: int
) -> float | None:
    """How long a test of that size has to be: as long as LONG_ENOUGH random accesses.

    A sequential test begins with a random access, which then adds a hundredth at most, and a mean of so many
    random ones is known to a few percent. How long one takes is known from the same or larger sizes, which
    are measured first and take no less.
    """
    if plan.test_s is None:
        return None
    known = [
        each.access_time_s
        for each in measurements
        if each.size_bytes >= size_bytes and each.access == Access(Order.RANDOM, access.direction)
    ]
    if not known:
        return plan.test_s
    return min(plan.test_s, max(plan.test_s * SHORTEST_PART, LONG_ENOUGH * min(known)))


def _limit(plan: SweepPlan, test_s: float | None, elapsed_s: float) -> float | None:
    """The longest that the next test may take."""
    limits = [test_s] if test_s is not None else []
    if plan.budget_s is not None:
        limits.append(plan.budget_s - elapsed_s)
    return min(limits, default=None)
