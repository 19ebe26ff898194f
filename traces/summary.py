"""Summary of a trace: counts, sizes, footprint, order and rate, in one streaming pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from traces.batch import Batch, Op
from traces.footprint import Footprint

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class VolumeSummary:
    """One volume's part of a trace."""

    name: str
    records: int
    write_records: int
    read_bytes: int
    written_bytes: int
    footprint_pages: int
    """Distinct 4 KiB pages read or written (or trimmed or zeroed)."""
    written_pages: int
    """Distinct 4 KiB pages written."""
    end_bytes: int
    """The largest end of a request: the minimum size of the volume."""


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """Statistics of a trace. Times in nanoseconds from the first record; shares are of reads and writes."""

    records: int
    records_by_op: dict[str, int]
    duration_ns: int
    """From the earliest to the latest record."""
    read_bytes: int
    written_bytes: int
    written_page_count: int
    """4 KiB pages that the writes cover, counted each time they are written: host page writes."""
    footprint_pages: int
    written_pages: int
    sequential_records: int
    """Requests that start where the volume's previous request ended."""
    max_gap_ns: int
    """The longest time between one record and the next."""
    gap_cv: float
    """Coefficient of variation of the times between records: 0 if constant, 1 for Poisson arrivals."""
    backward_records: int
    """Records earlier than the previous one."""
    volumes: tuple[VolumeSummary, ...]

    @property
    def reads(self) -> int:
        return self.records_by_op.get("read", 0)

    @property
    def writes(self) -> int:
        return self.records_by_op.get("write", 0)

    @property
    def write_share(self) -> float:
        """Writes among reads and writes; 0 without either."""
        return self.writes / (self.reads + self.writes) if self.reads + self.writes else 0.0

    @property
    def average_read_bytes(self) -> float:
        """Mean size of a read; 0 without reads."""
        return self.read_bytes / self.reads if self.reads else 0.0

    @property
    def average_write_bytes(self) -> float:
        """Mean size of a write; 0 without writes."""
        return self.written_bytes / self.writes if self.writes else 0.0

    @property
    def sequential_share(self) -> float:
        """Sequential requests among all."""
        return self.sequential_records / self.records if self.records else 0.0

    @property
    def mean_gap_ns(self) -> float:
        """Mean time between a record and the next."""
        return self.duration_ns / (self.records - 1) if self.records > 1 else 0.0


def summarise(batches: Iterable[Batch], volumes: Sequence[str] = ()) -> TraceSummary:
    """Summarise a trace; `volumes` may grow while the batches are read (as a reader's list does)."""
    tally = Tally()
    for batch in batches:
        tally.add(batch)
    return tally.summary(volumes)


def exact_sum(values: NDArray[np.int64]) -> int:
    """The sum of non-negative numbers, even if it exceeds 64 bits."""
    return (int((values >> 32).sum()) << 32) + int((values & 0xFFFF_FFFF).sum())


class _Sums:
    """Sums by volume that may exceed 64 bits: a hostile trace may request more bytes than that."""

    def __init__(self) -> None:
        self._totals: dict[int, int] = {}

    def add(self, volume: NDArray[np.int32], values: NDArray[np.int64]) -> None:
        if not len(volume):
            return
        first = int(volume[0])
        if (volume == first).all():
            self._totals[first] = self._totals.get(first, 0) + exact_sum(values)
            return
        size = int(volume.max()) + 1
        high, low = np.zeros(size, np.int64), np.zeros(size, np.int64)
        np.add.at(high, volume, values >> 32)
        np.add.at(low, volume, values & 0xFFFF_FFFF)
        for one in np.flatnonzero(high | low).tolist():
            self._totals[one] = self._totals.get(one, 0) + (int(high[one]) << 32) + int(low[one])

    def totals(self) -> dict[int, int]:
        return self._totals


class Tally:
    """A summary in progress."""

    def __init__(self) -> None:
        self._ops = np.zeros(len(Op), np.int64)
        # By volume: records, writes, furthest byte, end of the last request.
        self._volumes = np.zeros((4, 0), np.int64)
        self._read_bytes = _Sums()
        self._written_bytes = _Sums()
        self._footprint = Footprint()
        self._written = Footprint()
        self._written_page_count = 0
        self._sequential = 0
        self._earliest_ns: int | None = None
        self._latest_ns = 0
        self._previous_ns: int | None = None
        self._max_gap_ns = 0
        self._gap_squares = 0.0
        self._backward = 0

    @property
    def records(self) -> int:
        """Records so far."""
        return int(self._ops.sum())

    def add(self, batch: Batch) -> None:
        if not len(batch):
            return
        self._ops += np.bincount(batch.op, minlength=len(Op))
        self._grow(int(batch.volume.max()) + 1)
        self._add_volumes(batch)
        self._add_pages(batch)
        self._add_sequence(batch)
        self._add_times(batch.time_ns)

    def _grow(self, volumes: int) -> None:
        missing = volumes - self._volumes.shape[1]
        if missing > 0:
            # Doubled, so that volumes that appear one by one do not copy the table each time.
            extra = max(missing, self._volumes.shape[1])
            self._volumes = np.concatenate([self._volumes, np.zeros((4, extra), np.int64)], axis=1)
            self._volumes[3, -extra:] = -1

    def _add_volumes(self, batch: Batch) -> None:
        records, writes, furthest, _ = self._volumes
        end = np.minimum(batch.end_bytes, np.uint64(2**63 - 1)).astype(np.int64)
        is_write = batch.op == Op.WRITE
        if batch.volume[0] == batch.volume.max() == batch.volume.min():
            one = batch.volume[0]
            records[one] += len(batch)
            writes[one] += int(is_write.sum())
            furthest[one] = max(furthest[one], int(end.max()))
        else:
            records += np.bincount(batch.volume, minlength=len(records))
            writes += np.bincount(batch.volume[is_write], minlength=len(records))
            np.maximum.at(furthest, batch.volume, end)
        for sums, chosen in ((self._read_bytes, batch.op == Op.READ), (self._written_bytes, is_write)):
            sums.add(batch.volume[chosen], batch.length_bytes[chosen].astype(np.int64))

    def _add_pages(self, batch: Batch) -> None:
        first, count = batch.page_span()
        is_write = batch.op == Op.WRITE
        self._written_page_count += exact_sum(count[is_write])
        self._footprint.add(batch.volume, first, count)
        self._written.add(batch.volume[is_write], first[is_write], count[is_write])

    def _add_sequence(self, batch: Batch) -> None:
        volume, start, end = batch.volume, batch.offset_bytes, batch.end_bytes
        if volume[0] != volume.max() or volume[0] != volume.min():
            # Numbers below 2^16 sort by radix, several times faster.
            key = volume.astype(np.uint16) if self._volumes.shape[1] <= 1 << 16 else volume
            order = np.argsort(key, kind="stable")
            volume, start, end = volume[order], start[order], end[order]
        opens = np.empty(len(volume), bool)
        opens[0] = True
        opens[1:] = volume[1:] != volume[:-1]
        self._sequential += int((~opens[1:] & (start[1:] == end[:-1])).sum())
        first = np.flatnonzero(opens)
        last_end = self._volumes[3]
        self._sequential += int((start[first].astype(np.int64) == last_end[volume[first]]).sum())
        closing = np.append(first[1:], len(volume)) - 1
        last_end[volume[closing]] = end[closing].astype(np.int64)

    def _add_times(self, time_ns: NDArray[np.int64]) -> None:
        if self._previous_ns is None:
            self._earliest_ns = self._latest_ns = self._previous_ns = int(time_ns[0])
        gaps = np.diff(time_ns, prepend=self._previous_ns)
        self._previous_ns = int(time_ns[-1])
        self._earliest_ns = min(self._earliest_ns or 0, int(time_ns.min()))
        self._latest_ns = max(self._latest_ns, int(time_ns.max()))
        self._max_gap_ns = max(self._max_gap_ns, int(gaps.max()))
        self._backward += int((gaps < 0).sum())
        as_float = gaps.astype(np.float64)
        self._gap_squares += float(as_float @ as_float)

    def summary(self, volumes: Sequence[str] = ()) -> TraceSummary:
        """The summary of everything added so far."""
        duration_ns = self._latest_ns - (self._earliest_ns or 0)
        records = self.records
        mean = duration_ns / (records - 1) if records > 1 else 0.0
        variance = self._gap_squares / (records - 1) - mean * mean if records > 1 else 0.0
        pages, written = self._footprint.pages_by_volume(), self._written.pages_by_volume()
        used = np.flatnonzero(self._volumes[0])
        table = self._volumes.tolist()
        read_bytes, written_bytes = self._read_bytes.totals(), self._written_bytes.totals()
        return TraceSummary(
            records=records,
            records_by_op={
                op.name.lower().replace("_", "-"): int(self._ops[op]) for op in Op if self._ops[op]
            },
            duration_ns=duration_ns,
            read_bytes=sum(read_bytes.values()),
            written_bytes=sum(written_bytes.values()),
            written_page_count=self._written_page_count,
            footprint_pages=sum(pages.values()),
            written_pages=sum(written.values()),
            sequential_records=self._sequential,
            max_gap_ns=self._max_gap_ns,
            gap_cv=float(np.sqrt(max(variance, 0.0))) / mean if mean > 0 else 0.0,
            backward_records=self._backward,
            volumes=tuple(
                VolumeSummary(
                    name=volumes[index] if index < len(volumes) else str(index),
                    records=table[0][index],
                    write_records=table[1][index],
                    read_bytes=read_bytes.get(index, 0),
                    written_bytes=written_bytes.get(index, 0),
                    footprint_pages=pages.get(index, 0),
                    written_pages=written.get(index, 0),
                    end_bytes=table[2][index],
                )
                for index in used.tolist()
            ),
        )
