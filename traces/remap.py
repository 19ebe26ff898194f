"""Maps a trace's requests onto a device of another size or layout.

Every remapping is a function from batch to batch, applied while streaming. If the target has a size, no
request exceeds it: one that would cross the end is moved back to end there, and truncated if it is longer
than the target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

import numpy as np

from traces.batch import MAX_END_BYTES, PAGE_BYTES, Batch
from traces.footprint import Footprint

if TYPE_CHECKING:
    from numpy.typing import NDArray

Remap = Callable[[Batch], Batch]


def apply(batches: Iterable[Batch], *remaps: Remap) -> Iterator[Batch]:
    """Each batch after all `remaps`, in their order; empty batches are omitted."""
    for batch in batches:
        for remap in remaps:
            batch = remap(batch)
        if len(batch):
            yield batch


def _positive(name: str, value: int) -> None:
    if value <= 0:
        raise ValueError(f"{name} is {value}, not positive")
    if value > MAX_END_BYTES:
        raise ValueError(f"{name} is {value}, beyond 2^63")


def _within(
    offset: NDArray[np.uint64], length: NDArray[np.uint64], size: NDArray[np.uint64] | np.uint64
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    length = np.minimum(length, size)
    return np.minimum(offset, size - length), length


@dataclass(frozen=True, slots=True)
class Modulo:
    """Wrap offsets around a device's end: offset modulo size."""

    device_bytes: int

    def __post_init__(self) -> None:
        _positive("device_bytes", self.device_bytes)

    def __call__(self, batch: Batch) -> Batch:
        size = np.uint64(self.device_bytes)
        return batch.over(*_within(batch.offset_bytes % size, batch.length_bytes, size))


@dataclass(frozen=True, slots=True)
class Scale:
    """Stretch or shrink offsets from `source_bytes` to `device_bytes`, by whole pages; lengths stay."""

    device_bytes: int
    source_bytes: int

    def __post_init__(self) -> None:
        for name, value in (("device_bytes", self.device_bytes), ("source_bytes", self.source_bytes)):
            _positive(name, value)

    def __call__(self, batch: Batch) -> Batch:
        page = np.uint64(PAGE_BYTES)
        ratio = self.device_bytes / self.source_bytes
        scaled = np.floor((batch.offset_bytes // page).astype(np.float64) * ratio)
        # Floating point keeps the order of pages; only rounding in its last bits may exceed the end.
        pages = np.minimum(scaled, float(MAX_END_BYTES // PAGE_BYTES - 1)).astype(np.uint64)
        offset = pages * page + batch.offset_bytes % page
        return batch.over(*_within(offset, batch.length_bytes, np.uint64(self.device_bytes)))


@dataclass(frozen=True, slots=True)
class Partition:
    """Give each volume its own range of one device, one after the other; the result has one volume.

    `sizes_bytes` are the volumes' sizes (a summary's `end_bytes`, rounded up to pages here). Offsets beyond a
    volume's size wrap inside its range.
    """

    sizes_bytes: tuple[int, ...]

    def __post_init__(self) -> None:
        for size in self.sizes_bytes:
            _positive("a volume's size", size)
        if not self.sizes_bytes:
            raise ValueError("no volume to give a range")
        _positive("device_bytes", self.device_bytes)

    @classmethod
    def equal(cls, device_bytes: int, volumes: int) -> Partition:
        """Equal ranges of whole pages of a device. Raises ValueError if they would be empty."""
        share = device_bytes // max(volumes, 1) // PAGE_BYTES * PAGE_BYTES
        if share <= 0:
            raise ValueError(f"{device_bytes} bytes are too few for {volumes} volumes")
        return cls((share,) * volumes)

    @property
    def device_bytes(self) -> int:
        """Size of the device that all ranges fill."""
        return sum(map(_whole_pages, self.sizes_bytes))

    def __call__(self, batch: Batch) -> Batch:
        """Move each volume's requests into its range. Raises ValueError for a volume without one."""
        if len(batch) and int(batch.volume.max()) >= len(self.sizes_bytes):
            raise ValueError(f"volume {int(batch.volume.max())} has no range; {len(self.sizes_bytes)} have")
        sizes = list(map(_whole_pages, self.sizes_bytes))
        starts = np.array([0, *accumulate(sizes[:-1])], np.uint64)[batch.volume]
        size = np.array(sizes, np.uint64)[batch.volume]
        offset, length = _within(batch.offset_bytes % size, batch.length_bytes, size)
        return replace(batch.over(starts + offset, length), volume=np.zeros_like(batch.volume))


def _whole_pages(size_bytes: int) -> int:
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES


class Compact:
    """Number the pages that a trace touches densely, volume after volume; the result has one volume.

    Adjacent pages stay adjacent, so that requests are not split. The trace is read beforehand, once for
    `order` "sorted" (by volume and page) and twice for "first-touch" (ranges of pages in the order of their
    first use).
    """

    def __init__(self, trace: Iterable[Batch], order: Literal["sorted", "first-touch"] = "sorted") -> None:
        if order not in ("sorted", "first-touch"):
            raise ValueError(f"order is '{order}', not sorted or first-touch")
        footprint = Footprint()
        for batch in trace:
            footprint.add(batch.volume, *batch.page_span())
        runs = footprint.ranges_by_volume()
        none = np.empty(0, np.int64)
        self._volume = np.concatenate([none, *(np.full_like(starts, volume) for volume, starts, _ in runs)])
        self._starts = np.concatenate([none, *(starts for _, starts, _ in runs)])
        lengths = np.concatenate([none, *(stops - starts for _, starts, stops in runs)])
        self.pages = int(lengths.sum())
        """Number of pages that the trace touches: the size of the compact device."""
        place = np.arange(len(lengths))
        if order == "first-touch":
            place = np.argsort(self._first_touches(trace), kind="stable")
        self._target = np.empty(len(lengths), np.int64)
        self._target[place] = np.concatenate([[0], np.cumsum(lengths[place])[:-1]]) if len(lengths) else 0

    def _first_touches(self, trace: Iterable[Batch]) -> NDArray[np.int64]:
        touched = np.full(len(self._starts), np.iinfo(np.int64).max)
        seen = 0
        for batch in trace:
            runs = self._run_of(batch.volume, batch.page_span()[0])
            np.minimum.at(touched, runs, seen + np.arange(len(batch)))
            seen += len(batch)
        return touched

    def _run_of(self, volume: NDArray[np.int32], page: NDArray[np.int64]) -> NDArray[np.intp]:
        runs = np.zeros(len(page), np.intp)
        for one in np.unique(volume).tolist():
            low, high = np.searchsorted(self._volume, [one, one + 1])
            mine = volume == one
            runs[mine] = low + np.searchsorted(self._starts[low:high], page[mine], side="right") - 1
        return np.maximum(runs, 0)

    def __call__(self, batch: Batch) -> Batch:
        """Renumber the pages of requests of the trace that was read before."""
        if not len(self._starts):
            return batch
        page = batch.page_span()[0]
        run = self._run_of(batch.volume, page)
        new_page = (self._target[run] + page - self._starts[run]).astype(np.uint64)
        offset = new_page * np.uint64(PAGE_BYTES) + batch.offset_bytes % np.uint64(PAGE_BYTES)
        offset = np.where(batch.length_bytes > 0, offset, np.uint64(0))
        return replace(batch.over(offset, batch.length_bytes), volume=np.zeros_like(batch.volume))


@dataclass(frozen=True, slots=True)
class Align:
    """Extend requests to whole units: the start down, the end up."""

    unit_bytes: int = PAGE_BYTES

    def __post_init__(self) -> None:
        _positive("unit_bytes", self.unit_bytes)
        if MAX_END_BYTES % self.unit_bytes:
            raise ValueError(f"unit_bytes is {self.unit_bytes}, not a power of two")

    def __call__(self, batch: Batch) -> Batch:
        """Align; a request without a length keeps none."""
        unit = np.uint64(self.unit_bytes)
        start = batch.offset_bytes // unit * unit
        end = (batch.end_bytes + (unit - np.uint64(1))) // unit * unit
        return batch.over(start, np.where(batch.length_bytes > 0, end - start, np.uint64(0)))


@dataclass(frozen=True, slots=True)
class Shift:
    """Add a number of bytes to every offset."""

    offset_bytes: int

    def __post_init__(self) -> None:
        if not 0 <= self.offset_bytes < MAX_END_BYTES:
            raise ValueError(f"offset_bytes is {self.offset_bytes}, not in 0 .. 2^63-1")

    def __call__(self, batch: Batch) -> Batch:
        """Shift. Raises ValueError if a request would end beyond 2^63."""
        # Both terms are at most 2^63, so the sum cannot wrap.
        offset = batch.offset_bytes + np.uint64(self.offset_bytes)
        if (offset > np.uint64(MAX_END_BYTES) - batch.length_bytes).any():
            raise ValueError(f"a request moved by {self.offset_bytes} bytes would end beyond 2^63")
        return batch.over(offset, batch.length_bytes)


class OnlyVolumes:
    """Keep the requests of some volumes, renumbered in the order of `names`.

    `volumes` has the names for the numbers in batches; it is read at every batch, as a reader finds new
    volumes while it runs.
    """

    def __init__(self, names: Sequence[str], volumes: Callable[[], Sequence[str]]) -> None:
        if not names:
            raise ValueError("no volume is left")
        self._number = {name: number for number, name in enumerate(names)}
        self._volumes = volumes

    def __call__(self, batch: Batch) -> Batch:
        table = np.array([self._number.get(name, -1) for name in self._volumes()], np.int32)
        numbers = table[batch.volume]
        kept = numbers >= 0
        return replace(batch.take(kept), volume=numbers[kept])
