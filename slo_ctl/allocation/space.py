"""The map of free and used file-system blocks that all allocators share."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

BLOCK_BYTES = 4096
"""A file-system block, and Postmark's I/O unit in the paper (section V)."""


_PART = 1 << 15
"""Blocks for which it is known at once whether any is free."""


class NoSpaceError(Exception):
    """The file system has fewer free blocks than were asked for."""


class Extent(NamedTuple):
    """Consecutive file-system blocks."""

    start: int
    blocks: int


class SpaceMap:
    """One byte a block, searched at the speed of memchr; parts without a free block are passed over."""

    def __init__(self, blocks: int) -> None:
        if blocks < 1:
            raise ValueError("a file system has at least one block")
        self._used = bytearray(blocks)
        self._free = blocks
        self._free_of_part = self.free_by(_PART)
        self._open = (1 << len(self._free_of_part)) - 1
        """A bit for each part with a free block."""

    @property
    def blocks(self) -> int:
        """Blocks in all."""
        return len(self._used)

    @property
    def free_blocks(self) -> int:
        """Blocks that nobody has."""
        return self._free

    @property
    def utilisation(self) -> float:
        """Share of the blocks that is used, metadata included: the paper's x-axis."""
        return 1.0 - self._free / len(self._used)

    def is_free(self, block: int) -> bool:
        """Whether nobody has the block."""
        return not self._used[block]

    def free_run(self, start: int, end: int, most: int) -> Extent | None:
        """The first free blocks in [start, end), as many as follow each other, `most` of them at the most."""
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
        """The first of [start, end) that begins `least` free blocks in a row; `most` of them at the most."""
        first = self._used.find(bytes(least), start, end)
        if first < 0:
            return None
        limit = min(end, first + most)
        after = self._used.find(1, first, limit)
        return Extent(first, (limit if after < 0 else after) - first)

    def free_in(self, start: int, end: int) -> int:
        """How many blocks of [start, end) are free."""
        return int(np.count_nonzero(np.frombuffer(self._used, dtype=np.uint8)[start:end] == 0))

    def free_by(self, size: int) -> list[int]:
        """How many blocks are free in each `size` blocks in turn."""
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
        """Everything that is used."""
        found: list[Extent] = []
        at = self._used.find(1)
        while at >= 0:
            after = self._used.find(0, at)
            end = len(self._used) if after < 0 else after
            found.append(Extent(at, end - at))
            at = self._used.find(1, end)
        return found

    def occupy(self, start: int, count: int) -> None:
        """Take free blocks. ValueError, and nothing changes, where one is taken or there is none."""
        self._check(start, count)
        if self._used.find(1, start, start + count) >= 0:
            raise ValueError(f"a block of {start}+{count} is in use")
        self._used[start : start + count] = b"\x01" * count
        self._free -= count
        self._note(start, count, -1)

    def release(self, start: int, count: int) -> None:
        """Give blocks back. ValueError, and nothing changes, where one is free already."""
        self._check(start, count)
        if self._used.find(0, start, start + count) >= 0:
            raise ValueError(f"a block of {start}+{count} is free")
        self._used[start : start + count] = bytes(count)
        self._free += count
        self._note(start, count, 1)

    def _note(self, start: int, count: int, sign: int) -> None:
        while count:
            part = start // _PART
            here = min(count, (part + 1) * _PART - start)
            self._free_of_part[part] += sign * here
            if self._free_of_part[part]:
                self._open |= 1 << part
            else:
                self._open &= ~(1 << part)
            start, count = start + here, count - here

    def _check(self, start: int, count: int) -> None:
        if start < 0 or count < 1 or start + count > len(self._used):
            raise ValueError(f"no blocks {start}+{count} in a file system of {len(self._used)}")
