"""Request sizes: intervals, and which of their sizes are measured (SAC'15, section 3, step 1). Pure."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from slo_ctl.base.errors import UserError
from slo_ctl.base.quantity import QuantityError, format_bytes_exact, parse_bytes

SECTOR_BYTES = 512
"""Direct I/O comes in multiples of this at least."""
MAX_SIZES = 100_000
"""Of one interval; more is a slip of the gap."""
_SHAPE = "write LOW-HIGH/GAP, such as 8KiB-64KiB/8KiB"


@dataclass(frozen=True, slots=True, order=True)
class Interval:
    """Request sizes from `low_bytes` to `high_bytes`, both included, every `gap_bytes`; one line is
    fitted."""

    low_bytes: int
    high_bytes: int
    gap_bytes: int

    def __str__(self) -> str:
        return "-".join(map(format_bytes_exact, (self.low_bytes, self.high_bytes))) + (
            f"/{format_bytes_exact(self.gap_bytes)}"
        )

    @property
    def count(self) -> int:
        return (self.high_bytes - self.low_bytes) // self.gap_bytes + 1

    def sizes(self) -> range:
        """All of them, ascending."""
        return range(self.low_bytes, self.high_bytes + 1, self.gap_bytes)


DEFAULT_INTERVALS = (Interval(8 << 10, 64 << 10, 8 << 10), Interval(64 << 10, 4 << 20, 32 << 10))
"""SAC'15, section 4.1: fine steps for small requests; parallel file systems make multiples of 32 KiB."""


def parse_interval(text: str) -> Interval:
    """An interval from `8KiB-64KiB/8KiB`. Raises UserError."""
    span, slash, gap = text.partition("/")
    low, dash, high = span.partition("-")
    if not (slash and dash):
        raise UserError(f"--interval: {text or 'nothing'} is not a valid interval", _SHAPE)
    sizes = []
    for part in (low, high, gap):
        try:
            sizes.append(parse_bytes(part))
        except QuantityError as error:
            raise UserError(f"--interval {text}: {part or 'nothing'} {error}", _SHAPE) from None
    return Interval(*sizes)


def check_intervals(intervals: Sequence[Interval], unit_bytes: int = SECTOR_BYTES) -> tuple[Interval, ...]:
    """The intervals in ascending order, when they make a profile.

    They may share an extreme, as the paper's do, and no more. Raises UserError for what is empty, overlaps,
    is not a multiple of `unit_bytes`, or has a gap that does not lead from one extreme to the other.
    """
    if not intervals:
        raise UserError("no interval to profile", _SHAPE)
    for interval in intervals:
        _check(interval, unit_bytes)
    ordered = tuple(sorted(intervals))
    for before, after in pairwise(ordered):
        if after.low_bytes < before.high_bytes:
            raise UserError(
                f"--interval: {before} and {after} overlap",
                "they may share an extreme, such as 64KiB, no more",
            )
    return ordered


def _check(interval: Interval, unit_bytes: int) -> None:
    if interval.low_bytes >= interval.high_bytes:
        raise UserError(f"--interval: {interval} is empty: a line needs two sizes", _SHAPE)
    for size in (interval.low_bytes, interval.high_bytes, interval.gap_bytes):
        if size <= 0 or size % unit_bytes:
            raise UserError(
                f"--interval: {interval}: {size} is not aligned to the {unit_bytes} bytes of direct I/O here",
                f"use multiples of {unit_bytes}",
            )
    if (interval.high_bytes - interval.low_bytes) % interval.gap_bytes:
        raise UserError(
            f"--interval: {interval}: steps of {format_bytes_exact(interval.gap_bytes)} from "
            f"{format_bytes_exact(interval.low_bytes)} miss {format_bytes_exact(interval.high_bytes)}",
            "both extremes are measured: choose a gap that divides their distance",
        )
    if interval.count > MAX_SIZES:
        raise UserError(f"--interval: {interval} has {interval.count} sizes", "choose a larger gap")


def all_sizes(intervals: Iterable[Interval]) -> list[int]:
    """Every size of the profile, ascending, a shared extreme once, bytes."""
    return sorted({size for interval in intervals for size in interval.sizes()})


def draw_points(intervals: Sequence[Interval], per_interval: int, seed: int) -> list[int]:
    """Sizes to measure: of each interval both extremes, and at random as many others as `per_interval`
    leaves.

    The same seed draws the same sizes, and a larger `per_interval` the same and more, so that a profile can
    be refined. Ascending, bytes. Raises UserError for fewer than two.
    """
    if per_interval < 2:
        raise UserError(f"--points: {per_interval} of each interval are too few", "a line needs 2")
    chosen: set[int] = set()
    for number, interval in enumerate(intervals):
        inner = list(interval.sizes())[1:-1]
        # A generator for each: another interval does not change what is drawn from this one.
        random.Random(f"{seed}/{number}/{interval}").shuffle(inner)  # noqa: S311 - no secret
        chosen.update((interval.low_bytes, interval.high_bytes), inner[: per_interval - 2])
    return sorted(chosen)
