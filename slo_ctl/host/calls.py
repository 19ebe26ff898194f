"""What may hang: programs and calls in threads with a timeout, and threads that follow a service."""

from __future__ import annotations

import math
import os
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from slo_ctl.base.errors import UserError
from slo_ctl.model.setting import ActError

Result = TypeVar("Result")


def run_program(command: Sequence[str], timeout_s: float, hint: str) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, without input and with untranslated output.

    Raises UserError, with this hint, if it cannot be run or has not ended in time.
    """
    try:
        return subprocess.run(  # noqa: S603 - no shell
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
    except OSError as error:
        raise UserError(f"{command[0]}: {error.strerror}", hint) from None
    except subprocess.TimeoutExpired:
        raise UserError(f"`{' '.join(command)}` has not ended after {timeout_s:g} s", hint) from None


# Calls in threads.

TIMEOUT_S = 1.0
_REDUCED_TIMEOUT_S = 0.1
"""Timeout after a call that timed out, until one returns: a hanging service delays only one epoch."""
_UNANSWERED_S = 3.0
"""After this time a late answer that took less restores the full timeout: the service is slow, not dead."""
MAX_THREADS = 4
"""Calls that may hang at the same time, such as those about VMs whose QEMU does not respond."""


@dataclass(slots=True, eq=False)
class _Call:
    do: Callable[[], Any]
    clock: Callable[[], float]
    began_s: float
    took_s: float = math.inf
    done: threading.Event = field(default_factory=threading.Event)
    result: Any = None
    error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self.do()
        except BaseException as error:
            self.error = error  # raised in the caller's thread
        self.took_s = self.clock() - self.began_s
        self.done.set()


class BoundedCalls:
    """At most one call at a time for each key, and `MAX_THREADS` in total.

    A call that times out continues in its thread, because nothing can stop it; until it returns, calls with
    the same key are refused at once. Threads are created as needed and do not delay the exit of the program.
    """

    def __init__(
        self,
        service: str,
        *,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`service` names the called service in error messages."""
        self._service = service
        self._timeout_s = timeout_s
        self._reduced_timeout_s = _REDUCED_TIMEOUT_S
        self._clock = clock
        self._hanging: dict[str, _Call] = {}
        self._unanswered_since_s: float | None = None
        self._answers_slowly = False
        self._queue: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._threads = 0

    def call(self, key: str, do: Callable[[], Result]) -> Result:
        """Call `do` and return its result.

        Raises its exception, and ActError when it times out or is refused.
        """
        self._forget_finished()
        hanging = self._hanging.get(key)
        if hanging is not None or len(self._hanging) >= MAX_THREADS:
            raise self._no_answer()
        call = _Call(do, self._clock, self._clock())
        if self._threads <= len(self._hanging):
            self._threads += 1
            threading.Thread(target=_work, args=(self._queue,), name=self._service, daemon=True).start()
        self._queue.put(call)
        unanswered = self._unanswered_since_s is not None
        if not call.done.wait(self._reduced_timeout_s if unanswered else self._timeout_s):
            if not unanswered:
                self._unanswered_since_s = self._clock()
            self._hanging[key] = call
            raise self._no_answer()
        self._restore_timeout()
        if call.error is not None:
            raise call.error
        result: Result = call.result
        return result

    def refuse_while_hanging(self, key: str) -> None:
        """Raise ActError while a call with this key hangs."""
        hanging = self._hanging.get(key)
        if hanging is not None and not hanging.done.is_set():
            raise self._no_answer()

    def _forget_finished(self) -> None:
        finished = [call for call in self._hanging.values() if call.done.is_set()]
        self._hanging = {key: call for key, call in self._hanging.items() if call not in finished}
        if self._unanswered_since_s is None:
            return
        self._answers_slowly |= any(call.took_s < _UNANSWERED_S for call in finished)
        if self._answers_slowly and self._clock() - self._unanswered_since_s >= _UNANSWERED_S:
            self._restore_timeout()

    def _restore_timeout(self) -> None:
        self._unanswered_since_s, self._answers_slowly = None, False

    def wait_longer(self, timeout_s: float) -> None:
        """Set the timeout of all further calls, and wait for hanging calls up to this time."""
        self._timeout_s = self._reduced_timeout_s = timeout_s
        deadline_s = self._clock() + timeout_s
        for call in self._hanging.values():
            call.done.wait(max(0.0, deadline_s - self._clock()))

    def close(self) -> None:
        """End the threads as soon as their calls return; later calls start new threads."""
        for _ in range(self._threads):
            self._queue.put(None)
        self._queue, self._threads, self._hanging = queue.SimpleQueue(), 0, {}

    def _no_answer(self) -> ActError:
        # The same text however long it lasts: the log and the history have each text once.
        return ActError(
            f"{self._service} has not answered for {self._timeout_s:g} s",
            "it is retried in the next interval",
        )


def _work(calls: queue.SimpleQueue[_Call | None]) -> None:
    while (call := calls.get()) is not None:
        call.run()


# A thread that follows a service or a program until it is closed.


class WatchThread:
    """Base of classes with such a thread."""

    def __init__(self, name: str, close_timeout_s: float | None = None) -> None:
        """`close_timeout_s`: time after which `close` abandons a thread that waits for a hanging service."""
        self._changed = threading.Condition()
        """Guards what other threads change, and ends a pause."""
        self._stopping = False
        self._close_timeout_s = close_timeout_s
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread, unless it was started before."""
        if self._thread.ident is None:
            self._thread.start()

    def close(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(self._close_timeout_s)

    def _run(self) -> None:
        """Follow until `_stopping`."""
        raise NotImplementedError

    def _pause(self, seconds: float | None, until: Callable[[], object] = lambda: False) -> None:
        """Wait for this time (None: without a limit), for `until`, or for `close`."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or until(), seconds)
