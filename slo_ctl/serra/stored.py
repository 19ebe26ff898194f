"""What was measured of devices, on disk: one JSON file for each device under each kernel and scheduler, whole
or not at all."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from slo_ctl.errors import UserError
from slo_ctl.serra.identity import Identity
from slo_ctl.whole_file import replace_file

if TYPE_CHECKING:
    from pathlib import Path

_SLUG_CHARACTERS = 40


class Stored(BaseModel):
    """What every stored file says of itself."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    identity: Identity
    updated: str
    """ISO 8601, UTC."""


R = TypeVar("R", bound=Stored)


@dataclass(frozen=True, slots=True)
class FoundRecord(Generic[R]):
    """What is stored of a device, and whether it holds."""

    profile: R
    path: Path
    age_s: float
    stale: str
    """Why it does not hold any more; empty: it does."""


class RecordStore(Generic[R]):
    """Everything of one kind, in one folder."""

    def __init__(self, folder: Path, model: type[R], noun: str) -> None:
        """`noun`: what one of them is called in errors."""
        self.folder = folder
        self._model = model
        self._noun = noun

    def path(self, identity: Identity) -> Path:
        """Where what is stored of this identity is, or would be."""
        name = f"{slug(identity)}-{identity.hardware_key}-{identity.environment_key}.json"
        return self.folder / name

    def find(self, identity: Identity, now: datetime | None = None) -> FoundRecord[R] | None:
        """What holds for a device, else the newest that is stale, else None.

        Raises UserError for a damaged file, and OSError for one that cannot be read.
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
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_file(path, f"{record.model_dump_json(indent=1)}\n".encode())
        except OSError as error:
            raise UserError(
                f"cannot keep the {self._noun} in {path}: {error.strerror}", "see --root"
            ) from None
        return path

    def read(self, path: Path) -> R:
        """A stored file. Raises UserError when it is damaged or another version's, saying what to do."""
        try:
            return self._model.model_validate_json(path.read_bytes())
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "file"
            raise UserError(
                f"{path}: {where}: {first['msg']}",
                f"the {self._noun} is damaged or of another version: remove it and measure again, "
                "or give --fresh",
            ) from None
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}", "run as its owner") from None

    def compared(self, path: Path, identity: Identity, now: datetime | None = None) -> FoundRecord[R]:
        """A stored file, beside what the device is now. Raises UserError when it is damaged."""
        record = self.read(path)
        try:
            updated = datetime.fromisoformat(record.updated)
            age_s = ((now or datetime.now(UTC)) - updated).total_seconds()
        except (ValueError, TypeError):
            raise UserError(
                f"{path}: updated: {record.updated} is no time", "remove it and measure again"
            ) from None
        return FoundRecord(record, path, max(age_s, 0.0), record.identity.stale_against(identity))


def age_text(age_s: float) -> str:
    """An age as people say it."""
    for unit_s, name in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if age_s >= unit_s:
            count = int(age_s // unit_s)
            return f"{count} {name}{'s' if count > 1 else ''}"
    return "less than a minute"


def slug(identity: Identity) -> str:
    """The beginning of the names of a device's files."""
    return re.sub(r"[^A-Za-z0-9]+", "-", identity.model).strip("-")[:_SLUG_CHARACTERS] or "device"
