"""Bringing what is written to its steady state first: a fresh SSD is faster than it will ever be again.

After SNIA's Solid State Storage Performance Test Specification (Enterprise, 2.0.1, sections 3.3 and 3.4): the
span is written twice in sequence, then at random in rounds until the last five rounds' throughput stays
within 20 % of its average, and its trend within 10 %.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from slo_ctl.model.measurement import RAND_WRITE, SEQ_WRITE, Access

PASSES = 2
ROUNDS = 25
WINDOW = 5
MAX_EXCURSION = 0.20
MAX_TREND = 0.10
_BATCH_BYTES = 256 << 20
"""Written by one run of the benchmark: progress and interruption come between."""
_SEQUENTIAL_BYTES = 1 << 20
_RANDOM_BYTES = 64 << 10


class Writer(Protocol):
    """Something that writes to the target."""

    def write_batch(self, access: Access, request_bytes: int, start_bytes: int, length_bytes: int) -> float:
        """Write that much; returns the throughput in bytes/s."""


@dataclass(frozen=True, slots=True)
class Conditioned:
    """What was done."""

    written_bytes: int
    steady: bool


def at_most_bytes(span_bytes: int) -> int:
    """The most that `to_steady_state` writes."""
    return (PASSES + ROUNDS) * span_bytes


def is_steady(rounds: Sequence[float]) -> bool:
    """Whether the throughput of the last rounds has settled."""
    if len(rounds) < WINDOW:
        return False
    last = np.array(rounds[-WINDOW:], dtype=np.float64)
    mean = float(last.mean())
    slope = float(np.polyfit(np.arange(WINDOW), last, 1)[0])
    return (
        float(last.max() - last.min()) <= MAX_EXCURSION * mean
        and abs(slope) * (WINDOW - 1) <= MAX_TREND * mean
    )


def fill(writer: Writer, span_bytes: int, advance: Callable[[float], None]) -> int:
    """Write the span once in sequence, so that reads find data; returns the bytes."""
    for start in range(0, span_bytes, _BATCH_BYTES):
        length = min(_BATCH_BYTES, span_bytes - start)
        writer.write_batch(SEQ_WRITE, min(_SEQUENTIAL_BYTES, length), start, length)
        advance(length)
    return span_bytes


def to_steady_state(writer: Writer, span_bytes: int, advance: Callable[[float], None]) -> Conditioned:
    """Write until throughput has settled, or ROUNDS rounds were written."""
    written = sum(fill(writer, span_bytes, advance) for _ in range(PASSES))
    rounds: list[float] = []
    for number in range(ROUNDS):
        rounds.append(writer.write_batch(RAND_WRITE, _RANDOM_BYTES, number * _RANDOM_BYTES, span_bytes))
        written += span_bytes
        advance(span_bytes)
        if is_steady(rounds):
            return Conditioned(written, True)
    return Conditioned(written, False)
