"""Where time comes from: the machine's clocks, or those of a simulation."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Clock:
    """The clocks that an epoch of the daemon reads, and the way to wait. Seconds."""

    monotonic_s: Callable[[], float] = time.monotonic
    time_s: Callable[[], float] = time.time
    """Seconds since 1970, UTC."""
    cpu_s: Callable[[], float] = time.thread_time
    """CPU time of the calling thread."""
    sleep: Callable[[float], None] = time.sleep


SYSTEM_CLOCK = Clock()


def wait_for(value: Callable[[], T], timeout_s: float, poll_s: float) -> T:
    """The first value that is true, or after the timeout the last one. It is asked for at least once."""
    deadline_s = time.monotonic() + timeout_s
    while not (found := value()) and time.monotonic() < deadline_s:
        time.sleep(poll_s)
    return found
