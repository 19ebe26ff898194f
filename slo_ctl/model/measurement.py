"""Measurements: four kinds of access, each at a size, several times."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Order(StrEnum):
    """One request after the other's end, or anywhere."""

    SEQUENTIAL = "sequential"
    RANDOM = "random"


class Direction(StrEnum):
    """Reads or writes."""

    READ = "read"
    WRITE = "write"


@dataclass(frozen=True, slots=True, order=True)
class Access:
    """One of the paper's four tests."""

    order: Order
    direction: Direction

    def __str__(self) -> str:
        return f"{self.order} {self.direction}"


SEQ_WRITE = Access(Order.SEQUENTIAL, Direction.WRITE)
RAND_WRITE = Access(Order.RANDOM, Direction.WRITE)
SEQ_READ = Access(Order.SEQUENTIAL, Direction.READ)
RAND_READ = Access(Order.RANDOM, Direction.READ)
ACCESSES = (SEQ_WRITE, RAND_WRITE, SEQ_READ, RAND_READ)
"""In the order of the paper's figures and of AGIOS's file."""


def accesses_of(directions: tuple[Direction, ...]) -> tuple[Access, ...]:
    """The tests there are in these directions."""
    return tuple(access for access in ACCESSES if access.direction in directions)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One test at one size."""

    access: Access
    size_bytes: int
    repetition: int
    """Tests of one repetition at one size ran one right after the other: their ratio is a pair's."""
    access_time_s: float
    """Mean for each request: at queue depth 1 its latency, else latency / queue depth."""
    requests: int
    elapsed_s: float


PARTS = 64
"""A test can be split into this many, at most."""


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """A stretch of a test's requests, in units of 1 / PARTS of them."""

    begin: int = 0
    end: int = PARTS

    @property
    def share(self) -> float:
        """Part of the whole test."""
        return (self.end - self.begin) / PARTS

    def of(self, requests: int) -> range:
        """Which of a whole test's requests; one at least."""
        first = min(requests * self.begin // PARTS, requests - 1)
        return range(first, max(requests * self.end // PARTS, first + 1))


WHOLE = Part()


class Benchmark(Protocol):
    """Something that can measure: fio on a target, or a model in virtual time."""

    def measure(
        self, access: Access, size_bytes: int, repetition: int, limit_s: float | None, part: Part = WHOLE
    ) -> Measurement:
        """Run one test, or a part of it; for `limit_s` at most, where that is not None."""

    def now_s(self) -> float:
        """The clock that tests pass on, s."""
