"""Choice of the next test, the stopping rule, and the loop of measurements."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from slo_ctl.base.progress import ProgressSink
from slo_ctl.decide.profile_fit import half_width, paired_log_ratios
from slo_ctl.model.measurement import Access, Benchmark, Direction, Measurement, Order

_LARGEST_EXPONENT = 700.0


@dataclass(frozen=True, slots=True)
class StoppingRule:
    """A size is complete when the confidence intervals of its ratios are narrow enough."""

    precision: float = 0.05
    """Half-width of the 90 % interval, relative to the ratio."""
    min_repetitions: int = 3
    max_repetitions: int = 20


@dataclass(frozen=True, slots=True)
class Task:
    """One repetition of the tests of one size in one direction."""

    size_bytes: int
    repetition: int
    """Numbered from 0 for each size and direction."""
    accesses: tuple[Access, ...]


def width(measurements: Sequence[Measurement], direction: Direction, size_bytes: int) -> float:
    """Relative half-width of the ratio at a size; infinite below two repetitions."""
    own = [item for item in measurements if item.size_bytes == size_bytes]
    log_width = half_width(paired_log_ratios(own, direction).get(size_bytes, []))
    return math.expm1(log_width) if log_width < _LARGEST_EXPONENT else math.inf


def next_task(
    measurements: Sequence[Measurement],
    sizes: Sequence[int],
    accesses: Sequence[Access],
    rule: StoppingRule,
    *,
    by_round: bool = False,
) -> Task | None:
    """The next task; None when every size meets the rule.

    All reads come before writes, because random writes scatter a file over the dies of an SSD, so that
    sequential reads would not find it in sequence. All sizes are repeated equally often, the largest first
    (as in parallel SeRRa, section 5.2). `by_round`: so are both directions, so that a profile that ends early
    has complete lines for both.
    """
    counts = repetitions_by_size(measurements)
    best: tuple[tuple[int, int, int], int, Direction] | None = None
    for size in sizes:
        for direction in {access.direction for access in accesses}:
            count = counts[size, direction]
            if not _needs_repetition(count, measurements, direction, size, rule):
                continue
            last = direction is Direction.WRITE
            key = (count, last, -size) if by_round else (last, count, -size)
            if best is None or key < best[0]:
                best = key, size, direction
    if best is None:
        return None
    _, size, direction = best
    used = {
        item.repetition
        for item in measurements
        if item.size_bytes == size and item.access.direction is direction
    }
    tests = tuple(access for access in accesses if access.direction is direction)
    return Task(size, max(used, default=-1) + 1, tests)


def max_tests_left(
    measurements: Sequence[Measurement], sizes: Sequence[int], accesses: Sequence[Access], rule: StoppingRule
) -> int:
    """Largest number of tests that may follow."""
    counts = repetitions_by_size(measurements)
    return sum(
        max(0, rule.max_repetitions - counts[size, access.direction]) for size in sizes for access in accesses
    )


def _needs_repetition(
    count: int, measurements: Sequence[Measurement], direction: Direction, size: int, rule: StoppingRule
) -> bool:
    if count >= rule.max_repetitions:
        return False
    return count < rule.min_repetitions or width(measurements, direction, size) > rule.precision


def repetitions_by_size(measurements: Sequence[Measurement]) -> dict[tuple[int, Direction], int]:
    """Complete repetitions, which have both tests, by size and direction."""
    found: dict[tuple[int, Direction, int], set[Access]] = defaultdict(set)
    for item in measurements:
        found[item.size_bytes, item.access.direction, item.repetition].add(item.access)
    counts: dict[tuple[int, Direction], int] = defaultdict(int)
    for (size, direction, _), tests in found.items():
        counts[size, direction] += len(tests) == len(Order)
    return counts


# Measuring task by task until the rule is met, the budget is used or it is interrupted.

LONG_ENOUGH = 100
"""Random accesses that a test has to last for."""
SHORTEST_PART = 0.25
"""Share of the longest time of a test. Starting fio takes 0.25 s, so shorter tests would save nothing."""


class Ended(StrEnum):
    """Reason for the end of measuring."""

    PRECISE = "every ratio is precise enough, or was repeated as often as allowed"
    BUDGET = "the budget is used up"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """Request sizes, tests, stopping rule and limits."""

    sizes_bytes: Sequence[int]
    accesses: Sequence[Access]
    rule: StoppingRule
    test_s: float | None = None
    """Longest time of a test; None: tests run over the whole span, as in the paper. On fast devices tests are
    up to four times shorter: see `longest_s`."""
    budget_s: float | None = None


@dataclass(slots=True)
class SweepResult:
    """Result of measuring."""

    measurements: list[Measurement]
    """Earlier measurements followed by new ones."""
    ended: Ended = Ended.PRECISE


def run(
    plan: SweepPlan,
    benchmark: Benchmark,
    before: Sequence[Measurement],
    progress: ProgressSink,
    keep: Callable[[Sequence[Measurement]], None],
) -> SweepResult:
    """Run task after task; `keep` receives all measurements after each and at the end, also after an error.

    KeyboardInterrupt ends it with the measurements so far; other exceptions are raised.
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
                phase.advance(1 if plan.budget_s is None else benchmark.now_s() - begun)
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
    """Total of the progress: seconds of the budget, else the largest number of tests."""
    if plan.budget_s is not None:
        return plan.budget_s
    return float(max_tests_left(session.measurements, plan.sizes_bytes, plan.accesses, plan.rule))


def longest_s(
    plan: SweepPlan, measurements: Sequence[Measurement], access: Access, size_bytes: int
) -> float | None:
    """Necessary length of a test: the time of LONG_ENOUGH random accesses of this size.

    The first access of a sequential test is random, which then adds at most a hundredth, and a mean of so
    many random accesses is precise to a few percent. Their time is known from the same or larger sizes, which
    are measured first.
    """
    if plan.test_s is None:
        return None
    random_s = [
        item.access_time_s
        for item in measurements
        if item.size_bytes >= size_bytes
        and item.access.order is Order.RANDOM
        and item.access.direction is access.direction
    ]
    if not random_s:
        return plan.test_s
    return min(plan.test_s, max(plan.test_s * SHORTEST_PART, LONG_ENOUGH * min(random_s)))


def _limit(plan: SweepPlan, test_s: float | None, elapsed_s: float) -> float | None:
    """Longest time of the next test; None: no limit."""
    limits = [test_s] if test_s is not None else []
    if plan.budget_s is not None:
        limits.append(plan.budget_s - elapsed_s)
    return min(limits, default=None)
