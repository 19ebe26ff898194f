"""Calls that hang do not block others or accumulate threads."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest

from slo_ctl.host.calls import BoundedCalls
from slo_ctl.model.setting import ActError

WHAT = "the hanging thing"


def threads() -> int:
    return sum(thread.name == WHAT for thread in threading.enumerate())


def until_none() -> None:
    deadline = time.monotonic() + 60
    while threads() and time.monotonic() < deadline:
        time.sleep(0.01)


def test_results_and_errors_are_returned() -> None:
    calls = BoundedCalls(WHAT, timeout_s=5)
    assert [calls.call("a", lambda: 1), calls.call("b", lambda: 2)] == [1, 2]
    with pytest.raises(ZeroDivisionError):
        calls.call("a", lambda: 1 / 0)
    assert threads() == 1
    calls.close()
    until_none()
    assert threads() == 0


def test_text_does_not_change_while_a_call_hangs() -> None:
    """Each epoch logged every setting of a hanging libvirt anew, with one second more."""
    now_s = 0.0
    calls, gate = BoundedCalls(WHAT, timeout_s=0.01, clock=lambda: now_s), threading.Event()
    texts = set()
    for seconds in (0.0, 1.0, 2.0, 100.0):
        now_s = seconds
        with pytest.raises(ActError) as refused:
            calls.call("stuck", gate.wait)
        texts.add(refused.value.message)
    assert texts == {f"{WHAT} has not answered for 0.01 s"}
    gate.set()
    calls.close()


def test_hanging_call_does_not_block_others_and_is_resumed() -> None:
    calls, gate = BoundedCalls(WHAT, timeout_s=0.5), threading.Event()
    with pytest.raises(ActError, match=r"has not answered for \d+\.\d s") as refused:
        calls.call("stuck", gate.wait)
    assert not refused.value.target_removed
    began = time.monotonic()
    for _ in range(1000):
        with pytest.raises(ActError):
            calls.call("stuck", gate.wait)
    assert time.monotonic() - began < 1000 * 0.5 / 2
    assert calls.call("other", lambda: 7) == 7
    assert threads() == 2
    gate.set()
    deadline = time.monotonic() + 60
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


def test_hanging_calls_do_not_accumulate_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slo_ctl.host.calls.MAX_THREADS", 3)
    calls, gate = BoundedCalls(WHAT, timeout_s=0.01), threading.Event()
    for number in range(20):
        with pytest.raises(ActError):
            calls.call(f"vm{number}", gate.wait)
    assert threads() == 3
    gate.set()
    calls.close()
    until_none()
    assert threads() == 0


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_slow_answer_restores_full_timeout() -> None:
    """Otherwise no answer would get the full timeout again while each takes longer than the short one."""
    clock = Clock()
    calls = one_that_hung_until(1.0, clock)
    # The call has ended, but others have the short timeout for a while.
    with pytest.raises(ActError):
        calls.call("b", partial(time.sleep, 0.5))
    clock.now_s = 3.1
    calls.call("c", partial(time.sleep, 0.2))
    calls.close()
    until_none()


def test_long_hang_shortens_timeout_until_it_answers() -> None:
    clock = Clock()
    calls = one_that_hung_until(60.0, clock)
    with pytest.raises(ActError):
        calls.call("a", partial(time.sleep, 0.5))
    assert calls.call("b", lambda: 1) == 1
    calls.call("c", partial(time.sleep, 0.2))
    calls.close()
    until_none()


def one_that_hung_until(now_s: float, clock: Clock) -> BoundedCalls:
    calls, gate, ended = BoundedCalls(WHAT, timeout_s=1.0, clock=clock), threading.Event(), threading.Event()

    def hangs() -> None:
        gate.wait()
        ended.set()

    with pytest.raises(ActError):
        calls.call("a", hangs)
    clock.now_s = now_s
    gate.set()
    assert ended.wait(5)
    time.sleep(0.1)
    return calls


def test_hanging_change_refuses_further_calls() -> None:
    calls, gate = BoundedCalls(WHAT, timeout_s=0.01), threading.Event()
    calls.refuse_while_hanging("a")
    with pytest.raises(ActError):
        calls.call("a", gate.wait)
    with pytest.raises(ActError, match="has not answered"):
        calls.refuse_while_hanging("a")
    calls.refuse_while_hanging("b")
    gate.set()
    calls.wait_longer(5.0)
    calls.refuse_while_hanging("a")
    calls.close()
    until_none()
