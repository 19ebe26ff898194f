"""Stored profiles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slo_ctl.serra.identity import BLOCK_DEVICE, block_identity
from slo_ctl.serra.profile import Profile
from slo_ctl.serra.stored import FoundRecord, RecordStore, age_text, slug

if TYPE_CHECKING:
    from pathlib import Path

    from slo_ctl.model import DeviceNumber
    from slo_ctl.serra.identity import Surroundings

__all__ = ["Found", "ProfileStore", "age_text"]

Found = FoundRecord[Profile]
"""A stored profile and whether it holds."""


class ProfileStore(RecordStore[Profile]):
    """Every profile in one folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, Profile, "profile")

    def of_device(self, number: DeviceNumber, around: Surroundings) -> Found | None:
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
            key=lambda each: (bool(each.stale), each.profile.identity.place != BLOCK_DEVICE, each.age_s),
            default=None,
        )
