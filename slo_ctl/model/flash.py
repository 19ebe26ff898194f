"""How the flash of an emulated SSD behaves."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class TimingModel(StrEnum):
    """Cost of a host page write on flash."""

    PAPER = "paper"
    """t_gc = gc_write_ratio x t_prog (FAST'15, section 4.1)."""
    FULL = "full"
    """t_gc also pays the reads, the transfers (unless copied back) and the erase of every victim."""
    NONE = "none"
    """Count-only: no clock; IOPS are not known."""


class Placement(StrEnum):
    """Whose pages share a block."""

    SHARED = "shared"
    """One pool for all: GC of one VM moves pages of the others."""
    ISOLATED = "isolated"
    """Every VM owns its blocks, its OPS and its GC."""


@dataclass(frozen=True, slots=True)
class FlashTiming:
    """Latencies of one die and its channel, in microseconds."""

    pages_per_block: int
    read_us: float
    program_us: float
    erase_us: float
    transfer_us: float
    model: TimingModel = TimingModel.FULL
    copyback: bool = True
    """GC copies stay inside the die and need no transfer over the channel."""

    @property
    def copy_us(self) -> float:
        """Time of one page that GC copies: without copyback it crosses the channel twice, out and in."""
        return self.read_us + self.program_us + (0.0 if self.copyback else 2.0 * self.transfer_us)
