"""Filling a file system up to a utilisation, as the paper did before each run (section V)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from slo_ctl.allocation.file_system import FileSystem

LEAST_BYTES = 1 << 10
MOST_BYTES = 16 << 20
"""Files between 1 KiB and 16 MiB (section V); sizes are drawn evenly, which the paper does not say."""
DIRECTORIES = 100
"""Chosen: the paper does not say in which directories the files are."""


def fill(system: FileSystem, utilisation: float, seed: int, first_number: int, churn: float = 0.0) -> None:
    """Create files of random sizes in random directories until `utilisation` is reached.

    `churn` is the share of those files that is then deleted, at random, and made up for by new ones: a file
    system that has aged. Directories and files are numbered from `first_number`. The same seed gives the
    same files in the same order whatever the allocator.
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
