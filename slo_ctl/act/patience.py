"""Calls that may hang, made in threads of their own, so that nobody waits for one longer than a moment."""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from slo_ctl.act.interface import ActError

if TYPE_CHECKING:
    from collections.abc import Callable

Result = TypeVar("Result")

PATIENCE_S = 1.0
_LITTLE_PATIENCE_S = 0.1
"""For the next calls after one that was not answered, until one is: whatever hangs costs an epoch once."""
MAX_THREADS = 4
"""So many calls may hang at a time, such as those about VMs whose QEMU does not answer its monitor."""


@dataclass(slots=True)
class _Call:
    do: Callable[[], Any]
    began_s: float
    done: threading.Event = field(default_factory=threading.Event)
    result: Any = None
    error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self.do()
        except BaseException as error:
            self.error = error  # raised where it is waited for
        self.done.set()


class PatientCalls:
    """At most one call at a time for each key, and `MAX_THREADS` in all.

    A call that takes too long goes on in its thread, as nothing can stop it; until it ends, further ones
    with its key are refused at once. Threads are made as needed, and hold up no exit of the program.
    """

    def __init__(
        self,
        what: str,
        *,
        patience_s: float = PATIENCE_S,
        max_threads: int = MAX_THREADS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`what` is said not to have answered."""
        self._what = what
        self._patience_s = patience_s
        self._little_patience_s = _LITTLE_PATIENCE_S
        self._max_threads = max_threads
        self._clock = clock
        self._hanging: dict[str, _Call] = {}
        self._suspicious = False
        self._queue: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._threads = 0

    def call(self, key: str, do: Callable[[], Result]) -> Result:
        """Do it, and return or raise what it does. Raises ActError when that takes too long, or would."""
        self._hanging = {k: call for k, call in self._hanging.items() if not call.done.is_set()}
        hanging = self._hanging.get(key)
        if hanging is None and len(self._hanging) >= self._max_threads:
            hanging = min(self._hanging.values(), key=lambda call: call.began_s)
        if hanging is not None:
            raise self._silent(hanging)
        call = _Call(do, self._clock())
        if self._threads <= len(self._hanging):
            self._threads += 1
            threading.Thread(target=_work, args=(self._queue,), name=self._what, daemon=True).start()
        self._queue.put(call)
        if not call.done.wait(self._little_patience_s if self._suspicious else self._patience_s):
            self._suspicious = True
            self._hanging[key] = call
            raise self._silent(call)
        self._suspicious = False
        if call.error is not None:
            raise call.error
        result: Result = call.result
        return result

    def take_time(self, patience_s: float) -> None:
        """No epoch waits any more: from now on wait so long for every call, and first for those that hang."""
        self._patience_s = self._little_patience_s = patience_s
        deadline_s = self._clock() + patience_s
        for call in self._hanging.values():
            call.done.wait(max(0.0, deadline_s - self._clock()))

    def close(self) -> None:
        """End the threads, those that hang as soon as they can; calls after this make new ones."""
        for _ in range(self._threads):
            self._queue.put(None)
        self._queue, self._threads, self._hanging = queue.SimpleQueue(), 0, {}

    def _silent(self, call: _Call) -> ActError:
        since_s = self._clock() - call.began_s
        return ActError(
            f"{self._what} has not answered for {since_s:.0f} s"
            if since_s >= 1
            else f"{self._what} has not answered for {since_s:.1f} s",
            "it is tried again",
        )


def _work(calls: queue.SimpleQueue[_Call | None]) -> None:
    while (call := calls.get()) is not None:
        call.run()
