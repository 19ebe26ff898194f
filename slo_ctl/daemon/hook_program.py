"""The program of `[hooks] on_verdict`, which is run for each change of a verdict."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from slo_ctl.base.text import printable
from slo_ctl.daemon.hook_queue import DONE, FAILED, KILLED
from slo_ctl.daemon.status import VerdictChange
from slo_ctl.host.programs import why_not_run

LIMIT_S = 10.0
"""Time after which the program is killed."""

_POLL_S = 0.02
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_STDERR = 2
_EXIT = os.WEXITED | os.WNOWAIT | os.WNOHANG


class HookProgram:
    """A hook that runs a program with arguments."""

    def __init__(self, command: tuple[str, ...], limit_s: float = LIMIT_S) -> None:
        self._command = command
        self._limit_s = limit_s

    @property
    def name(self) -> str:
        """Name in the log."""
        return f"on_verdict: {self._command[0]}"

    def run(self, change: VerdictChange, end_s: Callable[[], float]) -> tuple[str, str]:
        """Run the program and wait for it."""
        problem = why_not_run(Path(self._command[0]), as_root=os.geteuid() == 0)
        if problem:
            return FAILED, problem
        try:
            process = subprocess.Popen(  # noqa: S603 - the administrator's own program, without a shell
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=_STDERR,
                env=environment(change),
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            return FAILED, f"cannot be run: {error.strerror}"
        in_time = self._wait(process.pid, end_s)
        # Ends its background processes as well. The process ID stays valid until `wait`.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        status = process.wait()
        if not in_time:
            return KILLED, f"was killed: it had not ended after {self._limit_s:g} s, or the daemon stopped"
        return (FAILED, f"ended with status {status}") if status else (DONE, "")

    def _wait(self, pid: int, end_s: Callable[[], float]) -> bool:
        """Whether the process has ended in time."""
        deadline_s = time.monotonic() + self._limit_s
        while os.waitid(os.P_PID, pid, _EXIT) is None:
            if time.monotonic() >= min(deadline_s, end_s()):
                return False
            time.sleep(_POLL_S)
        return True


def environment(change: VerdictChange) -> dict[str, str]:
    """The environment of the program. Each value is one line of printable text, whatever the names are."""
    values = {
        "SLO_CTL_VM": change.vm,
        "SLO_CTL_DEVICE": change.device,
        "SLO_CTL_VERDICT": change.verdict.value,
        "SLO_CTL_PREVIOUS": change.previous.value if change.previous else "",
        "SLO_CTL_REASON": change.reason,
    }
    return {"PATH": _PATH, **{name: printable(value) for name, value in values.items()}}
