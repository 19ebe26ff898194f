"""Repeated scans of the host, which read again only what may have changed.

Every scan reads the counters. Everything else is read after an event, and every 30 s: domains after events of
libvirt, cgroups and connections of sockets after events of processes, devices of disks after events of block
devices. A thread queries libvirt, so that no scan waits for it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from slo_ctl.host.cgroup import (
    DEFAULT_ROOT,
    ByDevice,
    CgroupTree,
    CounterReader,
    find_tree,
    missing_group,
)
from slo_ctl.host.disk_latency import DiskLatencies, LatencyWatch
from slo_ctl.host.libvirt import DEFAULT_URI, machine_of
from slo_ctl.host.libvirt_events import REFRESH_S, LatestDomains, LibvirtWatch
from slo_ctl.host.processes import BlockEvents, ProcessEvents, processes_in
from slo_ctl.host.task_delay import BlockDelay, TaskDelay
from slo_ctl.model.host import FoundBy, Stream, Vm, VmState
from slo_ctl.observe.streams import (
    HostRoots,
    Inventory,
    LeftDevices,
    MachineGroups,
    NamespaceFinder,
    Note,
    merge_vms,
    streams_of,
    with_devices,
)

FIRST_REPLY_S = 2.0
"""Time that the first scan waits for libvirt."""
_SCANS_AFTER_EVENT = 3
"""Scans that read the cgroups after an event, because a group is removed some time after its last process."""


class HostObserver:
    """Returns the inventory of `streams.read_inventory`, once per epoch."""

    def __init__(
        self,
        *,
        cgroup_root: Path = DEFAULT_ROOT,
        libvirt_uri: str | None = DEFAULT_URI,
        run: Path | None = None,
        cgroups: Mapping[str, str] | None = None,
        namespaces: Mapping[str, Sequence[str]] | None = None,
        roots: HostRoots | None = None,
        watch: LibvirtWatch | None = None,
        on_change: Callable[[], None] | None = None,
        monitor: bool = False,
    ) -> None:
        """Start listening for events.

        `libvirt_uri`: None for none. `run`: directory with the sockets of emulated devices. `cgroups` and
        `namespaces`: as for `configure`. `watch`: replaces the watch of `libvirt_uri`. `on_change`: called by
        another thread after libvirt's domains have changed. `monitor`: read latencies also by commands to
        QEMU's monitor.
        """
        self._cgroup_root = cgroup_root
        self._roots = roots or HostRoots()
        self._namespace_finder = NamespaceFinder(run, self._roots.proc) if run else None
        self._cgroups: dict[str, str] = {}
        self._namespaces: dict[str, Sequence[str]] = {}
        self._tree: CgroupTree | None = None
        self._reader: CounterReader | None = None
        self._groups = MachineGroups(self._roots)
        self._delays = TaskDelay(self._roots.proc)
        self._processes = ProcessEvents()
        self._blocks = BlockEvents()
        self._group_scans_due = _SCANS_AFTER_EVENT
        self._groups_read_at_s = 0.0
        self._merged_from: tuple[int, object] = (-1, None)
        """Version of the domains, and the groups, that `_vms` was made from."""
        self._vms: list[Vm] = []
        self._unclaimed_since_s: dict[str, float] = {}
        """Since when libvirt has had no running VM for a group that is named after one of its VMs."""
        self._merge_due_s = math.inf
        self._streams: dict[int, tuple[Vm, ByDevice, list[Stream]]] = {}
        """Streams by `id` of the VM, with the VM and counters that they were made from."""
        self._left = LeftDevices()
        self._is_first = True
        self.configure(cgroups or {}, namespaces or {})
        self._watch = watch
        if self._watch is None and libvirt_uri is not None:
            self._watch = LibvirtWatch(
                libvirt_uri, lambda vm, note: with_devices(vm, self._roots, note), on_change
            )
        if self._watch is not None:
            self._watch.start()
        self._latencies = LatencyWatch(libvirt_uri, monitor=monitor) if libvirt_uri is not None else None

    def configure(self, cgroups: Mapping[str, str], namespaces: Mapping[str, Sequence[str]]) -> None:
        """Set the configured VMs for the next scans.

        `cgroups`: the cgroup of each VM without libvirt, by name; `namespaces`: `DEVICE/NAMESPACE`s by name
        of the VM that uses them.
        """
        self._cgroups = {name: "/" + cgroup.strip("/") for name, cgroup in cgroups.items()}
        self._namespaces = dict(namespaces)
        self._merged_from = (-1, None)

    def observe(self) -> Inventory:
        notes: list[str] = [text for text in (self._processes.problem, self._blocks.problem) if text]
        changed = self._processes.changed()
        if self._watch is not None:
            if self._is_first:
                self._watch.wait(FIRST_REPLY_S)
            if self._blocks.changed():
                self._watch.refresh()
        self._is_first = False
        domains = self._watch.domains() if self._watch is not None else LatestDomains("")
        notes += domains.notes
        self._read_groups(domains, notes.append, changed=changed)
        vms = self._merge_vms(domains)
        errors: list[str] = []
        streams = self._read_streams(vms, errors.append)
        missing = self._without_group(vms)
        notes += [*missing.values(), *errors]
        if self._namespace_finder is not None:
            streams = self._namespace_finder.assign(
                self._tree, vms, streams, self._namespaces, notes.append, changed=changed
            )
        return Inventory(
            self._tree,
            domains.uri or None,
            # Without its group no process of the VM runs.
            tuple(replace(vm, state=VmState.SHUT_OFF) if vm.name in missing else vm for vm in vms),
            tuple(streams),
            tuple(dict.fromkeys(notes)),
            {uuid: reading.xml for uuid, reading in domains.by_uuid.items()},
        )

    def take_tuned(self) -> set[str]:
        """UUIDs of the VMs whose tuning in libvirt was changed since the last call, also by slo-ctl."""
        return self._watch.take_tuned() if self._watch is not None else set()

    def announce(self, xml: str) -> str:
        """Add a domain that libvirt is about to start; returns its name. Raises DomainXmlError."""
        return self._watch.announce(xml) if self._watch is not None else ""

    def delays(self, inventory: Inventory, names: Collection[str]) -> dict[str, BlockDelay]:
        """Time that each of these VMs waited for block I/O since the last call, if it is known."""
        tree = inventory.tree
        if self._delays.problem or tree is None:
            return {}
        return self._delays.sample(
            {vm.name: processes_in(tree, vm.cgroup) for vm in inventory.vms if vm.cgroup and vm.name in names}
        )

    def latencies(self, uuids: Collection[str]) -> Mapping[str, DiskLatencies]:
        """The latest latencies of the disks of these VMs of libvirt, by UUID."""
        return self._latencies.latest(uuids) if self._latencies is not None else {}

    def close(self) -> None:
        """Stop the threads and close all files."""
        if self._latencies is not None:
            self._latencies.close()
        if self._watch is not None:
            self._watch.close()
        if self._reader is not None:
            self._reader.close()
        self._processes.close()
        self._blocks.close()
        self._delays.close()

    def _read_groups(self, domains: LatestDomains, note: Note, *, changed: bool) -> None:
        now_s = time.monotonic()
        is_due = now_s - self._groups_read_at_s >= REFRESH_S
        if self._tree is None or is_due:
            tree = find_tree(self._cgroup_root)
            if tree != self._tree:
                if self._reader is not None:
                    self._reader.close()
                self._tree, self._reader = tree, CounterReader(tree) if tree and tree.io else None
                self._group_scans_due = _SCANS_AFTER_EVENT
        if self._tree is None:
            note(f"no cgroup tree at {self._cgroup_root}: no I/O of VMs is counted")
            return
        if changed or domains.version != self._merged_from[0] or is_due:
            self._group_scans_due = _SCANS_AFTER_EVENT
        if self._group_scans_due > 0:
            self._group_scans_due -= 1
            self._groups_read_at_s = now_s
            self._groups.update(self._tree)
        for sentence in self._groups.notes:
            note(sentence)

    def _merge_vms(self, domains: LatestDomains) -> list[Vm]:
        """All VMs; the same list as before if nothing has changed."""
        version, merged_groups = self._merged_from
        now_s = time.monotonic()
        if (
            version != domains.version
            or merged_groups is not self._groups.groups
            or now_s >= self._merge_due_s
        ):
            groups = self._groups.groups if domains.has_local_vms else []
            merged = merge_vms(domains.vms, groups, self._cgroups, self._namespaces)
            self._vms = self._without_starting(merged, domains, now_s)
            self._left.update(self._vms, now_s)
            self._merged_from = (domains.version, self._groups.groups)
            if self._reader is not None:
                self._reader.keep({vm.cgroup for vm in self._vms if vm.cgroup})
        return self._vms

    def _without_starting(self, vms: list[Vm], domains: LatestDomains, now_s: float) -> list[Vm]:
        """The VMs without groups of a VM that libvirt is starting, and has not reported yet, or has stopped.

        Groups that stay unclaimed after libvirt's next refresh belong to another libvirt.
        """
        before, self._unclaimed_since_s = self._unclaimed_since_s, {}
        starting = set()
        for vm in vms:
            machine = machine_of(vm.cgroup.rpartition("/")[2]) if vm.cgroup else None
            if vm.found_by is not FoundBy.CGROUP_NAME or vm.cgroup is None or machine is None:
                continue
            if any(machine.may_be(domain.name) for domain in domains.vms):
                since_s = self._unclaimed_since_s[vm.cgroup] = before.get(vm.cgroup, now_s)
                if now_s - since_s < REFRESH_S:
                    starting.add(vm.cgroup)
        self._merge_due_s = min(
            (self._unclaimed_since_s[cgroup] + REFRESH_S for cgroup in starting), default=math.inf
        )
        return [vm for vm in vms if vm.cgroup not in starting]

    def _without_group(self, vms: Sequence[Vm]) -> dict[str, str]:
        """VMs of the configuration whose cgroup does not exist, with a sentence for each."""
        tree = self._tree
        if tree is None:
            return {}
        # A group with counters exists: only the others are looked up.
        return {
            vm.name: f"VM {vm.name}: {missing_group(tree, vm.name, vm.cgroup)}"
            for vm in vms
            if vm.found_by is FoundBy.OPTION
            and vm.cgroup
            and not self._streams[id(vm)][1]
            and not tree.folder(vm.cgroup).is_dir()
        }

    def _read_streams(self, vms: Sequence[Vm], note: Note) -> list[Stream]:
        streams: list[Stream] = []
        by_vm: dict[int, tuple[Vm, ByDevice, list[Stream]]] = {}
        no_counters: ByDevice = {}
        reader, now_s = self._reader, time.monotonic()
        for vm in vms:
            counters = reader.read(vm.cgroup, note) if reader is not None and vm.cgroup else no_counters
            entry = self._streams.get(id(vm))
            if entry is None or entry[0] is not vm or entry[1] is not counters:
                if entry is not None and len(counters) > len(entry[1]) and vm.uuid and self._watch:
                    # It uses one more device: libvirt may copy a disk there, but has no event for the start.
                    self._watch.read_again(vm.uuid)
                entry = (vm, counters, streams_of(vm, counters))
            by_vm[id(vm)] = entry
            streams += self._left.without(vm.cgroup, entry[2], now_s)
        self._streams = by_vm
        return streams
