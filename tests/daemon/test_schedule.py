"""When epochs start."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slo_ctl.daemon.service import MIN_INTERVAL_S, Schedule


def test_epochs_start_at_multiples_of_their_length() -> None:
    schedule = Schedule(1.0, 100.0)
    now = 100.0
    for epoch in range(50):
        now += schedule.wait_s(now)
        assert now == pytest.approx(100.0 + epoch)
        assert schedule.start_epoch(now + 0.01) == 0
        now += 0.3


def test_late_epochs_do_not_accumulate() -> None:
    schedule = Schedule(1.0, 0.0)
    schedule.start_epoch(0.0)
    assert schedule.start_epoch(4.5) == 3
    assert schedule.wait_s(4.6) == pytest.approx(0.4)
    assert schedule.missed == 3


@given(st.floats(0.01, 10), st.lists(st.floats(0, 30), max_size=40))
def test_epochs_stay_on_the_grid_whatever_they_take(epoch_s: float, took_s: list[float]) -> None:
    schedule, now, begun = Schedule(epoch_s, 0.0), 0.0, 0
    for took in took_s:
        now += schedule.wait_s(now)
        begun += 1 + schedule.start_epoch(now)
        assert begun == pytest.approx(now / epoch_s, abs=1.001)
        assert 0 < schedule.wait_s(now) <= epoch_s * 1.001
        now += took


def test_changed_epoch_length_counts_from_now() -> None:
    schedule = Schedule(1.0, 0.0)
    schedule.start_epoch(0.0)
    schedule.set_interval(1.0, 0.5)
    assert schedule.wait_s(0.5) == 0.5
    schedule.set_interval(0.2, 0.5)
    assert schedule.wait_s(0.5) == pytest.approx(0.2)


def test_change_starts_the_next_epoch_early() -> None:
    schedule = Schedule(10.0, 0.0)
    schedule.start_epoch(0.0)
    schedule.bring_forward(4.0)
    assert schedule.wait_s(4.0) == 0
    assert schedule.start_epoch(4.0) == 0
    assert schedule.wait_s(4.0) == 10
    schedule.bring_forward(4.05)
    assert schedule.wait_s(4.05) == pytest.approx(MIN_INTERVAL_S - 0.05)


def test_change_never_delays_an_epoch() -> None:
    schedule = Schedule(0.1, 0.0)
    schedule.start_epoch(0.0)
    schedule.bring_forward(0.01)
    assert schedule.wait_s(0.01) == pytest.approx(0.09)


@given(st.lists(st.floats(0, 0.3), max_size=200))
def test_burst_of_changes_gives_five_epochs_per_second(pauses_s: list[float]) -> None:
    schedule, now, epochs = Schedule(60.0, 0.0), 0.0, 0
    schedule.start_epoch(0.0)
    for pause_s in pauses_s:
        now += pause_s
        schedule.bring_forward(now)
        if schedule.wait_s(now) == 0:
            schedule.start_epoch(now)
            epochs += 1
    assert epochs <= now / MIN_INTERVAL_S + 1e-6
    assert schedule.missed == 0
