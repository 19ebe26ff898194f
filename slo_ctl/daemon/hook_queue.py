"""Changes of verdicts on their way to a hook, which a thread runs without delaying epochs."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Protocol

from slo_ctl.daemon.status import VerdictChange

log = logging.getLogger("slo_ctl.daemon")

MAX_WAITING = 1000
"""Length of a queue; the oldest change is dropped from a full one."""
DONE, FAILED, KILLED, LEFT_OUT = RESULTS = ("done", "failed", "killed", "left-out")
"""Results of a change, as in metrics. Left out: the queue was full, the daemon stopped, or another change of
the same VM replaced it."""

STOP_S = 1.0
"""Time that hooks may run after a stop has begun."""
_KILL_S = 0.3
"""Time that a stop waits for a killed hook."""


class Hook(Protocol):
    """An action for a change of a verdict."""

    @property
    def name(self) -> str:
        """Name in the log."""

    def run(self, change: VerdictChange, end_s: Callable[[], float]) -> tuple[str, str]:
        """The result, and the reason if it is not `DONE`.

        Returns by `end_s()` in monotonic time, which decreases when the daemon stops.
        """


class HookQueue:
    """A queue of changes for a hook, and the thread that runs it."""

    def __init__(self, hook: Hook | None, *, max_waiting: int = MAX_WAITING) -> None:
        """`hook` None: changes are discarded."""
        self._hook = hook
        self._max_waiting = max_waiting
        self._waiting: dict[tuple[str, str], VerdictChange] = {}
        """Changes in the queue by VM and device, the oldest first."""
        self._woken = threading.Condition()
        """Its lock protects `_hook`, `_waiting`, `_results` and `_end_s`."""
        self._results: Counter[str] = Counter(dict.fromkeys(RESULTS, 0))
        self._end_s = math.inf
        """Monotonic time by which hooks must have ended."""
        self._thread: threading.Thread | None = None
        self._failure = ""

    def configure(self, hook: Hook | None) -> None:
        """Use another hook."""
        with self._woken:
            self._hook = hook
            if hook is None:
                self._waiting.clear()

    def results(self) -> Counter[str]:
        """Number of changes by result."""
        with self._woken:
            return self._results.copy()

    def add(self, changes: Iterable[VerdictChange]) -> None:
        """Have the thread run the hook for these changes. Never blocks."""
        with self._woken:
            if self._hook is None or self._end_s < math.inf:
                return
            for change in changes:
                self._enqueue(change)
            if not self._waiting:
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._run_all, name="hooks", daemon=True)
                self._thread.start()
            self._woken.notify_all()

    def begin_stop(self) -> None:
        """Accept no more changes; a running hook has `STOP_S` left."""
        with self._woken:
            self._end_s = min(self._end_s, time.monotonic() + STOP_S)
            self._woken.notify_all()

    def close(self) -> None:
        """Wait until the hook has ended or was killed."""
        self.begin_stop()
        if self._thread is not None:
            # A program that survives SIGKILL must not block the daemon.
            self._thread.join(max(0.0, self._end_s - time.monotonic()) + _KILL_S)
        with self._woken:
            self._results[LEFT_OUT] += len(self._waiting)
            self._waiting.clear()

    def _enqueue(self, change: VerdictChange) -> None:
        """Add a change to the queue.

        It is combined with a waiting change of the same VM, and dropped if together they change nothing.
        """
        key = (change.vm, change.device)
        earlier = self._waiting.pop(key, None)
        if earlier is not None:
            self._results[LEFT_OUT] += 1
            change = replace(change, previous=earlier.previous)
            if change.verdict == change.previous:
                self._results[LEFT_OUT] += 1
                return
        self._waiting[key] = change
        if len(self._waiting) > self._max_waiting:
            del self._waiting[next(iter(self._waiting))]
            self._results[LEFT_OUT] += 1

    def _run_all(self) -> None:
        while (entry := self._take()) is not None:
            hook, change = entry
            result, problem = hook.run(change, lambda: self._end_s)
            if problem and problem != self._failure:
                log.warning("[hooks] %s %s", hook.name, problem)
            self._failure = problem
            with self._woken:
                self._results[result] += 1

    def _take(self) -> tuple[Hook, VerdictChange] | None:
        """Wait for a change: the hook and the oldest change; None: the thread must end."""
        with self._woken:
            self._woken.wait_for(lambda: self._waiting or self._end_s < math.inf)
            if self._hook is None or not self._waiting or time.monotonic() >= self._end_s:
                return None
            return self._hook, self._waiting.pop(next(iter(self._waiting)))
