"""What streams asked for of late: who sleeps, and who would take more."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slo_ctl.model import VmSample

_SATURATING_FROM = 0.9
"""A stream with requests waiting for this share of the time would take more if it could."""


@dataclass(slots=True)
class Demand:
    """Of one stream, over the status window."""

    window_s: float
    """In the samples' time."""
    _samples: deque[tuple[float, float]] = field(default_factory=deque)
    """Length and time with a backlog, in seconds."""
    _length_s: float = 0.0
    _backlog_s: float = 0.0
    _last_active_s: float = float("-inf")

    def add(self, sample: VmSample, now_s: float) -> None:
        """One more window, which ended at `now_s` (of any clock, always the same)."""
        if sample.active:
            self._last_active_s = now_s
        backlog_s = sample.window_s * sample.backlog_share
        self._samples.append((sample.window_s, backlog_s))
        self._length_s += sample.window_s
        self._backlog_s += backlog_s
        while len(self._samples) > 1 and self._length_s - self._samples[0][0] >= self.window_s:
            length_s, backlog_s = self._samples.popleft()
            self._length_s -= length_s
            self._backlog_s -= backlog_s

    def awake(self, now_s: float, patience_s: float) -> bool:
        """Whether it asked for something within the last `patience_s`: who pauses is not asleep yet."""
        return now_s - self._last_active_s <= patience_s

    @property
    def wants_more(self) -> bool:
        """Whether it would have taken more than it got."""
        return self._length_s > 0 and self._backlog_s >= _SATURATING_FROM * self._length_s
