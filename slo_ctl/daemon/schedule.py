"""When epochs are due: at fixed distances, neither drifting nor piling up."""

from __future__ import annotations

import math

BROUGHT_FORWARD_S = 0.2
"""At least so long after the epoch before: an epoch that somebody asked for measures some time as well."""


class Schedule:
    """Epochs on a grid of monotonic time. No clock in here: its owner tells the time in seconds."""

    def __init__(self, epoch_s: float, now_s: float) -> None:
        """The first epoch is due now."""
        self._epoch_s = epoch_s
        self._due_s = now_s
        self._began_s = -math.inf
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
        self._began_s = now_s
        return late

    def bring_forward(self, now_s: float) -> None:
        """Something has changed: make the next epoch due at once, or `BROUGHT_FORWARD_S` after the last.

        Those that follow keep their distance from it. A burst of changes costs at most five epochs a second.
        """
        self._due_s = min(self._due_s, max(now_s, self._began_s + BROUGHT_FORWARD_S))

    def change(self, epoch_s: float, now_s: float) -> None:
        """Another distance from now on."""
        if epoch_s != self._epoch_s:
            self._epoch_s, self._due_s = epoch_s, now_s + epoch_s
