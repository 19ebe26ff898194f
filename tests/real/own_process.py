"""A `slo-ctl` that continues until it is told to end, in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO

READY_S = 300
"""For whatever is asked to begin or to end: many times what it takes on a busy machine."""


def default_signals() -> None:
    """A background job of a shell is started with Ctrl-C ignored, one of nohup with SIGHUP too."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def written_to(log: IO[bytes]) -> str:
    """What another process has written to a file that it got open from this one.

    It writes where the descriptor stands, which both share: reading must not move it.
    """
    return os.pread(log.fileno(), os.fstat(log.fileno()).st_size, 0).decode()


class OwnProcess:
    """It said that it is ready."""

    def __init__(
        self, *words: str, environment: Mapping[str, str] | None = None, before: Sequence[str] = ()
    ) -> None:
        """`words` follow `slo-ctl`; `environment` is added to our own; `before` is a program that runs it.

        Raises AssertionError with its stderr when it ends instead.
        """
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self.process = subprocess.Popen(
            [*before, sys.executable, "-m", "slo_ctl.cli", *words],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=os.environ | dict(environment or {}),
        )
        assert self.process.stdout is not None
        try:
            for line in self.process.stdout:
                if line.strip() == "ready":
                    return
            self.process.wait(READY_S)
        except BaseException:
            # Nobody has this object yet who could stop the process.
            self.stop()
            raise
        raise AssertionError(f"not ready: {self.log()}")

    def log(self) -> str:
        """What it said on stderr so far."""
        return written_to(self._log)

    def stop(self) -> int:
        """SIGTERM, unless it has ended; returns its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(READY_S)
        finally:
            # One that does not end fails its own test, and is in the way of no other.
            self.process.kill()
            self.process.wait()
            if self.process.stdout is not None:
                self.process.stdout.close()
