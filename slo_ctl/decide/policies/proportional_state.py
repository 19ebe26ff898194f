"""What `proportional` remembers between windows."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slo_ctl.decide.targets import Feasible
    from slo_ctl.decide.track import VmTrack
    from slo_ctl.model import DeviceSample, Slo

MAX_GAIN = 0.9


@dataclass(frozen=True, slots=True)
class ProportionalState:
    """All that is remembered between windows."""

    tracks: dict[str, VmTrack]
    circumstances: tuple[object, ...]
    """Who is there, awake, and promised what: a change is answered at once."""
    feasible: Feasible | None = None
    """What the VMs are due, and the split it needs."""
    feasible_age_windows: int = 0
    plan: dict[str, int] = field(default_factory=dict)
    """OPS blocks per VM to arrive at; empty when nothing is under way."""
    last_blocks: dict[str, int] = field(default_factory=dict)
    """OPS blocks per VM in the previous window."""
    stuck_windows: int = 0
    last_step: dict[str, int] = field(default_factory=dict)
    """Blocks gained (or lost) per VM by the last correction, to notice a change of direction."""
    gain: float = MAX_GAIN
    """Share of a correction that is carried out; halved when corrections alternate."""
    device_share_since_event: float = 0.0
    """Drive writes since the circumstances changed."""
    pacing: bool = False
    leads: dict[str, float] = field(default_factory=dict)
    """What each VM has had beyond its share of late (`pacing`)."""
    best_level: float = 0.0
    """The highest lambda (lowest IOPS_i / w_i) seen since the circumstances changed, and with which split."""
    best_blocks: dict[str, int] = field(default_factory=dict)
    setbacks: int = 0
    """How often a correction lowered lambda."""
    frozen_until: float = 0.0
    """`device_share_since_event` until which the split stays, because corrections only lower lambda."""


def settled(tracks: dict[str, VmTrack], sample: DeviceSample) -> bool:
    """Whether u of all who do I/O has come to rest."""
    return all(tracks[v.vm].settled for v in sample.vms if v.active and v.requests > 0)


def max_iops(slo: Slo) -> float:
    """What a VM may have at most; infinite without a maximum."""
    return math.inf if slo.max_iops is None else slo.max_iops
