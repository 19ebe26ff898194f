"""Which pages of which volumes were touched: exact, streaming, one range set for all volumes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traces.ranges import RangeSet

if TYPE_CHECKING:
    from numpy.typing import NDArray

# A volume's pages are cut into segments of 2^31, numbered as they turn up; a page's key is its segment's
# number and its place inside, with room between segments so that ranges of different ones never touch.
_SEGMENT_BITS = 31
_KEY_BITS = 32
_SEGMENTS_PER_VOLUME_BITS = 21


class Footprint:
    """The distinct pages of a trace, by volume. Memory: 16 bytes per run of adjacent pages."""

    def __init__(self) -> None:
        self._pages = RangeSet()
        self._segments: dict[int, int] = {}

    def add(self, volume: NDArray[np.int32], first_page: NDArray[np.int64], count: NDArray[np.int64]) -> None:
        """Count pages first .. first+count-1 of the volumes as touched."""
        if not len(volume):
            return
        last_page = first_page + np.maximum(count, 1) - 1
        low = first_page >> _SEGMENT_BITS
        crossing = low != last_page >> _SEGMENT_BITS
        if crossing.any():
            self._add_crossing(volume[crossing], first_page[crossing], count[crossing])
            inside = ~crossing
            volume, first_page, count, low = volume[inside], first_page[inside], count[inside], low[inside]
        key = self._segment_numbers(volume, low) << _KEY_BITS
        self._pages.add(key | (first_page & ((1 << _SEGMENT_BITS) - 1)), count)

    def _add_crossing(
        self, volume: NDArray[np.int32], first_page: NDArray[np.int64], count: NDArray[np.int64]
    ) -> None:
        size = 1 << _SEGMENT_BITS
        while len(volume):
            part = np.minimum(count, size - (first_page & (size - 1)))
            self.add(volume, first_page, part)
            rest = count > part
            volume, first_page, count = volume[rest], (first_page + part)[rest], (count - part)[rest]

    def _segment_numbers(self, volume: NDArray[np.int32], segment: NDArray[np.int64]) -> NDArray[np.int64]:
        codes = (volume.astype(np.int64) << _SEGMENTS_PER_VOLUME_BITS) | segment
        if codes.min(initial=0) == codes.max(initial=0):
            return np.full(len(codes), self._number(int(codes[0])) if len(codes) else 0, np.int64)
        distinct, which = np.unique(codes, return_inverse=True)
        return np.array([self._number(code) for code in distinct.tolist()], np.int64)[which]

    def _number(self, code: int) -> int:
        return self._segments.setdefault(code, len(self._segments))

    def pages(self) -> int:
        """Distinct pages of all volumes."""
        return len(self._pages)

    def pages_by_volume(self) -> dict[int, int]:
        """Distinct pages of each volume that has any."""
        pages: dict[int, int] = {}
        for volume, starts, stops in self.ranges_by_volume():
            pages[volume] = pages.get(volume, 0) + int((stops - starts).sum())
        return pages

    def ranges_by_volume(self) -> list[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
        """(volume, starts, stops) of the touched runs of pages, by volume and page."""
        starts, stops = self._pages.ranges()
        number = starts >> _KEY_BITS
        found = []
        for code, index in sorted(self._segments.items()):
            cut = slice(*np.searchsorted(number, [index, index + 1]))
            base = (code & ((1 << _SEGMENTS_PER_VOLUME_BITS) - 1)) << _SEGMENT_BITS
            offset = base - (index << _KEY_BITS)
            found.append((code >> _SEGMENTS_PER_VOLUME_BITS, starts[cut] + offset, stops[cut] + offset))
        return found
