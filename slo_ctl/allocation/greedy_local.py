"""Greedy-Space with locality, which the paper leaves for the future (section V, last paragraph).

By T(n) = T_merge + n S/B what counts is which logical blocks a sync makes the drive merge. Three kinds of
writes differ in that, and each has a stream of its own:

- **Large writes.** In sequence into free space they fill a logical block from its start to its end: the drive
  switches the log block in and copies nothing. That holds as long as nothing else comes in between.
- **Metadata** (pointers, directory blocks, nodes of a tree). It is written again by every checkpoint, later
  than the data beside it: among data it would break the sequence and make the drive merge a second time.
- **Small writes.** The share of a file that is written again is one over its blocks, as an append writes the
  last block anew: small files are what makes the drive merge later. They go where this sync makes the drive
  merge anyway, so that what is written again stays in few logical blocks.

With TRIM a logical block without data is free of merges for any write, and goes first.

Directories are kept together, and with them the metadata that their files share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slo_ctl.allocation.bucket_queue import BucketQueue
from slo_ctl.allocation.greedy_space import GreedySpaceAllocator, Stream

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from slo_ctl.allocation.space import Extent, SpaceMap

SMALL_SHARE = 1 / 128
"""Of a logical block, the most that a small write is, and the least free space for which one is entered: a
merge copies a hundred times as much, whatever is written."""
_LARGE, _METADATA, _SMALL = range(3)


class GreedyLocalAllocator(GreedySpaceAllocator):
    """Greedy, with what is written together kept together."""

    STREAMS = 3
    packs_directories = True
    metadata_apart = True

    def __init__(self, space: SpaceMap, logical_block: int, trim: bool = False) -> None:
        super().__init__(space, logical_block, trim)
        self._small = max(1, int(logical_block * SMALL_SHARE))
        self._touched = BucketQueue(space.free_by(logical_block), logical_block, empty=True)
        """Logical blocks that this sync writes to, those that streams fill left out."""

    @property
    def memory_bytes(self) -> int:
        """Two queues."""
        return super().memory_bytes + self._touched.memory_bytes

    def rewritten(self, block: int) -> None:
        """The next sync writes to its logical block."""
        self._touch(block // self.logical_block)

    def synced(self, metadata: NDArray[np.int64]) -> None:
        """The next sync starts with nothing."""
        del metadata
        self._touched.clear()
        for stream in self._streams:
            stream.touched = False

    def _touch(self, logical: int) -> None:
        for stream in self._streams:
            if stream.logical == logical:
                stream.touched = True
                return
        if not self._touched.holds(logical):
            self._touched.put(logical)

    def _stream(self, most: int, metadata: bool) -> Stream:
        if metadata:
            return self._streams[_METADATA]
        return self._streams[_SMALL if most <= self._small else _LARGE]

    def _take(self, run: Extent) -> None:
        self._touch(run.start // self.logical_block)
        super()._take(run)

    def _choose(self, stream: Stream) -> int:
        best = self._most_free()
        if stream is not self._streams[_SMALL] or (self.trim and self.free_in(best) == self.logical_block):
            return best
        touched = self._touched.most_free()
        if touched is None or self.free_in(touched) < self._small:
            return best
        return touched

    def _enter(self, stream: Stream, logical: int) -> None:
        super()._enter(stream, logical)
        stream.touched = self._touched.holds(logical)
        if stream.touched:
            self._touched.take_out(logical)

    def _leave(self, stream: Stream) -> None:
        logical = stream.logical
        super()._leave(stream)
        if logical is not None and stream.touched:
            self._touched.put(logical)

    def _change(self, logical: int, by: int) -> None:
        super()._change(logical, by)
        self._touched.change(logical, by)
