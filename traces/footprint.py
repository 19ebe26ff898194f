"""Pages touched in each volume: exact, streaming, with one range set for all volumes.

Memory depends only on the number of fragments of a set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MIN_PENDING = 1 << 16


class RangeSet:
    """A union of ranges start..stop-1, with 16 bytes for each range after joining adjacent ones.

    New ranges wait until they are as many as the joined ones (64 Ki at least), so that adding costs an
    amortised sort of the new ranges, independent of the size of the set.
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
        """Starts and stops of the disjoint ranges, ascending, none adjacent."""
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


# A volume's pages are divided into segments of 2^31, numbered in the order of their appearance; a page's key
# is its segment's number and its position inside, with a gap between segments so that their ranges are never
# adjacent.
_SEGMENT_BITS = 31
_KEY_BITS = 32
_SEGMENTS_PER_VOLUME_BITS = 21


class Footprint:
    """The distinct pages of a trace, by volume. Memory: 16 bytes per run of adjacent pages."""

    def __init__(self) -> None:
        self._pages = RangeSet()
        self._segments: dict[int, int] = {}
        # Requests across a segment's end are rare: they wait undivided, in page numbers of their volume.
        self._across: dict[int, RangeSet] = {}

    def add(self, volume: NDArray[np.int32], first_page: NDArray[np.int64], count: NDArray[np.int64]) -> None:
        """Count pages first .. first+count-1 of the volumes as touched."""
        if not len(volume):
            return
        segment = first_page >> _SEGMENT_BITS
        inside = (first_page + np.maximum(count, 1) - 1) >> _SEGMENT_BITS == segment
        if not inside.all():
            self._add_across(volume[~inside], first_page[~inside], count[~inside])
            volume, first_page, count = volume[inside], first_page[inside], count[inside]
            segment = segment[inside]
        key = self._segment_numbers(volume, segment) << _KEY_BITS
        self._pages.add(key | (first_page & ((1 << _SEGMENT_BITS) - 1)), count)

    def _add_across(
        self, volume: NDArray[np.int32], first_page: NDArray[np.int64], count: NDArray[np.int64]
    ) -> None:
        for one in np.unique(volume).tolist():
            mine = volume == one
            self._across.setdefault(one, RangeSet()).add(first_page[mine], count[mine])

    def _segment_numbers(self, volume: NDArray[np.int32], segment: NDArray[np.int64]) -> NDArray[np.int64]:
        codes = (volume.astype(np.int64) << _SEGMENTS_PER_VOLUME_BITS) | segment
        if len(codes) and (codes == codes[0]).all():
            return np.full(len(codes), self._number(int(codes[0])), np.int64)
        if not segment.any():
            # Volumes are numbered from 0 without gaps: a table by number is small, and faster than sorting.
            present = np.flatnonzero(np.bincount(volume))
            table = np.zeros(int(present[-1]) + 1 if len(present) else 1, np.int64)
            table[present] = [self._number(int(one) << _SEGMENTS_PER_VOLUME_BITS) for one in present]
            return table[volume]
        distinct, which = np.unique(codes, return_inverse=True)
        return np.array([self._number(code) for code in distinct.tolist()], np.int64)[which]

    def _number(self, code: int) -> int:
        return self._segments.setdefault(code, len(self._segments))

    def pages_by_volume(self) -> dict[int, int]:
        """Distinct pages of each volume that has any."""
        return {volume: int((stops - starts).sum()) for volume, starts, stops in self.ranges_by_volume()}

    def ranges_by_volume(self) -> list[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
        """(volume, starts, stops) of the touched ranges of pages, once for each volume, ascending."""
        starts, stops = self._pages.ranges()
        number = starts >> _KEY_BITS
        parts: dict[int, list[tuple[NDArray[np.int64], NDArray[np.int64]]]] = {}
        for code, index in sorted(self._segments.items()):
            cut = slice(*np.searchsorted(number, [index, index + 1]))
            base = (code & ((1 << _SEGMENTS_PER_VOLUME_BITS) - 1)) << _SEGMENT_BITS
            offset = base - (index << _KEY_BITS)
            volume = code >> _SEGMENTS_PER_VOLUME_BITS
            parts.setdefault(volume, []).append((starts[cut] + offset, stops[cut] + offset))
        for volume, across in self._across.items():
            parts.setdefault(volume, []).append(across.ranges())
        return [(volume, *_union(some)) for volume, some in sorted(parts.items())]


def _union(
    parts: list[tuple[NDArray[np.int64], NDArray[np.int64]]],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    if len(parts) == 1:
        return parts[0]
    union = RangeSet()
    for starts, stops in parts:
        union.add(starts, stops - starts)
    return union.ranges()
