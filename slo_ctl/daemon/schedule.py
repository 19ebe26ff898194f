"""When epochs are due: at fixed distances, neither drifting nor piling up."""

from __future__ import annotations

import math


class Schedule:
    """Epochs on a grid of monotonic time. No clock in here: its owner tells the time in seconds."""

    def __init__(self, epoch_s: float, now_s: float) -> None:
        """The first epoch is due now."""
        self._epoch_s = epoch_s
        self._due_s = now_s
        self.missed = 0
        """Epochs that were left out because those before took too long."""

    @property
    def epoch_s(self) -> float:
        """Distance of epochs."""
        return self._epoch_s

    def wait_s(self, now_s: float) -> float:
        """How long until the next epoch is due; 0 when it is."""
        return max(0.0, self._due_s - now_s)

    def take(self, now_s: float) -> int:
        """Begin the epoch that is due, and set when the next is: how many were left out since the last."""
        late = max(0, math.floor((now_s - self._due_s) / self._epoch_s))
        self._due_s += (late + 1) * self._epoch_s
        if self._due_s <= now_s:  # by a rounding of the division
            self._due_s += self._epoch_s
            late += 1
        self.missed += late
        return late

    def change(self, epoch_s: float, now_s: float) -> None:
        """Another distance from now on."""
        if epoch_s != self._epoch_s:
            self._epoch_s, self._due_s = epoch_s, now_s + epoch_s
