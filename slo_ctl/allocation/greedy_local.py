"""Greedy-Space with locality, which the paper leaves for the future (section V, last paragraph).

By T(n) = T_merge + n S/B a block costs least in a logical block that the next sync writes to anyway: no
merge comes with it. Greedy-Space does not ask for that; it moves on to emptier logical blocks, and what is
alive thins out behind it until each sync touches more of them. So, in this order:

1. of the logical blocks that this sync writes to, the one with the most free space, if that is worth
   entering;
2. of those written to in the last syncs (the workload's own), the one with the most free space, if that is a
   good part of a logical block;
3. the one with the most free space of all, as Greedy-Space does.

Directories are kept together, and with them the metadata that their files share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slo_ctl.allocation.bucket_queue import BucketQueue
from slo_ctl.allocation.greedy_space import GreedySpaceAllocator

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from slo_ctl.allocation.space import Extent, SpaceMap

TOUCHED_LEAST_SHARE = 1 / 128
"""Of a logical block: the least free space in one that is being written to."""
TOUCHED_LEAST_WRITES = 8
"""And room for so many writes like the one at hand: large files are not scattered over small gaps."""
RECENT_LEAST_SHARE = 1 / 2
"""The least free space in one that was written to lately."""
RECENT_SYNCS = 6
"""How long lately lasts."""


class GreedyLocalAllocator(GreedySpaceAllocator):
    """Greedy among what is being written, then among what was written lately, then among all."""

    packs_directories = True

    def __init__(self, space: SpaceMap, logical_block: int) -> None:
        super().__init__(space, logical_block)
        self._touched = BucketQueue(space.free_by(logical_block), logical_block, empty=True)
        self._recent: list[set[int]] = [set()]
        """Logical blocks touched in this sync, and in each of the syncs before, newest first."""

    @property
    def memory_bytes(self) -> int:
        """Two queues; the sets of recent logical blocks hold no more than what syncs wrote to."""
        return super().memory_bytes + self._touched.memory_bytes

    def rewritten(self, block: int) -> None:
        """The next sync writes to its logical block."""
        self._touch(block // self.logical_block)

    def synced(self, metadata: NDArray[np.int64]) -> None:
        """What was touched is recent now."""
        del metadata
        for logical in self._recent[0]:
            if self._touched.holds(logical):
                self._touched.take_out(logical)
        self._recent = [set(), *self._recent[:RECENT_SYNCS]]

    def _touch(self, logical: int) -> None:
        if logical not in self._recent[0]:
            self._recent[0].add(logical)
            if logical != self._current:
                self._touched.put(logical)

    def _take(self, run: Extent) -> None:
        self._touch(run.start // self.logical_block)
        super()._take(run)

    def _choose(self, most: int) -> int:
        best = super()._choose(most)
        touched = self._touched.most_free()
        least = max(TOUCHED_LEAST_SHARE * self.logical_block, TOUCHED_LEAST_WRITES * most)
        if touched is not None and self.free_in(touched) >= least:
            return touched
        recent = max(set().union(*self._recent[1:]), key=self.free_in, default=None)
        if recent is not None and self.free_in(recent) >= max(1, RECENT_LEAST_SHARE * self.logical_block):
            return recent
        return best

    def _enter(self, logical: int) -> None:
        super()._enter(logical)
        if self._touched.holds(logical):
            self._touched.take_out(logical)

    def _leave(self) -> None:
        left = self._current
        super()._leave()
        if left is not None and left in self._recent[0]:
            self._touched.put(left)

    def _change(self, logical: int, by: int) -> None:
        super()._change(logical, by)
        self._touched.change(logical, by)
