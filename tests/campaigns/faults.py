"""Faults that campaigns find, and how they run commands."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

Tally = Counter[str]
"""Counters of what a round did."""
Round = Callable[[Path, Random, Tally], None]
"""Runs one round in an empty folder with a short path; raises GuaranteeError."""
READY_S = 300


class GuaranteeError(AssertionError):
    """The product broke a guarantee."""


def check(holds: bool, what: str) -> None:
    """Raise GuaranteeError unless a guarantee holds."""
    if not holds:
        raise GuaranteeError(what)


def slo_ctl(*words: str, timeout_s: float = READY_S) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, successful or not."""
    return subprocess.run(
        [sys.executable, "-m", "slo_ctl.cli", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
        stdin=subprocess.DEVNULL,
    )


def succeed(*words: str) -> str:
    """Run a command that must succeed; returns its output."""
    done = slo_ctl(*words)
    check(done.returncode == 0, f"slo-ctl {' '.join(words)}: status {done.returncode}: {done.stderr}")
    return done.stdout
