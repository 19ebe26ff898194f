"""One disk, or several as RAID-0, profiled in virtual time: `ftl_emul.Disks`, which are served, too."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ftl_emul import Disks
from slo_ctl.serra.measurement import WHOLE, Access, Direction, Measurement, Order, Part

BARRACUDA_XT = "barracuda-xt"
"""A 7200/min disk."""
CHEETAH_15K7 = "cheetah-15k7"
"""The 15000/min disk of Chimint and Taurus in SAC'15, table 2."""
_READ, _WRITE = 0, 1
_FILL_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ArrayParameters:
    """Which disks, how they are put together, and where the file is."""

    preset: str
    """Of `ftl_emul.disk_presets()`, where the sources of its figures are."""
    disks: int = 1
    stripe_bytes: int = 64 << 10
    """Of one disk, before the next one's turn (hardware RAID's usual 64 KiB)."""
    file_bytes: int = 200_000_000
    placed_within: float = 0.1
    """Every repetition makes its file anew, anywhere in this part of the disks from the outside on: a file
    system with room to spare fills that first."""


class DiskArray:
    """A Benchmark in virtual time, closed loop at queue depth 1, as IOzone with one thread."""

    def __init__(self, parameters: ArrayParameters, seed: int, one_file: bool = False) -> None:
        """With `one_file` all tests share one, written first in the time that is counted."""
        self._disks = Disks(parameters.preset, parameters.disks, parameters.stripe_bytes)
        self._parameters = parameters
        self._seed = seed
        self._one_file = one_file
        if one_file:
            offsets = self._place(0, 0) + np.arange(parameters.file_bytes // _FILL_BYTES) * _FILL_BYTES
            self._disks.play(_WRITE, offsets.astype(np.uint64), _FILL_BYTES)
            self._disks.flush()

    def now_s(self) -> float:
        """Virtual time that tests took so far."""
        return self._disks.now_ns / 1e9

    def measure(
        self, access: Access, size_bytes: int, repetition: int, limit_s: float | None, part: Part = WHOLE
    ) -> Measurement:
        """Run one test over the file or a part of it, or until `limit_s` has passed."""
        kind = list(Order).index(access.order) * 2 + list(Direction).index(access.direction)
        draw = np.random.default_rng([self._seed, size_bytes, repetition, 1 + kind + 4 * part.begin])
        in_file = max(1, self._parameters.file_bytes // size_bytes)
        own = part.of(in_file)
        numbers = (
            np.arange(own.start, own.stop)
            if access.order is Order.SEQUENTIAL
            else draw.integers(0, in_file, len(own), dtype=np.int64)
        )
        offsets = (self._place(size_bytes, repetition) + numbers * size_bytes).astype(np.uint64)
        begun_ns = self._disks.now_ns
        done, _ = self._disks.play(
            _WRITE if access.direction is Direction.WRITE else _READ,
            offsets,
            size_bytes,
            limit_ns=None if limit_s is None else int(limit_s * 1e9),
        )
        # Counted, as by IOzone's -e: else tests that are cut short would measure the write cache.
        self._disks.flush()
        elapsed = (self._disks.now_ns - begun_ns) / 1e9
        return Measurement(access, size_bytes, repetition, elapsed / done, done, elapsed)

    def _place(self, size_bytes: int, repetition: int) -> int:
        """Where the file of that repetition begins."""
        p = self._parameters
        which = [self._seed] if self._one_file else [self._seed, size_bytes, repetition]
        room = int(self._disks.capacity_bytes * p.placed_within) - p.file_bytes
        return int(np.random.default_rng(which).integers(0, max(room, 0) + 1)) // 4096 * 4096
