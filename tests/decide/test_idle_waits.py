"""Time that bfq spends with and without waiting."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slo_ctl.decide.idle_waits import FIRST_TRIAL_S, LATEST_TRIAL_S, IdleWaits, begin, step

EPOCH_S = 0.5


def run(hours: float, window_s: float, behind_without: bool) -> list[IdleWaits]:
    """Run epochs in which a VM is behind exactly in windows without waiting, or never."""
    waits, states, now_s = begin(0.0, window_s), [], 0.0
    while now_s < hours * 3600.0:
        is_behind = behind_without and not waits.on and now_s - waits.since_s >= window_s
        waits = step(waits, now_s, window_s, is_behind=is_behind)
        states.append(waits)
        now_s += EPOCH_S
    return states


def part_without(states: list[IdleWaits]) -> float:
    return sum(not waits.on for waits in states) / len(states)


def test_shares_that_need_waiting_are_rarely_without() -> None:
    states = run(12.0, 10.0, behind_without=True)
    assert part_without(states[: int(600.0 / EPOCH_S)]) <= 0.07
    assert part_without(states[len(states) // 2 :]) <= 0.006
    assert max(waits.trial_after_s for waits in states) == LATEST_TRIAL_S


def test_load_that_needs_no_waiting_has_it_for_one_window() -> None:
    states = run(1.0, 10.0, behind_without=False)
    assert [waits.on for waits in states].count(True) * EPOCH_S == 10.0


def test_need_after_a_long_time_without_begins_with_the_first_delay() -> None:
    last = IdleWaits(on=False, since_s=0.0, trial_after_s=LATEST_TRIAL_S)
    assert step(last, LATEST_TRIAL_S - 1.0, 10.0, is_behind=True).trial_after_s == LATEST_TRIAL_S
    assert step(last, LATEST_TRIAL_S, 10.0, is_behind=True).trial_after_s == FIRST_TRIAL_S


@given(
    window_s=st.floats(0.1, 86400.0),
    events=st.lists(st.tuples(st.floats(0.1, 1000.0), st.booleans()), max_size=60),
)
def test_each_state_lasts_a_window_at_least(window_s: float, events: list[tuple[float, bool]]) -> None:
    waits, now_s = begin(0.0, window_s), 0.0
    for after_s, is_behind in events:
        now_s += after_s
        following = step(waits, now_s, window_s, is_behind=is_behind)
        if following.on != waits.on:
            assert now_s - waits.since_s >= min(window_s, FIRST_TRIAL_S)
            assert following.since_s == now_s
        assert 0.0 < following.trial_after_s <= max(window_s, LATEST_TRIAL_S)
        waits = following
