"""The WAF of a drive and its source."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class WafSource(StrEnum):
    """Source of a device's WAF, best first."""

    FTL = "emulated FTL"
    FDP = "FDP statistics"
    ENDURANCE_GROUP = "endurance group log"
    OCP = "OCP C0h log"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class MediaCounters:
    """Lifetime counters of bytes written, from one source at one time."""

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
    """WAF; None: unknown, see `reason`."""
    uncertainty: float | None = None
    """Maximum error caused by the resolution of the counters."""
    window_s: float = 0.0
    """Length of the window of `waf`."""
    host_bytes: int = 0
    """Bytes written by hosts in the window."""
    resolution_bytes: int | None = None
    """Bytes per count of the coarser counter."""
    scope: str = ""
    """What the counters cover, such as `endurance group 1 of nvme0`."""
    emulated: bool = False
    """Whether the counters come from an emulator."""
    reason: str = ""
    """Why the WAF is unknown, or why better sources are not used."""
