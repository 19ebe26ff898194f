"""What libvirt and systemd call the cgroup of a VM, and which VM that is."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ESCAPED_BYTE = re.compile(rb"\\x([0-9a-fA-F]{2})")
_SYSTEMD_SCOPE = re.compile(r"machine-(?P<machine>.+)\.scope", re.DOTALL)
_MACHINE = re.compile(r"qemu-(?P<id>\d{1,9})-(?P<name>.+)", re.DOTALL)
_PLAIN_SUFFIX = ".libvirt-qemu"


@dataclass(frozen=True, slots=True)
class Machine:
    """What the name of a cgroup says about its VM."""

    libvirt_id: int
    name: str
    """libvirt leaves characters out and cuts the end off: a hint, not the VM's name."""

    def may_be(self, vm_name: str) -> bool:
        """Whether a VM of that name can have a cgroup of this one."""
        return _letters(vm_name).startswith(_letters(self.name))


def machine_of(folder: str) -> Machine | None:
    r"""The VM that a cgroup's folder is named after, else None.

    libvirt with systemd makes `machine-qemu\x2d3\x2dNAME.scope`, without it `qemu-3-NAME.libvirt-qemu`.
    """
    scope = _SYSTEMD_SCOPE.fullmatch(folder)
    if scope:
        machine = unescaped(scope["machine"])
    elif folder.endswith(_PLAIN_SUFFIX):
        machine = folder.removesuffix(_PLAIN_SUFFIX)
    else:
        return None
    parts = _MACHINE.fullmatch(machine)
    return Machine(int(parts["id"]), parts["name"]) if parts else None


def unescaped(unit: str) -> str:
    r"""systemd's `\x2d` as the byte it stands for."""
    raw = unit.encode("utf-8", "surrogateescape")
    plain = _ESCAPED_BYTE.sub(lambda match: bytes.fromhex(match[1].decode("ascii")), raw)
    return plain.decode("utf-8", "surrogateescape")


def _letters(name: str) -> str:
    """What of a name survives in the name of a cgroup, whichever way it was made."""
    return "".join(c for c in name if c.isascii() and c.isalnum())
