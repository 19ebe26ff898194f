"""nvme-cli's version, and what it means for how commands are spelled.

Read from the sources of 2.3 to 3.0-rc1: 3.0-rc1 moved identify, log and namespace commands into groups and
may be built without the old names; `--output-format-version` came with `ocp smart-add-log` in 2.12 and with
`list` in 2.14.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from slo_ctl.errors import UserError

OLDEST = (2, 3)
"""Its output was recorded; `fdp` came with it."""
_GROUPED = (3, 0)
_VERSION = re.compile(
    r"^nvme version v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?(?:-(a|b|rc)[.\d]*)?", re.MULTILINE
)
_IN_GROUPS = {
    "id-ctrl": ("id", "ctrl"),
    "id-ns": ("id", "ns"),
    "id-nvmset": ("id", "nvmset"),
    "list-ns": ("id", "ns-list"),
    "list-ctrl": ("id", "ctrl-list"),
    "list-endgrp": ("id", "endgrp-list"),
    "smart-log": ("log", "smart"),
    "endurance-log": ("log", "endurance"),
    "create-ns": ("ns", "create"),
    "delete-ns": ("ns", "delete"),
    "attach-ns": ("ns", "attach"),
    "detach-ns": ("ns", "detach"),
}
_FORMAT_VERSION_SINCE = {"list": (2, 14), "ocp smart-add-log": (2, 12)}
"""The two commands whose JSON has two schemas."""
_FORMAT_VERSION = "--output-format-version=1"
"""The one that all versions can print."""


@dataclass(frozen=True, slots=True)
class ToolVersion:
    """As `nvme version` says."""

    major: int
    minor: int
    patch: int = 0
    prerelease: str = ""
    """`a`, `b` or `rc`; empty for a release."""

    def __str__(self) -> str:
        text = f"{self.major}.{self.minor}" + (f".{self.patch}" if self.patch else "")
        return f"{text}-{self.prerelease}" if self.prerelease else text

    @property
    def supported(self) -> bool:
        """Whether its output is known."""
        return (self.major, self.minor) >= OLDEST

    @property
    def grouped(self) -> bool:
        """Whether commands are in groups (`id ctrl`); before 3.0-rc1 they are not (`id-ctrl`)."""
        return (self.major, self.minor) >= _GROUPED and self.prerelease not in ("a", "b")

    def words(self, command: str) -> list[str]:
        """`command`, named as 2.x does, in this version's words."""
        if self.grouped and command in _IN_GROUPS:
            return list(_IN_GROUPS[command])
        return command.split()

    def format_options(self, command: str) -> list[str]:
        """What makes the JSON of `command` that of the first schema, where the tool knows the option."""
        since = _FORMAT_VERSION_SINCE.get(command)
        return [_FORMAT_VERSION] if since is not None and (self.major, self.minor) >= since else []


def parse_version(text: str) -> ToolVersion:
    """From the output of `nvme version`. Raises UserError when there is none in it."""
    found = _VERSION.search(text[:4096])
    if found is None:
        first = text.strip().splitlines()[0][:80] if text.strip() else "nothing"
        raise UserError(
            f"nvme version says {first!r} and no version",
            f"install nvme-cli {OLDEST[0]}.{OLDEST[1]} or later",
        )
    major, minor, patch, prerelease = found.groups()
    return ToolVersion(int(major), int(minor), int(patch or 0), prerelease or "")
