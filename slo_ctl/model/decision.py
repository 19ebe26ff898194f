"""Changes decided for a device."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class OpsMove:
    """Give `blocks` OPS blocks of `source` to `target`; None as an end is the device's unassigned spare."""

    source: str | None
    target: str | None
    blocks: int

    def __str__(self) -> str:
        return f"{self.blocks} blocks from {self.source or 'spare'} to {self.target or 'spare'}"


@dataclass(frozen=True, slots=True)
class MovePlan:
    """Moves of OPS that are worth what they cost, and how far they have come."""

    source: str | None
    target: str | None
    blocks: int
    """Still to be moved."""
    share_done: float = 0.0
    """Part of the planned blocks that has been moved, 0..1."""
    cost_s: float = 0.0
    """Device time that the rest costs (pages copied, where there is no clock)."""
    saving_s: float = 0.0
    """Device time that it saves over the next drive write."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The changes. Empty means: leave everything as it is."""

    moves: tuple[OpsMove, ...] = ()
    limits_iops: dict[str, float | None] = field(default_factory=dict)
    """New rate limits; None lifts a limit; VMs not named keep theirs."""
    scheduler_weights: dict[str, float] = field(default_factory=dict)
    plans: tuple[MovePlan, ...] = ()
    """Moves under way, which `moves` are the next step of."""
    remarks: dict[str, str] = field(default_factory=dict)
    """Measures for a VM or because of others, by VM."""
    reasons: tuple[str, ...] = ()
    """One plain sentence per thing that was decided, for status, history and logs."""


# What an actuator can set, what should be set, and what became of it.

SettingValue = float | str | None
"""The value of a knob: a number; words, such as `bfq low_latency=0`; or None: no limit, or the default."""


class Lever(StrEnum):
    """Mechanism that controls a VM's I/O."""

    __hash__ = str.__hash__  # Enum's own is written in Python, and every set of levers asks for it

    CGROUP_WEIGHT = "cgroup weight"
    CGROUP_LIMIT = "cgroup limit"
    CGROUP_LATENCY = "cgroup latency target"
    SYSTEMD_PROPERTY = "systemd property"
    LIBVIRT_WEIGHT = "libvirt blkiotune"
    LIBVIRT_LIMIT = "libvirt blkdeviotune"
    LATENCY_HISTOGRAM = "QEMU latency histogram"
    FTL_WEIGHT = "emulated SSD weight"
    FTL_LIMIT = "emulated SSD limit"
    FTL_OPS = "emulated SSD OPS"
    FTL_SCHEDULER = "emulated SSD scheduler"
    NVME_OPS = "NVMe namespace OPS"
    DEVICE_SCHEDULER = "device scheduler"
    DEVICE_COST = "device io.cost"


FTL_LEVERS = frozenset({Lever.FTL_WEIGHT, Lever.FTL_LIMIT, Lever.FTL_OPS, Lever.FTL_SCHEDULER})
"""Levers of an emulated SSD, which keeps their values in its folder."""
DEVICE_LEVERS = frozenset({Lever.FTL_SCHEDULER, Lever.DEVICE_SCHEDULER, Lever.DEVICE_COST})
"""Levers of a whole device, not of one VM on it."""
LEVERS_OF_WORDS = DEVICE_LEVERS | {Lever.LATENCY_HISTOGRAM}
"""Levers whose knobs hold words; all others hold numbers."""


@dataclass(frozen=True, slots=True, order=True)
class Knob:
    """One value on the host that can be read and written."""

    lever: Lever
    place: str
    """A cgroup (as in /proc/PID/cgroup), a libvirt UUID, `DEVICE/NAMESPACE` of an emulated SSD, a device."""
    name: str
    """`weight`; `read_iops`, `write_iops`, `total_iops`, `read_bytes_s`, `write_bytes_s`, `total_bytes_s`;
    `latency_us`; `histogram`; `ops_blocks`; `scheduler`; `qos`, `model`. The same words for every lever: its
    actuator knows what they are called there."""
    device: str = ""
    """`MAJOR:MINOR` (cgroup, devices) or the disk's target (libvirt) where the knob is for one device."""

    def __hash__(self) -> int:
        # Texts remember their hashes; the lever says little that the name does not.
        return hash((self.place, self.name, self.device))

    def __str__(self) -> str:
        device = f" {self.device}" if self.device else ""
        return f"{self.lever} {self.place}{device} {self.name}"


@dataclass(frozen=True, slots=True)
class Setting:
    """A value that a knob should have."""

    knob: Knob
    value: SettingValue
    """Words are in force if the knob reads all of them, possibly with others."""
    vm: str
    """The VM it is set for; empty for a whole device."""
    reason: str


class OutcomeState(StrEnum):
    """State of a setting after it was applied."""

    UNCHANGED = "unchanged"
    """The value was in force already."""
    PLANNED = "planned"
    """A dry run: it would be changed."""
    APPLIED = "applied"
    """Changed, and read back."""
    RESTORED = "restored"
    """Restored the value it had before slo-ctl."""
    RESTORING = "restoring"
    """On its way back to that value: the device continues by itself."""
    UNAPPLIED = "unapplied"
    """It is not in force; the reason says why."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of applying one setting."""

    setting: Setting
    state: OutcomeState
    before: SettingValue
    """Read before anything was done; None also when there was no limit."""
    after: SettingValue
    """Read back."""
    reason: str = ""
    """Why it could not be applied, or what was rounded; empty otherwise."""


def in_force(wanted: SettingValue, read: SettingValue) -> bool:
    """Whether a knob that reads `read` has the value wanted; the last digits of a float do not count."""
    if isinstance(wanted, str) and isinstance(read, str):
        return set(wanted.split()) <= set(read.split())
    if isinstance(wanted, str) or isinstance(read, str):
        return False
    if wanted is None or read is None:
        return wanted is read
    return math.isclose(wanted, read, rel_tol=1e-9, abs_tol=1e-12)


def value_text(value: SettingValue) -> str:
    """A value for people."""
    if isinstance(value, str):
        return value
    return "none" if value is None else f"{value:.15g}"


def change_of(before: SettingValue, after: SettingValue) -> tuple[SettingValue, SettingValue]:
    """Both for people: of words only the first, and those that `after` says otherwise than `before`."""
    if not isinstance(before, str) or not isinstance(after, str):
        return before, after
    old, new = before.split(), after.split()
    named = {word.partition("=")[0] for word in new}
    was = [word for word in old[1:] if word not in new and word.partition("=")[0] in named]
    return " ".join([*old[:1], *was]), " ".join([*new[:1], *(word for word in new[1:] if word not in old)])


class ActError(Exception):
    """A knob cannot be read or written: why, and what to do about it.

    `gone` means that the object which had the knob no longer exists (a cgroup, a VM, a disk), so that nothing
    is left to restore. A daemon that does not answer is not gone: its objects keep their values. `under_way`
    means that the device continues by itself until the knob has the value.
    """

    def __init__(self, reason: str, hint: str = "", *, gone: bool = False, under_way: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint
        self.gone = gone
        self.under_way = under_way

    def __str__(self) -> str:
        return f"{self.reason} ({self.hint})" if self.hint else self.reason
