"""A batch of block requests: equal-length numpy columns, the type that all of `traces` uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Self

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

PAGE_BYTES = 4096
MAX_END_BYTES = 2**63
"""No request may end beyond this offset, so that byte and page arithmetic fits into 64 bits."""


class Op(IntEnum):
    """Operation of a request; the values are those of the emulator's op column."""

    READ = 0
    WRITE = 1
    TRIM = 2
    WRITE_ZEROES = 3
    FLUSH = 4


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Requests in trace order; every array is one-dimensional and of the same length.

    `time_ns` counts from the trace's first record. It is negative, or decreases, only if the trace itself is
    not in time order.
    """

    time_ns: NDArray[np.int64]
    op: NDArray[np.uint8]
    """Values of `Op`."""
    offset_bytes: NDArray[np.uint64]
    """Within the volume."""
    length_bytes: NDArray[np.uint64]
    """0 only for a flush."""
    volume: NDArray[np.int32]
    """Index of the ASU, disk or device; the reader's `volumes` names it."""
    response_ns: NDArray[np.int64] | None = None
    """Duration of each request; 0 if unknown. Present only if the reader was asked for it."""

    def __post_init__(self) -> None:
        length = len(self.time_ns)
        for column in (self.op, self.offset_bytes, self.length_bytes, self.volume, self.response_ns):
            if column is not None and len(column) != length:
                raise ValueError(f"columns of a batch differ in length: {len(column)} and {length}")

    def __len__(self) -> int:
        return len(self.time_ns)

    @classmethod
    def empty(cls) -> Self:
        return cls(
            np.empty(0, np.int64),
            np.empty(0, np.uint8),
            np.empty(0, np.uint64),
            np.empty(0, np.uint64),
            np.empty(0, np.int32),
        )

    @classmethod
    def concat(cls, batches: Sequence[Batch]) -> Batch:
        """All requests of `batches`, in that order."""
        if len(batches) == 1:
            return batches[0]
        if not batches:
            return cls.empty()
        return cls(
            np.concatenate([b.time_ns for b in batches]),
            np.concatenate([b.op for b in batches]),
            np.concatenate([b.offset_bytes for b in batches]),
            np.concatenate([b.length_bytes for b in batches]),
            np.concatenate([b.volume for b in batches]),
            _all([b.response_ns for b in batches]),
        )

    def slice(self, start: int, stop: int) -> Batch:
        """Requests start..stop-1, sharing memory with this batch."""
        return Batch(
            self.time_ns[start:stop],
            self.op[start:stop],
            self.offset_bytes[start:stop],
            self.length_bytes[start:stop],
            self.volume[start:stop],
            None if self.response_ns is None else self.response_ns[start:stop],
        )

    def take(self, which: NDArray[np.intp] | NDArray[np.bool_]) -> Batch:
        """The requests that an index array or a mask selects, in its order."""
        return Batch(
            self.time_ns[which],
            self.op[which],
            self.offset_bytes[which],
            self.length_bytes[which],
            self.volume[which],
            None if self.response_ns is None else self.response_ns[which],
        )

    def at(self, time_ns: NDArray[np.int64]) -> Batch:
        """The same requests at other times."""
        return replace(self, time_ns=time_ns)

    def over(self, offset_bytes: NDArray[np.uint64], length_bytes: NDArray[np.uint64]) -> Batch:
        """The same requests at other offsets and lengths."""
        return replace(self, offset_bytes=offset_bytes, length_bytes=length_bytes)

    @property
    def end_bytes(self) -> NDArray[np.uint64]:
        """Offset of the first byte after each request."""
        return self.offset_bytes + self.length_bytes

    def page_span(self, page_bytes: int = PAGE_BYTES) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """First page and number of pages: floor(off/P) .. floor((off+len-1)/P); 0 pages without a length."""
        page = np.uint64(page_bytes)
        first = self.offset_bytes // page
        past = (self.end_bytes + (page - np.uint64(1))) // page
        count = np.where(self.length_bytes > 0, past - first, np.uint64(0))
        return first.astype(np.int64), count.astype(np.int64)


def _all(columns: Sequence[NDArray[np.int64] | None]) -> NDArray[np.int64] | None:
    """One column, if every batch has it."""
    there = [column for column in columns if column is not None]
    return np.concatenate(there) if len(there) == len(columns) else None
