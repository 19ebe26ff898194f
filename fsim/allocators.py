"""Block groups as in ext2 and ext3: a file's blocks stay in the group of its directory.

The search follows ext3's `ext3_new_blocks` in outline: the goal itself, then after it in its group eight free
blocks in a row (a free byte of the bitmap, the least reservation window), then any free block of the group,
then the following groups in turn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from fsim.space import Allocator, BucketQueue, Extent, SpaceMap

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

GROUP_BLOCKS = 8 * 4096
"""Blocks of a group: the bits of one bitmap block of 4 KiB, 128 MiB."""
_WINDOW_BLOCKS = 8


class ExtAllocator(Allocator):
    """Allocator of ext2 and ext3."""

    def _find(self, most: int, goal: int, metadata: bool) -> Extent:  # noqa: ARG002 - all blocks alike
        space = self.space
        if space.is_free(goal):
            end = min(space.blocks, goal - goal % GROUP_BLOCKS + GROUP_BLOCKS)
            run = space.free_run(goal, end, most)
            if run is not None:
                return run
        groups = -(-space.blocks // GROUP_BLOCKS)
        home = goal // GROUP_BLOCKS
        for step in range(groups):
            start = (home + step) % groups * GROUP_BLOCKS
            end = min(start + GROUP_BLOCKS, space.blocks)
            run = space.free_window(goal if step == 0 else start, end, _WINDOW_BLOCKS, most)
            run = run or space.free_run(start, end, most)
            if run is not None:
                return run
        raise AssertionError("a free block was there")


# ReiserFS: blocks in the order of their keys, formatted nodes before a border, data after it.
#
# After `fs/reiserfs/bitmap.c` in outline: the file system passes the block of the left neighbour in key
# order, and the next free block after it is allocated; with the `border` option nodes of the tree are kept in
# the first tenth of the drive ("concentrating formatted nodes"), separate from the data. If one part is full,
# the other is used.

BORDER_SHARE = 0.1
"""Share of the drive for formatted nodes."""


class ReiserAllocator(Allocator):
    """Allocator of ReiserFS."""

    def _find(self, most: int, goal: int, metadata: bool) -> Extent:
        blocks = self.space.blocks
        border = int(blocks * BORDER_SHARE)
        start, end = (0, border) if metadata else (border, blocks)
        goal = goal if start <= goal < end else start
        # After the left neighbour, then from the start of this part, then the other part.
        other = (border, blocks) if metadata else (0, border)
        for low, high in ((goal, end), (start, goal), other):
            run = self.space.free_run(low, high, most)
            if run is not None:
                return run
        raise AssertionError("a free block was there")


# Greedy-Space (section IV.B): the logical block with the most free space serves until it is full.


@dataclass(slots=True)
class Stream:
    """A stream of allocations that fills one logical block after the other."""

    logical: int | None = None
    """The logical block being filled; it is not in the queue."""
    at: int = 0
    """Position in it at which the search continues."""
    touched: bool = False
    """Whether the next sync writes to it."""


class GreedySpaceAllocator(Allocator):
    """The paper's allocator, which ignores the location of a file's other blocks."""

    STREAMS: ClassVar[int] = 1

    def __init__(self, space: SpaceMap, logical_block: int, trim: bool = False) -> None:
        super().__init__(space, logical_block, trim)
        self._queue = BucketQueue(space.free_by(logical_block), logical_block)
        self._streams = tuple(Stream() for _ in range(self.STREAMS))

    @property
    def memory_bytes(self) -> int:
        """Memory needed in addition to the file system's own map of free space."""
        return self._queue.memory_bytes

    def free_in(self, logical: int) -> int:
        """Free blocks of a logical block, from the queue."""
        return self._queue.free(logical)

    def release(self, extent: Extent) -> None:
        """Free blocks, and move their logical blocks up."""
        super().release(extent)
        self._count(extent, 1)

    def _stream(self, most: int, metadata: bool) -> Stream:  # noqa: ARG002 - all alike
        """The stream for such an allocation."""
        return self._streams[0]

    def _find(self, most: int, goal: int, metadata: bool) -> Extent:  # noqa: ARG002 - no goal
        stream = self._stream(most, metadata)
        logical = stream.logical
        if logical is None or not self._queue.free(logical):
            self._leave(stream)
            logical = self._choose(stream)
            self._enter(stream, logical)
        start = logical * self.logical_block
        end = start + self.logical_block
        run = self.space.free_run(stream.at, end, most) or self.space.free_run(start, end, most)
        if run is None:
            raise AssertionError("the logical block of a stream has free blocks")
        stream.at = run.start + run.blocks
        return run

    def _take(self, run: Extent) -> None:
        super()._take(run)
        self._count(run, -1)

    def _choose(self, stream: Stream) -> int:  # noqa: ARG002 - all alike
        """The next logical block of a stream."""
        return self._most_free()

    def _most_free(self) -> int:
        best = self._queue.most_free()
        if best is None:
            # Only logical blocks reserved for other streams remain.
            for each in self._streams:
                self._leave(each)
            best = self._queue.most_free()
        if best is None:
            raise AssertionError("a free block was there")
        return best

    def _enter(self, stream: Stream, logical: int) -> None:
        self._queue.take_out(logical)
        stream.logical, stream.at = logical, logical * self.logical_block

    def _leave(self, stream: Stream) -> None:
        if stream.logical is not None:
            self._queue.put(stream.logical)
            stream.logical = None

    def _count(self, extent: Extent, sign: int) -> None:
        start, left = extent
        while left:
            logical = start // self.logical_block
            part = min(left, (logical + 1) * self.logical_block - start)
            self._change(logical, sign * part)
            start, left = start + part, left - part

    def _change(self, logical: int, by: int) -> None:
        self._queue.change(logical, by)


# Greedy-Space with locality, which the paper leaves for the future (section V, last paragraph).
#
# By T(n) = T_merge + n S/B the cost depends on the logical blocks that a sync makes the drive merge. Three
# kinds of writes differ in that, and each has its own stream:
#
# - **Large writes.** Sequential writes into free space fill a logical block from start to end: the drive
#   switches the log block in and copies nothing. That holds as long as no other write comes in between.
# - **Metadata** (pointers, directory blocks, nodes of a tree). Every checkpoint rewrites it, later than the
#   data beside it: among data it would break the sequence and make the drive merge a second time.
# - **Small writes.** An append rewrites the last block of a file, which is a larger share of a small file:
#   small files make the drive merge later. They go where this sync makes the drive merge in any case, so
#   that rewritten blocks stay in few logical blocks.
#
# With TRIM a logical block without data needs no merge for any write, and is used first.
#
# Directories are kept together, and with them the metadata that their files share.

SMALL_SHARE = 1 / 128
"""Largest size of a small write, and least free space of a logical block that takes one, as a share of a
logical block: a merge copies a hundred times as much in any case.
"""
_LARGE, _METADATA, _SMALL = range(3)


class GreedyLocalAllocator(GreedySpaceAllocator):
    """Greedy-Space that keeps blocks together that are written together."""

    STREAMS = 3
    packs_directories = True
    metadata_apart = True
    regards_trim = True

    def __init__(self, space: SpaceMap, logical_block: int, trim: bool = False) -> None:
        super().__init__(space, logical_block, trim)
        self._small = max(1, int(logical_block * SMALL_SHARE))
        self._touched = BucketQueue(space.free_by(logical_block), logical_block, empty=True)
        """Logical blocks that this sync writes to, without those being filled by streams."""

    @property
    def memory_bytes(self) -> int:
        """Memory of the two queues."""
        return super().memory_bytes + self._touched.memory_bytes

    def rewritten(self, block: int) -> None:
        """Note that the next sync writes to the logical block of this block."""
        self._touch(block // self.logical_block)

    def synced(self, metadata: NDArray[np.int64]) -> None:
        """Forget the logical blocks of the last sync."""
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


# Allocators by name.


class Row(NamedTuple):
    """An allocator, its metadata layout and a one-line description."""

    allocator: type[Allocator]
    layout: str
    """A name in `LAYOUTS`."""
    description: str


ALLOCATORS = {
    "ext": Row(ExtAllocator, "ext", "block groups, directories spread over them"),
    "reiser": Row(ReiserAllocator, "reiser", "in the order of keys, formatted nodes in front of a border"),
    "reiser-dirid": Row(
        ReiserAllocator, "reiser-dirid", "the same, directories spread over groups by a hash"
    ),
    "greedy-space": Row(GreedySpaceAllocator, "ext", "the logical block with the most free space first"),
    "greedy-local": Row(GreedyLocalAllocator, "ext", "greedy, what is written together kept together"),
    "greedy-space-reiser": Row(GreedySpaceAllocator, "reiser", "greedy-space with ReiserFS's metadata"),
    "greedy-local-reiser": Row(GreedyLocalAllocator, "reiser", "greedy-local with ReiserFS's metadata"),
}
