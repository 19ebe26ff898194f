"""The search of a logical block as it is kept; what it found is worked out from the measured pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from slo_ctl.serra.logical_block.rule import Finding, Pair, Rule, conclude, doubled_sizes
from slo_ctl.serra.stored import FoundRecord, RecordStore, Stored

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

FORMAT_VERSION = 1
MAX_PAIRS = 10_000
_LEAST_BYTES_S, _MOST_BYTES_S = 1e-3, 1e15
"""No drive is slower or faster; a stored file that says so is damaged."""


class PairRow(BaseModel):
    """One Pair."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    size_bytes: int = Field(gt=0)
    sequential_bytes_s: float = Field(ge=_LEAST_BYTES_S, le=_MOST_BYTES_S)
    random_bytes_s: float = Field(ge=_LEAST_BYTES_S, le=_MOST_BYTES_S)


class LogicalBlockRecord(Stored):
    """The search on one device."""

    format_version: Literal[1] = 1
    target: str
    created: str
    """ISO 8601, UTC."""
    span_bytes: int = Field(gt=0)
    """Written by each pass, at the beginning of the target."""
    low_bytes: int = Field(gt=0)
    high_bytes: int = Field(gt=0)
    """The sizes double from the one to the other."""
    queue_depth: int = Field(ge=1)
    tolerance: float = Field(gt=0, allow_inf_nan=False)
    confidence: float = Field(gt=0.5, lt=1)
    min_repetitions: int = Field(ge=2)
    max_repetitions: int = Field(ge=2)
    written_bytes: int = Field(default=0, ge=0)
    """By all sessions, warm-up included."""
    pair: tuple[PairRow, ...] = Field(default=(), max_length=MAX_PAIRS)

    @model_validator(mode="after")
    def _fits_together(self) -> LogicalBlockRecord:
        sizes = doubled_sizes(self.low_bytes, self.high_bytes)
        _ = self.rule
        strange = [row.size_bytes for row in self.pair if row.size_bytes not in sizes]
        if strange:
            raise ValueError(f"a pair has size {strange[0]}, which is none of the sizes")
        return self

    @property
    def rule(self) -> Rule:
        """By which it is judged."""
        return Rule(self.tolerance, self.confidence, self.min_repetitions, self.max_repetitions)

    @property
    def sizes_bytes(self) -> tuple[int, ...]:
        """Of requests."""
        return doubled_sizes(self.low_bytes, self.high_bytes)

    def pairs(self) -> list[Pair]:
        """What was measured."""
        return [Pair(row.size_bytes, row.sequential_bytes_s, row.random_bytes_s) for row in self.pair]

    def finding(self) -> Finding:
        """What it says."""
        return conclude(self.pairs(), self.sizes_bytes, self.rule)


FoundLogicalBlock = FoundRecord[LogicalBlockRecord]


class LogicalBlockStore(RecordStore[LogicalBlockRecord]):
    """Every search in a folder of its own below that of the profiles, each named as its device's profile."""

    def __init__(self, profiles: Path) -> None:
        super().__init__(profiles / "logical-blocks", LogicalBlockRecord, "search of the logical block")


def rows(pairs: Iterable[Pair]) -> tuple[PairRow, ...]:
    """Pairs to keep."""
    return tuple(
        PairRow(
            size_bytes=pair.size_bytes,
            sequential_bytes_s=pair.sequential_bytes_s,
            random_bytes_s=pair.random_bytes_s,
        )
        for pair in pairs
    )
