"""Where time comes from: the machine's clocks, or those of a simulation."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

T = TypeVar("T")


def _suspended_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)


@dataclass(frozen=True, slots=True)
class Clock:
    """The clocks that an epoch of the daemon reads, and the way to wait. Seconds."""

    monotonic_s: Callable[[], float] = time.monotonic
    suspended_s: Callable[[], float] = _suspended_s
    """How long the host was suspended since it was booted, which monotonic time does not count."""
    time_s: Callable[[], float] = time.time
    """Seconds since 1970, UTC."""
    cpu_s: Callable[[], float] = time.thread_time
    """CPU time of the calling thread."""
    sleep: Callable[[float], None] = time.sleep


SYSTEM_CLOCK = Clock()


_LEAST_JUMP_S = 1.0


class ClockJumps:
    """Notices when the time of day was set, by comparing it with the time since boot."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead_s = self._ahead()

    def since_last(self) -> float:
        """By how much it was set forward since the last call; negative: back; 0: by less than a second."""
        ahead_s = self._ahead()
        jump_s = ahead_s - self._ahead_s
        if abs(jump_s) < _LEAST_JUMP_S:
            return 0.0
        self._ahead_s = ahead_s
        return jump_s

    def _ahead(self) -> float:
        return self._clock.time_s() - self._clock.monotonic_s() - self._clock.suspended_s()


def now_text() -> str:
    """The present time, ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def wait_for(value: Callable[[], T], timeout_s: float, poll_s: float) -> T:
    """The first value that is true, or after the timeout the last one. It is asked for at least once."""
    deadline_s = time.monotonic() + timeout_s
    while not (found := value()) and time.monotonic() < deadline_s:
        time.sleep(poll_s)
    return found
