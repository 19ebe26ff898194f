"""Files over an allocator: creations, appends and deletions go in, the block writes of each sync come out.

As ext3 and ReiserFS with ordered journalling (section V): a sync writes the data, then the journal; changed
metadata is written in place later, when the journal is cleaned.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fsim.layout import Layout
from fsim.space import BLOCK_BYTES, Allocator, Extent

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Changes of files, step by step: workloads yield them, a file system executes them.


class Action(Enum):
    """Action on a file."""

    CREATE = 0
    APPEND = 1
    DELETE = 2
    OVERWRITE = 3


class Step(NamedTuple):
    """One change. `directory` is that of the file, from 0; `size` is in bytes, 0 for a deletion."""

    action: Action
    file: int
    directory: int
    size: int
    offset: int = 0
    """Where in the file it is overwritten, in bytes."""


CHECKPOINT_SYNCS = 6
"""Metadata is written in place after this many syncs: 30 s (dirty_expire_centisecs) over 5 s (a commit)."""


@dataclass(slots=True)
class _File:
    directory: int
    size: int = 0
    blocks: int = 0
    extents: list[Extent] = field(default_factory=list)
    index: list[Extent] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class Sync:
    """Blocks that a sync writes, in this order, each part ascending; and those freed since the last sync."""

    data: NDArray[np.int64]
    journal: NDArray[np.int64]
    metadata: NDArray[np.int64]
    freed: tuple[Extent, ...]

    def logical_blocks(self, size: int) -> int:
        """Number of logical blocks of `size` file-system blocks that all three parts write to."""
        return sum(len(np.unique(part // size)) for part in (self.data, self.journal, self.metadata))


class FileSystem:
    """One file system, in memory."""

    def __init__(self, layout: Layout, allocator: Allocator) -> None:
        """`layout` was prepared on the allocator's space."""
        self._layout = layout
        self._allocator = allocator
        self._files: dict[int, _File] = {}
        self._dirty: dict[int, list[Extent]] = {}
        self._dirty_blocks = 0
        self._journalled: set[int] = set()
        self._to_clean: set[int] = set()
        self._freed: list[Extent] = []
        self._journal = np.array(layout.journal, dtype=np.int64)
        self._journal_at = 0
        self._syncs = 0

    @property
    def utilisation(self) -> float:
        """Share of used blocks."""
        return self._allocator.space.utilisation

    @property
    def dirty_bytes(self) -> int:
        """Data and metadata that wait for a sync."""
        return (self._dirty_blocks + len(self._journalled)) * BLOCK_BYTES

    def extents(self, file: int) -> list[Extent]:
        """Extents of a file's data."""
        return list(self._files[file].extents)

    def make_directory(self, directory: int) -> None:
        """Create a directory with a new number."""
        self._journalled |= self._layout.make_directory(directory, self._allocator)

    def create(self, file: int, directory: int, size: int) -> None:
        """Create a file with a new number and `size` bytes."""
        self._files[file] = _File(directory)
        self._journalled |= self._layout.add_file(directory, file, self._allocator)
        self.append(file, size)

    def append(self, file: int, size: int) -> None:
        """Append `size` bytes to a file. Raises NoSpaceError if there are no blocks for them; the file keeps
        its size then.
        """
        inode = self._files[file]
        new_size = inode.size + size
        blocks = -(-new_size // BLOCK_BYTES)
        more = blocks - inode.blocks
        if inode.size % BLOCK_BYTES:
            self._rewrite_last(file, inode)
        if more:
            self._grow(file, inode, more)
        inode.size = new_size
        self._journalled |= self._layout.change_file(inode.directory, file)

    def _grow(self, file: int, inode: _File, more: int) -> None:
        layout = self._layout
        index = layout.index_blocks(inode.blocks + more) - layout.index_blocks(inode.blocks)
        last = inode.extents[-1] if inode.extents else None
        goal = layout.goal(inode.directory, None if last is None else last.start + last.blocks - 1)
        pointers, data = self._allocate(index, more, goal)
        inode.index += pointers
        inode.extents += data
        inode.blocks += more
        layout.note_data(inode.directory, data)
        self._journalled |= layout.bitmaps(pointers + data)
        for start, count in pointers:
            self._journalled.update(range(start, start + count))
        self._dirty.setdefault(file, []).extend(data)
        self._dirty_blocks += more

    def _allocate(self, index: int, more: int, goal: int) -> tuple[list[Extent], list[Extent]]:
        """Allocate blocks for pointers and for data. Allocates nothing if there is no space for both."""
        allocator = self._allocator
        if allocator.metadata_apart and index and index + more <= allocator.space.free_blocks:
            return allocator.allocate(index, goal, metadata=True), allocator.allocate(more, goal)
        # Pointers first, as in ext3: they are in memory when the data follows.
        return _split(allocator.allocate(index + more, goal), index)

    def _rewrite_last(self, file: int, inode: _File) -> None:
        """Mark the last block dirty, if it is not full: an append rewrites it."""
        start, count = inode.extents[-1]
        self._allocator.rewritten(start + count - 1)
        self._dirty.setdefault(file, []).append(Extent(start + count - 1, 1))
        self._dirty_blocks += 1

    def overwrite(self, file: int, offset: int, size: int) -> None:
        """Overwrite bytes at an offset within the file, in place. Raises ValueError beyond its blocks."""
        inode = self._files[file]
        first, end = offset // BLOCK_BYTES, -(-(offset + size) // BLOCK_BYTES)
        if offset < 0 or size < 1 or end > inode.blocks:
            raise ValueError(f"file {file} has no bytes {offset}+{size}")
        at = 0
        for start, count in inode.extents:
            low, high = max(first, at), min(end, at + count)
            if low < high:
                part = Extent(start + low - at, high - low)
                for block in range(part.start, part.start + part.blocks):
                    self._allocator.rewritten(block)
                self._dirty.setdefault(file, []).append(part)
                self._dirty_blocks += part.blocks
            at += count
        self._journalled |= self._layout.change_file(inode.directory, file)

    def apply(self, step: Step) -> None:
        """Apply one step of a workload. Raises NoSpaceError if its blocks do not fit."""
        if step.action is Action.CREATE:
            self.create(step.file, step.directory, step.size)
        elif step.action is Action.APPEND:
            self.append(step.file, step.size)
        elif step.action is Action.OVERWRITE:
            self.overwrite(step.file, step.offset, step.size)
        else:
            self.delete(step.file)

    def delete(self, file: int) -> None:
        """Delete a file. Dirty data of it is never written."""
        inode = self._files.pop(file)
        self._dirty_blocks -= sum(extent.blocks for extent in self._dirty.pop(file, ()))
        self._journalled |= self._layout.remove_file(inode.directory, file)
        freed = inode.extents + inode.index
        self._journalled |= self._layout.bitmaps(freed)
        for start, count in inode.index:
            self._journalled.difference_update(range(start, start + count))
            self._to_clean.difference_update(range(start, start + count))
        for extent in freed:
            self._allocator.release(extent)
        self._freed += freed

    def sync(self, last: bool = False) -> Sync:
        """Write everything dirty; metadata in place too every CHECKPOINT_SYNCS, and with `last`."""
        data = expand(extent for extents in self._dirty.values() for extent in extents)
        journal = self._log(len(self._journalled))
        self._to_clean |= self._journalled
        self._syncs += 1
        metadata = np.empty(0, dtype=np.int64)
        if last or self._syncs % CHECKPOINT_SYNCS == 0:
            metadata = np.array(sorted(self._to_clean), dtype=np.int64)
            self._to_clean.clear()
        freed = tuple(self._freed)
        self._dirty, self._dirty_blocks, self._journalled, self._freed = {}, 0, set(), []
        self._allocator.synced(metadata)
        return Sync(data, journal, metadata, freed)

    def settle(self) -> None:
        """Mark everything dirty as written and the journal as cleaned, without reporting a `Sync`."""
        self._dirty, self._dirty_blocks, self._freed = {}, 0, []
        self._journalled.clear()
        self._to_clean.clear()
        self._allocator.synced(np.empty(0, dtype=np.int64))

    def _log(self, blocks: int) -> NDArray[np.int64]:
        """The next blocks of the journal: a descriptor, the metadata, a commit block."""
        if not blocks:
            return np.empty(0, dtype=np.int64)
        at = (self._journal_at + np.arange(min(blocks + 2, len(self._journal)))) % len(self._journal)
        self._journal_at = int(at[-1] + 1) % len(self._journal)
        return self._journal[at]


def _split(extents: list[Extent], count: int) -> tuple[list[Extent], list[Extent]]:
    """The first `count` blocks, and the rest."""
    first: list[Extent] = []
    rest: list[Extent] = []
    for start, length in extents:
        part = min(count, length)
        if part:
            first.append(Extent(start, part))
        if length > part:
            rest.append(Extent(start + part, length - part))
        count -= part
    return first, rest


def expand(extents: Iterable[Extent]) -> NDArray[np.int64]:
    """The blocks of extents, ascending, without duplicates."""
    table = np.array(list(extents), dtype=np.int64).reshape(-1, 2)
    counts = table[:, 1]
    offsets = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
    return np.unique(np.repeat(table[:, 0], counts) + offsets)
