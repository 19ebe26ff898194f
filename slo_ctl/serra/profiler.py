"""Measuring until it is enough: task by task, kept at once, ended by rule, budget or interruption."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from slo_ctl.serra.measurement import Access, Order
from slo_ctl.serra.stopping import StoppingRule, next_task, tests_at_most

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slo_ctl.replay.progress import Phase, ProgressSink
    from slo_ctl.serra.measurement import Benchmark, Measurement
    from slo_ctl.serra.stopping import Task


LONG_ENOUGH = 100
SHORTEST_PART = 0.25
"""Of the longest time of a test. Starting fio takes a quarter of a second: less would save nothing."""


class Ended(StrEnum):
    """Why measuring ended."""

    PRECISE = "every ratio is known well enough, or repeated as often as allowed"
    BUDGET = "the budget is used up"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure."""

    sizes_bytes: Sequence[int]
    accesses: Sequence[Access]
    rule: StoppingRule
    test_s: float | None = None
    """The longest that one test may take; None: each runs over the whole span, as the paper's do. Tests end
    sooner, but not before a quarter of it, on a device where that is long enough: see `longest_s`."""
    budget_s: float | None = None


@dataclass(slots=True)
class Session:
    """What came of it."""

    measurements: list[Measurement] = field(default_factory=list)
    """Those of before, and the new ones behind them."""
    new: int = 0
    ended: Ended = Ended.PRECISE


def run(
    plan: Plan,
    benchmark: Benchmark,
    before: Sequence[Measurement],
    progress: ProgressSink,
    keep: Callable[[Sequence[Measurement]], None],
) -> Session:
    """Do task after task; `keep` gets all measurements after each, and once more in the end, whatever ends
    it.

    KeyboardInterrupt ends it with what was measured; every other exception passes, after `keep`.
    """
    session = Session(list(before))
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


def _next_task(plan: Plan, measurements: Sequence[Measurement]) -> Task | None:
    by_round = plan.budget_s is not None
    return next_task(measurements, plan.sizes_bytes, plan.accesses, plan.rule, by_round=by_round)


def _amount(plan: Plan, session: Session) -> float:
    """The total of the progress: seconds of a budget, else as many tests as there can be."""
    if plan.budget_s is not None:
        return plan.budget_s
    return float(tests_at_most(session.measurements, plan.sizes_bytes, plan.accesses, plan.rule))


def _advance(plan: Plan, phase: Phase, took_s: float) -> None:
    phase.advance(1 if plan.budget_s is None else took_s)


def longest_s(
    plan: Plan, measurements: Sequence[Measurement], access: Access, size_bytes: int
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


def _limit(plan: Plan, test_s: float | None, elapsed_s: float) -> float | None:
    """The longest that the next test may take."""
    limits = [test_s] if test_s is not None else []
    if plan.budget_s is not None:
        limits.append(plan.budget_s - elapsed_s)
    return min(limits, default=None)
