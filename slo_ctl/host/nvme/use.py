"""Who uses the namespaces of an NVMe drive: VMs, mounts, processes. Looks, and changes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from slo_ctl.base.kernel_files import read_bounded
from slo_ctl.host.block_device import device_behind, is_held
from slo_ctl.model import Vm
from slo_ctl.model.nvme import NvmeDevice

PROC = Path("/proc")


def users_of(
    device: NvmeDevice, vms: Iterable[Vm], sys: Path, dev: Path, proc: Path = PROC, except_vm: str = ""
) -> dict[int, str]:
    """Users of namespaces by NSID; unused ones are left out.

    The definition of a VM that is shut off counts. `except_vm` is one whose disks do not.
    """
    blocks = {dev / each.name: each.nsid for each in device.namespaces if each.name is not None}
    users: dict[int, str] = {}
    numbers = {}
    for path in blocks:
        try:
            numbers[device_behind(str(path), sys)] = path
        except OSError:
            continue
    for vm in vms:
        for disk in vm.disks:
            mine = numbers.get(disk.device) if disk.device is not None else None
            if mine is not None and vm.name != except_vm:
                users.setdefault(blocks[mine], f"disk {disk.target} of VM {vm.name}")
    for path, nsid in blocks.items():
        if nsid not in users and (user := _kernel_user(path)):
            users[nsid] = user
    for path, pid, name in _openers(set(blocks), proc):
        users.setdefault(blocks[path], f"open in process {pid} ({name})")
    return users


def _kernel_user(path: Path) -> str:
    try:
        held = is_held(path)
    except FileNotFoundError:
        return ""  # detached since the drive was looked at
    except OSError as error:
        return f"it cannot be opened: {error.strerror}"
    return "mounted, swapped to, or part of another device (see lsblk)" if held else ""


def _openers(paths: set[Path], proc: Path) -> list[tuple[Path, int, str]]:
    """Processes that have one of these open. Others' processes are seen by root only."""
    found = []
    names = {str(path): path for path in paths}
    for process in proc.iterdir():
        if not process.name.isdigit():
            continue
        try:
            opened = {str(each.readlink()) for each in (process / "fd").iterdir()}
        except OSError:
            continue  # it ended, or it belongs to another user
        for name in opened & names.keys():
            command = read_bounded(process / "comm")
            found.append((names[name], int(process.name), command.text.strip() if command else "unknown"))
    return found
