"""VMs of the host and their I/O streams: libvirt's domains joined with cgroups, disks and namespaces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from slo_ctl.drives.places import ExportPaths
from slo_ctl.host.block_device import device_behind, devices_below
from slo_ctl.host.cgroup import ByDevice, CgroupTree, CounterReader, walk_groups
from slo_ctl.host.libvirt import LibvirtHost, Machine, machine_of
from slo_ctl.host.processes import SocketPeers, qemu_in
from slo_ctl.model.host import DeviceNumber, Disk, FoundBy, IoCounters, Stream, Tenant, Vm, VmState

Note = Callable[[str], None]


# Namespaces of emulated SSDs behind streams.


def assign_namespaces(
    streams: Iterable[Stream],
    exports: ExportPaths,
    connected: Mapping[str, Iterable[bytes]],
    configured: Mapping[str, Sequence[str]],
    cgroups: Mapping[str, str | None],
    note: Note,
) -> list[Stream]:
    """`streams` with the namespaces of their disks, and further streams for other namespaces of the VMs.

    Those are found by `connected`, paths of sockets by the cgroup that is connected to them, and by
    `configured`, namespaces as `DEVICE/NAMESPACE` by VM. `cgroups` has the cgroup of each VM.
    """
    assigned = [_with_tenant(stream, exports) for stream in streams]
    known = {(stream.vm, stream.tenant) for stream in assigned if stream.tenant}
    for vm, cgroup in cgroups.items():
        paths, names = connected.get(cgroup or "", ()), configured.get(vm, ())
        if not paths and not names:
            continue
        tenants = {tenant for path in paths if (tenant := exports.tenant_of(path))}
        for text in names:
            device, slash, namespace = text.partition("/")
            if slash:
                tenants.add(Tenant(device, namespace))
        for tenant in sorted(tenants):
            if (vm, tenant) not in known:
                known.add((vm, tenant))
                assigned.append(Stream(vm, None, cgroup, None, None, tenant))
    users = Counter(tenant for _, tenant in known)
    for tenant, count in sorted((t, n) for t, n in users.items() if t is not None and n > 1):
        names = ", ".join(sorted(vm for vm, used in known if used == tenant))
        note(f"{tenant} is used by {count} VMs ({names}): their I/O cannot be distinguished")
    return assigned


def _with_tenant(stream: Stream, exports: ExportPaths) -> Stream:
    tenant = exports.tenant_of_source(stream.disk.source) if stream.disk else None
    if tenant is None:
        return stream
    return Stream(stream.vm, stream.disk, stream.cgroup, stream.device, stream.counters, tenant)


class NamespaceFinder:
    """Finds the namespaces of streams, also by the sockets to which processes of VMs are connected."""

    def __init__(self, run: Path, proc: Path) -> None:
        self._run = run
        self._exports = ExportPaths(run)
        self._peers = SocketPeers(proc)

    def assign(
        self,
        tree: CgroupTree | None,
        vms: Sequence[Vm],
        streams: Sequence[Stream],
        namespaces: Mapping[str, Sequence[str]],
        note: Note,
        *,
        changed: bool = True,
    ) -> list[Stream]:
        """As `assign_namespaces`. Without `changed`, connections are assumed to be those of the last call."""
        connected: Mapping[str, set[bytes]] = {}
        if tree is not None and self._run.is_dir():
            found = {s.vm for s in streams if s.disk and self._exports.tenant_of_source(s.disk.source)}
            cgroups = [vm.cgroup for vm in vms if vm.cgroup and vm.name not in found]
            if cgroups:
                connected = self._peers.paths_of(
                    tree, cgroups, self._exports.is_export, changed=changed, note=note
                )
        cgroup_of = {vm.name: vm.cgroup for vm in vms}
        return assign_namespaces(streams, self._exports, connected, namespaces, cgroup_of, note)


# VMs by their cgroups.


@dataclass(frozen=True, slots=True)
class HostRoots:
    """Mount points of the kernel's file systems."""

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")


@dataclass(frozen=True, slots=True)
class MachineGroup:
    """A cgroup named after a VM, and the arguments of its QEMU."""

    cgroup: str
    machine: Machine
    name: str | None
    uuid: str | None

    def belongs_to(self, vm: Vm) -> bool:
        """Whether this is the group of that VM: by UUID if both have one, else by libvirt's ID and name."""
        if self.uuid and vm.uuid:
            return self.uuid.lower() == vm.uuid.lower()
        return vm.libvirt_id == self.machine.libvirt_id and self.machine.may_be(vm.name)


class MachineGroups:
    """The cgroups named after VMs. The arguments of each QEMU are read only once."""

    def __init__(self, roots: HostRoots) -> None:
        self._roots = roots
        self._by_inode: dict[tuple[str, int], MachineGroup] = {}
        """Groups by path and inode of their directory."""
        self.groups: list[MachineGroup] = []
        """The same object as before if nothing has changed."""
        self.notes: list[str] = []

    def update(self, tree: CgroupTree) -> None:
        notes: list[str] = []
        by_inode: dict[tuple[str, int], MachineGroup] = {}
        for cgroup, inode, machine in walk_groups(tree, machine_of, notes.append):
            group = self._by_inode.get((cgroup, inode))
            if group is None or group.uuid is None:
                # QEMU is started after its group is created.
                qemu = qemu_in(tree, cgroup, self._roots.proc)
                name, uuid = (qemu.name, qemu.uuid) if qemu else (None, None)
                group = MachineGroup(cgroup, machine, name, uuid)
            by_inode[cgroup, inode] = group
        if by_inode != self._by_inode or notes != self.notes:
            self.groups = list(by_inode.values())
        self._by_inode, self.notes = by_inode, notes


def _with_groups(vms: Iterable[Vm], groups: Iterable[MachineGroup]) -> list[Vm]:
    """libvirt's VMs with their cgroups, then a VM for each group that belongs to none of them."""
    remaining = dict(enumerate(groups))
    by_uuid: dict[str, list[int]] = {}
    by_id: dict[int, list[int]] = {}
    for number, group in remaining.items():
        by_id.setdefault(group.machine.libvirt_id, []).append(number)
        if group.uuid:
            by_uuid.setdefault(group.uuid.lower(), []).append(number)
    result = []
    for vm in vms:
        if vm.libvirt_id is not None:
            # First those of this number: libvirt names the group, but QEMU can change its own arguments.
            candidates = by_id.get(vm.libvirt_id, []) + by_uuid.get((vm.uuid or "").lower(), [])
            own = next((n for n in candidates if n in remaining and remaining[n].belongs_to(vm)), None)
            if own is not None:
                vm = replace(vm, cgroup=remaining.pop(own).cgroup)
        result.append(vm)
    return result + [
        Vm(
            name=group.name or group.machine.name or group.cgroup,
            found_by=FoundBy.CGROUP_NAME,
            uuid=group.uuid,
            libvirt_id=group.machine.libvirt_id,
            cgroup=group.cgroup,
        )
        for group in remaining.values()
    ]


def with_configured(vms: Sequence[Vm], cgroups: Mapping[str, str]) -> list[Vm]:
    """`vms`, and a VM for each configured cgroup that no VM has; `cgroups` has the cgroup by name of the VM.

    libvirt's VM of the same name keeps it. A VM found by its cgroup's name is renamed to the path of that
    cgroup if another VM has the same name, because the SLO of the configured VM must not apply to it.
    """
    count = Counter(vm.name for vm in vms)
    vms = [
        replace(vm, name=vm.cgroup)
        if vm.found_by is FoundBy.CGROUP_NAME
        and vm.cgroup is not None
        and (count[vm.name] > 1 or cgroups.get(vm.name, vm.cgroup) != vm.cgroup)
        else vm
        for vm in vms
    ]
    known, names = {vm.cgroup for vm in vms}, {vm.name for vm in vms}
    own = [
        Vm(name, FoundBy.OPTION, cgroup=cgroup)
        for name, cgroup in cgroups.items()
        if name not in names and cgroup not in known
    ]
    return [*vms, *own]


def merge_vms(
    vms: Iterable[Vm],
    groups: Iterable[MachineGroup],
    cgroups: Mapping[str, str],
    namespaces: Iterable[str],
) -> list[Vm]:
    """All VMs: libvirt's with their cgroups, those of other groups, and configured ones.

    `cgroups` has the configured cgroups by name of the VM; `namespaces` are the names of VMs for which
    namespaces of emulated devices are configured.
    """
    found = with_configured(_with_groups(vms, groups), cgroups)
    known = {vm.name for vm in found}
    found += [Vm(name, FoundBy.OPTION) for name in namespaces if name not in known]
    return sorted(found, key=lambda vm: (vm.name, vm.uuid or "", vm.cgroup or ""))


# Disks of VMs and their streams.

_DEVICE_KINDS = frozenset({"block", "file"})
"""Kinds of disks whose source is a path on a block device of the host."""


def with_devices(vm: Vm, roots: HostRoots, note: Note) -> Vm:
    """The VM with the device numbers of its disks."""
    return replace(vm, disks=tuple(_with_device(vm, disk, roots, note) for disk in vm.disks))


def _with_device(vm: Vm, disk: Disk, roots: HostRoots, note: Note) -> Disk:
    if disk.copy is not None:
        with suppress(OSError, ValueError):
            copy_device, below = _devices_behind(disk.copy, roots.sys)
            disk = replace(disk, copy_device=copy_device, copy_below=below)
    if disk.kind not in _DEVICE_KINDS or disk.source is None:
        return disk
    try:
        device, below = _devices_behind(disk.source, roots.sys)
        return replace(disk, device=device, below=below)
    except FileNotFoundError:
        if vm.state is VmState.SHUT_OFF:
            # Storage of a VM that is shut off may be detached.
            return disk
        note(f"VM {vm.name}, disk {disk.target}: no such path: {disk.source}")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        note(f"VM {vm.name}, disk {disk.target}: {disk.source}: {reason}")
    return disk


def _devices_behind(path: str, sys: Path) -> tuple[DeviceNumber | None, tuple[DeviceNumber, ...]]:
    """The device behind a path, and those that it is built on. Raises OSError and ValueError."""
    device = device_behind(path, sys)
    return device, () if device is None else devices_below(device, sys)


def streams_of(vm: Vm, counters: ByDevice) -> list[Stream]:
    """A stream for each disk that is not empty, then one for each other device that its cgroup used.

    The latter have the disk that is built on the device, if any.
    """
    streams = [
        Stream(vm.name, disk, vm.cgroup, disk.device, counters.get(disk.device) if disk.device else None)
        for disk in vm.disks
        if disk.source is not None
    ]
    behind_disks = {disk.device for disk in vm.disks}
    built_on = {device: disk for disk in reversed(vm.disks) for device in disk.below}
    streams += [
        Stream(vm.name, built_on.get(device), vm.cgroup, device, device_counters)
        for device, device_counters in sorted(counters.items())
        if device not in behind_disks
    ]
    return streams


LEFT_AFTER_S = 10.0
"""Time without I/O after which a VM has left a device on which it has no disk any more: the usual window."""


class LeftDevices:
    """Devices on which running VMs have had disks: their cgroups list them as long as they run."""

    def __init__(self) -> None:
        self._on_disks: dict[str, frozenset[DeviceNumber]] = {}
        """Devices of the disks of the last scan, by cgroup."""
        self._left: dict[str, dict[DeviceNumber, tuple[IoCounters | None, float]]] = {}
        """By cgroup: devices without disks, with their last counters, and when these changed."""

    def update(self, vms: Iterable[Vm], now_s: float) -> None:
        """Note which devices VMs have left, after a change of the VMs."""
        before, self._on_disks = self._on_disks, {}
        for vm in vms:
            if vm.cgroup is None or vm.found_by is not FoundBy.LIBVIRT:
                continue
            present = frozenset(device for disk in vm.disks for device in disk.devices)
            self._on_disks[vm.cgroup] = present
            left = self._left.get(vm.cgroup, {})
            left |= dict.fromkeys(before.get(vm.cgroup, present) - present, (None, now_s))
            self._left[vm.cgroup] = {device: last for device, last in left.items() if device not in present}
        self._left = {
            cgroup: left for cgroup, left in self._left.items() if left and cgroup in self._on_disks
        }

    def without(self, cgroup: str | None, streams: list[Stream], now_s: float) -> list[Stream]:
        """The streams of a VM without those of devices that it has left, where it does no I/O."""
        left = self._left.get(cgroup or "")
        if left is None:
            return streams
        for stream in streams:
            if stream.device in left and left[stream.device][0] != stream.counters:
                left[stream.device] = stream.counters, now_s
        return [
            stream
            for stream in streams
            if stream.device not in left or now_s <= left[stream.device][1] + LEFT_AFTER_S
        ]


# A scan of the host.

_EMPTY: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Inventory:
    """Result of a scan. VMs are sorted by name, and streams are in the order of their VMs."""

    tree: CgroupTree | None
    libvirt_uri: str | None
    vms: tuple[Vm, ...]
    streams: tuple[Stream, ...]
    notes: tuple[str, ...] = field(default=())
    """One sentence for each thing that could not be read."""
    domain_xml: Mapping[str, str] = field(default_factory=dict)
    """XML of libvirt's domains, by UUID."""


def read_inventory(
    tree: CgroupTree | None,
    libvirt: LibvirtHost | None,
    cgroups: Mapping[str, str] = _EMPTY,
    roots: HostRoots | None = None,
    *,
    namespaces: Mapping[str, Sequence[str]] = _EMPTY,
    run: Path | None = None,
) -> Inventory:
    """Scan the host. VMs of a remote libvirt are listed without cgroups and devices.

    `cgroups` and `namespaces`: as for `HostObserver.configure`. `run`: directory with the sockets of emulated
    devices.
    """
    roots = roots or HostRoots()
    notes: list[str] = []
    domains = libvirt.domains(notes.append) if libvirt else []
    found = [domain.vm for domain in domains]
    groups = MachineGroups(roots)
    if libvirt is None or libvirt.has_local_vms:
        found = [with_devices(vm, roots, notes.append) for vm in found]
        if tree:
            groups.update(tree)
        notes += groups.notes
    vms = merge_vms(found, groups.groups, cgroups, namespaces)
    reader = CounterReader(tree) if tree and tree.io else None
    streams: list[Stream] = []
    for vm in vms:
        counters = reader.read(vm.cgroup, notes.append) if reader and vm.cgroup else {}
        streams += streams_of(vm, counters)
    if reader:
        reader.close()
    if run is not None:
        streams = NamespaceFinder(run, roots.proc).assign(tree, vms, streams, namespaces, notes.append)
        order = {(vm.name, vm.cgroup): number for number, vm in enumerate(vms)}
        streams.sort(key=lambda stream: order[stream.vm, stream.cgroup])
    return Inventory(
        tree,
        libvirt.uri if libvirt else None,
        tuple(vms),
        tuple(streams),
        tuple(dict.fromkeys(notes)),
        {str(domain.vm.uuid): domain.xml for domain in domains},
    )
