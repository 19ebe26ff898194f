"""The program of `[hooks] on_verdict`: run for each change of a verdict, one at a time, beside the epochs."""

from __future__ import annotations

import logging
import math
import os
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from slo_ctl.base.text import printable
from slo_ctl.daemon.status import VerdictChange
from slo_ctl.host.programs import why_not_run

log = logging.getLogger("slo_ctl.daemon")

LIMIT_S = 10.0
"""A program that takes longer is killed."""
MAX_WAITING = 1000
"""VMs on devices; beyond that the change that has waited longest is left out."""
DONE, FAILED, KILLED, LEFT_OUT = RESULTS = ("done", "failed", "killed", "left-out")
"""Results of a change, as in metrics. Left out: too many were waiting, the daemon stopped, or another
change of the same VM came first."""

STOP_S = 1.0
"""How long programs may still run after a stop has begun."""
_KILL_S = 0.3
"""How long a stop waits for one that was killed."""
_POLL_S = 0.02
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_STDERR = 2
_EXIT = os.WEXITED | os.WNOWAIT | os.WNOHANG


class Hooks:
    """Changes that wait for the program, and the thread that runs it."""

    def __init__(
        self, command: tuple[str, ...], *, limit_s: float = LIMIT_S, max_waiting: int = MAX_WAITING
    ) -> None:
        """`command` is the program and its arguments; empty: none is run."""
        self._command = command
        self._limit_s = limit_s
        self._max_waiting = max_waiting
        self._waiting: dict[tuple[str, str], VerdictChange] = {}
        """Waiting changes by VM and device, the oldest first."""
        self._woken = threading.Condition()
        """Held for whatever both threads use: `_command`, `_waiting`, `_results`, `_end_s`."""
        self._results: Counter[str] = Counter(dict.fromkeys(RESULTS, 0))
        self._end_s = math.inf
        """When no program may run any more, in monotonic time."""
        self._thread: threading.Thread | None = None
        self._failure = ""

    def configure(self, command: tuple[str, ...]) -> None:
        """Run this from now on."""
        with self._woken:
            self._command = command
            if not command:
                self._waiting.clear()

    def results(self) -> Counter[str]:
        """Results of all changes so far."""
        with self._woken:
            return self._results.copy()

    def add(self, changes: Iterable[VerdictChange]) -> None:
        """Have the program run for these. Waits for nothing."""
        with self._woken:
            if not self._command or self._end_s < math.inf:
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
        """Accept no more changes; programs have `STOP_S` left to run."""
        with self._woken:
            self._end_s = min(self._end_s, time.monotonic() + STOP_S)
            self._woken.notify_all()

    def close(self) -> None:
        """Wait until programs have ended or were killed, for no longer than that takes."""
        self.begin_stop()
        if self._thread is not None:
            # A program that survives SIGKILL must not block the daemon.
            self._thread.join(max(0.0, self._end_s - time.monotonic()) + _KILL_S)
        with self._woken:
            self._results[LEFT_OUT] += len(self._waiting)
            self._waiting.clear()

    def _enqueue(self, change: VerdictChange) -> None:
        """Two changes of one VM become one, or none when the verdict is what the program was given last."""
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
        while (next_run := self._take()) is not None:
            command, change = next_run
            result, problem = self._run(command, change)
            if problem and problem != self._failure:
                log.warning("[hooks] on_verdict: %s %s", command[0], problem)
            self._failure = problem
            with self._woken:
                self._results[result] += 1

    def _take(self) -> tuple[tuple[str, ...], VerdictChange] | None:
        """The command and the change that has waited longest; None to end."""
        with self._woken:
            self._woken.wait_for(lambda: self._waiting or self._end_s < math.inf)
            if not self._waiting or time.monotonic() >= self._end_s:
                return None
            return self._command, self._waiting.pop(next(iter(self._waiting)))

    def _run(self, command: tuple[str, ...], change: VerdictChange) -> tuple[str, str]:
        """The result, and the reason if it is not done."""
        problem = why_not_run(Path(command[0]), as_root=os.geteuid() == 0)
        if problem:
            return FAILED, problem
        try:
            process = subprocess.Popen(  # noqa: S603 - the administrator's own program, without a shell
                command,
                stdin=subprocess.DEVNULL,
                stdout=_STDERR,
                env=environment(change),
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            return FAILED, f"cannot be run: {error.strerror}"
        in_time = self._wait(process.pid)
        # What it has left in the background ends with it. The number is its own until `wait` collects it.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        status = process.wait()
        if not in_time:
            return KILLED, f"was killed: it had not ended after {self._limit_s:g} s, or the daemon stopped"
        return (FAILED, f"ended with status {status}") if status else (DONE, "")

    def _wait(self, pid: int) -> bool:
        """Whether the process has ended in time."""
        deadline_s = time.monotonic() + self._limit_s
        while os.waitid(os.P_PID, pid, _EXIT) is None:
            if time.monotonic() >= min(deadline_s, self._end_s):
                return False
            time.sleep(_POLL_S)
        return True


def environment(change: VerdictChange) -> dict[str, str]:
    """All that the program is given. Names are others' choice: each value is one line of printable text."""
    values = {
        "SLO_CTL_VM": change.vm,
        "SLO_CTL_DEVICE": change.device,
        "SLO_CTL_VERDICT": change.verdict.value,
        "SLO_CTL_PREVIOUS": change.previous.value if change.previous else "",
        "SLO_CTL_REASON": change.reason,
    }
    return {"PATH": _PATH, **{name: printable(value) for name, value in values.items()}}
