"""Measurements by formula, and a benchmark that returns them."""

from __future__ import annotations

import random
from collections.abc import Sequence

from slo_ctl.model.measurement import (
    ACCESSES,
    RAND_READ,
    RAND_WRITE,
    SEQ_READ,
    SEQ_WRITE,
    WHOLE,
    Access,
    Measurement,
    Part,
)

SPAN_BYTES = 64 << 20
TRUE = {SEQ_WRITE: (1e-8, 1e-4), RAND_WRITE: (1e-8, 4e-3), SEQ_READ: (8e-9, 5e-5), RAND_READ: (8e-9, 8e-3)}
"""Slope (s/byte) and intercept (s) of a device with slow seeks."""


def true_s(access: Access, size: int) -> float:
    slope, intercept = TRUE[access]
    return slope * size + intercept


class Formula:
    """A device with linear access times and some noise, with its own clock."""

    def __init__(self, noise: float = 0.0, seed: int = 1, slowness: float = 1.0) -> None:
        self.clock_s = 0.0
        self.calls: list[tuple[Access, int, int]] = []
        self._noise = noise
        self._slowness = slowness
        self._random = random.Random(seed)  # noqa: S311 - no secret

    def now_s(self) -> float:
        return self.clock_s

    def measure(
        self, access: Access, size_bytes: int, repetition: int, limit_s: float | None, part: Part = WHOLE
    ) -> Measurement:
        self.calls.append((access, size_bytes, repetition))
        time = self._slowness * true_s(access, size_bytes) * self._random.lognormvariate(0, self._noise)
        count = len(part.of(max(1, SPAN_BYTES // size_bytes)))
        if limit_s is not None:
            count = max(1, min(count, int(limit_s / time)))
        self.clock_s += time * count
        return Measurement(access, size_bytes, repetition, time, count, time * count)


def measured(sizes: Sequence[int], repetitions: int, noise: float = 0.0) -> list[Measurement]:
    device = Formula(noise)
    return [
        device.measure(access, size, repetition, None)
        for repetition in range(repetitions)
        for size in sizes
        for access in ACCESSES
    ]
