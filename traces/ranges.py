"""Sets of integers kept as disjoint ranges: memory grows with their fragments only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MIN_PENDING = 1 << 16


class RangeSet:
    """A union of ranges start..stop-1, 16 bytes for each one that is left after joining neighbours.

    New ranges wait until there are as many as joined ones (64 Ki at least), so that adding costs a sort of
    its own size, amortised, however large the set has become.
    """

    def __init__(self) -> None:
        self._starts: NDArray[np.int64] = np.empty(0, np.int64)
        self._stops: NDArray[np.int64] = np.empty(0, np.int64)
        self._pending: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        self._pending_ranges = 0

    def add(self, starts: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        """Add the integers start .. start+count-1 of every pair; a count of 0 adds none."""
        stops = starts + counts
        if counts.min(initial=1) <= 0:
            starts, stops = starts[counts > 0], stops[counts > 0]
        if not len(starts):
            return
        self._pending.append(_joined(starts, stops))
        self._pending_ranges += len(self._pending[-1][0])
        if self._pending_ranges > max(_MIN_PENDING, len(self._starts)):
            self._join()

    def ranges(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Starts and stops of the disjoint ranges, ascending, no two touching."""
        self._join()
        return self._starts, self._stops

    def _join(self) -> None:
        if self._pending:
            starts = np.concatenate([self._starts, *(starts for starts, _ in self._pending)])
            stops = np.concatenate([self._stops, *(stops for _, stops in self._pending)])
            self._pending, self._pending_ranges = [], 0
            self._starts, self._stops = _joined(starts, stops)


def _joined(
    starts: NDArray[np.int64], stops: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    order = np.argsort(starts)
    starts, stops = starts[order], np.maximum.accumulate(stops[order])
    opens = np.empty(len(starts), bool)
    opens[0] = True
    opens[1:] = starts[1:] > stops[:-1]
    first = np.flatnonzero(opens)
    return starts[first], stops[np.append(first[1:], len(starts)) - 1]
