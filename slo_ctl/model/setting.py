"""What an actuator can set, what should be set, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Lever(StrEnum):
    """By what means a VM's I/O is steered."""

    CGROUP_WEIGHT = "cgroup weight"
    CGROUP_LIMIT = "cgroup limit"
    LIBVIRT_WEIGHT = "libvirt blkiotune"
    LIBVIRT_LIMIT = "libvirt blkdeviotune"
    FTL_WEIGHT = "emulated SSD weight"
    FTL_LIMIT = "emulated SSD limit"
    FTL_OPS = "emulated SSD OPS"


@dataclass(frozen=True, slots=True, order=True)
class Knob:
    """One value on the host that can be read and written."""

    lever: Lever
    place: str
    """A cgroup (as in /proc/PID/cgroup), a libvirt UUID, or `DEVICE/NAMESPACE` of an emulated SSD."""
    name: str
    """`weight`; `read_iops`, `write_iops`, `total_iops`, `read_bytes_s`, `write_bytes_s`, `total_bytes_s`;
    `ops_blocks`. The same words for every lever: its actuator knows what they are called there."""
    device: str = ""
    """`MAJOR:MINOR` (cgroup) or the disk's target (libvirt) where the knob is for one device."""

    def __str__(self) -> str:
        device = f" {self.device}" if self.device else ""
        return f"{self.lever} {self.place}{device} {self.name}"


@dataclass(frozen=True, slots=True)
class Setting:
    """A value that a knob should have."""

    knob: Knob
    value: float | None
    """None: no limit, or the default weight."""
    vm: str
    """For whose sake."""
    reason: str


class OutcomeState(StrEnum):
    """What became of a setting."""

    UNCHANGED = "unchanged"
    """It was so already."""
    PLANNED = "planned"
    """It would be changed: nothing was touched."""
    APPLIED = "applied"
    """Changed, and read back."""
    RESTORED = "restored"
    """Given back the value it had before slo-ctl."""
    UNAPPLIED = "unapplied"
    """It did not take: see the reason."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one setting."""

    setting: Setting
    state: OutcomeState
    before: float | None
    """Read before anything was done; None also when there was no limit."""
    after: float | None
    """Read back."""
    reason: str = ""
    """Why it did not take, or what was rounded; empty otherwise."""
