"""One disk, or several as RAID-0, profiled in virtual time: what SeRRa's measurements would be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from slo_ctl.serra.measurement import SEQ_WRITE, WHOLE, Access, Direction, Measurement, Order, Part

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slo_ctl.serra.models.disk import Disk

WRITE_CACHE_REQUESTS = 32
"""Writes that a disk holds and sorts by place (the depth of SATA's NCQ)."""
_FILL_BYTES = 1 << 20
_CHUNK = 4096
"""Requests simulated at once; a test that is cut short is looked at after each."""


@dataclass(frozen=True, slots=True)
class ArrayParameters:
    """How disks are put together, and where the file is."""

    disks: int = 1
    stripe_bytes: int = 64 << 10
    """Of one disk, before the next one's turn (hardware RAID's usual 64 KiB)."""
    file_bytes: int = 200_000_000
    placed_within: float = 0.1
    """Every repetition makes its file anew, anywhere in this part of the disks from the outside on: a file
    system with room to spare fills that first."""


class DiskArray:
    """A Benchmark in virtual time, closed loop at queue depth 1, as IOzone with one thread.

    Read-ahead and a write cache keep a sequential stream at the media's rate, unless commands are slower.
    Random writes are sorted within the cache; random reads are not.
    """

    def __init__(self, disk: Disk, parameters: ArrayParameters, seed: int, one_file: bool = False) -> None:
        """With `one_file` all tests share one, written first in the time that is counted."""
        self._disk = disk
        self._parameters = parameters
        self._seed = seed
        self._clock_s = 0.0
        self._one_file = one_file
        if one_file:
            self.measure(SEQ_WRITE, _FILL_BYTES, 0, None)

    def now_s(self) -> float:
        """Virtual time that tests took so far."""
        return self._clock_s

    def measure(
        self, access: Access, size_bytes: int, repetition: int, limit_s: float | None, part: Part = WHOLE
    ) -> Measurement:
        """Run one test over the file or a part of it, or until `limit_s` has passed."""
        kind = list(Order).index(access.order) * 2 + list(Direction).index(access.direction)
        which = [self._seed] if self._one_file else [self._seed, size_bytes, repetition]
        place = np.random.default_rng(which)
        draw = np.random.default_rng([self._seed, size_bytes, repetition, 1 + kind + 4 * part.begin])
        start = self._place(place)
        in_file = max(1, self._parameters.file_bytes // size_bytes)
        own = part.of(in_file)
        total = len(own)
        sequential = access.order is Order.SEQUENTIAL
        done, elapsed = 0, 0.0
        while done < total and (limit_s is None or elapsed < limit_s):
            count = min(_CHUNK if limit_s is None or sequential else 64, total - done)
            times = (
                self._sequential(start + own.start * size_bytes, done, count, size_bytes, draw)
                if sequential
                else self._random(start, in_file, count, size_bytes, access.direction, draw)
            )
            if limit_s is not None:
                within = int(np.searchsorted(np.cumsum(times), limit_s - elapsed)) + 1
                times = times[:within]
            done += len(times)
            elapsed += float(times.sum())
        self._clock_s += elapsed
        return Measurement(access, size_bytes, repetition, elapsed / done, done, elapsed)

    def _place(self, draw: np.random.Generator) -> float:
        p = self._parameters
        room = self._disk.parameters.capacity_bytes * p.disks * p.placed_within - p.file_bytes
        return float(draw.uniform(0, max(room, 0.0)))

    def _sequential(
        self, start: float, done: int, count: int, size: int, draw: np.random.Generator
    ) -> NDArray[np.float64]:
        p, disk = self._parameters, self._disk.parameters
        offsets = (start + (done + np.arange(count, dtype=np.float64)) * size) / p.disks
        media = size / (self._disk.rate_bytes_s(offsets) * p.disks)
        # Disks fill their buffers while commands and the interface are busy with others.
        times = np.maximum(media, disk.command_s + size / (disk.interface_bytes_s * p.disks))
        if done == 0:
            times[0] += disk.seek_average_s + draw.uniform(0, disk.rotation_s)
        return times

    def _random(
        self, start: float, total: int, count: int, size: int, direction: Direction, draw: np.random.Generator
    ) -> NDArray[np.float64]:
        p, disk = self._parameters, self._disk.parameters
        places = draw.integers(0, total, count)
        if direction is Direction.WRITE:
            for at in range(0, count, WRITE_CACHE_REQUESTS):
                places[at : at + WRITE_CACHE_REQUESTS].sort()
        offsets = start + places.astype(np.float64) * size
        slowest = np.zeros(count)
        for number in range(p.disks):
            first, length = self._share(offsets, size, number)
            busy = length > 0
            times = self._disk.position_s(first, length, draw) + length / self._disk.rate_bytes_s(first)
            slowest = np.maximum(slowest, np.where(busy, times, 0.0))
        return slowest + disk.command_s

    def _share(
        self, offsets: NDArray[np.float64], size: int, number: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Where and how much of each request disk `number` has."""
        p = self._parameters
        if p.disks == 1:
            return offsets, np.full(len(offsets), float(size))
        return _before(offsets, number, p), _before(offsets + size, number, p) - _before(offsets, number, p)


def _before(offsets: NDArray[np.float64], number: int, p: ArrayParameters) -> NDArray[np.float64]:
    """Bytes of disk `number` that lie before an offset of the array."""
    row = p.stripe_bytes * p.disks
    whole = np.floor(offsets / row)
    part = np.clip(offsets - whole * row - number * p.stripe_bytes, 0, p.stripe_bytes)
    before: NDArray[np.float64] = whole * p.stripe_bytes + part
    return before
