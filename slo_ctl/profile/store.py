"""Stored profiles."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from slo_ctl.base.errors import UserError
from slo_ctl.base.json_store import JsonStore
from slo_ctl.base.progress import ProgressSink
from slo_ctl.decide.profile_fit import Analysis, Fit, analyse
from slo_ctl.decide.request_sizes import Interval
from slo_ctl.drives.record import DeviceRecord
from slo_ctl.model import DeviceNumber
from slo_ctl.model.measurement import ACCESSES, Access, Measurement
from slo_ctl.profile.identity import (
    BLOCK_DEVICE,
    Identity,
    IdentitySources,
    block_identity,
    emulated_identity,
)

# What was measured of devices, on disk: one JSON file for each device under each kernel and scheduler, whole
# or not at all.

_SLUG_CHARACTERS = 40


class Stored(BaseModel):
    """Header of every stored file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format_version: Literal[1] = 1
    identity: Identity
    target: str
    created: str
    """ISO 8601, UTC."""
    updated: str
    """ISO 8601, UTC."""
    span_bytes: int = Field(gt=0)
    """The part of the target that was accessed: short distances make random accesses faster."""
    queue_depth: int = Field(ge=1)


R = TypeVar("R", bound=Stored)


@dataclass(frozen=True, slots=True)
class FoundRecord(Generic[R]):
    """A stored record of a device, and whether it is valid."""

    record: R
    path: Path
    age_s: float
    stale: str
    """Why it does not hold any more; empty: it does."""


@dataclass(frozen=True, slots=True)
class Measured(Generic[R]):
    """What was measured of a device, and how the session went."""

    record: R
    interrupted: bool


def now_text() -> str:
    """The time, as records state it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class RecordStore(Generic[R]):
    """Everything of one kind, in one folder."""

    def __init__(self, folder: Path, model: type[R], what: str, span_option: str) -> None:
        """`what` a record is called; `span_option` sets its `span_bytes`."""
        self.folder = folder
        self._model = model
        self._what = what
        self._span_option = span_option

    def begin(self, empty: R, fresh: bool, progress: ProgressSink) -> R | None:
        """The stored record to continue with, measured like `empty`; None to begin with `empty`.

        Raises UserError for one that was measured otherwise, unless `fresh`.
        """
        found = None if fresh else self.find(empty.identity)
        if found is None:
            return None
        if found.stale:
            progress.note(f"the stored {self._what} is {found.stale}; measuring again")
            return None
        before = found.record
        for option, was, wanted in (
            (self._span_option, before.span_bytes, empty.span_bytes),
            ("--queue-depth", before.queue_depth, empty.queue_depth),
        ):
            if was != wanted:
                raise UserError(
                    f"the stored {self._what} of {empty.target} was measured with {option} {was}, "
                    f"not {wanted}",
                    f"give {option} {was} to continue it, or --fresh to replace it",
                )
        return before

    def keep(self, record: R, **update: Any) -> R:
        """The record with what was measured now; on disk."""
        record = record.model_copy(update={**update, "updated": now_text()})
        self.save(record)
        return record

    def path(self, identity: Identity) -> Path:
        """Where what is stored of this identity is, or would be."""
        name = f"{slug(identity)}-{identity.hardware_key}-{identity.environment_key}.json"
        return self.folder / name

    def find(self, identity: Identity, now: datetime | None = None) -> FoundRecord[R] | None:
        """The valid record of a device, else the newest stale one, else None.

        Raises UserError for a file that is damaged or cannot be read.
        """
        exact = self.path(identity)
        if exact.exists():
            return self.compared(exact, identity, now)
        older = [
            self.compared(path, identity, now)
            for path in sorted(self.folder.glob(f"*-{identity.hardware_key}-*.json"))
        ]
        return min(older, key=lambda found: found.age_s, default=None)

    def save(self, record: R) -> Path:
        """Put it in the place of the one there. Raises UserError when the system refuses."""
        path = self.path(record.identity)
        self._file(path).write(record)
        return path

    def read(self, path: Path) -> R:
        """A stored file. Raises UserError when it is damaged or another version's, saying what to do."""
        record = self._file(path).read()
        if record is None:
            raise UserError(f"{path}: no such file", "measure again")
        return record

    def _file(self, path: Path) -> JsonStore[R]:
        return JsonStore(path, self._model, repair="remove it and measure again, or give --fresh")

    def compared(self, path: Path, identity: Identity, now: datetime | None = None) -> FoundRecord[R]:
        """A stored file, beside what the device is now. Raises UserError when it is damaged."""
        record = self.read(path)
        try:
            updated = datetime.fromisoformat(record.updated)
            age_s = ((now or datetime.now(UTC)) - updated).total_seconds()
        except (ValueError, TypeError):
            raise UserError(
                f"{path}: updated: {record.updated} is not a valid time", "remove it and measure again"
            ) from None
        return FoundRecord(record, path, max(age_s, 0.0), record.identity.stale_against(identity))


def age_text(age_s: float) -> str:
    """An age in words."""
    for unit_s, name in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if age_s >= unit_s:
            count = int(age_s // unit_s)
            return f"{count} {name}{'s' if count > 1 else ''}"
    return "less than a minute"


def slug(identity: Identity) -> str:
    """The beginning of the names of a device's files."""
    return re.sub(r"[^A-Za-z0-9]+", "-", identity.model).strip("-")[:_SLUG_CHARACTERS] or "device"


# A profile as it is kept: what was measured, of which device, and how; everything else is worked out from
# it.


class MeasurementRow(BaseModel):
    """One Measurement."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    access: Literal["sequential write", "random write", "sequential read", "random read"]
    size_bytes: int = Field(gt=0)
    repetition: int = Field(ge=0)
    access_time_s: float = Field(gt=0, allow_inf_nan=False)
    requests: int = Field(gt=0)
    elapsed_s: float = Field(ge=0, allow_inf_nan=False)


class Conditioning(BaseModel):
    """What was written before writes were measured."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    written_bytes: int = 0
    steady: bool = False
    """Throughput had settled."""


class NodeShare(BaseModel):
    """A node's part in the last session of several."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    tests: int = Field(ge=0)
    """Tests of it, or parts of tests, that count."""
    left_out: str = ""
    """Why the session continued without it; empty: it did not."""


class Profile(Stored):
    """Measurements of one device; grows with every session."""

    intervals: tuple[Interval, ...] = Field(min_length=1)
    conditioning: Conditioning = Conditioning()
    stopped: str = ""
    """Why the last session ended."""
    complete: bool = False
    """The stopping rule was content."""
    nodes: tuple[NodeShare, ...] = ()
    """Of the last session, where several measured."""
    measurement: tuple[MeasurementRow, ...] = ()

    def measurements(self) -> list[Measurement]:
        """What was measured."""
        return [
            Measurement(
                _BY_NAME[row.access],
                row.size_bytes,
                row.repetition,
                row.access_time_s,
                row.requests,
                row.elapsed_s,
            )
            for row in self.measurement
        ]

    def analysis(self, method: Fit = Fit.THEIL_SEN) -> Analysis:
        """Curves and ratios."""
        return analyse(self.intervals, self.measurements(), method)


_BY_NAME: dict[str, Access] = {str(access): access for access in ACCESSES}


def rows(measurements: Iterable[Measurement]) -> tuple[MeasurementRow, ...]:
    """Measurements to keep."""
    return tuple(
        MeasurementRow.model_validate(
            {
                "access": str(each.access),
                "size_bytes": each.size_bytes,
                "repetition": each.repetition,
                "access_time_s": each.access_time_s,
                "requests": each.requests,
                "elapsed_s": each.elapsed_s,
            }
        )
        for each in measurements
    )


Found = FoundRecord[Profile]
"""A stored profile and whether it holds."""


class ProfileStore(RecordStore[Profile]):
    """Every profile in one folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, Profile, "profile", "--file-size")

    def of_device(self, number: DeviceNumber, around: IdentitySources) -> Found | None:
        """The best profile of a block device: of itself rather than of a file on it, the valid before the
        stale, the newest first; under whichever scheduler it was measured.

        The scheduler is what the profile is to choose: one measured under `none` must hold when `bfq` was
        chosen by it. Raises UserError for a damaged file.
        """
        now = block_identity(number, BLOCK_DEVICE, around)
        found = []
        for path in sorted(self.folder.glob(f"{slug(now)}-*.json")):
            there = self.read(path).identity
            if (there.model, there.serial, there.firmware) == (now.model, now.serial, now.firmware):
                as_measured = now.model_copy(update={"scheduler": there.scheduler})
                found.append(self.compared(path, as_measured))
        return min(
            found,
            key=lambda each: (bool(each.stale), each.record.identity.place != BLOCK_DEVICE, each.age_s),
            default=None,
        )

    def of_emulated(self, record: DeviceRecord, around: IdentitySources) -> Found | None:
        """The best profile of a namespace of an emulated device: valid before stale, the newest first.

        Raises UserError for a damaged file.
        """
        places = (emulated_identity(record, namespace.name, around) for namespace in record.namespace)
        found = [each for each in map(self.find, places) if each is not None]
        return min(found, key=lambda each: (bool(each.stale), each.age_s), default=None)


# `access_times.func`, which the AGIOS scheduling library reads.
#
# Line 1 the number of intervals; then for each `minKB<TAB>maxKB` and four lines `a<TAB>b` (sequential write,
# random write, sequential read, random read) with time in nanoseconds = a x size in KB + b. Sizes beyond the
# last interval use the last one.


_KB_BYTES = 1024
_NS = 1e9


def to_agios(analysis: Analysis, intervals: Sequence[Interval]) -> str:
    """The text of the file. Raises UserError when a test was not measured: the file has a line for each."""
    rows = [str(len(intervals))]
    for interval in intervals:
        if interval.low_bytes % _KB_BYTES or interval.high_bytes % _KB_BYTES:
            raise UserError(f"--agios: {interval} is not in whole KiB", "AGIOS counts in 1024 bytes")
        rows.append(f"{interval.low_bytes // _KB_BYTES}\t{interval.high_bytes // _KB_BYTES}")
        for access in ACCESSES:
            curve = next((c for c in analysis.curves if (c.access, c.interval) == (access, interval)), None)
            if curve is None:
                raise UserError(
                    f"--agios: no times of {access} in {interval}",
                    "AGIOS needs all four tests: profile with writing allowed, and every interval to its end",
                )
            line = curve.line
            rows.append(f"{line.slope_s_per_byte * _KB_BYTES * _NS:.9g}\t{line.intercept_s * _NS:.9g}")
    return "\n".join(rows) + "\n"
