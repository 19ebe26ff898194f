"""Block groups as ext2 and ext3 have them: a file's blocks stay in the group of its directory.

The search is that of ext3's `ext3_new_blocks` in outline: the goal itself, then behind it in its group eight
free blocks in a row (a free byte of the bitmap, the least reservation window), then any free block of the
group, then the groups after it in turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slo_ctl.allocation.interface import Allocator

if TYPE_CHECKING:
    from slo_ctl.allocation.space import Extent

GROUP_BLOCKS = 8 * 4096
"""Blocks of a group: as many as one bitmap block of 4 KiB has bits, 128 MiB."""
_WINDOW_BLOCKS = 8


class ExtAllocator(Allocator):
    """ext-like."""

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
