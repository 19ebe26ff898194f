"""The WAF of a drive, and where it comes from."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class WafSource(StrEnum):
    """Where a device's WAF is from, best first."""

    FTL = "emulated FTL"
    FDP = "FDP statistics"
    ENDURANCE_GROUP = "endurance group log"
    OCP = "OCP C0h log"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class MediaCounters:
    """Bytes written in the life of the drive, by one source, at one moment."""

    source: WafSource
    at_s: float
    """Time of a monotonic clock."""
    host_bytes: int
    media_bytes: int


@dataclass(frozen=True, slots=True)
class DeviceWaf:
    """WAF of a whole drive or endurance group, never of one VM. `waf` is media over host bytes written."""

    source: WafSource = WafSource.NONE
    waf: float | None = None
    """None: `reason` says why."""
    uncertainty: float | None = None
    """Maximum error, from the resolution of the counters alone."""
    window_s: float = 0.0
    """Time it is a mean over."""
    host_bytes: int = 0
    """Written in the window."""
    resolution_bytes: int | None = None
    """The coarser of the two counters: bytes per count."""
    scope: str = ""
    """Whose counters: `endurance group 1 of nvme0`."""
    emulated: bool = False
    """The counters are synthetic, of an emulator: no ground truth."""
    reason: str = ""
    """Why there is none, or why better sources were passed over."""
