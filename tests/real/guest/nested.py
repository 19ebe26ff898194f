"""VMs inside the guest: run by libvirt, emulated by QEMU a second time, they only write to their disk.

Linux would take minutes to boot; `bare_writer` (tests/real/bare_guest.py) needs no operating system.
"""

from __future__ import annotations

from pathlib import Path

from bare_guest import compile_writer, domain_xml

from .machine import Guest
from .vm_scopes import until

_FOLDER = "/var/lib/bare-writer"
_START_S = 900.0
"""Timeout for the start of a VM, which takes 10 to 30 s: QEMU itself is emulated."""


class NestedVms:
    """VMs of the libvirt in the guest."""

    def __init__(self, guest: Guest, folder: Path) -> None:
        """`folder` is a temporary folder on this machine."""
        self._guest = guest
        self._folder = folder
        guest.run(f"mkdir -p {_FOLDER}")
        guest.put(compile_writer(folder), f"{_FOLDER}/")

    def define(self, name: str, block: str | None = None) -> None:
        """Define a VM, without starting it, with a block device of the guest as its `vda`."""
        disk = "" if block is None else _disk(block)
        xml = domain_xml(name, f"{_FOLDER}/bare_writer", f"{_FOLDER}/{name}.log", disk)
        self._guest.run(f"cat >{_FOLDER}/{name}.xml && virsh define {_FOLDER}/{name}.xml", stdin=xml)

    def start(self, name: str) -> None:
        """Start the VM and return when it runs; `says` waits until it writes."""
        self._guest.run(f"virsh start {name}", timeout_s=_START_S)

    def destroy(self, name: str) -> None:
        """Simulate a power failure of the VM."""
        self._guest.run(f"virsh destroy {name}", timeout_s=_START_S)

    def says(self, name: str, text: str, timeout_s: float = 600.0) -> None:
        """Wait for a line on its console: `disk BYTES` once it writes, `let go`, `failed`."""
        log = f"{_FOLDER}/{name}.log"
        until(self._guest, f"grep -qx '{text}' {log}", timeout_s, show=f"cat {log}")

    def scope(self, name: str) -> str:
        """Its cgroup, without /sys/fs/cgroup."""
        found = self._guest.run(f"echo /sys/fs/cgroup/machine.slice/machine-qemu*{name}.scope").stdout
        return found.strip().removeprefix("/sys/fs/cgroup")

    def disks(self, name: str, *, definition: bool = False) -> dict[str, str]:
        """Sources by target, of the running VM or of its definition."""
        option = " --inactive" if definition else ""
        lines = self._guest.run(f"virsh domblklist {name}{option}").stdout.splitlines()[2:]
        return {line.split()[0]: line.split()[1] for line in lines if line.strip()}


def _disk(block: str) -> str:
    return f"""<disk type='block' device='disk'><driver name='qemu' type='raw' cache='none' io='native'/>
        <source dev='{block}'/><target dev='vda' bus='virtio'/></disk>"""
