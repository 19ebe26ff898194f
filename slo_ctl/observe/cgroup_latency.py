"""Latencies of VMs on block devices by cgroup, measured in the kernel, for VMs without QEMU's histograms."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Set
from pathlib import Path

from slo_ctl.host.bio_latency import BioLatencies
from slo_ctl.model.host import DeviceNumber, DiskLatency
from slo_ctl.observe.streams import Inventory

MAX_OTHERS = 4096
"""Groups of no VM that are remembered, so that directories are not read again for each of their requests. New
ones come all the time: each session and each job has one."""


class CgroupMembers:
    """The VM of an inode: that of the VM's cgroup or of a group inside it."""

    def __init__(self) -> None:
        self._folders: Mapping[str, str] = {}
        self._vms: dict[int, str | None] = {}
        """VM by inode; None: the group belongs to no VM."""

    def find(self, folders: Mapping[str, str], inodes: Set[int]) -> Mapping[int, str | None]:
        """VM of each of `inodes`; `folders` has the VM by the directory of its cgroup.

        Reads the directories only if `folders` or `inodes` have new entries.
        """
        if folders != self._folders:
            self._folders, self._vms = dict(folders), {}
        if not self._vms.keys() >= inodes:
            without_vm = {inode for inode, vm in self._vms.items() if vm is None}
            if len(without_vm) > MAX_OTHERS:
                without_vm = set()
            self._vms = dict.fromkeys(without_vm | inodes)
            # If the group of one VM is inside that of another, the inner one has the longer path and wins.
            for folder in sorted(folders, key=len):
                self._vms |= dict.fromkeys(_inodes_below(folder), folders[folder])
        return self._vms


def _inodes_below(folder: str) -> Iterator[int]:
    for path, _, _ in os.walk(folder):
        try:
            yield Path(path).stat().st_ino
        except OSError:
            continue  # it was removed


class CgroupLatencies:
    """Latencies of all VMs with cgroups."""

    def __init__(self) -> None:
        self._latencies = BioLatencies()
        self._members = CgroupMembers()

    @property
    def expected(self) -> bool:
        """Whether the p99 of a VM with requests is known, or will be soon."""
        return self._latencies.running or not self._latencies.problem

    @property
    def problem(self) -> str:
        """Why latencies are not measured; may be empty."""
        return self._latencies.problem

    def read(
        self, inventory: Inventory, devices: Collection[DeviceNumber]
    ) -> dict[str, dict[DeviceNumber, list[DiskLatency]]]:
        """The latest latencies, by VM and device; the same objects as before if there are no newer ones."""
        latest = self._latencies.latest(devices)
        tree = inventory.tree
        if not latest or tree is None:
            return {}
        folders = {str(tree.folder(vm.cgroup)): vm.name for vm in inventory.vms if vm.cgroup}
        vms = self._members.find(folders, {cgroup for cgroup, _ in latest})
        self._latencies.forget({cgroup for cgroup, _ in latest if vms[cgroup] is None})
        by_vm: dict[str, dict[DeviceNumber, list[DiskLatency]]] = {}
        for (cgroup, device), latency in latest.items():
            vm = vms[cgroup]
            if vm is not None:
                by_vm.setdefault(vm, {}).setdefault(device, []).append(latency)
        return by_vm

    def close(self) -> None:
        self._latencies.close()
