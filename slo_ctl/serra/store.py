"""Profiles on disk: one JSON file for each device under each kernel and scheduler, whole or not at all."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pydantic import ValidationError

from slo_ctl.errors import UserError
from slo_ctl.serra.identity import BLOCK_DEVICE, block_identity
from slo_ctl.serra.profile import Profile
from slo_ctl.whole_file import replace_file

if TYPE_CHECKING:
    from pathlib import Path

    from slo_ctl.model import DeviceNumber
    from slo_ctl.serra.identity import Identity, Surroundings

_SLUG_CHARACTERS = 40


@dataclass(frozen=True, slots=True)
class Found:
    """A stored profile and whether it holds."""

    profile: Profile
    path: Path
    age_s: float
    stale: str
    """Why it does not hold any more; empty: it does."""


class ProfileStore:
    """Every profile in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, identity: Identity) -> Path:
        """Where the profile of this identity is, or would be."""
        name = f"{_slug(identity)}-{identity.hardware_key}-{identity.environment_key}.json"
        return self.folder / name

    def find(self, identity: Identity, now: datetime | None = None) -> Found | None:
        """The valid profile of a device, else its newest stale one, else None.

        Raises UserError for a damaged file, and OSError for one that cannot be read.
        """
        exact = self.path(identity)
        if exact.exists():
            return _found(exact, identity, now)
        older = [
            _found(path, identity, now)
            for path in sorted(self.folder.glob(f"*-{identity.hardware_key}-*.json"))
        ]
        return min(older, key=lambda found: found.age_s, default=None)

    def of_device(self, number: DeviceNumber, around: Surroundings) -> Found | None:
        """The best profile of a block device: of itself rather than of a file on it, the valid before the
        stale, the newest first.

        Raises UserError for a damaged file.
        """
        now = block_identity(number, BLOCK_DEVICE, around)
        found = []
        for path in sorted(self.folder.glob(f"{_slug(now)}-*.json")):
            profile = read_profile(path)
            there = profile.identity
            if (there.model, there.serial, there.firmware) == (now.model, now.serial, now.firmware):
                found.append(_found(path, now, None))
        return min(
            found,
            key=lambda each: (bool(each.stale), each.profile.identity.place != BLOCK_DEVICE, each.age_s),
            default=None,
        )

    def save(self, profile: Profile) -> Path:
        """Put the profile in the place of the one there. Raises UserError when the system refuses."""
        path = self.path(profile.identity)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_file(path, f"{profile.model_dump_json(indent=1)}\n".encode())
        except OSError as error:
            raise UserError(f"cannot keep the profile in {path}: {error.strerror}", "see --root") from None
        return path


def read_profile(path: Path) -> Profile:
    """A stored profile. Raises UserError when it is damaged or another version's, saying what to do."""
    try:
        return Profile.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "file"
        raise UserError(
            f"{path}: {where}: {first['msg']}",
            "the profile is damaged or of another version: remove it and profile again, or give --fresh",
        ) from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}", "run as its owner") from None


def age_text(age_s: float) -> str:
    """An age as people say it."""
    for unit_s, name in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if age_s >= unit_s:
            count = int(age_s // unit_s)
            return f"{count} {name}{'s' if count > 1 else ''}"
    return "less than a minute"


def _slug(identity: Identity) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", identity.model).strip("-")[:_SLUG_CHARACTERS] or "device"


def _found(path: Path, identity: Identity, now: datetime | None) -> Found:
    profile = read_profile(path)
    try:
        updated = datetime.fromisoformat(profile.updated)
        age_s = ((now or datetime.now(UTC)) - updated).total_seconds()
    except (ValueError, TypeError):
        raise UserError(
            f"{path}: updated: {profile.updated} is no time", "remove it and profile again"
        ) from None
    return Found(profile, path, max(age_s, 0.0), profile.identity.stale_against(identity))
