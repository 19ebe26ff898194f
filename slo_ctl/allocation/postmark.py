"""Postmark: files are created, read or appended to, created or deleted at random, and deleted in the end.

J. Katcher, "PostMark: a new file system benchmark", NetApp TR-3022, 1997. Each transaction is a read or an
append, and a creation or a deletion, both as likely ("operation ratios equal"). Reads are left out of what
comes out: the files fit into the memory of the paper's machine (2 GB), and a read costs the same everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from slo_ctl.allocation.changes import Action, Step

if TYPE_CHECKING:
    from collections.abc import Iterator

_DRAWS = 1 << 14


@dataclass(frozen=True, slots=True)
class PostmarkSetting:
    """One configuration."""

    files: int
    """Created first."""
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
at hand, and the paper does not repeat the numbers.
"""


class _Draws:
    """Uniform numbers, drawn by the thousand."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)
        self._numbers: list[float] = []

    def below(self, limit: int) -> int:
        """0 .. limit - 1."""
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
