"""What a file system asks of an allocator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from slo_ctl.allocation.space import Extent, NoSpaceError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from slo_ctl.allocation.space import SpaceMap


class Allocator(ABC):
    """Chooses blocks of a `SpaceMap`; the only one to change the map once it is made.

    What is used when it is made (superblocks, tables, the journal) stays so.
    """

    packs_directories: ClassVar[bool] = False
    """New directories go where the last one went, instead of being spread over the drive."""

    metadata_apart: ClassVar[bool] = False
    """Blocks of pointers are asked for as metadata, apart from the data in front of which they else are."""

    def __init__(self, space: SpaceMap, logical_block: int, trim: bool = False) -> None:
        """`logical_block` is in file-system blocks; allocators that know no logical blocks ignore it.

        `trim`: the drive is told what is freed, as a file system mounted with `discard` knows.
        """
        if logical_block < 1 or space.blocks % logical_block:
            raise ValueError("a file system is a whole number of logical blocks")
        self.space = space
        self.logical_block = logical_block
        self.trim = trim

    def allocate(self, count: int, goal: int, metadata: bool = False) -> list[Extent]:
        """Take `count` blocks, near `goal` if locality means something here, in the order to be filled.

        Raises NoSpaceError, having taken nothing, where fewer are free.
        """
        if count > self.space.free_blocks:
            raise NoSpaceError(f"{count} blocks wanted, {self.space.free_blocks} free")
        found: list[Extent] = []
        while count:
            run = self._find(count, goal, metadata)
            self._take(run)
            if found and found[-1].start + found[-1].blocks == run.start:
                found[-1] = Extent(found[-1].start, found[-1].blocks + run.blocks)
            else:
                found.append(run)
            count -= run.blocks
            goal = (run.start + run.blocks) % self.space.blocks
        return found

    def release(self, extent: Extent) -> None:
        """Give blocks back."""
        self.space.release(*extent)

    def rewritten(self, block: int) -> None:  # noqa: B027 - not all care
        """The next sync writes to this block, which was allocated before."""

    def synced(self, metadata: NDArray[np.int64]) -> None:  # noqa: B027 - not all care
        """A sync is over, and it wrote these metadata blocks in place."""

    @abstractmethod
    def _find(self, most: int, goal: int, metadata: bool) -> Extent:
        """At least one free block; there is one."""

    def _take(self, run: Extent) -> None:
        self.space.occupy(*run)
