"""Which VMs there are, and their I/O distinguished: libvirt's domains joined with cgroups and devices."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from slo_ctl.host.block_device import device_behind
from slo_ctl.host.cgroup import ByDevice, CgroupTree, read_counters, walk_groups
from slo_ctl.host.libvirt import LibvirtHost, Machine, machine_of
from slo_ctl.host.processes import SocketPeers, qemu_in
from slo_ctl.model import Disk, FoundBy, Stream, Tenant, Vm, VmState

Note = Callable[[str], None]


# which namespace of which emulated SSD a stream is stored on.

_SCHEME = "nbd+unix:///"
_SUFFIX = ".sock"
_VHOST_USER = "vhost-user"
_FOLDERS = ("exports", _VHOST_USER)


class ExportPaths:
    """Sockets of emulated SSDs below the directory that has a directory for each:
    `DEVICE/exports/NAMESPACE.sock` (NBD) and `DEVICE/vhost-user/NAMESPACE.sock`."""

    def __init__(self, run: Path) -> None:
        # Servers and clients may have come by different ways.
        self._folders = {os.fsencode(str(run)) + b"/", os.fsencode(os.path.realpath(run)) + b"/"}

    def is_export(self, path: bytes) -> bool:
        """Whether a socket is that of one namespace."""
        return self._parts(path)[1:2] in ([folder] for folder in _FOLDERS)

    def tenant_of(self, path: bytes, export: str = "") -> Tenant | None:
        """The namespace behind a socket; on that of all namespaces, the one that `export` names."""
        match self._parts(path):
            case [device, folder, name] if folder in _FOLDERS and name.endswith(_SUFFIX):
                return Tenant(device, name.removesuffix(_SUFFIX))
            case [device, "all.sock"] if export:
                return Tenant(device, export)
        return None

    def tenant_of_source(self, source: str | None) -> Tenant | None:
        """The namespace behind a disk, by its source as in `Disk`."""
        if source is not None and source.startswith("/"):
            socket = os.fsencode(source)
            return self.tenant_of(socket) if self._parts(socket)[1:2] == [_VHOST_USER] else None
        if source is None or not source.startswith(_SCHEME):
            return None
        export, _, path = source.removeprefix(_SCHEME).partition("?socket=")
        return self.tenant_of(path.encode("utf-8", "surrogateescape"), export)

    def _parts(self, path: bytes) -> list[str]:
        for folder in self._folders:
            if path.startswith(folder):
                return path[len(folder) :].decode("utf-8", "surrogateescape").split("/")
        return []


def tagged(
    streams: Iterable[Stream],
    exports: ExportPaths,
    connected: Mapping[str, Iterable[bytes]],
    configured: Mapping[str, Sequence[str]],
    cgroups: Mapping[str, str | None],
    note: Callable[[str], None],
) -> list[Stream]:
    """`streams` with their namespaces, and one more for each namespace that no disk leads to.

    Disks say it themselves; else `connected`, the sockets by cgroup; else `configured`, namespaces as
    `DEVICE/NAMESPACE` by VM. `cgroups` are those of all VMs.
    """
    found = [_by_source(stream, exports) for stream in streams]
    known = {(stream.vm, stream.tenant) for stream in found if stream.tenant}
    for vm, cgroup in cgroups.items():
        tenants = {tenant for path in connected.get(cgroup or "", ()) if (tenant := exports.tenant_of(path))}
        for text in configured.get(vm, ()):
            device, slash, namespace = text.partition("/")
            if slash:
                tenants.add(Tenant(device, namespace))
        for tenant in sorted(tenants):
            if (vm, tenant) not in known:
                known.add((vm, tenant))
                found.append(Stream(vm, None, cgroup, None, None, tenant))
    users = Counter(tenant for _, tenant in known)
    for tenant, count in sorted((t, n) for t, n in users.items() if t is not None and n > 1):
        names = ", ".join(sorted(vm for vm, used in known if used == tenant))
        note(f"{tenant} is used by {count} VMs ({names}): their I/O cannot be distinguished")
    return found


def _by_source(stream: Stream, exports: ExportPaths) -> Stream:
    tenant = exports.tenant_of_source(stream.disk.source) if stream.disk else None
    if tenant is None:
        return stream
    return Stream(stream.vm, stream.disk, stream.cgroup, stream.device, stream.counters, tenant)


class SocketTags:
    """The namespaces of emulated SSDs that streams are stored on, with those that sockets lead to."""

    def __init__(self, run: Path, proc: Path) -> None:
        self._run = run
        self._exports = ExportPaths(run)
        self._peers = SocketPeers(proc)

    def tagged(
        self,
        tree: CgroupTree | None,
        vms: Sequence[Vm],
        streams: Sequence[Stream],
        namespaces: Mapping[str, Sequence[str]],
        note: Note,
        *,
        changed: bool = True,
    ) -> list[Stream]:
        """As `tagged`; unless `changed`, the connections of the last time are taken for those of now."""
        connected: Mapping[str, set[bytes]] = {}
        if tree is not None and self._run.is_dir():
            by_disk = {s.vm for s in streams if s.disk and self._exports.tenant_of_source(s.disk.source)}
            cgroups = [vm.cgroup for vm in vms if vm.cgroup and vm.name not in by_disk]
            connected = self._peers.paths_of(
                tree, cgroups, self._exports.is_export, changed=changed, note=note
            )
        cgroup_of = {vm.name: vm.cgroup for vm in vms}
        return tagged(streams, self._exports, connected, namespaces, cgroup_of, note)


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


class MachineGroups:
    """The cgroups named after VMs; who runs in each is asked once."""

    def __init__(self, roots: HostRoots) -> None:
        self._roots = roots
        self._known: dict[tuple[str, int], MachineGroup] = {}
        self.found: list[MachineGroup] = []
        """The same object as before when nothing has changed."""
        self.notes: list[str] = []

    def observe(self, tree: CgroupTree) -> None:
        """Look again."""
        notes: list[str] = []
        known: dict[tuple[str, int], MachineGroup] = {}
        for cgroup, inode, machine in walk_groups(tree, machine_of, notes.append):
            group = self._known.get((cgroup, inode))
            if group is None or group.uuid is None:
                # QEMU is started after its group is made.
                qemu = qemu_in(tree, cgroup, self._roots.proc)
                name, uuid = (qemu.name, qemu.uuid) if qemu else (None, None)
                group = MachineGroup(cgroup, machine, name, uuid)
            known[cgroup, inode] = group
        if known != self._known or notes != self.notes:
            self.found = list(known.values())
        self._known, self.notes = known, notes


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


def with_named(vms: Sequence[Vm], cgroups: Mapping[str, str]) -> list[Vm]:
    """`vms`, and one for each cgroup that the operator named and that is not a VM's already.

    A VM of libvirt's with that name keeps it. One that is only known by its cgroup's name goes by its path
    where another has that name as well: the SLO of the operator's VM must not be applied to another one.
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


def with_namespaces(vms: Sequence[Vm], names: Iterable[str]) -> list[Vm]:
    """`vms`, and those that the operator named by the namespaces of emulated devices that they use."""
    known = {vm.name for vm in vms}
    return [*vms, *(Vm(name, FoundBy.OPTION) for name in names if name not in known)]


def joined(
    vms: Iterable[Vm],
    groups: Iterable[MachineGroup],
    named: Mapping[str, str],
    namespaces: Iterable[str],
) -> list[Vm]:
    """All VMs: libvirt's with their cgroups, those of other cgroups, and those that the operator named."""
    found = with_namespaces(with_named(with_groups(vms, groups), named), namespaces)
    return sorted(found, key=lambda vm: (vm.name, vm.uuid or "", vm.cgroup or ""))


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
        note(f"VM {vm.name}, disk {disk.target}: no such path: {disk.source}")
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


_NONE: Mapping[str, Any] = MappingProxyType({})

# One look at the host: its VMs and their streams, and what could not be seen.


@dataclass(frozen=True, slots=True)
class Inventory:
    """Result of a scan. VMs are sorted by name, streams follow them."""

    tree: CgroupTree | None
    libvirt_uri: str | None
    vms: tuple[Vm, ...]
    streams: tuple[Stream, ...]
    notes: tuple[str, ...] = field(default=())
    """One sentence for each thing that is there and could not be read."""
    domain_xml: Mapping[str, str] = field(default_factory=dict)
    """XML of libvirt's VMs, by UUID."""


def read_inventory(
    tree: CgroupTree | None,
    libvirt: LibvirtHost | None,
    named: Mapping[str, str] = _NONE,
    roots: HostRoots | None = None,
    *,
    namespaces: Mapping[str, Sequence[str]] = _NONE,
    run: Path | None = None,
) -> Inventory:
    """Scan the host. VMs of a remote libvirt are listed without cgroups and devices.

    `named` and `namespaces` are as for `HostObserver.configure`; `run` is the folder with the sockets of
    emulated devices.
    """
    roots = roots or HostRoots()
    notes: list[str] = []
    found = libvirt.vms(notes.append) if libvirt else []
    groups = MachineGroups(roots)
    if libvirt is None or libvirt.has_local_vms:
        found = [with_devices(vm, roots, notes.append) for vm in found]
        if tree:
            groups.observe(tree)
        notes += groups.notes
    vms = joined(found, groups.found, named, namespaces)
    streams = [stream for vm in vms for stream in streams_of(vm, tree, notes.append)]
    if run is not None:
        streams = SocketTags(run, roots.proc).tagged(tree, vms, streams, namespaces, notes.append)
        place = {(vm.name, vm.cgroup): number for number, vm in enumerate(vms)}
        streams.sort(key=lambda each: place[each.vm, each.cgroup])
    return Inventory(
        tree, libvirt.uri if libvirt else None, tuple(vms), tuple(streams), tuple(dict.fromkeys(notes))
    )
