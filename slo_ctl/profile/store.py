"""Stored profiles, one file for each device, kernel and scheduler; the scheduler that one recommends."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Generic, Literal, TypeVar

from pydantic import Field

from slo_ctl.base.clock import now_text
from slo_ctl.base.errors import UserError
from slo_ctl.base.files import hint_for
from slo_ctl.base.json_store import JsonStore, StrictModel
from slo_ctl.base.progress import ProgressSink
from slo_ctl.decide.profile_fit import Analysis, Fit, analyse
from slo_ctl.decide.request_sizes import Interval
from slo_ctl.decide.scheduler import DeviceFacts, Needs, SchedulerChoice, choose, settings_of
from slo_ctl.drives.record import DeviceRecord
from slo_ctl.model.host import DeviceNumber
from slo_ctl.model.measurement import Measurement
from slo_ctl.model.setting import Setting
from slo_ctl.profile.identity import (
    BLOCK_DEVICE,
    Identity,
    IdentitySources,
    PrintableText,
    block_identity,
    emulated_identity,
)

# Stored records of devices.

_SLUG_CHARACTERS = 40


class Stored(StrictModel):
    """Header of every stored file."""

    format_version: Literal[1] = 1
    identity: Identity
    target: PrintableText
    created: str
    """ISO 8601, UTC."""
    updated: str
    """ISO 8601, UTC."""
    span_bytes: int = Field(gt=0)
    """Accessed part of the target: random accesses are faster in a small one."""
    queue_depth: int = Field(ge=1)


R = TypeVar("R", bound=Stored)


@dataclass(frozen=True, slots=True)
class FoundRecord(Generic[R]):
    """A stored record of a device, and whether it is valid."""

    record: R
    path: Path
    age_s: float
    stale: str
    """Why the record is not valid any more; empty if it is."""

    def __str__(self) -> str:
        return f"{age_text(self.age_s)} ago: {self.stale or 'valid'}"

    def plain(self) -> dict[str, Any]:
        """Age and validity as plain JSON types."""
        return {"age_s": self.age_s, "stale": self.stale or None}


def age_text(age_s: float) -> str:
    """An age such as `2 days`."""
    for unit_s, name in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if age_s >= unit_s:
            count = int(age_s // unit_s)
            return f"{count} {name}{'s' if count > 1 else ''}"
    return "less than a minute"


@dataclass(frozen=True, slots=True)
class Measured(Generic[R]):
    """Record of a device after a session, and whether that was interrupted."""

    record: R
    interrupted: bool


class RecordStore(Generic[R]):
    """All records of one kind, in one directory."""

    def __init__(self, folder: Path, model: type[R], noun: str, span_option: str) -> None:
        """`noun`: name of a record in messages; `span_option`: option that sets `span_bytes`."""
        self.folder = folder
        self._model = model
        self._noun = noun
        self._span_option = span_option

    def check_writable(self) -> None:
        """Raise UserError when no record can be saved; called before a long run."""
        existing = next(folder for folder in (self.folder, *self.folder.parents) if folder.exists())
        try:
            with TemporaryFile(dir=existing):
                pass
        except OSError as error:
            raise UserError(
                f"the {self._noun} cannot be stored: {existing}: {error.strerror}",
                hint_for(error, "run as its owner, or use another directory with --root DIR"),
            ) from None

    def begin(self, empty: R, fresh: bool, progress: ProgressSink) -> R | None:
        """The stored record to continue; None to start with `empty`.

        Raises UserError if it was measured with other options than `empty`, unless `fresh`.
        """
        found = None if fresh else self.find(empty.identity)
        if found is None:
            return None
        if found.stale:
            progress.note(f"the stored {self._noun} is {found.stale}; measuring again")
            return None
        before = found.record
        for option, stored, wanted in (
            (self._span_option, before.span_bytes, empty.span_bytes),
            ("--queue-depth", before.queue_depth, empty.queue_depth),
        ):
            if stored != wanted:
                raise UserError(
                    f"the stored {self._noun} of {empty.target} was measured with {option} {stored}, "
                    f"not {wanted}",
                    f"give {option} {stored} to continue it, or --fresh to replace it",
                )
        return before

    def keep(self, record: R, **update: Any) -> R:
        """Update a record and save it."""
        record = record.model_copy(update={**update, "updated": now_text()})
        self.save(record)
        return record

    def path(self, identity: Identity) -> Path:
        name = f"{slug(identity)}-{identity.hardware_key}-{identity.environment_key}.json"
        return self.folder / name

    def find(self, identity: Identity) -> FoundRecord[R] | None:
        """The valid record of a device, else the newest stale one, else None.

        Raises UserError for a file that is damaged or cannot be read.
        """
        exact = self.path(identity)
        if exact.exists():
            return self.compare(exact, identity)
        older = [
            self.compare(path, identity)
            for path in sorted(self.folder.glob(f"*-{identity.hardware_key}-*.json"))
        ]
        return min(older, key=lambda found: found.age_s, default=None)

    def save(self, record: R) -> Path:
        """Save a record, replacing an existing one. Raises UserError."""
        path = self.path(record.identity)
        self._file(path).write(record)
        return path

    def read(self, path: Path) -> R:
        """Read a record. Raises UserError when it is damaged or of another version."""
        record = self._file(path).read()
        if record is None:
            raise UserError(f"{path} not found", "measure again")
        return record

    def _file(self, path: Path) -> JsonStore[R]:
        return JsonStore(path, self._model, repair="remove it, or measure again with --fresh")

    def compare(self, path: Path, identity: Identity) -> FoundRecord[R]:
        """A record compared with the present identity. Raises UserError when it is damaged."""
        record = self.read(path)
        try:
            updated = datetime.fromisoformat(record.updated)
            age_s = (datetime.now(UTC) - updated).total_seconds()
        except (ValueError, TypeError):
            raise UserError(
                f"{path}: updated: {record.updated} is not a valid time", "remove it and measure again"
            ) from None
        return FoundRecord(record, path, max(age_s, 0.0), record.identity.stale_against(identity))


def slug(identity: Identity) -> str:
    """Beginning of the file names of a device."""
    return re.sub(r"[^A-Za-z0-9]+", "-", identity.model).strip("-")[:_SLUG_CHARACTERS] or "device"


# Profiles: the measurements of a device, from which everything else is calculated.


class Conditioning(StrictModel):
    """Writes before the measurements."""

    written_bytes: int = 0
    steady: bool = False
    """Whether the throughput was steady."""


class NodeShare(StrictModel):
    """Part of a node in the last session, if several nodes measured."""

    name: str
    tests: int = Field(ge=0)
    """Valid tests, or parts of tests, of the node."""
    left_out: str = ""
    """Why the session continued without the node; empty if it did not."""


class Profile(Stored):
    """Measurements of one device from all sessions."""

    intervals: tuple[Interval, ...] = Field(min_length=1)
    conditioning: Conditioning = Conditioning()
    stopped: str = ""
    """Why the last session ended."""
    complete: bool = False
    """Whether the stopping rule was met."""
    nodes: tuple[NodeShare, ...] = ()
    """Nodes of the last session, if there were several."""
    measurement: tuple[Measurement, ...] = ()

    @property
    def partial(self) -> str:
        """Why the last session ended before the stopping rule was met; empty if it did not."""
        return "" if self.complete else self.stopped

    def analysis(self, method: Fit = Fit.THEIL_SEN) -> Analysis:
        """Curves and ratios of the measurements."""
        return analyse(self.intervals, self.measurement, method)


Found = FoundRecord[Profile]
"""A stored profile, and whether it is valid."""


def valid_analysis(found: Found | None) -> Analysis | None:
    """The analysis of a stored profile; None without a valid one."""
    return found.record.analysis() if found is not None and not found.stale else None


class ProfileStore(RecordStore[Profile]):
    """All profiles in one directory."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, Profile, "profile", "--file-size")

    def of_device(self, number: DeviceNumber, sources: IdentitySources) -> Found | None:
        """The best profile of a block device: valid, of the device rather than a file on it, newest.

        The scheduler is ignored, because the profile serves to choose it: a profile measured under `none`
        must stay valid when `bfq` was chosen. Raises UserError for a damaged file.
        """
        now = block_identity(number, BLOCK_DEVICE, sources)
        found = []
        for path in sorted(self.folder.glob(f"{slug(now)}-*.json")):
            stored = self.read(path).identity
            if (stored.model, stored.serial, stored.firmware) == (now.model, now.serial, now.firmware):
                as_measured = now.model_copy(update={"scheduler": stored.scheduler})
                found.append(self.compare(path, as_measured))
        return min(
            found,
            key=lambda item: (bool(item.stale), item.record.identity.place != BLOCK_DEVICE, item.age_s),
            default=None,
        )

    def of_emulated(self, record: DeviceRecord, sources: IdentitySources) -> Found | None:
        """The best profile of a namespace of an emulated device: valid before stale, the newest first.

        Raises UserError for a damaged file.
        """
        places = (emulated_identity(record, namespace.name, sources) for namespace in record.namespace)
        found = [item for item in map(self.find, places) if item is not None]
        return min(found, key=lambda item: (bool(item.stale), item.age_s), default=None)


# The scheduler of a block device, from its facts, its stored profile and the SLOs.


@dataclass(frozen=True, slots=True)
class SchedulerAdvice:
    """A scheduler and the facts from which it was chosen."""

    facts: DeviceFacts
    needs: Needs
    found: Found | None
    """The stored profile, not used if it is stale; None without one."""
    choice: SchedulerChoice

    @property
    def profiled(self) -> bool:
        """Whether a valid profile was used."""
        return self.found is not None and not self.found.stale

    @property
    def settings(self) -> tuple[Setting, ...]:
        """Settings that apply the choice."""
        return settings_of(self.choice, self.facts)


def advise_scheduler(
    facts: DeviceFacts, needs: Needs, found: Found | None, given: str | None = None
) -> SchedulerAdvice:
    """Choose a scheduler for a device; `given`: a scheduler that the operator chose."""
    if found is None or found.stale:
        choice = choose(facts, needs, None, given=given)
    else:
        choice = choose(facts, needs, found.record.analysis(), found.record.queue_depth, given)
    return SchedulerAdvice(facts, needs, found, choice)
