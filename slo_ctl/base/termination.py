"""Signals: a command that ends first removes what it made on the host; a loop that waits is woken up."""

from __future__ import annotations

import atexit
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_REPEATED_S = 10.0
"""Signals within this time after the first one are the same request: timeout(1), for one, sends two."""
END_S = 15.0
"""A process of the command is killed when it has not ended within this time after SIGTERM."""
_RETRY_S = 0.01
"""Delay before a signal that was lost in a finalizer is raised again."""


def ending_signals() -> list[signal.Signals]:
    """The signals that end this command: those that are not ignored, as SIGHUP is by nohup."""
    return [each for each in _SIGNALS if signal.getsignal(each) is not signal.SIG_IGN]


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM and SIGHUP act as Ctrl-C: what was measured is kept, and what was made is removed."""
    ignored_until_s = 0.0

    def stop(number: int, _frame: FrameType | None) -> None:
        nonlocal ignored_until_s
        now_s = time.monotonic()
        if number != signal.SIGALRM and now_s < ignored_until_s:
            return
        ignored_until_s = now_s + _REPEATED_S
        raise KeyboardInterrupt

    def raise_again(unraisable: sys.UnraisableHookArgs) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, _RETRY_S)
        else:
            previous_hook(unraisable)

    # Python discards what a handler raises while a finalizer runs, such as that of a subprocess.
    previous_hook, sys.unraisablehook = sys.unraisablehook, raise_again
    previous_handlers = {
        number: signal.signal(number, stop) for number in (*ending_signals(), signal.SIGALRM)
    }
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook = previous_hook
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Signals that end a command are delivered after this."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def signals_deferred() -> Iterator[None]:
    """Signals that end a command are handled after this. Processes that start meanwhile inherit no mask."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    noted: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _frame: noted.append(number))
        for number in ending_signals()
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if noted:
            signal.raise_signal(noted[0])


@contextmanager
def uninterrupted_close() -> Iterator[ExitStack]:
    """A stack that no signal interrupts while it is closed."""
    with ExitStack() as stack:
        try:
            yield stack
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            with signals_blocked():
                stack.close()


class Waker:
    """Ends a wait from other threads and from signal handlers.

    A `threading.Event` would deadlock: the handler may interrupt the main thread while it holds its lock.
    """

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def wake(self) -> None:
        """End the present or the next wait."""
        try:
            os.write(self.writer, b"\0")
        except BlockingIOError:
            # The pipe is full of wake-ups.
            return

    def wait(self, seconds: float) -> None:
        """Wait for `wake`, at most for this time."""
        select.select([self._reader], [], [], seconds)
        try:
            while os.read(self._reader, 4096):
                pass
        except BlockingIOError:
            return

    def close(self) -> None:
        os.close(self._reader)
        os.close(self.writer)


class StopRequest:
    """Whether a signal was received."""

    def __init__(self) -> None:
        self.made = False
        self._waker = Waker()

    def note(self, _number: int, _frame: FrameType | None) -> None:
        """Signal handler."""
        self.made = True
        self._waker.wake()

    def wait(self, seconds: float) -> None:
        """Wait for a signal, at most for this time."""
        if not self.made:
            self._waker.wait(seconds)

    def close(self) -> None:
        self._waker.close()


@contextmanager
def stop_requests(
    signals: Collection[signal.Signals] = (signal.SIGTERM, signal.SIGINT),
) -> Iterator[StopRequest]:
    """Handle these signals as requests to stop within the context."""
    request = StopRequest()
    before = {number: signal.signal(number, request.note) for number in signals}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        request.close()


def end_with_parent() -> None:
    """In a process of the command: SIGTERM, which its parent sends, raises SystemExit, once.

    The death of the parent does so, too. A signal to the whole process group ends only the parent, which then
    ends its processes. These handlers are functions, because a program that the process starts would inherit
    that a signal is ignored.
    """

    def leave_to_parent(_number: int, _frame: FrameType | None) -> None:
        return

    def end(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, leave_to_parent)
        # Its default action ends the process if a library discards SystemExit.
        signal.setitimer(signal.ITIMER_REAL, END_S)
        sys.exit()

    signal.signal(signal.SIGTERM, end)
    # Python reports a SystemExit in functions that it calls at exit with a traceback.
    atexit.register(signal.signal, signal.SIGTERM, leave_to_parent)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, leave_to_parent)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    threading.Thread(target=_end_after_parent, daemon=True).start()


def _end_after_parent() -> None:
    """Without this, a long task would go on after its parent was killed."""
    import multiprocessing

    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(END_S)
        os._exit(1)
