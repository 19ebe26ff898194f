"""Where commands that measure devices look for them, and keep what they found."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from slo_ctl.serra.identity import Surroundings


def surroundings(root: Path | None) -> Surroundings:
    """By what a target is known again; emulated devices are those below `root`."""
    from slo_ctl.device.places import places
    from slo_ctl.serra.identity import Surroundings

    return Surroundings(places(root))


def kept(root: Path | None) -> Path:
    """The folder of profiles and of what else was found out about devices."""
    from slo_ctl.device.places import places

    return places(root).state / "profiles"
