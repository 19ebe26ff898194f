"""Greedy-Space (section IV.B): the logical block with the most free space serves until it is full."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from slo_ctl.allocation.bucket_queue import BucketQueue
from slo_ctl.allocation.interface import Allocator

if TYPE_CHECKING:
    from slo_ctl.allocation.space import Extent, SpaceMap


@dataclass(slots=True)
class Stream:
    """Allocations that fill one logical block after the other."""

    logical: int | None = None
    """The one being filled; it is not in the queue."""
    at: int = 0
    """Where the search goes on in it."""
    touched: bool = False
    """The next sync writes to it."""


class GreedySpaceAllocator(Allocator):
    """The paper's, without any regard to where a file's other blocks are."""

    STREAMS: ClassVar[int] = 1

    def __init__(self, space: SpaceMap, logical_block: int, trim: bool = False) -> None:
        super().__init__(space, logical_block, trim)
        self._queue = BucketQueue(space.free_by(logical_block), logical_block)
        self._streams = tuple(Stream() for _ in range(self.STREAMS))

    @property
    def memory_bytes(self) -> int:
        """What there is beside the file system's own map of free space."""
        return self._queue.memory_bytes

    def free_in(self, logical: int) -> int:
        """Free blocks of a logical block, as the queue knows them."""
        return self._queue.free(logical)

    def release(self, extent: Extent) -> None:
        """Give blocks back, and move their logical blocks up."""
        super().release(extent)
        self._count(extent, 1)

    def _stream(self, most: int, metadata: bool) -> Stream:  # noqa: ARG002 - all alike
        """The stream that serves such an allocation."""
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
            # What other streams were to fill is all there is left.
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
