"""`slo-ctl` in this process for commands of which only the output matters: an interpreter starts slowly."""

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
    """What a command prints that succeeds."""
    status, out, err = _run(words)
    assert status == 0, out + err
    return out


def refused(*words: str) -> str:
    """What a command says of why it is refused."""
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
    """A verb of `slo-ctl device` that measures a target."""

    verb: str

    def line(self, root: Path, *words: str) -> list[str]:
        """What a shell would be given."""
        return [sys.executable, "-m", "slo_ctl.cli", "device", self.verb, *words, "--root", str(root)]

    def measure(self, root: Path, *words: str) -> dict[str, Any]:
        """The result, measured by a process of its own."""
        done = subprocess.run(self.line(root, *words, "--json"), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def refused(self, root: Path, *words: str) -> str:
        """What it says of why it does not measure."""
        return refused("device", self.verb, *words, "--root", str(root))

    def shown(self, root: Path, target: str) -> dict[str, Any]:
        """The stored result."""
        words = ("device", self.verb, target, "--show", "--json", "--root", str(root))
        found: dict[str, Any] = json.loads(slo_ctl(*words))
        return found
