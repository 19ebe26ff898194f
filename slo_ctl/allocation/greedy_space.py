"""Greedy-Space (section IV.B): the logical block with the most free space serves until it is full."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slo_ctl.allocation.bucket_queue import BucketQueue
from slo_ctl.allocation.interface import Allocator

if TYPE_CHECKING:
    from slo_ctl.allocation.space import Extent, SpaceMap


class GreedySpaceAllocator(Allocator):
    """The paper's, without any regard to where a file's other blocks are."""

    def __init__(self, space: SpaceMap, logical_block: int) -> None:
        super().__init__(space, logical_block)
        self._queue = BucketQueue(space.free_by(logical_block), logical_block)
        self._current: int | None = None
        self._at = 0
        """Where the search goes on in the current logical block."""

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

    def _find(self, most: int, goal: int, metadata: bool) -> Extent:  # noqa: ARG002 - no locality
        if self._current is None or not self._queue.free(self._current):
            self._leave()
            self._enter(self._choose(most))
        assert self._current is not None  # noqa: S101 - _enter set it
        start = self._current * self.logical_block
        end = start + self.logical_block
        run = self.space.free_run(self._at, end, most) or self.space.free_run(start, end, most)
        if run is None:
            raise AssertionError("the current logical block has free blocks")
        self._at = run.start + run.blocks
        return run

    def _take(self, run: Extent) -> None:
        super()._take(run)
        self._count(run, -1)

    def _choose(self, most: int) -> int:  # noqa: ARG002 - all alike
        best = self._queue.most_free()
        if best is None:
            raise AssertionError("a free block was there")
        return best

    def _enter(self, logical: int) -> None:
        self._queue.take_out(logical)
        self._current, self._at = logical, logical * self.logical_block

    def _leave(self) -> None:
        if self._current is not None:
            self._queue.put(self._current)
            self._current = None

    def _count(self, extent: Extent, sign: int) -> None:
        start, left = extent
        while left:
            logical = start // self.logical_block
            part = min(left, (logical + 1) * self.logical_block - start)
            self._change(logical, sign * part)
            start, left = start + part, left - part

    def _change(self, logical: int, by: int) -> None:
        self._queue.change(logical, by)
