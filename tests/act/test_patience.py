"""Calls that hang: nobody waits for them, and no threads pile up."""

from __future__ import annotations

import threading
import time

import pytest

from slo_ctl.act.interface import ActError
from slo_ctl.act.patience import PatientCalls

WHAT = "the hanging thing"


def threads() -> int:
    return sum(thread.name == WHAT for thread in threading.enumerate())


def until_none() -> None:
    deadline = time.monotonic() + 5
    while threads() and time.monotonic() < deadline:
        time.sleep(0.01)


def test_results_and_errors_come_through() -> None:
    calls = PatientCalls(WHAT, patience_s=5)
    assert [calls.call("a", lambda: 1), calls.call("b", lambda: 2)] == [1, 2]
    with pytest.raises(ZeroDivisionError):
        calls.call("a", lambda: 1 / 0)
    assert threads() == 1
    calls.close()
    until_none()
    assert threads() == 0


def test_one_that_hangs_holds_up_nobody_else_and_is_taken_up_again() -> None:
    calls, gate = PatientCalls(WHAT, patience_s=0.05), threading.Event()
    with pytest.raises(ActError, match=r"has not answered for 0\.\d s") as refused:
        calls.call("stuck", gate.wait)
    assert not refused.value.gone
    began = time.monotonic()
    for _ in range(1000):
        with pytest.raises(ActError):
            calls.call("stuck", gate.wait)
    assert time.monotonic() - began < 1000 * 0.05 / 2
    assert calls.call("other", lambda: 7) == 7
    assert threads() == 2
    gate.set()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            assert calls.call("stuck", lambda: 8) == 8
            break
        except ActError:
            time.sleep(0.01)
    else:
        raise AssertionError("still refused")
    calls.close()
    until_none()
    assert threads() == 0


def test_threads_do_not_pile_up() -> None:
    calls, gate = PatientCalls(WHAT, patience_s=0.01, max_threads=3), threading.Event()
    for number in range(20):
        with pytest.raises(ActError):
            calls.call(f"vm{number}", gate.wait)
    assert threads() == 3
    gate.set()
    calls.close()
    until_none()
    assert threads() == 0
