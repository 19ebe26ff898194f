"""Which VM a QEMU process runs, by its own command line."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePath
from typing import TYPE_CHECKING

from slo_ctl.observe.bounded_file import read_bounded

if TYPE_CHECKING:
    from pathlib import Path

    from slo_ctl.observe.cgroup import CgroupTree

MAX_PIDS = 64
"""A VM's group has QEMU and a few helpers."""

_GROUPS_WITH_QEMU = ("", "libvirt", "libvirt/emulator", "emulator")


@dataclass(frozen=True, slots=True)
class QemuProcess:
    """What the command line says; None where it does not."""

    name: str | None
    uuid: str | None


def qemu_in(tree: CgroupTree, cgroup: str, proc: Path) -> QemuProcess | None:
    """The first QEMU among the processes of a VM's group; None when there is none that we may look at."""
    for inner in _GROUPS_WITH_QEMU:
        for pid in _pids(tree.folder(cgroup) / inner / "cgroup.procs"):
            arguments = _arguments(proc / pid / "cmdline")
            if arguments and "qemu" in PurePath(arguments[0]).name:
                return identity(arguments)
    return None


def identity(arguments: list[str]) -> QemuProcess:
    """Name and UUID from QEMU's `-name` and `-uuid`."""
    name = _after(arguments, "name")
    return QemuProcess(None if name is None else _guest(name), _after(arguments, "uuid"))


def _after(arguments: list[str], option: str) -> str | None:
    for word, value in pairwise(arguments):
        if word in (f"-{option}", f"--{option}"):
            return value
    return None


def _guest(value: str) -> str | None:
    """`guest=a,,b,debug-threads=on` is the VM `a,b`; so is `a,,b` alone."""
    for number, part in enumerate(value.replace(",,", "\0").split(",")):
        key, equals, text = part.partition("=")
        if equals and key == "guest":
            return text.replace("\0", ",")
        if number == 0 and not equals and part:
            return part.replace("\0", ",")
    return None


def _pids(procs: Path) -> list[str]:
    try:
        file = read_bounded(procs)
    except OSError:
        # Threaded groups have no list of processes, and others' may be closed to us: the name of the cgroup
        # then has to do.
        return []
    pids = file.text.split() if file else []
    return [pid for pid in pids if pid.isascii() and pid.isdigit()][:MAX_PIDS]


def _arguments(cmdline: Path) -> list[str]:
    try:
        file = read_bounded(cmdline)
    except OSError:
        # Hidden from us (hidepid): as above.
        return []
    return file.text.split("\0") if file else []
