"""Knobs, their settings, and outcomes of applying these."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from slo_ctl.base.errors import UserError

SettingValue = float | str | None
"""Value of a knob: a number; text such as `bfq low_latency=0`; None: no limit, or the default."""


class Lever(StrEnum):
    """A mechanism that controls I/O."""

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
"""Levers of an emulated SSD, which stores their values in its directory."""
LIBVIRT_LEVERS = frozenset({Lever.LIBVIRT_WEIGHT, Lever.LIBVIRT_LIMIT, Lever.LATENCY_HISTOGRAM})
"""Levers of a VM of libvirt, which is addressed by its UUID."""
CGROUP_LEVERS = frozenset(
    {Lever.CGROUP_WEIGHT, Lever.CGROUP_LIMIT, Lever.CGROUP_LATENCY, Lever.SYSTEMD_PROPERTY}
)
"""Levers of a cgroup, which is addressed by its path in the tree."""
DEVICE_LEVERS = frozenset({Lever.FTL_SCHEDULER, Lever.DEVICE_SCHEDULER, Lever.DEVICE_COST})
"""Levers of a whole device, not of one VM on it."""
TEXT_LEVERS = DEVICE_LEVERS | {Lever.LATENCY_HISTOGRAM}
"""Levers whose knobs have text as their value; all others have numbers."""


@dataclass(frozen=True, slots=True, order=True)
class Knob:
    """One value on the host that can be read and written."""

    lever: Lever
    place: str
    """A cgroup (as in /proc/PID/cgroup), a libvirt UUID, `DEVICE/NAMESPACE` of an emulated SSD, a device."""
    name: str
    """`weight`; `read_iops`, `write_iops`, `total_iops`, `read_bytes_s`, `write_bytes_s`, `total_bytes_s`;
    `latency_us`; `histogram`; `ops_blocks`; `scheduler`; `qos`, `model`. Independent of the lever, whose
    actuator translates it."""
    device: str = ""
    """`MAJOR:MINOR` (cgroup, devices) or target of the disk (libvirt), if the knob is for one device."""

    def __hash__(self) -> int:
        # Texts remember their hashes; the lever says little that the name does not.
        return hash((self.place, self.name, self.device))

    @property
    def emulated_device(self) -> str:
        """The emulated SSD, if the place is on one."""
        return self.place.partition("/")[0]

    def __str__(self) -> str:
        device = f" {self.device}" if self.device else ""
        return f"{self.lever} {self.place}{device} {self.name}"


@dataclass(frozen=True, slots=True)
class Setting:
    """A value that a knob should have."""

    knob: Knob
    value: SettingValue
    """Text is in force if the knob contains all of its words."""
    vm: str
    """Name of the VM; empty for a setting of a whole device."""
    reason: str


class OutcomeState(StrEnum):
    """State of a setting after it was applied."""

    UNCHANGED = "unchanged"
    """The value was already in force; of one to restore, it could never be set."""
    PLANNED = "planned"
    """Dry run: the value would be changed."""
    APPLIED = "applied"
    """The value was changed and verified."""
    RESTORED = "restored"
    """The value from before slo-ctl was restored."""
    RESTORING = "restoring"
    """The device continues to restore the value by itself."""
    UNAPPLIED = "unapplied"
    """The value is not in force; see the reason."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of applying one setting."""

    setting: Setting
    state: OutcomeState
    before: SettingValue
    """Value before the change; None also means no limit."""
    after: SettingValue
    """Value after the change."""
    reason: str = ""
    """Why it could not be applied, who had changed it, or how it was rounded; else empty."""
    is_correction: bool = False
    """Whether another program had changed the setting while it was in force."""
    is_replacement: bool = False
    """Whether it replaced a limit or weight that slo-ctl had not set."""


def in_force(wanted: SettingValue, read: SettingValue) -> bool:
    """Whether the value `read` of a knob is the value `wanted`, apart from the last digits of a float."""
    if isinstance(wanted, str) and isinstance(read, str):
        return set(wanted.split()) <= set(read.split())
    if isinstance(wanted, str) or isinstance(read, str):
        return False
    if wanted is None or read is None:
        return wanted is read
    return math.isclose(wanted, read, rel_tol=1e-9, abs_tol=1e-12)


def value_text(value: SettingValue) -> str:
    """A value as text."""
    if isinstance(value, str):
        return value
    return "none" if value is None else f"{value:.15g}"


def change_of(before: SettingValue, after: SettingValue) -> tuple[SettingValue, SettingValue]:
    """Both values for display; of text, the first word and the words that differ."""
    if not isinstance(before, str) or not isinstance(after, str):
        return before, after
    old, new = before.split(), after.split()
    new_names = {word.partition("=")[0] for word in new}
    changed = [word for word in old[1:] if word not in new and word.partition("=")[0] in new_names]
    added = [word for word in new[1:] if word not in old]
    return " ".join([*old[:1], *changed]), " ".join([*new[:1], *added])


class ActError(UserError):
    """A knob cannot be read or written.

    `target_removed`: the object of the knob (a cgroup, a VM, a disk) no longer exists, so that nothing needs
    to be restored; not for a daemon that does not answer. `in_progress`: the device continues by itself until
    the knob has the value.
    """

    def __init__(
        self, message: str, hint: str = "", *, target_removed: bool = False, in_progress: bool = False
    ) -> None:
        super().__init__(message, hint)
        self.target_removed = target_removed
        self.in_progress = in_progress
