"""What a campaign finds, and how it runs commands."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

Tally = Counter[str]
"""What a round did, counted."""
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
    """Run a command to its end, whatever that is."""
    return subprocess.run(
        [sys.executable, "-m", "slo_ctl.cli", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
        stdin=subprocess.DEVNULL,
    )


def succeed(*words: str) -> str:
    """Run a command that has no reason to fail; returns what it printed."""
    done = slo_ctl(*words)
    check(done.returncode == 0, f"slo-ctl {' '.join(words)}: status {done.returncode}: {done.stderr}")
    return done.stdout
