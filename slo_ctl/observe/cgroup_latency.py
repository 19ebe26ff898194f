"""Latencies of VMs on block devices, by their cgroups: of those that QEMU keeps no histogram of."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Set
from pathlib import Path

from slo_ctl.host.bio_latency import BioLatencies, GroupLatencies
from slo_ctl.host.cgroup import CgroupTree
from slo_ctl.model import DeviceNumber, DiskLatency
from slo_ctl.observe.streams import Inventory


class CgroupMembers:
    """Which VM an inode belongs to: that of the VM's cgroup, or of a group inside of it."""

    def __init__(self) -> None:
        self._folders: Mapping[str, str] = {}
        self._vms: dict[int, str | None] = {}
        """None: no VM's."""

    def find(self, folders: Mapping[str, str], inodes: Set[int]) -> Mapping[int, str | None]:
        """VMs of all `inodes`; `folders` are those of VMs' cgroups, with the VM.

        Looks again only if something is new.
        """
        if folders != self._folders:
            self._folders, self._vms = dict(folders), {}
        if not self._vms.keys() >= inodes:
            others = {inode for inode, vm in self._vms.items() if vm is None}
            self._vms = dict.fromkeys(others | inodes)
            # The inner of two VMs, one in the other's group, is later.
            for folder in sorted(folders, key=len):
                self._vms |= dict.fromkeys(_inodes(folder), folders[folder])
        return self._vms


def _inodes(folder: str) -> Iterator[int]:
    for each, _, _ in os.walk(folder):
        try:
            yield Path(each).stat().st_ino
        except OSError:
            continue  # it is gone


class CgroupLatencies:
    """Latencies of all VMs with cgroups, measured in the kernel."""

    def __init__(self) -> None:
        self._measured = BioLatencies()
        self._members = CgroupMembers()

    @property
    def expected(self) -> bool:
        """Whether p99s are known, or soon will be, of whoever has requests."""
        return self._measured.running or not self._measured.problem

    @property
    def problem(self) -> str:
        """Why they are not known; may be empty."""
        return self._measured.problem

    def read(
        self, inventory: Inventory, devices: Collection[DeviceNumber]
    ) -> dict[str, dict[DeviceNumber, list[DiskLatency]]]:
        """By VM and device, as printed last; the same objects as before if nothing was printed since."""
        latest = self._measured.latest(devices)
        if not latest or inventory.tree is None:
            return {}
        vms = self._members.find(_folders(inventory, inventory.tree), {cgroup for cgroup, _ in latest})
        self._measured.forget({inode for inode, vm in vms.items() if vm is None})
        return _by_vm(latest, vms)

    def close(self) -> None:
        """Stop measuring."""
        self._measured.close()


def _folders(inventory: Inventory, tree: CgroupTree) -> dict[str, str]:
    return {str(tree.folder(vm.cgroup)): vm.name for vm in inventory.vms if vm.cgroup}


def _by_vm(
    latest: GroupLatencies, vms: Mapping[int, str | None]
) -> dict[str, dict[DeviceNumber, list[DiskLatency]]]:
    found: dict[str, dict[DeviceNumber, list[DiskLatency]]] = {}
    for (cgroup, device), latency in latest.items():
        vm = vms[cgroup]
        if vm is not None:
            found.setdefault(vm, {}).setdefault(device, []).append(latency)
    return found
