"""A `slo-ctl` command that runs until it is stopped, in a separate process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO

READY_S = 300
"""Timeout for start and stop: many times what they take on a busy machine."""


def default_signals() -> None:
    """Restore signal handling: shells start background jobs with SIGINT ignored, nohup with SIGHUP too."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def written_to(log: IO[bytes]) -> str:
    """What another process has written to a file whose descriptor it inherited.

    Both share the file offset at which the other process writes, so reading must not move it.
    """
    return os.pread(log.fileno(), os.fstat(log.fileno()).st_size, 0).decode()


class OwnProcess:
    """A process that has reported that it is ready."""

    def __init__(
        self, *words: str, environment: Mapping[str, str] | None = None, before: Sequence[str] = ()
    ) -> None:
        """`words` follow `slo-ctl`; `environment` is added to ours; `before` is a program that runs it.

        Raises AssertionError with its stderr if it exits before it is ready.
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
            # The caller does not have this object yet, so it cannot stop the process.
            self.stop()
            raise
        raise AssertionError(f"not ready: {self.log()}")

    def log(self) -> str:
        """Its stderr so far."""
        return written_to(self._log)

    def stop(self) -> int:
        """Send SIGTERM unless it has exited; returns its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(READY_S)
        finally:
            # A process that does not end fails its own test, but must not disturb later ones.
            self.process.kill()
            self.process.wait()
            if self.process.stdout is not None:
                self.process.stdout.close()
