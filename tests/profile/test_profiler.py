"""The next measurement, and when the profiler stops."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from made_up import Formula

from slo_ctl.base.progress import Silent
from slo_ctl.model.measurement import (
    ACCESSES,
    RAND_READ,
    SEQ_READ,
    SEQ_WRITE,
    WHOLE,
    Access,
    Direction,
    Measurement,
    Part,
)
from slo_ctl.profile.sweep import Ended, StoppingRule, SweepPlan, next_task, run, width
from slo_ctl.profile.sweep import longest_s as limit_s

SIZES = (8192, 65536, 4 << 20)


def test_every_size_once_before_any_twice_largest_first() -> None:
    device = Formula(noise=0.2)
    run(SweepPlan(SIZES, ACCESSES, StoppingRule(), test_s=0.1), device, [], Silent(), lambda _: None)
    first = [size for access, size, _ in device.calls if access == SEQ_READ][:3]
    assert first == [4 << 20, 65536, 8192]


def test_reads_precede_writes() -> None:
    device = Formula(noise=0.2)
    run(SweepPlan(SIZES, ACCESSES, StoppingRule(), test_s=0.1), device, [], Silent(), lambda _: None)
    directions = [access.direction for access, _, _ in device.calls]
    reads = directions.count(Direction.READ)
    assert 0 < reads < len(directions)
    assert set(directions[:reads]) == {Direction.READ}


def test_with_a_budget_every_size_comes_once_in_both_directions_before_any_twice() -> None:
    device = Formula(noise=0.2)
    plan = SweepPlan(SIZES, ACCESSES, StoppingRule(precision=1e-9), test_s=0.1, budget_s=5.0)
    run(plan, device, [], Silent(), lambda _: None)
    first = [(access, size) for access, size, _ in device.calls[: len(SIZES) * len(ACCESSES)]]
    assert len(device.calls) > len(first)
    assert set(first) == {(access, size) for access in ACCESSES for size in SIZES}
    assert [access.direction for access, _ in first[: len(first) // 2]] == [Direction.READ] * 6


def test_profiling_stops_when_the_ratio_is_known() -> None:
    rule = StoppingRule(precision=0.05, min_repetitions=3, max_repetitions=50)
    quiet, noisy = Formula(noise=0.001), Formula(noise=0.05)
    for device in (quiet, noisy):
        session = run(SweepPlan(SIZES, ACCESSES, rule, 0.1), device, [], Silent(), lambda _: None)
        assert session.ended is Ended.PRECISE
        for size in SIZES:
            assert all(width(session.measurements, direction, size) <= 0.05 for direction in Direction)
    assert len(quiet.calls) == 3 * 3 * 4
    assert len(noisy.calls) > len(quiet.calls)


def test_profiling_stops_at_the_maximum_of_repetitions() -> None:
    rule = StoppingRule(precision=1e-9, max_repetitions=5)
    session = run(SweepPlan(SIZES, ACCESSES, rule, 0.1), Formula(0.5), [], Silent(), lambda _: None)
    assert len(session.measurements) == 5 * 3 * 4


def test_slices_of_a_budget_add_up() -> None:
    device = Formula(noise=0.05)
    plan = SweepPlan(SIZES, ACCESSES, StoppingRule(precision=1e-9), test_s=0.2, budget_s=3.0)
    first = run(plan, device, [], Silent(), lambda _: None)
    assert first.ended is Ended.BUDGET
    assert device.clock_s < 3.5
    second = run(plan, device, first.measurements, Silent(), lambda _: None)
    assert second.measurements[: len(first.measurements)] == first.measurements
    assert len(second.measurements) > len(first.measurements)
    measured = [(m.access, m.size_bytes, m.repetition) for m in second.measurements]
    assert len(measured) == len(set(measured)), "no test counts twice"


class Interrupting(Formula):
    def __init__(self, after: int, by: type[BaseException]) -> None:
        super().__init__()
        self._after, self._by = after, by

    def measure(
        self, access: Access, size_bytes: int, repetition: int, limit_s: float | None, part: Part = WHOLE
    ) -> Measurement:
        if len(self.calls) == self._after:
            raise self._by
        return super().measure(access, size_bytes, repetition, limit_s, part)


@pytest.mark.parametrize("after", [0, 1, 5, 17])
def test_an_interruption_at_any_moment_keeps_what_was_measured(after: int) -> None:
    kept: list[Sequence[Measurement]] = []
    device = Interrupting(after, KeyboardInterrupt)
    session = run(
        SweepPlan(SIZES, ACCESSES, StoppingRule(), 0.1), device, [], Silent(), lambda m: kept.append(list(m))
    )
    assert session.ended is Ended.INTERRUPTED
    assert len(session.measurements) == after
    assert len(kept[-1]) == after


def test_measurements_are_kept_before_an_error_is_raised() -> None:
    kept: list[Sequence[Measurement]] = []
    with pytest.raises(ZeroDivisionError):
        run(
            SweepPlan(SIZES, ACCESSES, StoppingRule(), 0.1),
            Interrupting(6, ZeroDivisionError),
            [],
            Silent(),
            lambda m: kept.append(list(m)),
        )
    assert len(kept[-1]) == 6


def test_interrupted_task_is_repeated_with_the_next_number() -> None:
    cut = [Measurement(SEQ_READ, 8192, 0, 1e-3, 1, 1e-3)]
    task = next_task(cut, [8192], ACCESSES, StoppingRule())
    assert task is not None
    assert task.repetition == 1


def test_known_direction_is_not_measured_again() -> None:
    class OneNoisy(Formula):
        def measure(
            self, access: Access, size_bytes: int, repetition: int, limit_s: float | None, part: Part = WHOLE
        ) -> Measurement:
            self._noise = 0.2 if access.direction is Direction.WRITE else 0.001
            return super().measure(access, size_bytes, repetition, limit_s, part)

    device = OneNoisy()
    run(SweepPlan(SIZES, ACCESSES, StoppingRule(), 0.1), device, [], Silent(), lambda _: None)
    directions = [access.direction for access, _, _ in device.calls]
    assert directions.count(Direction.READ) == 3 * 3 * 2
    assert directions.count(Direction.WRITE) > 2 * directions.count(Direction.READ)


def test_test_length_adapts_to_the_noise() -> None:
    plan = SweepPlan(SIZES, ACCESSES, StoppingRule(), test_s=1.0)
    slow = [Measurement(RAND_READ, 65536, 0, 8e-3, 10, 1.0)]
    fast = [Measurement(RAND_READ, 65536, 0, 1e-4, 10, 1.0)]
    assert limit_s(plan, [], SEQ_READ, 8192) == 1.0, "nothing is known"
    assert limit_s(plan, slow, SEQ_READ, 8192) == pytest.approx(0.8)
    assert limit_s(plan, fast, SEQ_READ, 8192) == 0.25
    assert limit_s(plan, fast, SEQ_WRITE, 8192) == 1.0, "of the other direction"
    assert limit_s(plan, fast, SEQ_READ, 1 << 20) == 1.0, "of a smaller size"
    assert limit_s(SweepPlan(SIZES, ACCESSES, StoppingRule()), fast, SEQ_READ, 8192) is None
