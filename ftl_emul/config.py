"""Configuration of an emulated drive."""

from __future__ import annotations

from dataclasses import dataclass

LEAST_LOG_BLOCKS = {"bast": 1, "fast": 2}
"""Mappings with log blocks that they merge, and the minimum number of log blocks of a tenant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Shape, latencies and policies of a drive. `Device` rejects an invalid one, naming the field."""

    page_bytes: int
    """The unit of mapping; a power of two."""
    pages_per_block: int
    blocks_per_die: int
    channels: int
    dies_per_channel: int
    planes: int
    """Planes of a die, programmed together: each page takes its part of the program time."""
    read_ns: int
    program_ns: int
    erase_ns: int
    transfer_ns: int
    """Transfer of one page over its channel."""
    suspend_ns: int = 0
    """Suspending a program or an erase for a read, and resuming it; 0: reads wait."""
    paper_timing: bool = False
    """GC costs one program per page, and nothing else (FAST'15, section 4.1)."""
    copyback: bool = True
    """GC copies stay in the die and need no transfers."""
    mapping: str = "page"
    """A name of `mappings()`."""
    cluster_dies: int = 1
    """bast and fast: dies that a block spans; tenants own clustered blocks of this many erase blocks."""
    cached_entries: int | None = None
    """dftl: map entries in memory; None: 1/32 of the drive's pages."""
    victim: str = "greedy"
    """A name of `victim_policies()`, or d-choices:N."""
    separate_gc_frontier: bool = False
    """GC copies go to separate open blocks."""
    free_floor: int = 1
    """Erased blocks that each tenant keeps on each die; with bast and fast, on all dies together."""
    scheduler: str = "fifo"
    """A name of `schedulers()`."""
    device_queue_depth: int | None = None
    """Maximum page operations in flight; None: one for each die."""
    seed: int = 0
    """Seed of victim policies that use random numbers."""

    @property
    def dies(self) -> int:
        """Dies of the drive."""
        return self.channels * self.dies_per_channel

    @property
    def physical_bytes(self) -> int:
        """All blocks, including those that GC keeps free."""
        return self.blocks_per_die * self.dies * self.pages_per_block * self.page_bytes

    @property
    def merges(self) -> bool:
        """Whether the mapping has log blocks, which it merges."""
        return self.mapping in LEAST_LOG_BLOCKS

    @property
    def block_pages(self) -> int:
        """Pages of a block as namespaces own and move them: of several dies if blocks are clustered."""
        return self.pages_per_block * self.cluster_dies

    @property
    def held_blocks(self) -> int:
        """Blocks of a domain that GC or merges keep free."""
        return self.free_floor * (1 if self.merges else self.dies)
