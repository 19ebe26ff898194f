"""How nvme-cli fails, told with the command, its exit code, what it said and what to do."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from slo_ctl.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

_SAID = 300
_NOISE = re.compile(r"\x1b\[[0-9;]*m|Usage: nvme .*", re.DOTALL)
"""Colours, and the help that follows many failures."""
_HINTS = (
    (
        ("invalid command opcode", "invalid opcode", "0x4001", "(0x1)"),
        "the drive does not have this command: see `slo-ctl device show` for what it offers",
    ),
    (("permission denied", "operation not permitted"), "run it as root"),
    (
        ("namespace insufficient capacity", "ns_insufficient_cap", "0x4115", "0x115"),
        "ask for less: `slo-ctl device show` has what is unallocated",
    ),
    (
        ("fdp disabled", "0x4029", "0x29"),
        "FDP is not enabled in this endurance group: see nvme-fdp-feature(1)",
    ),
    (("unrecognized option", "unknown option", "invalid sub-command", "not found"), "update nvme-cli"),
    (("no such file", "no such device", "enodev"), "is the drive still there? `nvme list` shows them"),
    (("device or resource busy", "ebusy"), "something uses the namespace: detach it from its VM first"),
    (("invalid field", "0x4002", "invalid log page", "0x4109"), "the drive does not have this log or field"),
)
_UNSUPPORTED = (
    "invalid command opcode",
    "invalid opcode",
    "invalid field",
    "invalid log page",
    "fdp disabled",
    "unknown guid",
    "not supported",
    "unable to read c0",
    "0x4001",
    "0x4002",
    "0x4109",
    "0x4029",
)


class NvmeError(UserError):
    """A call of nvme-cli that gave nothing to use."""


class NvmeCommandError(NvmeError):
    """nvme-cli ended with a failure.

    `command` is the whole command line; `exit_code` is None when it was ended for taking too long;
    `stderr` is what it said, JSON on stdout included, cut.
    """

    def __init__(self, command: Sequence[str], exit_code: int | None, stderr: str) -> None:
        self.command = tuple(command)
        self.exit_code = exit_code
        self.stderr = stderr
        said = " ".join(_NOISE.sub("", stderr).split())[:_SAID] or "nothing"
        how = "was ended" if exit_code is None else f"ended with {exit_code}"
        super().__init__(f"`{' '.join(command)}` {how}: {said}", hint_for(stderr))

    @property
    def unsupported(self) -> bool:
        """The drive (or the tool) lacks what was asked for, as opposed to failing at it."""
        low = self.stderr.lower()
        return any(each in low for each in _UNSUPPORTED)


class NvmeSchemaError(NvmeError):
    """nvme-cli's JSON is not what any known version prints."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where}: {problem}", "report it with the output of `nvme version`")


def hint_for(said: str) -> str:
    """What to do about a failure, by what nvme-cli said."""
    low = said.lower()
    return next((hint for signs, hint in _HINTS if any(sign in low for sign in signs)), "see `dmesg`")
