"""ReiserFS: blocks in the order of their keys, formatted nodes in front of a border, data behind it.

From `fs/reiserfs/bitmap.c` in outline: the file system hands in the block of the left neighbour in key
order, and the next free block behind it is taken; with the `border` option nodes of the tree are kept in the
first tenth of the drive ("concentrating formatted nodes"), apart from the data. Where one part is full, the
other serves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slo_ctl.allocation.interface import Allocator

if TYPE_CHECKING:
    from slo_ctl.allocation.space import Extent

BORDER_SHARE = 0.1
"""Of the drive, for formatted nodes."""


class ReiserAllocator(Allocator):
    """ReiserFS-like."""

    def _find(self, most: int, goal: int, metadata: bool) -> Extent:
        blocks = self.space.blocks
        border = int(blocks * BORDER_SHARE)
        start, end = (0, border) if metadata else (border, blocks)
        goal = goal if start <= goal < end else start
        # Behind the left neighbour; around from the start of this part; the other part.
        other = (border, blocks) if metadata else (0, border)
        for low, high in ((goal, end), (start, goal), other):
            run = self.space.free_run(low, high, most)
            if run is not None:
                return run
        raise AssertionError("a free block was there")
