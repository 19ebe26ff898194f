"""Pauses of OPS moves for a p99 begin at a miss while OPS moves, and last only if they help."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slo_ctl.decide.limit_control import LONGEST_RETRY, RETRY_AFTER
from slo_ctl.decide.move_pause import MovePause, next_pause
from slo_ctl.decide.objectives import ControlledVm

EFFECT = 4
HOLD = 2 * EFFECT
FIRST_RETRY = RETRY_AFTER * EFFECT // 2


def db(p99_us: float | None) -> list[ControlledVm]:
    return [ControlledVm("db", 100, 100, True, p99_us=p99_us, max_p99_us=1000, effect_windows=EFFECT)]


def after(windows: int, pause: MovePause, p99_us: float, *, moving: bool = True) -> MovePause:
    for _ in range(windows):
        pause = next_pause(pause, db(p99_us), moving=moving)
    return pause


def test_p99_that_moves_make_it_miss_pauses_them_until_the_next_try() -> None:
    pause = after(1, MovePause(), 2000)
    assert pause.text == "OPS moves are paused for the p99 of db"
    pause = after(HOLD - EFFECT, after(EFFECT, pause, 2000), 900)
    assert not pause.hold_windows
    assert after(FIRST_RETRY - 1, pause, 900).vms == ("db",)
    pause = after(FIRST_RETRY, pause, 900)
    assert not pause.vms
    # Moves take effect after some windows.
    assert after(1, after(EFFECT, pause, 900), 2000).windows == HOLD + 2 * FIRST_RETRY


def test_moves_go_on_if_the_p99_is_missed_without_them_too() -> None:
    pause = after(HOLD + 1, MovePause(), 2000)
    assert not pause.vms
    assert not after(FIRST_RETRY - 1, pause, 2000).vms
    assert after(FIRST_RETRY + 1, pause, 2000).vms == ("db",)


def test_without_moves_or_a_miss_there_is_no_pause() -> None:
    assert after(9, MovePause(), 2000, moving=False) == MovePause()
    assert after(9, MovePause(), 900) == MovePause()


def test_pause_ends_with_its_vm_or_target() -> None:
    paused = after(EFFECT + 2, after(1, MovePause(), 2000), 900)
    assert paused.vms
    assert not next_pause(paused, [], moving=True).vms
    assert not next_pause(paused, [db(2000)[0]._replace(max_p99_us=None)], moving=True).vms


def test_change_of_active_vms_is_a_reason_to_try_again_but_not_to_end_a_pause() -> None:
    refused = after(HOLD + 1, MovePause(), 2000)
    assert next_pause(refused, db(2000), moving=True, changed=True).vms == ("db",)
    paused = after(EFFECT + 1, after(1, MovePause(), 2000), 900)
    assert next_pause(paused, db(900), moving=True, changed=True).vms == ("db",)


@given(st.lists(st.tuples(st.sampled_from([None, 900.0, 2000.0]), st.booleans()), max_size=60))
def test_moves_are_tried_again_within_the_longest_delay(windows: list[tuple[float | None, bool]]) -> None:
    pause = MovePause()
    for p99_us, moving in windows:
        pause = next_pause(pause, db(p99_us), moving=moving)
        assert pause.windows <= HOLD + LONGEST_RETRY * EFFECT // 2
        assert pause.hold_windows <= min(HOLD, pause.windows)
    assert not after(pause.windows + 1, pause, 900).vms
