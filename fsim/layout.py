"""Metadata of a file system: its location, and the blocks that a change makes dirty.

In memory and on the drive as of Linux 2.6.27 with 4 KiB blocks, in outline: the properties that determine the
distances between writes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from fsim.allocators import BORDER_SHARE, GROUP_BLOCKS
from fsim.space import BLOCK_BYTES, Allocator, Extent, SpaceMap

_SCRAMBLE = 2_654_435_761
"""Knuth's multiplicative hash, instead of a random draw or a kernel's own hash."""


class Layout(ABC):
    """Metadata blocks. `prepare` occupies the fixed ones before there is an allocator."""

    journal: range | tuple[int, ...]
    """Blocks of the journal, in order."""

    @abstractmethod
    def prepare(self, space: SpaceMap) -> None:
        """Occupy the fixed blocks of an empty file system."""

    @abstractmethod
    def make_directory(self, directory: int, allocator: Allocator) -> set[int]:
        """Add a directory; returns the metadata blocks changed, as do the next three methods."""

    @abstractmethod
    def add_file(self, directory: int, file: int, allocator: Allocator) -> set[int]:
        """Add a file."""

    @abstractmethod
    def remove_file(self, directory: int, file: int) -> set[int]:
        """Remove a file."""

    @abstractmethod
    def change_file(self, directory: int, file: int) -> set[int]:
        """Change a file's size or pointers."""

    @abstractmethod
    def goal(self, directory: int, last_block: int | None) -> int:
        """The preferred block for a file's next data."""

    @abstractmethod
    def index_blocks(self, blocks: int) -> int:
        """Number of pointer blocks of a file with this many data blocks."""

    def note_data(self, directory: int, extents: Iterable[Extent]) -> None:  # noqa: B027 - not all care
        """Note where data of a file was placed."""

    def bitmaps(self, extents: Iterable[Extent]) -> set[int]:
        """The bitmap blocks of these blocks."""
        changed: set[int] = set()
        for start, count in extents:
            for group in range(start // GROUP_BLOCKS, (start + count - 1) // GROUP_BLOCKS + 1):
                changed.add(group * GROUP_BLOCKS)
        return changed


class ExtLayout(Layout):
    """Metadata of ext3: bitmaps and a part of the inode table in each group; an inode is in its directory's
    group.
    """

    INODES_PER_GROUP = GROUP_BLOCKS * BLOCK_BYTES // 8192
    """mke2fs's default of the time, an inode for 8 KiB."""
    INODES_PER_BLOCK = BLOCK_BYTES // 128
    JOURNAL_BLOCKS = 32_768
    """mke2fs's default for large file systems, 128 MiB."""
    DIRECT_BLOCKS = 12
    POINTERS = BLOCK_BYTES // 4

    def __init__(self) -> None:
        self._tables: list[int] = []
        self._directories: list[int] = []
        """Number of directories in each group."""
        self._inodes_used: list[int] = []
        self._free_inodes: list[list[int]] = []
        self._group_of: dict[int, int] = {}
        self._entries: dict[int, int] = {}
        self._inode_of: dict[int, int] = {}
        self._last_group = 0

    def prepare(self, space: SpaceMap) -> None:
        """Bitmaps and inode tables at the start of each group, the journal from the first group on."""
        table = self.INODES_PER_GROUP // self.INODES_PER_BLOCK
        for start in range(0, space.blocks, GROUP_BLOCKS):
            space.occupy(start, min(2 + table, space.blocks - start))
            self._tables.append(start + 2)
        self._directories = [0] * len(self._tables)
        self._inodes_used = [0] * len(self._tables)
        self._free_inodes = [[] for _ in self._tables]
        journal: list[int] = []
        wanted = min(self.JOURNAL_BLOCKS, space.blocks // 16)
        while len(journal) < wanted:
            run = space.free_run(0, space.blocks, wanted - len(journal))
            assert run is not None  # noqa: S101 - an empty file system has room for its journal
            space.occupy(*run)
            journal.extend(range(run.start, run.start + run.blocks))
        self.journal = tuple(journal)

    def make_directory(self, directory: int, allocator: Allocator) -> set[int]:
        """Add the directory in the group that Orlov's allocator chooses, as a top-level directory."""
        group = self._last_group if allocator.packs_directories else self._spread(allocator.space, directory)
        if self._inodes_used[group] + self.INODES_PER_GROUP // 4 > self.INODES_PER_GROUP:
            group = self._spread(allocator.space, directory)
        self._last_group = group
        self._group_of[directory] = group
        self._directories[group] += 1
        entries = allocator.allocate(1, group * GROUP_BLOCKS, metadata=True)
        self._entries[directory] = entries[0].start
        return {entries[0].start, self._take_inode(~directory, group)} | self.bitmaps(entries)

    def _spread(self, space: SpaceMap, directory: int) -> int:
        """The group with fewest directories among those with at least the mean of free inodes and blocks.

        Orlov starts the search at a random group; here it starts at the hash of the directory's number.
        """
        groups = len(self._tables)
        free = space.free_by(GROUP_BLOCKS)
        mean_free, mean_used = sum(free) / groups, sum(self._inodes_used) / groups
        start = directory * _SCRAMBLE % (1 << 32) * groups >> 32
        order = [(start + step) % groups for step in range(groups)]
        good = [g for g in order if free[g] >= mean_free and self._inodes_used[g] <= mean_used + 1]
        return min(good or order, key=lambda group: self._directories[group])

    def _take_inode(self, file: int, group: int) -> int:
        groups = len(self._tables)
        while self._inodes_used[group] == self.INODES_PER_GROUP:
            group = (group + 1) % groups
        unused = self._free_inodes[group]
        number = unused.pop() if unused else self._inodes_used[group]
        self._inodes_used[group] += 1
        self._inode_of[file] = group * self.INODES_PER_GROUP + number
        return self._inode_block(file)

    def _inode_block(self, file: int) -> int:
        group, number = divmod(self._inode_of[file], self.INODES_PER_GROUP)
        return self._tables[group] + number // self.INODES_PER_BLOCK

    def add_file(self, directory: int, file: int, allocator: Allocator) -> set[int]:
        """Directory entry, inode, inode bitmap."""
        del allocator
        inode = self._take_inode(file, self._group_of[directory])
        return {self._entries[directory], inode, self._inode_bitmap(file)}

    def remove_file(self, directory: int, file: int) -> set[int]:
        """Same blocks as `add_file`."""
        changed = {self._entries[directory], self._inode_block(file), self._inode_bitmap(file)}
        group, number = divmod(self._inode_of.pop(file), self.INODES_PER_GROUP)
        self._free_inodes[group].append(number)
        self._inodes_used[group] -= 1
        return changed

    def _inode_bitmap(self, file: int) -> int:
        return self._inode_of[file] // self.INODES_PER_GROUP * GROUP_BLOCKS + 1

    def change_file(self, directory: int, file: int) -> set[int]:
        """Its inode."""
        del directory
        return {self._inode_block(file)}

    def goal(self, directory: int, last_block: int | None) -> int:
        """After the file's last block; otherwise the start of its directory's group."""
        if last_block is not None:
            following = last_block + 1
            return following if following < len(self._tables) * GROUP_BLOCKS else last_block
        return self._group_of[directory] * GROUP_BLOCKS

    def index_blocks(self, blocks: int) -> int:
        """An indirect block for each 1024 pointers that do not fit into the inode."""
        return max(0, -(-(blocks - self.DIRECT_BLOCKS) // self.POINTERS))


class ReiserLayout(Layout):
    """Metadata of ReiserFS, one tree: leaves hold directory entries, stat data and pointers, in the order of
    the keys.
    """

    FILES_PER_LEAF = 20
    """Entry, stat data, pointers and their item heads: about 200 B a file."""
    JOURNAL_BLOCKS = 8_193
    """mkreiserfs's default, with its header."""
    JOURNAL_START = 18

    def __init__(self) -> None:
        self._leaves: dict[int, list[int]] = {}
        self._slots: dict[int, int] = {}
        self._unused: dict[int, list[int]] = {}
        self._counts: dict[int, int] = {}
        self._last_leaf = 0
        self._last_data: dict[int, int] = {}
        self._blocks = 0

    def prepare(self, space: SpaceMap) -> None:
        """Superblock, journal, and a bitmap block for each 128 MiB."""
        self._blocks = space.blocks
        space.occupy(0, self.JOURNAL_START)
        count = min(self.JOURNAL_BLOCKS, space.blocks // 16)
        space.occupy(self.JOURNAL_START, count)
        self.journal = range(self.JOURNAL_START, self.JOURNAL_START + count)
        for start in range(GROUP_BLOCKS, space.blocks, GROUP_BLOCKS):
            space.occupy(start, 1)

    def make_directory(self, directory: int, allocator: Allocator) -> set[int]:
        """Its first leaf."""
        self._leaves[directory], self._unused[directory], self._counts[directory] = [], [], 0
        return self._grow(directory, allocator)

    def _grow(self, directory: int, allocator: Allocator) -> set[int]:
        leaves = self._leaves[directory]
        goal = (leaves[-1] if leaves else self._last_leaf) + 1
        extents = allocator.allocate(1, goal % self._blocks, metadata=True)
        self._last_leaf = extents[0].start
        leaves.append(self._last_leaf)
        return {self._last_leaf} | self.bitmaps(extents)

    def add_file(self, directory: int, file: int, allocator: Allocator) -> set[int]:
        """The items go into the first leaf of the directory with free space."""
        unused = self._unused[directory]
        changed: set[int] = set()
        if unused:
            slot = unused.pop()
        else:
            slot = self._counts[directory]
            self._counts[directory] += 1
            if slot // self.FILES_PER_LEAF >= len(self._leaves[directory]):
                changed = self._grow(directory, allocator)
        self._slots[file] = slot
        return changed | self.change_file(directory, file)

    def remove_file(self, directory: int, file: int) -> set[int]:
        """The items are removed from their leaf."""
        changed = self.change_file(directory, file)
        self._unused[directory].append(self._slots.pop(file))
        return changed

    def change_file(self, directory: int, file: int) -> set[int]:
        """The leaf with its items."""
        return {self._leaves[directory][self._slots[file] // self.FILES_PER_LEAF]}

    def goal(self, directory: int, last_block: int | None) -> int:
        """After the file's last block; otherwise the newest one of its directory; otherwise the border."""
        left = last_block if last_block is not None else self._last_data.get(directory)
        return int(self._blocks * BORDER_SHARE) if left is None else min(left + 1, self._blocks - 1)

    def note_data(self, directory: int, extents: Iterable[Extent]) -> None:
        """Remember the left neighbour of the next file."""
        for start, count in extents:
            self._last_data[directory] = start + count - 1

    def index_blocks(self, blocks: int) -> int:
        """Pointers are in the leaves."""
        del blocks
        return 0

    def bitmaps(self, extents: Iterable[Extent]) -> set[int]:
        """The first bitmap block follows the superblock."""
        return {block or self.JOURNAL_START - 1 for block in super().bitmaps(extents)}


class SpreadReiserLayout(ReiserLayout):
    """ReiserFS with `dirid_groups`, a default of Linux 2.6.27: a hash picks the group of a directory's first
    data.
    """

    METADATA_PART = 2_048
    """Blocks at the start of a group that are reserved for metadata."""

    def goal(self, directory: int, last_block: int | None) -> int:
        """As in the base class; a directory without data starts in its group."""
        if last_block is None and directory not in self._last_data:
            groups = max(1, self._blocks // GROUP_BLOCKS)
            group = directory * _SCRAMBLE % (1 << 32) * groups >> 32
            return min(group * GROUP_BLOCKS + self.METADATA_PART, self._blocks - 1)
        return super().goal(directory, last_block)


LAYOUTS: dict[str, type[ExtLayout] | type[ReiserLayout]] = {
    "ext": ExtLayout,
    "reiser": ReiserLayout,
    "reiser-dirid": SpreadReiserLayout,
}
