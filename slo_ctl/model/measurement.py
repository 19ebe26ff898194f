"""Measurements of access times: sequential and random reads and writes by request size."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Protocol

from pydantic import Field


class Order(StrEnum):
    """Order of the offsets of requests."""

    SEQUENTIAL = "sequential"
    RANDOM = "random"


class Direction(StrEnum):
    """Direction of requests."""

    READ = "read"
    WRITE = "write"


class Access(StrEnum):
    """One of the paper's four tests, in the order of its figures and of AGIOS's file."""

    SEQ_WRITE = "sequential write"
    RAND_WRITE = "random write"
    SEQ_READ = "sequential read"
    RAND_READ = "random read"

    def __init__(self, name: str) -> None:
        order, direction = name.split()
        self.order, self.direction = Order(order), Direction(direction)


SEQ_WRITE, RAND_WRITE, SEQ_READ, RAND_READ = ACCESSES = tuple(Access)


def accesses_of(directions: tuple[Direction, ...]) -> tuple[Access, ...]:
    """The tests with these directions."""
    return tuple(access for access in ACCESSES if access.direction in directions)


@dataclass(frozen=True, slots=True)
class Measurement:
    """Result of one test at one request size, as it is stored."""

    access: Access
    size_bytes: Annotated[int, Field(gt=0)]
    repetition: Annotated[int, Field(ge=0)]
    """Tests of one repetition and size ran directly after each other, so that their ratios are paired."""
    access_time_s: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    """Mean latency / queue depth of a request."""
    requests: Annotated[int, Field(gt=0)]
    elapsed_s: Annotated[float, Field(ge=0, allow_inf_nan=False)]


PARTS = 64
"""Largest number of parts of a test."""


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """A range of a test's requests, in units of 1 / PARTS of all requests."""

    begin: int = 0
    end: int = PARTS

    @property
    def share(self) -> float:
        """Share of the whole test."""
        return (self.end - self.begin) / PARTS

    def of(self, requests: int) -> range:
        """Indices of the part's requests, at least one, of a test with `requests` requests."""
        first = min(requests * self.begin // PARTS, requests - 1)
        return range(first, max(requests * self.end // PARTS, first + 1))


WHOLE = Part()


class Benchmark(Protocol):
    """Runs tests: fio on a target, or a model in virtual time."""

    def measure(
        self, access: Access, size_bytes: int, repetition: int, limit_s: float | None, part: Part = WHOLE
    ) -> Measurement:
        """Run a test or a part of it, for at most `limit_s` (None: no limit)."""

    def now_s(self) -> float:
        """Time of the clock that measures tests, in seconds."""
