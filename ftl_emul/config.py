"""What makes an emulated drive."""

from __future__ import annotations

from dataclasses import dataclass

LEAST_LOG_BLOCKS = {"bast": 1, "fast": 2}
"""Mappings that have log blocks and merge them, and how many of these a tenant needs at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Shape, latencies and policies of a drive. `Device` refuses what makes no drive, naming the field."""

    page_bytes: int
    """The unit of mapping; a power of two."""
    pages_per_block: int
    blocks_per_die: int
    channels: int
    dies_per_channel: int
    planes: int
    """Of a die, programmed together: each page bears its part of the program time."""
    read_ns: int
    program_ns: int
    erase_ns: int
    transfer_ns: int
    """Moving one page over its channel."""
    suspend_ns: int = 0
    """Suspending a program or an erase for a read, and resuming it; 0: reads wait."""
    paper_timing: bool = False
    """GC costs one program a page, and nothing else (FAST'15, section 4.1)."""
    copyback: bool = True
    """GC copies stay inside the die and need no transfers."""
    mapping: str = "page"
    """A name of `mappings()`."""
    cluster_dies: int = 1
    """bast and fast: dies that a block spans; tenants own clustered blocks of so many erase blocks."""
    cached_entries: int | None = None
    """dftl: map entries held in memory; None: a thirty-second of the drive's pages."""
    victim: str = "greedy"
    """A name of `victim_policies()`, or d-choices:N."""
    separate_gc_frontier: bool = False
    """GC copies go to open blocks of their own."""
    free_floor: int = 1
    """Erased blocks that each tenant keeps on each die; with bast and fast, on all dies together."""
    wear_spread_limit: int | None = None
    """Static wear levelling acts on spreads of more erases than this; None: never."""
    scheduler: str = "fifo"
    """A name of `schedulers()`."""
    device_queue_depth: int | None = None
    """Page operations in flight at most; None: one for each die."""
    seed: int = 0
    """Of the victim policies that draw lots."""

    @property
    def dies(self) -> int:
        """Dies of the drive."""
        return self.channels * self.dies_per_channel

    @property
    def physical_bytes(self) -> int:
        """All blocks, those that GC holds free included."""
        return self.blocks_per_die * self.dies * self.pages_per_block * self.page_bytes

    @property
    def merges(self) -> bool:
        """Whether the mapping has log blocks, which it merges."""
        return self.mapping in LEAST_LOG_BLOCKS

    @property
    def block_pages(self) -> int:
        """Pages of a block as namespaces own and move them: of several dies where blocks are clustered."""
        return self.pages_per_block * self.cluster_dies

    @property
    def held_blocks(self) -> int:
        """Blocks of a domain that GC or merges keep free."""
        return self.free_floor * (1 if self.merges else self.dies)
