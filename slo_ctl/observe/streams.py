"""Which VMs there are, and their I/O told apart: libvirt's domains joined with cgroups and devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from slo_ctl.model import Disk, FoundBy, Stream, Vm, VmState
from slo_ctl.observe.block_device import device_behind
from slo_ctl.observe.cgroup import find_groups
from slo_ctl.observe.io_counters import read_counters
from slo_ctl.observe.machine_name import machine_of
from slo_ctl.observe.qemu_process import qemu_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from slo_ctl.observe.cgroup import CgroupTree
    from slo_ctl.observe.io_counters import ByDevice
    from slo_ctl.observe.machine_name import Machine

    Note = Callable[[str], None]

_WITH_DEVICE = frozenset({"block", "file"})
"""Kinds of disk whose source is a path on a block device of the host."""


@dataclass(frozen=True, slots=True)
class HostRoots:
    """Where the kernel shows processes and devices."""

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")


@dataclass(frozen=True, slots=True)
class MachineGroup:
    """A cgroup named after a VM, and what its QEMU says of itself."""

    cgroup: str
    machine: Machine
    name: str | None
    uuid: str | None

    def holds(self, vm: Vm) -> bool:
        """Whether this is the group of that VM. UUIDs decide where both sides have one."""
        if self.uuid and vm.uuid:
            return self.uuid.lower() == vm.uuid.lower()
        return vm.libvirt_id == self.machine.libvirt_id and self.machine.may_be(vm.name)


def machine_groups(tree: CgroupTree, roots: HostRoots, note: Note) -> list[MachineGroup]:
    """Every cgroup that libvirt made for a VM, whether or not libvirt can be asked."""
    found = []
    for cgroup, machine in find_groups(tree, machine_of, note):
        qemu = qemu_in(tree, cgroup, roots.proc)
        found.append(MachineGroup(cgroup, machine, qemu.name if qemu else None, qemu.uuid if qemu else None))
    return found


def with_groups(vms: Iterable[Vm], groups: Iterable[MachineGroup]) -> list[Vm]:
    """libvirt's VMs with their cgroups, then a VM for each group that belongs to none of them."""
    left = dict(enumerate(groups))
    by_uuid: dict[str, list[int]] = {}
    by_id: dict[int, list[int]] = {}
    for number, group in left.items():
        by_id.setdefault(group.machine.libvirt_id, []).append(number)
        if group.uuid:
            by_uuid.setdefault(group.uuid.lower(), []).append(number)
    joined = []
    for vm in vms:
        if vm.libvirt_id is not None:
            candidates = by_uuid.get((vm.uuid or "").lower(), []) + by_id.get(vm.libvirt_id, [])
            mine = min((n for n in candidates if n in left and left[n].holds(vm)), default=None)
            if mine is not None:
                vm = replace(vm, cgroup=left.pop(mine).cgroup)
        joined.append(vm)
    return joined + [
        Vm(
            name=group.name or group.machine.name,
            found_by=FoundBy.CGROUP_NAME,
            uuid=group.uuid,
            libvirt_id=group.machine.libvirt_id,
            cgroup=group.cgroup,
        )
        for group in left.values()
    ]


def with_named(vms: Sequence[Vm], cgroups: Mapping[str, str] | Iterable[str]) -> list[Vm]:
    """`vms`, and one for each cgroup that the operator named and that is not a VM's already.

    With names where they are given, else each goes by its path. A VM of libvirt's with that name keeps it.
    One that is only known by its cgroup's name goes by its path where another has that name as well: what
    was promised to the operator's VM must not be kept for a stranger.
    """
    count = Counter(vm.name for vm in vms)
    given = cgroups if isinstance(cgroups, Mapping) else {}
    vms = [
        replace(vm, name=vm.cgroup)
        if vm.found_by is FoundBy.CGROUP_NAME
        and vm.cgroup is not None
        and (count[vm.name] > 1 or given.get(vm.name, vm.cgroup) != vm.cgroup)
        else vm
        for vm in vms
    ]
    known, names = {vm.cgroup for vm in vms}, {vm.name for vm in vms}
    if isinstance(cgroups, Mapping):
        named = {name: cgroup for name, cgroup in cgroups.items() if name not in names}
    else:
        named = {cgroup: cgroup for cgroup in cgroups}
    own = [Vm(name, FoundBy.OPTION, cgroup=cgroup) for name, cgroup in named.items() if cgroup not in known]
    return [*vms, *own]


def with_devices(vm: Vm, roots: HostRoots, note: Note) -> Vm:
    """The VM, its disks with their device numbers where they have any."""
    return replace(vm, disks=tuple(_with_device(vm, disk, roots, note) for disk in vm.disks))


def _with_device(vm: Vm, disk: Disk, roots: HostRoots, note: Note) -> Disk:
    if disk.kind not in _WITH_DEVICE or disk.source is None:
        return disk
    try:
        return replace(disk, device=device_behind(disk.source, roots.sys))
    except FileNotFoundError:
        if vm.state is VmState.SHUT_OFF:
            # Storage of a VM that is off may be detached.
            return disk
        note(f"VM {vm.name}, disk {disk.target}: there is no {disk.source}")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        note(f"VM {vm.name}, disk {disk.target}: {disk.source}: {reason}")
    return disk


def streams_of(vm: Vm, tree: CgroupTree | None, note: Note) -> list[Stream]:
    """As `streams_from`, with the counters as they are now."""
    return streams_from(vm, read_counters(tree, vm.cgroup, note) if tree and tree.io and vm.cgroup else {})


def streams_from(vm: Vm, counted: ByDevice) -> list[Stream]:
    """One for each disk with something behind it, then one for each other device its cgroup used."""
    streams = [
        Stream(vm.name, disk, vm.cgroup, disk.device, counted.get(disk.device) if disk.device else None)
        for disk in vm.disks
        if disk.source is not None
    ]
    behind_disks = {disk.device for disk in vm.disks}
    streams += [
        Stream(vm.name, None, vm.cgroup, device, counters)
        for device, counters in sorted(counted.items())
        if device not in behind_disks
    ]
    return streams
