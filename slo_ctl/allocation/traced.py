"""A block trace as files: what it writes to a region of its address space is a file.

A trace says which blocks were written, not which files they belonged to. Here each region of `region_bytes`
of a volume is a file, and regions that follow each other share a directory. A block's first write appends
it to its region's file, so that an allocator decides where it goes; later writes overwrite it in place. When
all blocks of a file were trimmed, it is deleted. Reads, flushes and the times of requests are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from slo_ctl.allocation.changes import Action, Step
from slo_ctl.allocation.space import BLOCK_BYTES
from traces.batch import Op

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from traces.batch import Batch

REGION_BYTES = 1 << 20
REGIONS_PER_DIRECTORY = 64


@dataclass(frozen=True, slots=True)
class TraceSource:
    """Where the trace is, and how it becomes files."""

    path: Path
    format: str | None = None
    region_bytes: int = REGION_BYTES
    skip_bad_records: bool = False


@dataclass(slots=True)
class _Region:
    """A file in the making."""

    file: int
    places: dict[int, int] = field(default_factory=dict)
    """Blocks of the region, by where in the file they are."""
    alive: int = 0
    gone: set[int] = field(default_factory=set)
    """Blocks that were trimmed since they were last written."""


def trace_steps(source: TraceSource) -> Iterator[Step]:
    """The whole trace. Raises TraceError for what cannot be read."""
    from traces.reader import open_trace

    reader = open_trace(
        source.path, format=source.format, on_error="skip" if source.skip_bad_records else "raise"
    )
    return steps_of(reader, source.region_bytes)


def steps_of(batches: Iterable[Batch], region_bytes: int) -> Iterator[Step]:
    """The changes of files that the requests come to."""
    if region_bytes < BLOCK_BYTES or region_bytes % BLOCK_BYTES:
        raise ValueError(f"a region is a whole number of blocks of {BLOCK_BYTES} bytes")
    return _Files(region_bytes // BLOCK_BYTES).steps(batches)


class _Files:
    def __init__(self, region_blocks: int) -> None:
        self._region_blocks = region_blocks
        self._regions: dict[tuple[int, int], _Region] = {}
        self._directories: dict[tuple[int, int], int] = {}
        self._files = 0

    def steps(self, batches: Iterable[Batch]) -> Iterator[Step]:
        for batch in batches:
            first, count = batch.page_span(BLOCK_BYTES)
            changes = np.isin(batch.op, [int(Op.WRITE), int(Op.WRITE_ZEROES), int(Op.TRIM)]) & (count > 0)
            trims = (batch.op == int(Op.TRIM))[changes].tolist()
            spans = zip(
                batch.volume[changes].tolist(), first[changes].tolist(), count[changes].tolist(), strict=True
            )
            for trim, (volume, start, blocks) in zip(trims, spans, strict=True):
                for number, low, high in self._parts(start, blocks):
                    where = (volume, number)
                    yield from self._trim(where, low, high) if trim else self._write(where, low, high)

    def _parts(self, start: int, blocks: int) -> Iterator[tuple[int, int, int]]:
        """Regions of a request, and which of their blocks."""
        while blocks:
            number, low = divmod(start, self._region_blocks)
            here = min(blocks, self._region_blocks - low)
            yield number, low, low + here
            start, blocks = start + here, blocks - here

    def _write(self, where: tuple[int, int], low: int, high: int) -> Iterator[Step]:
        region = self._regions.get(where)
        directory = self._directory(where)
        if region is None:
            region = self._regions[where] = _Region(self._files)
            self._files += 1
        places, file = region.places, region.file
        known = sorted(places[block] for block in range(low, high) if block in places)
        new = [block for block in range(low, high) if block not in places]
        for first, end in _runs(known):
            size = (end - first) * BLOCK_BYTES
            yield Step(Action.OVERWRITE, file, directory, size, first * BLOCK_BYTES)
        if new:
            action = Action.APPEND if places else Action.CREATE
            for block in new:
                places[block] = len(places)
            yield Step(action, file, directory, len(new) * BLOCK_BYTES)
        back = region.gone.intersection(range(low, high))
        region.gone -= back
        region.alive += len(new) + len(back)

    def _trim(self, where: tuple[int, int], low: int, high: int) -> Iterator[Step]:
        region = self._regions.get(where)
        if region is None:
            return
        gone = {block for block in range(low, high) if block in region.places} - region.gone
        region.gone |= gone
        region.alive -= len(gone)
        if not region.alive:
            del self._regions[where]
            yield Step(Action.DELETE, region.file, self._directory(where), 0)

    def _directory(self, where: tuple[int, int]) -> int:
        volume, number = where
        return self._directories.setdefault((volume, number // REGIONS_PER_DIRECTORY), len(self._directories))


def _runs(ascending: list[int]) -> Iterator[tuple[int, int]]:
    """Consecutive numbers as [first, end)."""
    first = previous = None
    for number in ascending:
        if first is None or previous is None:
            first = number
        elif number != previous + 1:
            yield first, previous + 1
            first = number
        previous = number
    if first is not None and previous is not None:
        yield first, previous + 1
