"""Tasks that kill their worker or fail, in a module of their own, which workers can import."""

from __future__ import annotations

import os
import signal
from pathlib import Path


def square(number: int, fatal: frozenset[int] = frozenset(), once: Path | None = None) -> int:
    """Kills the process for a number in `fatal`; with `once`, only until that file exists."""
    if number in fatal and (once is None or not once.exists()):
        if once is not None:
            once.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


def die(*_: object) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def fail_at_three(number: int) -> int:
    if number == 3:
        raise ValueError(number)
    return number
