"""A command that is ended removes its files: signals in the command, and processes that work for it."""

from __future__ import annotations

import atexit
import os
import signal
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from slo_ctl.base.termination import terminable, uninterrupted_close
from slo_ctl.base.workers import on_processes

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class InterruptedInFinalizer:
    """Receives SIGTERM while a finalizer runs, where an exception cannot be raised."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


def interrupt(do: Callable[[], object]) -> None:
    with terminable():
        do()
        time.sleep(10)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_a_keyboard_interrupt(number: signal.Signals) -> None:
    # SIGHUP is ignored if the tests run under nohup.
    before = signal.signal(number, signal.SIG_DFL) if number is signal.SIGHUP else None
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupt(lambda: os.kill(os.getpid(), number))
    finally:
        if before is not None:
            signal.signal(number, before)


def test_a_signal_that_was_ignored_remains_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with terminable():
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_repeated_signal_does_not_interrupt_cleaning_up() -> None:
    removed: list[bool] = []

    def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(10)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            removed.append(True)

    with pytest.raises(KeyboardInterrupt):
        interrupt(work)
    assert removed


def test_a_signal_waits_until_a_stack_is_closed() -> None:
    removed: list[bool] = []

    def work() -> None:
        with uninterrupted_close() as stack:
            stack.callback(removed.append, True)
            stack.callback(os.kill, os.getpid(), signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        interrupt(work)
    assert removed


def test_sigterm_in_a_finalizer_is_not_lost() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGALRM)
    began_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        interrupt(InterruptedInFinalizer)
    assert time.monotonic() - began_s < 5
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGALRM)) == before


def make_and_wait(file: Path) -> None:
    """The work of a process: it can be ended only by a signal."""
    file.touch()
    try:
        time.sleep(600)
    finally:
        file.unlink()


def number_then_wait(item: tuple[int, Path]) -> int:
    number, file = item
    if number > 0:
        make_and_wait(file)
    while not file.exists():
        time.sleep(0.01)
    return number


def test_processes_clean_up_when_the_results_are_closed(tmp_path: Path) -> None:
    file = tmp_path / "made"
    with closing(on_processes(number_then_wait, [(0, file), (1, file)], 2)) as results:
        assert next(results) == 0
        assert file.exists()
    assert not file.exists()


def end_slowly(number: int) -> int:
    atexit.register(time.sleep, 0.3)
    return number


def test_processes_that_are_done_end_by_themselves(capfd: pytest.CaptureFixture[str]) -> None:
    """A signal during their exit would be reported with a traceback."""
    assert list(on_processes(end_slowly, range(4), 2)) == list(range(4))
    assert capfd.readouterr().err == ""
