"""The emulated SSD in virtual time: the timed translation layer of `slo-ctl replay`, aged, at queue depth
1."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from slo_ctl.replay.device import plan_drive
from slo_ctl.replay.whole_drive import whole_drive
from slo_ctl.serra.measurement import WHOLE, Access, Direction, Measurement, Order, Part

if TYPE_CHECKING:
    from ftl_emul import Device

_READ, _WRITE = 0, 1
_FILL_BYTES = 1 << 20
_SLICE = 64
"""Requests given at once to a test that may be cut short."""


class EmulatedSsd:
    """A Benchmark on a drive that is as full and as worn-in as ageing makes it."""

    def __init__(self, spec: str, file_bytes: int, seed: int, one_file: bool = False) -> None:
        """Make the drive that `spec` (keys of `replay --device`) describes and age it. Raises UserError.

        With `one_file` all tests share one file, which is written first (in the time that is counted), as
        `slo-ctl device profile` does; else each repetition has one of its own, as IOzone does.
        """
        plan = plan_drive(whole_drive(spec, "file"))
        self._page_bytes = plan.config.page_bytes
        self._device: Device
        self._device, tenants = plan.create(isolated=True)
        self._tenant = tenants[0]
        self._device.age(seed)
        self._file_bytes = file_bytes
        self._room_pages = plan.total_pages - -(-file_bytes // self._page_bytes)
        if self._room_pages < 0:
            raise ValueError("the file does not fit on the drive")
        self._seed = seed
        self._start_ns = self._device.now_ns
        self._one_file = one_file
        if one_file:
            count = file_bytes // _FILL_BYTES
            offsets = self._place(0, 0) + np.arange(count) * _FILL_BYTES
            self._play(offsets.astype(np.uint64), Direction.WRITE, _FILL_BYTES)

    def now_s(self) -> float:
        """Virtual time that tests took so far."""
        return (self._device.now_ns - self._start_ns) / 1e9

    def measure(
        self, access: Access, size_bytes: int, repetition: int, limit_s: float | None, part: Part = WHOLE
    ) -> Measurement:
        """Run one test over the file or a part of it, or until `limit_s` has passed."""
        kind = list(Order).index(access.order) * 2 + list(Direction).index(access.direction)
        draw = np.random.default_rng([self._seed, size_bytes, repetition, 1 + kind])
        start = self._place(size_bytes, repetition)
        total = max(1, self._file_bytes // size_bytes)
        numbers = (
            (np.arange(total) + (draw.integers(0, total // 2 + 1) if self._one_file else 0)) % total
            if access.order is Order.SEQUENTIAL
            else draw.integers(0, total, total, dtype=np.int64)
        )
        own = part.of(total)
        offsets = (start + numbers[own.start : own.stop] * size_bytes).astype(np.uint64)
        total = len(own)
        begun_ns = self._device.now_ns
        done, step = 0, total if limit_s is None else _SLICE
        while done < total and (limit_s is None or self._device.now_ns - begun_ns < limit_s * 1e9):
            self._play(offsets[done : done + step], access.direction, size_bytes)
            done = min(done + step, total)
        elapsed = (self._device.now_ns - begun_ns) / 1e9
        return Measurement(access, size_bytes, repetition, elapsed / done, done, elapsed)

    def _place(self, size_bytes: int, repetition: int) -> int:
        """Where the file of that repetition begins."""
        which = [self._seed] if self._one_file else [self._seed, size_bytes, repetition]
        return int(np.random.default_rng(which).integers(0, self._room_pages + 1)) * self._page_bytes

    def _play(
        self, offsets: np.ndarray[tuple[int], np.dtype[np.uint64]], direction: Direction, size: int
    ) -> None:
        count = len(offsets)
        self._device.open_queue(self._tenant, 1)
        self._device.feed(
            self._tenant,
            np.zeros(count, dtype=np.int64),
            np.full(count, _WRITE if direction is Direction.WRITE else _READ, dtype=np.uint8),
            offsets,
            np.full(count, size, dtype=np.uint64),
        )
        self._device.end_input(self._tenant)
        self._device.run()
