"""As many guests at a time on this machine as it has CPUs for: each keeps one busy."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .build import CACHE
from .machine import Guest, GuestError, Machine

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import IO

    from .build import Parts

AT_ONCE = max(1, min(os.cpu_count() or 1, 3))
"""Each takes 2 GiB of memory as well; scripts/test.sh starts as many."""
TURN_S = 1200.0
"""Patience with other test runs of this tree that have guests."""
_POLL_S = 1.0


@contextmanager
def guest_turn() -> Iterator[None]:
    """Hold the right to boot a guest. Raises GuestError after `TURN_S`."""
    CACHE.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + TURN_S
    while (turn := _free_turn()) is None:
        if time.monotonic() > deadline:
            raise GuestError(f"{AT_ONCE} other guests of this tree ran for {TURN_S:.0f} s")
        time.sleep(_POLL_S)
    with turn:
        yield


def _free_turn() -> IO[str] | None:
    """One of the locks, held as long as its file is open."""
    for number in range(AT_ONCE):
        file = (CACHE / f"guest-{number}.lock").open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
        else:
            return file
    return None


@contextmanager
def booted(parts: Parts, machine: Machine, logs: Path, disk: Path | None = None) -> Iterator[Guest]:
    """A guest that answers, from a copy of `disk` if there is one. Raises GuestError."""
    guest = Guest(parts, machine, logs, disk)
    try:
        guest.start()
        yield guest
    finally:
        guest.close()
