"""SIGTERM of commands that measure."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest

from slo_ctl.cli.output import terminable


class InterruptedInFinalizer:
    """Receives SIGTERM while Python finalizes it, where an exception cannot be raised."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


def interrupt(do: Callable[[], object]) -> None:
    with terminable():
        do()
        time.sleep(10)


def test_sigterm_is_a_keyboard_interrupt() -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupt(lambda: os.kill(os.getpid(), signal.SIGTERM))


def test_sigterm_in_a_finalizer_is_not_lost() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGALRM)
    began_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        interrupt(InterruptedInFinalizer)
    assert time.monotonic() - began_s < 5
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGALRM)) == before
