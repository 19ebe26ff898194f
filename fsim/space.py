"""The map of free and used file-system blocks that all allocators share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

BLOCK_BYTES = 4096
"""A file-system block, and Postmark's I/O unit in the paper (section V)."""


_PART = 1 << 15
"""Blocks in a part of the map; each part has a flag for whether any of its blocks is free."""


class NoSpaceError(Exception):
    """The file system has fewer free blocks than requested."""


class Extent(NamedTuple):
    """Consecutive file-system blocks."""

    start: int
    blocks: int


class SpaceMap:
    """One byte per block, searched at the speed of memchr; parts without a free block are skipped."""

    def __init__(self, blocks: int) -> None:
        if blocks < 1:
            raise ValueError("a file system has at least one block")
        self._used = bytearray(blocks)
        self._free = blocks
        self._free_of_part = [min(_PART, blocks - start) for start in range(0, blocks, _PART)]
        self._open = (1 << len(self._free_of_part)) - 1
        """A bit for each part that has a free block."""

    @property
    def blocks(self) -> int:
        """Total number of blocks."""
        return len(self._used)

    @property
    def free_blocks(self) -> int:
        return self._free

    @property
    def utilisation(self) -> float:
        """Share of used blocks, metadata included: the paper's x-axis."""
        return 1.0 - self._free / len(self._used)

    def is_free(self, block: int) -> bool:
        return not self._used[block]

    def free_run(self, start: int, end: int, most: int) -> Extent | None:
        """The first consecutive free blocks in [start, end), at most `most`."""
        first = self._used.find(0, start, min(end, start - start % _PART + _PART))
        if first < 0:
            part = start // _PART + 1
            later = self._open >> part
            if not later:
                return None
            part += (later & -later).bit_length() - 1
            first = self._used.find(0, part * _PART, min(end, (part + 1) * _PART))
        if first < 0:
            return None
        limit = min(end, first + most)
        after = self._used.find(1, first, limit)
        return Extent(first, (limit if after < 0 else after) - first)

    def free_window(self, start: int, end: int, least: int, most: int) -> Extent | None:
        """The first range in [start, end) of at least `least` and at most `most` consecutive free blocks."""
        first = self._used.find(bytes(least), start, end)
        if first < 0:
            return None
        limit = min(end, first + most)
        after = self._used.find(1, first, limit)
        return Extent(first, (limit if after < 0 else after) - first)

    def free_in(self, start: int, end: int) -> int:
        """Number of free blocks in [start, end)."""
        return int(np.count_nonzero(np.frombuffer(self._used, dtype=np.uint8)[start:end] == 0))

    def free_by(self, size: int) -> list[int]:
        """Number of free blocks in each successive range of `size` blocks."""
        if size == _PART:
            return list(self._free_of_part)
        used = np.frombuffer(self._used, dtype=np.uint8)
        starts = np.arange(0, len(used), size)
        lengths = np.minimum(size, len(used) - starts)
        whole = len(used) // size
        counts = used[: whole * size].reshape(whole, size).sum(axis=1, dtype=np.int64)
        if whole < len(starts):
            counts = np.append(counts, used[whole * size :].sum(dtype=np.int64))
        free: list[int] = (lengths - counts).tolist()
        return free

    def used_extents(self) -> list[Extent]:
        found: list[Extent] = []
        at = self._used.find(1)
        while at >= 0:
            after = self._used.find(0, at)
            end = len(self._used) if after < 0 else after
            found.append(Extent(at, end - at))
            at = self._used.find(1, end)
        return found

    def occupy(self, start: int, count: int) -> None:
        """Mark free blocks as used. Raises ValueError, and changes nothing, if one is in use or the range is
        empty.
        """
        self._check(start, count)
        if self._used.find(1, start, start + count) >= 0:
            raise ValueError(f"a block of {start}+{count} is in use")
        self._used[start : start + count] = b"\x01" * count
        self._free -= count
        self._note(start, count, -1)

    def release(self, start: int, count: int) -> None:
        """Free blocks. Raises ValueError, and changes nothing, if one is free already."""
        self._check(start, count)
        if self._used.find(0, start, start + count) >= 0:
            raise ValueError(f"a block of {start}+{count} is free")
        self._used[start : start + count] = bytes(count)
        self._free += count
        self._note(start, count, 1)

    def _note(self, start: int, count: int, sign: int) -> None:
        while count:
            part = start // _PART
            in_part = min(count, (part + 1) * _PART - start)
            self._free_of_part[part] += sign * in_part
            if self._free_of_part[part]:
                self._open |= 1 << part
            else:
                self._open &= ~(1 << part)
            start, count = start + in_part, count - in_part

    def _check(self, start: int, count: int) -> None:
        if start < 0 or count < 1 or start + count > len(self._used):
            raise ValueError(f"no blocks {start}+{count} in a file system of {len(self._used)}")


# The interface of an allocator.


class Allocator(ABC):
    """Chooses blocks of a `SpaceMap` and alone changes it.

    Blocks in use when it is created (superblocks, tables, the journal) stay in use.
    """

    packs_directories: ClassVar[bool] = False
    """Whether new directories are placed next to the last one, instead of being spread over the drive."""

    metadata_apart: ClassVar[bool] = False
    """Whether pointer blocks are requested as metadata, apart from the data; otherwise they precede it."""

    regards_trim: ClassVar[bool] = False
    """Whether its choices depend on `trim`."""

    def __init__(self, space: SpaceMap, logical_block: int, trim: bool = False) -> None:
        """`logical_block` is in file-system blocks; some allocators ignore it. `trim`: the file system trims
        blocks that it frees, as one mounted with `discard`.
        """
        if logical_block < 1 or space.blocks % logical_block:
            raise ValueError("a file system is a whole number of logical blocks")
        self.space = space
        self.logical_block = logical_block
        self.trim = trim

    def allocate(self, count: int, goal: int, metadata: bool = False) -> list[Extent]:
        """Allocate `count` blocks, near `goal` if the allocator regards locality, in the order to be filled.

        Raises NoSpaceError, and allocates nothing, if fewer are free.
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
        """Free blocks."""
        self.space.release(*extent)

    def rewritten(self, block: int) -> None:  # noqa: B027 - not all care
        """Note that the next sync writes to this block, which was allocated before."""

    def synced(self, metadata: NDArray[np.int64]) -> None:  # noqa: B027 - not all care
        """Note that a sync is over, and wrote these metadata blocks in place."""

    @abstractmethod
    def _find(self, most: int, goal: int, metadata: bool) -> Extent:
        """Find free blocks, at least one; the caller knows that there is one."""

    def _take(self, run: Extent) -> None:
        self.space.occupy(*run)


# Logical blocks ordered by their free space: a bucket for each count.
#
# The paper keeps a red-black tree with 36 B per logical block (section V, table I). Here buckets are doubly
# linked lists in flat arrays, and a bit for each bucket tells whether it is empty: removal, insertion and
# moves are O(1), finding the most free space is O(buckets / word). Memory: free count, two links and the
# bucket heads.

_NONE = -1


class BucketQueue:
    """Logical blocks 0 .. n-1, each with a free count of 0 .. capacity, in the queue or not."""

    def __init__(self, free: list[int], capacity: int, empty: bool = False) -> None:
        """Start with all of them in the queue, in ascending order; with `empty`, with none."""
        if any(not 0 <= count <= capacity for count in free):
            raise ValueError(f"free counts lie between 0 and {capacity}")
        self._free = array("i", free)
        self._next = array("i", [_NONE]) * len(free)
        self._previous = array("i", [_NONE]) * len(free)
        self._heads = array("i", [_NONE]) * (capacity + 1)
        self._in_queue = bytearray(len(free))
        self._filled = 0
        for block in () if empty else range(len(free) - 1, -1, -1):
            self.put(block)

    def __len__(self) -> int:
        return len(self._free)

    @property
    def memory_bytes(self) -> int:
        """Memory of counts, links, marks, heads and the bits of the buckets."""
        columns = (self._free, self._next, self._previous, self._heads)
        return sum(len(c) * c.itemsize for c in columns) + len(self._in_queue) + -(-len(self._heads) // 8)

    def free(self, block: int) -> int:
        """Free blocks of a logical block, whether it is in the queue or not."""
        return self._free[block]

    def holds(self, block: int) -> bool:
        return bool(self._in_queue[block])

    def most_free(self) -> int | None:
        """The logical block with the most free space; None if no logical block in the queue has any."""
        highest = self._filled.bit_length() - 1
        return self._heads[highest] if highest > 0 else None

    def put(self, block: int) -> None:
        """Put a logical block into the queue, before those with equal free space."""
        if self._in_queue[block]:
            raise ValueError(f"logical block {block} is in the queue")
        count = self._free[block]
        head = self._heads[count]
        self._next[block], self._previous[block] = head, _NONE
        if head == _NONE:
            self._filled |= 1 << count
        else:
            self._previous[head] = block
        self._heads[count] = block
        self._in_queue[block] = 1

    def take_out(self, block: int) -> None:
        """Take a logical block out of the queue; its free count is kept."""
        if not self._in_queue[block]:
            raise ValueError(f"logical block {block} is not in the queue")
        count, after, before = self._free[block], self._next[block], self._previous[block]
        if after != _NONE:
            self._previous[after] = before
        if before != _NONE:
            self._next[before] = after
        else:
            self._heads[count] = after
            if after == _NONE:
                self._filled &= ~(1 << count)
        self._in_queue[block] = 0

    def clear(self) -> None:
        """Empty the queue, in time proportional to its length."""
        while self._filled:
            block = self._heads[self._filled.bit_length() - 1]
            while block != _NONE:
                self._in_queue[block] = 0
                block = self._next[block]
            self._heads[self._filled.bit_length() - 1] = _NONE
            self._filled &= ~(1 << (self._filled.bit_length() - 1))

    def change(self, block: int, by: int) -> None:
        """Add to the free count of a logical block."""
        queued = self._in_queue[block]
        if queued:
            self.take_out(block)
        self._free[block] += by
        if queued:
            self.put(block)
