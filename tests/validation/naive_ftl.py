"""A simple page-mapped FTL to compare the Rust core with: one pool, one host write frontier.

It shares only the rules with the core: GC runs when the host needs a block and at most the floor of erased
blocks is left; the overwritten page becomes invalid first; pages of victims are copied in slot order.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(eq=False)
class NaiveBlock:
    """Logical pages by slot; None for an invalid page."""

    slots: list[int | None] = field(default_factory=list)
    valid: int = 0


@dataclass
class NaiveFtl:
    """Blocks are interchangeable, so the erased ones are only counted."""

    blocks: int
    pages_per_block: int
    greedy: bool = False
    """Greedy GC; otherwise the block that was filled longest ago is collected."""
    separate_gc_frontier: bool = False
    free_floor: int = 1
    gc_page_writes: int = 0
    victims: int = 0
    victim_histogram: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.erased = self.blocks
        self.full: list[NaiveBlock] = []
        self.open: dict[str, NaiveBlock | None] = {"host": None, "gc": None}
        self.place: dict[int, tuple[NaiveBlock, int]] = {}
        self.victim_histogram = [0] * (self.pages_per_block + 1)

    def write(self, page: int) -> None:
        """One host page write."""
        self.trim(page)
        while not self._has_room("host"):
            self._close("host")
            if self.erased > self.free_floor:
                self._open("host")
            else:
                self._collect()
        self._append("host", page)

    def trim(self, page: int) -> None:
        """The page has no data any more."""
        if page in self.place:
            block, slot = self.place.pop(page)
            block.slots[slot] = None
            block.valid -= 1

    def _has_room(self, frontier: str) -> bool:
        block = self.open[frontier]
        return block is not None and len(block.slots) < self.pages_per_block

    def _close(self, frontier: str) -> None:
        if (block := self.open[frontier]) is not None:
            self.full.append(block)
            self.open[frontier] = None

    def _open(self, frontier: str) -> None:
        self.erased -= 1
        assert self.erased >= 0
        self.open[frontier] = NaiveBlock()

    def _append(self, frontier: str, page: int) -> None:
        block = self.open[frontier]
        assert block is not None
        self.place[page] = block, len(block.slots)
        block.slots.append(page)
        block.valid += 1

    def _collect(self) -> None:
        victim = min(self.full, key=lambda block: block.valid) if self.greedy else self.full[0]
        self.full.remove(victim)
        self.victims += 1
        self.victim_histogram[victim.valid] += 1
        self.gc_page_writes += victim.valid
        frontier = "gc" if self.separate_gc_frontier else "host"
        for page in [page for page in victim.slots if page is not None]:
            if not self._has_room(frontier):
                self._close(frontier)
                self._open(frontier)
            self._append(frontier, page)
        self.erased += 1
