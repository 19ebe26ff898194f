"""One guest at a time on this machine: two at once are slower than one after the other."""

from __future__ import annotations

import fcntl
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .build import CACHE
from .machine import Guest, GuestError, Machine

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .build import Parts

TURN_S = 1200.0
"""Patience with another test run of this tree that has a guest."""


@contextmanager
def guest_turn() -> Iterator[None]:
    """Hold the right to boot a guest. Raises GuestError after `TURN_S`."""
    CACHE.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + TURN_S
    with (CACHE / "guest.lock").open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise GuestError(f"another guest of this tree ran for {TURN_S:.0f} s") from None
                time.sleep(1.0)
        yield


@contextmanager
def booted(parts: Parts, machine: Machine, logs: Path, disk: Path | None = None) -> Iterator[Guest]:
    """A guest that answers, from a copy of `disk` if there is one. Raises GuestError."""
    guest = Guest(parts, machine, logs, disk)
    try:
        guest.start()
        yield guest
    finally:
        guest.close()
