"""Run `slo-ctl` in this process if only the output matters: starting an interpreter is slow."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slo_ctl.cli import app


def slo_ctl(*words: str) -> str:
    """Run a command that must succeed and return its output."""
    status, out, err = _run(words)
    assert status == 0, out + err
    return out


def refused(*words: str) -> str:
    """Run a command that must be refused and return its error message."""
    status, out, err = _run(words)
    assert status == 2, out + err
    assert "Traceback" not in err
    return err


def _run(words: tuple[str, ...]) -> tuple[int, str, str]:
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        status = app.run(list(words))
    return status, out.getvalue(), err.getvalue()


@dataclass(frozen=True)
class DeviceCommand:
    """A subcommand of `slo-ctl device` that measures a target."""

    verb: str

    def line(self, root: Path, *words: str) -> list[str]:
        """The command line."""
        return [sys.executable, "-m", "slo_ctl.cli", "device", self.verb, *words, "--root", str(root)]

    def measure(self, root: Path, *words: str) -> dict[str, Any]:
        """Measure in a separate process and return the result."""
        done = subprocess.run(self.line(root, *words, "--json"), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def refused(self, root: Path, *words: str) -> str:
        """The error message of a measurement that is refused."""
        return refused("device", self.verb, *words, "--root", str(root))

    def shown(self, root: Path, target: str) -> dict[str, Any]:
        """The stored result."""
        words = ("device", self.verb, target, "--show", "--json", "--root", str(root))
        found: dict[str, Any] = json.loads(slo_ctl(*words))
        return found
