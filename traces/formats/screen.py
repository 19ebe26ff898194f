"""Checks for every record of a batch, in any format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn

import numpy as np

from traces.batch import MAX_END_BYTES, Batch, Op
from traces.errors import TraceError

if TYPE_CHECKING:
    from numpy.typing import NDArray

OnError = Literal["raise", "skip"]
_MAX_TIME_NS = 2**62
_MAX_VOLUMES = 1 << 20


@dataclass(frozen=True, slots=True)
class Place:
    """Position of a record in the file: a line of text, or a record and its byte offset."""

    line: int | None = None
    record: int | None = None
    byte_offset: int | None = None
    path: Path | None = None
    """The file, if a trace consists of several."""


@dataclass(frozen=True, slots=True)
class Units:
    """Unit of each raw column, and its name in the format."""

    time_ns: int
    offset_bytes: int = 1
    length_bytes: int = 1
    time_name: str = "time"
    offset_name: str = "offset"
    length_name: str = "size"
    signed_time: bool = False
    """Times may be negative (only in our own format)."""


@dataclass(frozen=True, slots=True, eq=False)
class RawRecords:
    """Columns as in the file, in the file's units; offset and length signed or unsigned."""

    time: NDArray[np.int64]
    op: NDArray[np.uint8]
    offset: NDArray[np.int64] | NDArray[np.uint64]
    length: NDArray[np.int64] | NDArray[np.uint64]
    volume: NDArray[np.int32]
    response_ns: NDArray[np.int64] | None = None
    """In ns, for any unit of the file; below 1 if unknown."""

    def take(self, which: NDArray[np.bool_]) -> RawRecords:
        """The records selected by a mask."""
        return RawRecords(
            self.time[which],
            self.op[which],
            self.offset[which],
            self.length[which],
            self.volume[which],
            None if self.response_ns is None else self.response_ns[which],
        )


class Screen:
    """Turns raw records into batches, refuses or counts the bad ones, and names the volumes.

    One per pass over a file. With `on_error` "raise" the first bad record raises TraceError; with "skip" bad
    records are counted by reason in `skipped`.
    """

    def __init__(self, path: Path, format_name: str, on_error: OnError) -> None:
        self.path = path
        self.format_name = format_name
        self.on_error: OnError = on_error
        self.skipped: Counter[str] = Counter()
        """Records read but not yielded, by reason: bad records and lines that are not requests."""
        self.bad_records = 0
        """Of those, the ones that `on_error="raise"` would have refused."""
        self.records = 0
        self.notes: list[str] = []
        self.volumes: list[str] = []
        self._volume_index: dict[str, int] = {}
        self._origin: int | None = None
        self.origin_ns = 0
        """The first record's time on the trace's own clock."""

    def volume(self, name: str) -> int:
        """The index of a volume's name, which is added if it is new."""
        index = self._volume_index.get(name)
        if index is None:
            index = len(self.volumes)
            if index >= _MAX_VOLUMES:
                self.fail(
                    "more than a million different volumes", hint="check the format; name it with --format"
                )
            self._volume_index[name] = index
            self.volumes.append(name)
        return index

    def ignore(self, reason: str, count: int = 1) -> None:
        """Count records that are not requests."""
        if count:
            self.skipped[reason] += count

    def bad(
        self, place: Place, reason: str, field: str | None = None, *, kind: str | None = None, count: int = 1
    ) -> None:
        """Refuse a bad record with `reason`, or count it under `kind`, which must be one of a few."""
        if self.on_error == "raise":
            self.fail(reason, place, field, "--on-error skip counts such records and continues")
        self.bad_records += count
        kind = kind or reason
        self.skipped[f"{field}: {kind}" if field else kind] += count

    def fail(
        self, reason: str, place: Place | None = None, field: str | None = None, hint: str = ""
    ) -> NoReturn:
        """Raise TraceError for the file."""
        place = place or Place()
        raise TraceError(
            place.path or self.path,
            reason,
            line=place.line,
            record=place.record,
            byte_offset=place.byte_offset,
            field=field,
            hint=hint,
        )

    def start_at(self, time: int) -> None:
        """Let times count from `time` (in the format's units) rather than from the first record admitted."""
        self._origin = time

    def admit(self, raw: RawRecords, units: Units, locate: Callable[[int], Place]) -> Batch:
        """The valid records of `raw` as a batch; `locate` gives the place of the i-th.

        Refused: negative values, a request without a length (but for a flush), one that ends beyond 2^63, a
        time more than 146 years from the first record.
        """
        checks = list(_static_checks(raw, units))
        bad = np.logical_or.reduce([mask for mask, *_ in checks])
        if self._origin is None and not bad.all():
            self._origin = int(raw.time[np.argmin(bad)])
        self.origin_ns = (self._origin or 0) * units.time_ns
        since = raw.time - (self._origin or 0)
        furthest = _MAX_TIME_NS // units.time_ns
        far = ((since > furthest) | (since < -furthest)) & ~bad
        if far.any():
            checks.append((far, units.time_name, "is too far from the first record's"))
            bad |= far
        if bad.any():
            self._refuse(bad, checks, locate)
            raw, since = raw.take(~bad), since[~bad]
        self.records += len(since)
        return Batch(
            since if units.time_ns == 1 else since * units.time_ns,
            raw.op,
            _in_bytes(raw.offset, units.offset_bytes),
            _in_bytes(raw.length, units.length_bytes),
            raw.volume,
            None if raw.response_ns is None else np.maximum(raw.response_ns, 0),
        )

    def _refuse(
        self,
        bad: NDArray[np.bool_],
        checks: list[tuple[NDArray[np.bool_], str, str]],
        locate: Callable[[int], Place],
    ) -> None:
        first = int(np.argmax(bad))
        counted = np.zeros(len(bad), bool)
        for mask, field, reason in checks:
            new = mask & ~counted
            count = int(new.sum())
            if not count or (self.on_error == "raise" and not mask[first]):
                continue
            counted |= new
            self.bad(locate(first), reason, field, count=count)


def _in_bytes(values: NDArray[np.int64] | NDArray[np.uint64], unit_bytes: int) -> NDArray[np.uint64]:
    unsigned = values.astype(np.uint64)
    return unsigned if unit_bytes == 1 else unsigned * np.uint64(unit_bytes)


def _static_checks(raw: RawRecords, units: Units) -> Iterator[tuple[NDArray[np.bool_], str, str]]:
    """Masks of errors that do not depend on other records, with field and reason."""
    if units.signed_time:
        yield (raw.time < -_MAX_TIME_NS) | (raw.time > _MAX_TIME_NS), units.time_name, "is out of range"
    else:
        yield raw.time < 0, units.time_name, "is negative"
        yield raw.time > _MAX_TIME_NS, units.time_name, "is out of range"
    max_offset = MAX_END_BYTES // units.offset_bytes
    max_length = MAX_END_BYTES // units.length_bytes
    if raw.offset.dtype == np.int64:
        yield raw.offset < 0, units.offset_name, "is negative"
    if raw.length.dtype == np.int64:
        yield raw.length < 0, units.length_name, "is negative"
    yield (raw.length == 0) & (raw.op != Op.FLUSH), units.length_name, "a request of zero length"
    # Both below 2^63 bytes, their sum fits into 64 unsigned bits.
    far = (raw.offset > max_offset) | (raw.length > max_length)
    end = _in_bytes(raw.offset, units.offset_bytes) + _in_bytes(raw.length, units.length_bytes)
    yield far | (end > np.uint64(MAX_END_BYTES)), units.offset_name, "the request ends beyond 2^63 bytes"
