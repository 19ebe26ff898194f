"""The search for the size at which random writes are as fast as sequential ones: next measurement and result.

After C. Hyun et al., "A Performance Model and File System Space Allocation Scheme for SSDs", section IV.A:
write the same bytes sequentially and, without overlap, in random order; double the size until both are
equally fast. In the paper they are if "the whole numbers of the reported numbers are the same", which depends
on the unit and ignores noise. Here the ratio of both must be within a tolerance, with confidence.
Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pydantic import Field, model_validator

from slo_ctl.base.json_store import StrictModel
from slo_ctl.decide.profile_fit import t_quantile
from slo_ctl.profile.store import FoundRecord, RecordStore, Stored


class Closeness(StrEnum):
    """How random writes of a size compare with sequential ones."""

    EQUAL = "equal"
    """Random writes are slower by no more than the tolerance, with confidence."""
    SLOWER = "slower"
    """Random writes are slower by more, with confidence."""
    OPEN = "open"
    """Not known yet."""
    PROBABLY_EQUAL = "probably equal"
    """Unknown after all repetitions; the mean is within the tolerance."""
    PROBABLY_SLOWER = "probably slower"

    @property
    def is_equal(self) -> bool:
        """Whether they are equal, with confidence or not."""
        return self in (Closeness.EQUAL, Closeness.PROBABLY_EQUAL)

    @property
    def is_sure(self) -> bool:
        """With confidence."""
        return self in (Closeness.EQUAL, Closeness.SLOWER)


@dataclass(frozen=True, slots=True)
class Rule:
    """When two throughputs count as equal, and how often they are measured."""

    tolerance: float = 0.10
    """Sequential over random throughput is at most 1 + this. One-sided: merges slow only random writes."""
    confidence: float = 0.95
    """Confidence of each size's verdict, however often it was tested."""
    min_repetitions: int = 2
    max_repetitions: int = 8

    def __post_init__(self) -> None:
        if not (self.tolerance > 0 and 0.5 < self.confidence < 1):
            raise ValueError("the tolerance is positive, the confidence between .5 and 1")
        if not 2 <= self.min_repetitions <= self.max_repetitions:
            raise ValueError("at least 2 repetitions, and no fewer at most than at least")

    @property
    def look_confidence(self) -> float:
        """Confidence of one test of a size, so that all tests together have `confidence` (Bonferroni)."""
        looks = self.max_repetitions - self.min_repetitions + 1
        return 1.0 - (1.0 - self.confidence) / looks


_LEAST_BYTES_S, _MOST_BYTES_S = 1e-3, 1e15
"""No drive is slower or faster; a stored file with other values is damaged."""


class Pair(StrictModel):
    """The same bytes written sequentially and at random, one right after the other."""

    size_bytes: int = Field(gt=0)
    sequential_bytes_s: float = Field(ge=_LEAST_BYTES_S, le=_MOST_BYTES_S)
    random_bytes_s: float = Field(ge=_LEAST_BYTES_S, le=_MOST_BYTES_S)

    @property
    def log_ratio(self) -> float:
        """Logarithm of sequential over random throughput."""
        return math.log(self.sequential_bytes_s) - math.log(self.random_bytes_s)


@dataclass(frozen=True, slots=True)
class SizeVerdict:
    """One size."""

    size_bytes: int
    repetitions: int
    sequential_bytes_s: float
    """Geometric means."""
    random_bytes_s: float
    ratio: float
    """Sequential over random."""
    low: float
    """Bounds of the ratio, each with the confidence of one test; 0 and infinite below two repetitions."""
    high: float
    closeness: Closeness


class Outcome(StrEnum):
    """Outcome of the search."""

    NONE_NEEDED = "none needed"
    """Random writes are as fast from the smallest size on: the placement of data does not matter."""
    FOUND = "found"
    NOT_REACHED = "not reached"
    """Random writes are slower at every size."""
    UNFINISHED = "unfinished"


@dataclass(frozen=True, slots=True)
class Finding:
    """Present knowledge of the optimal write size."""

    outcome: Outcome
    block_bytes: int | None
    """The optimal write size, if it was found."""
    sure: bool
    """Whether all verdicts it is based on have confidence."""
    sizes: tuple[SizeVerdict, ...]
    """Ascending, as far as the search went."""


def doubled_sizes(low_bytes: int, high_bytes: int) -> tuple[int, ...]:
    """From `low_bytes` on, each twice the previous one. ValueError unless that ends with `high_bytes`."""
    sizes = [low_bytes]
    while 0 < sizes[-1] < high_bytes:
        sizes.append(2 * sizes[-1])
    if sizes[-1] != high_bytes or low_bytes <= 0:
        raise ValueError(f"doubling {low_bytes} never gives {high_bytes}")
    return tuple(sizes)


def judge(pairs: Sequence[Pair], rule: Rule) -> SizeVerdict:
    """Judge the pairs of one size. ValueError without any."""
    if not pairs:
        raise ValueError("no pair was measured")
    count = len(pairs)
    logs = [pair.log_ratio for pair in pairs]
    mean = math.fsum(logs) / count
    margin = math.inf
    if count > 1:
        variance = math.fsum((each - mean) ** 2 for each in logs) / (count - 1)
        margin = t_quantile(rule.look_confidence, count - 1) * math.sqrt(variance / count)
    return SizeVerdict(
        size_bytes=pairs[0].size_bytes,
        repetitions=count,
        sequential_bytes_s=_geometric_mean([pair.sequential_bytes_s for pair in pairs]),
        random_bytes_s=_geometric_mean([pair.random_bytes_s for pair in pairs]),
        ratio=_exp(mean),
        low=_exp(mean - margin),
        high=_exp(mean + margin),
        closeness=_closeness(mean, margin, count, rule),
    )


def next_size(pairs: Sequence[Pair], sizes_bytes: Sequence[int], rule: Rule) -> int | None:
    """The size to measure next; None if the search is complete."""
    for size in sizes_bytes:
        own = [pair for pair in pairs if pair.size_bytes == size]
        closeness = judge(own, rule).closeness if own else Closeness.OPEN
        if closeness is Closeness.OPEN:
            return size
        if closeness.is_equal:
            return None
    return None


def conclude(pairs: Sequence[Pair], sizes_bytes: Sequence[int], rule: Rule) -> Finding:
    """The result of the pairs measured so far."""
    verdicts: list[SizeVerdict] = []
    for size in sizes_bytes:
        own = [pair for pair in pairs if pair.size_bytes == size]
        if not own:
            break
        verdicts.append(judge(own, rule))
        if verdicts[-1].closeness is Closeness.OPEN or verdicts[-1].closeness.is_equal:
            break
    found = tuple(verdicts)
    sure = all(verdict.closeness.is_sure for verdict in found)
    if not found or found[-1].closeness is Closeness.OPEN:
        return Finding(Outcome.UNFINISHED, None, False, found)
    if not found[-1].closeness.is_equal:
        ended = len(found) == len(sizes_bytes)
        return Finding(Outcome.NOT_REACHED if ended else Outcome.UNFINISHED, None, sure and ended, found)
    if len(found) == 1:
        return Finding(Outcome.NONE_NEEDED, None, sure, found)
    return Finding(Outcome.FOUND, found[-1].size_bytes, sure, found)


def _closeness(mean: float, margin: float, count: int, rule: Rule) -> Closeness:
    limit = math.log1p(rule.tolerance)
    if count >= rule.min_repetitions:
        if mean + margin <= limit:
            return Closeness.EQUAL
        if mean - margin > limit:
            return Closeness.SLOWER
    if count < rule.max_repetitions:
        return Closeness.OPEN
    return Closeness.PROBABLY_EQUAL if mean <= limit else Closeness.PROBABLY_SLOWER


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


# The stored search for an optimal write size; its result is computed from the measured pairs.

MAX_PAIRS = 10_000


class WriteSizeRecord(Stored):
    """The search on one device."""

    low_bytes: int = Field(gt=0)
    high_bytes: int = Field(gt=0)
    """Each size is twice the previous one."""
    tolerance: float = Field(gt=0, allow_inf_nan=False)
    confidence: float = Field(gt=0.5, lt=1)
    min_repetitions: int = Field(ge=2)
    max_repetitions: int = Field(ge=2)
    written_bytes: int = Field(default=0, ge=0)
    """Written by all sessions, warm-up included."""
    pair: tuple[Pair, ...] = Field(default=(), max_length=MAX_PAIRS)

    @model_validator(mode="after")
    def _fits_together(self) -> WriteSizeRecord:
        sizes = doubled_sizes(self.low_bytes, self.high_bytes)
        _ = self.rule
        strange = [row.size_bytes for row in self.pair if row.size_bytes not in sizes]
        if strange:
            raise ValueError(f"a pair has size {strange[0]}, which is not one of the sizes")
        return self

    @property
    def rule(self) -> Rule:
        return Rule(self.tolerance, self.confidence, self.min_repetitions, self.max_repetitions)

    @property
    def sizes_bytes(self) -> tuple[int, ...]:
        return doubled_sizes(self.low_bytes, self.high_bytes)

    def finding(self) -> Finding:
        return conclude(self.pair, self.sizes_bytes, self.rule)


FoundWriteSize = FoundRecord[WriteSizeRecord]


class WriteSizeStore(RecordStore[WriteSizeRecord]):
    """Searches, in a folder below that of the profiles, each named like its device's profile."""

    def __init__(self, profiles: Path) -> None:
        super().__init__(profiles / "write-sizes", WriteSizeRecord, "search", "--bytes")
