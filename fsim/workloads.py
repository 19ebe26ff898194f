"""Filling a file system to a utilisation, as the paper did before each run (section V)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fsim.file_system import Action, FileSystem, Step
from fsim.space import BLOCK_BYTES
from traces.batch import Op
from traces.reader import TraceReader, open_trace

if TYPE_CHECKING:
    from traces.batch import Batch
    from traces.formats.screen import OnError

LEAST_BYTES = 1 << 10
MOST_BYTES = 16 << 20
"""Largest file: files have between 1 KiB and 16 MiB (section V), with uniformly distributed sizes (not stated
in the paper).
"""
DIRECTORIES = 100
"""Chosen by us: the paper does not state in which directories the files are."""


def fill(system: FileSystem, utilisation: float, seed: int, first_number: int, churn: float = 0.0) -> None:
    """Create files of random sizes in random directories until `utilisation` is reached.

    `churn` is the share of those files that is then deleted, at random, and replaced by new ones: an aged
    file system. Directories and files are numbered from `first_number`. The same seed gives the same files in
    the same order with every allocator.
    """
    if not 0.0 <= utilisation < 1.0:
        raise ValueError(f"a utilisation lies between 0 and 1, not {utilisation}")
    draw = np.random.default_rng([seed, round(utilisation * 1000)])
    for directory in range(DIRECTORIES):
        system.make_directory(first_number + directory)
    files: list[int] = []
    number = _create_until(system, utilisation, draw, first_number, first_number, files)
    if churn:
        for at in sorted(draw.permutation(len(files))[: round(churn * len(files))].tolist(), reverse=True):
            system.delete(files.pop(at))
        _create_until(system, utilisation, draw, first_number, number, files)


def _create_until(
    system: FileSystem,
    utilisation: float,
    draw: np.random.Generator,
    first_directory: int,
    number: int,
    files: list[int],
) -> int:
    while system.utilisation < utilisation:
        size = int(draw.integers(LEAST_BYTES, MOST_BYTES + 1))
        system.create(number, first_directory + int(draw.integers(DIRECTORIES)), size)
        files.append(number)
        number += 1
    return number


# Postmark: files are created, read or appended to, created or deleted at random, and deleted at the end.
#
# J. Katcher, "PostMark: a new file system benchmark", NetApp TR-3022, 1997. Each transaction is a read or an
# append, and a creation or a deletion, with equal probabilities ("operation ratios equal"). Reads are
# omitted: the files fit into the memory of the paper's machine (2 GB), and a read costs the same with every
# allocator.

_DRAWS = 1 << 14


@dataclass(frozen=True, slots=True)
class PostmarkSetting:
    """One configuration."""

    files: int
    """Number of files created first."""
    directories: int
    least_bytes: int
    most_bytes: int
    transactions: int


SETTINGS = {
    "cvfs-large": PostmarkSetting(5_000, 50, 512, 328_072, 20_000),
    "fsl": PostmarkSetting(20_000, 200, 512, 10_240, 200_000),
}
"""A. Traeger et al., "A nine year study of file system and storage benchmarking", ACM TOS 4(2), 2008.

FSL's files, sizes and transactions are checked against the manual of Auto-pilot, the benchmark suite of the
same authors (its Postmark defaults: 20000 files of 512 to 10240 bytes, 200000 transactions, units of 4096
bytes, equal ratios). FSL's directories and all of CVFS-Large are from memory: the study's own table was not
available, and the paper does not repeat the numbers.
"""


class _Draws:
    """Uniform random numbers, drawn by the thousand."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)
        self._numbers: list[float] = []

    def below(self, limit: int) -> int:
        """A number from 0 to limit - 1."""
        if not self._numbers:
            self._numbers = self._generator.random(_DRAWS).tolist()
        return int(self._numbers.pop() * limit)


def steps(setting: PostmarkSetting, seed: int) -> Iterator[Step]:
    """A whole run: creations, transactions, deletions. The same seed gives the same run."""
    draws = _Draws(seed)
    sizes: dict[int, int] = {}
    directories: dict[int, int] = {}
    alive: list[int] = []
    number = 0

    def create() -> Step:
        nonlocal number
        size = setting.least_bytes + draws.below(setting.most_bytes - setting.least_bytes + 1)
        step = Step(Action.CREATE, number, draws.below(setting.directories), size)
        sizes[number], directories[number] = size, step.directory
        alive.append(number)
        number += 1
        return step

    def delete(at: int) -> Step:
        alive[at], alive[-1] = alive[-1], alive[at]
        file = alive.pop()
        del sizes[file]
        return Step(Action.DELETE, file, directories.pop(file), 0)

    for _ in range(setting.files):
        yield create()
    for _ in range(setting.transactions):
        if alive and draws.below(2):
            file = alive[draws.below(len(alive))]
            room = setting.most_bytes - sizes[file]
            if room > 0:
                size = 1 + draws.below(room)
                sizes[file] += size
                yield Step(Action.APPEND, file, directories[file], size)
        if draws.below(2):
            yield create()
        elif alive:
            yield delete(draws.below(len(alive)))
    while alive:
        yield delete(len(alive) - 1)


# A block trace as files: each region of its address space that it writes to is a file.
#
# A trace contains blocks that were written, but not the files they belonged to. Here each region of
# REGION_BYTES of a volume is a file, and successive regions share a directory. A block's first write appends
# it to its region's file, so that an allocator chooses its location; later writes overwrite it in place. A
# file is deleted when all of its blocks were trimmed. Reads, flushes and the times of requests are ignored.

REGION_BYTES = 1 << 20
REGIONS_PER_DIRECTORY = 64


@dataclass(frozen=True, slots=True)
class TraceSource:
    """The trace, and how it is turned into files."""

    path: Path
    skip_bad_records: bool = False
    notes: tuple[str, ...] = ()
    """Oddities of the trace, one sentence each."""


@dataclass(slots=True)
class _Region:
    """State of the file of one region."""

    file: int
    places: dict[int, int] = field(default_factory=dict)
    """Blocks of the region, with their position in the file."""
    alive: int = 0
    trimmed: set[int] = field(default_factory=set)
    """Blocks that were trimmed and not written since."""


def open_source(source: TraceSource) -> TraceReader:
    """The requests of the trace. Raises TraceError if it cannot be read."""
    on_error: OnError = "skip" if source.skip_bad_records else "raise"
    return open_trace(source.path, on_error=on_error)


def trace_steps(source: TraceSource) -> Iterator[Step]:
    """All file changes of the trace. Raises TraceError if it cannot be read."""
    return steps_of(open_source(source))


def steps_of(batches: Iterable[Batch], region_bytes: int = REGION_BYTES) -> Iterator[Step]:
    """The file changes that correspond to these requests."""
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
        """Regions of a request, each with the blocks that the request covers."""
        while blocks:
            number, low = divmod(start, self._region_blocks)
            in_region = min(blocks, self._region_blocks - low)
            yield number, low, low + in_region
            start, blocks = start + in_region, blocks - in_region

    def _write(self, where: tuple[int, int], low: int, high: int) -> Iterator[Step]:
        region = self._regions.get(where)
        directory = self._directory(where)
        if region is None:
            region = self._regions[where] = _Region(self._files)
            self._files += 1
        places, file = region.places, region.file
        existing = sorted(places[block] for block in range(low, high) if block in places)
        new = [block for block in range(low, high) if block not in places]
        for first, end in _runs(existing):
            size = (end - first) * BLOCK_BYTES
            yield Step(Action.OVERWRITE, file, directory, size, first * BLOCK_BYTES)
        if new:
            action = Action.APPEND if places else Action.CREATE
            for block in new:
                places[block] = len(places)
            yield Step(action, file, directory, len(new) * BLOCK_BYTES)
        rewritten = region.trimmed.intersection(range(low, high))
        region.trimmed -= rewritten
        region.alive += len(new) + len(rewritten)

    def _trim(self, where: tuple[int, int], low: int, high: int) -> Iterator[Step]:
        region = self._regions.get(where)
        if region is None:
            return
        trimmed = {block for block in range(low, high) if block in region.places} - region.trimmed
        region.trimmed |= trimmed
        region.alive -= len(trimmed)
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
