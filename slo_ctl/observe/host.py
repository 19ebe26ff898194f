"""The host, looked at again and again: what does not change is not asked for again.

What can be asked at any time is asked at every look: counters, connections of sockets. The rest is looked
at again when a hint says that it may have changed: libvirt's events for its VMs, events of processes for
cgroups and for who is connected, events of block devices for what is behind disks; and every 30 s in any
case. libvirt is asked in a thread of its own, so that a look never waits for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
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
from slo_ctl.host.libvirt import DEFAULT_URI
from slo_ctl.host.libvirt_events import REFRESH_S, LatestDomains, LibvirtWatch
from slo_ctl.host.processes import BlockEvents, ProcessEvents, processes_in
from slo_ctl.host.task_delay import BlockDelay, TaskDelay
from slo_ctl.model import FoundBy, Stream, Vm
from slo_ctl.observe.streams import (
    HostRoots,
    Inventory,
    MachineGroups,
    SocketTags,
    joined,
    streams_from,
    with_devices,
)

Note = Callable[[str], None]


FIRST_ANSWER_S = 2.0
"""The first look waits so long for libvirt; no other does."""
_SETTLING_LOOKS = 3
"""After a hint cgroups are looked at so often: a group is removed some time after its last process has
ended."""


class HostObserver:
    """The inventory of `streams.read_inventory`, one scan per epoch."""

    def __init__(
        self,
        *,
        cgroup_root: Path = DEFAULT_ROOT,
        libvirt_uri: str | None = DEFAULT_URI,
        run: Path | None = None,
        named: Mapping[str, str] | None = None,
        namespaces: Mapping[str, Sequence[str]] | None = None,
        roots: HostRoots | None = None,
        watch: LibvirtWatch | None = None,
        on_change: Callable[[], None] | None = None,
        monitor: bool = False,
    ) -> None:
        """`libvirt_uri` None: ask no libvirt. `run` is the directory with the sockets of emulated devices.

        `named` and `namespaces` are as for `configure`. `watch` is used in the place of one for
        `libvirt_uri`. Starts to listen for events; `on_change` is called, by another thread, after libvirt's
        domains have changed. `monitor`: latencies are also read by commands to QEMU's monitor.
        """
        self._cgroup_root = cgroup_root
        self._roots = roots or HostRoots()
        self._tags = SocketTags(run, self._roots.proc) if run else None
        self._named: dict[str, str] = {}
        self._namespaces: dict[str, Sequence[str]] = {}
        self._tree: CgroupTree | None = None
        self._reader: CounterReader | None = None
        self._groups = MachineGroups(self._roots)
        self._delays = TaskDelay(self._roots.proc)
        self._processes = ProcessEvents()
        self._blocks = BlockEvents()
        self._unsettled = _SETTLING_LOOKS
        self._walked_at_s = 0.0
        self._joined_from: tuple[int, object] = (-1, None)
        self._vms: list[Vm] = []
        self._streams: dict[int, tuple[Vm, ByDevice, list[Stream]]] = {}
        self._first = True
        self.configure(named or {}, namespaces or {})
        self._watch = watch
        if self._watch is None and libvirt_uri is not None:
            self._watch = LibvirtWatch(libvirt_uri, self._with_devices, on_change)
        if self._watch is not None:
            self._watch.start()
        self._latencies = LatencyWatch(libvirt_uri, monitor=monitor) if libvirt_uri is not None else None

    def configure(self, named: Mapping[str, str], namespaces: Mapping[str, Sequence[str]]) -> None:
        """From the next look on: cgroups of VMs without libvirt, by the name of the VM; and
        `DEVICE/NAMESPACE`s by the name of the VM that uses them.
        """
        self._named = {name: "/" + cgroup.strip("/") for name, cgroup in named.items()}
        self._namespaces = dict(namespaces)
        self._joined_from = (-1, None)

    def observe(self) -> Inventory:
        """Scan the host. Never waits for libvirt, except briefly the first time."""
        notes: list[str] = [text for text in (self._processes.problem, self._blocks.problem) if text]
        changed = self._processes.changed()
        if self._watch is not None:
            if self._first:
                self._watch.wait(FIRST_ANSWER_S)
            if self._blocks.changed():
                self._watch.refresh()
        self._first = False
        domains = self._watch.domains() if self._watch is not None else LatestDomains("")
        notes += domains.notes
        self._look_at_groups(domains, notes.append, changed=changed)
        vms = self._join(domains)
        unread: list[str] = []
        streams = self._read_streams(vms, unread.append)
        notes += [*self._missing_groups(vms), *unread]
        if self._tags is not None:
            streams = self._tags.tagged(
                self._tree, vms, streams, self._namespaces, notes.append, changed=changed
            )
        return Inventory(
            self._tree,
            domains.uri or None,
            tuple(vms),
            tuple(streams),
            tuple(dict.fromkeys(notes)),
            {uuid: known.xml for uuid, known in domains.by_uuid.items()},
        )

    def take_tuned(self) -> set[str]:
        """UUIDs of the VMs whose tuning was changed in libvirt, slo-ctl included, since the last
        call."""
        return self._watch.take_tuned() if self._watch is not None else set()

    def announce(self, xml: str) -> str:
        """The name of a domain that libvirt is about to start. Raises DomainXmlError."""
        return self._watch.announce(xml) if self._watch is not None else ""

    def delays(
        self, inventory: Inventory, names: Collection[str] | None = None
    ) -> tuple[dict[str, BlockDelay], str]:
        """How long VMs waited for block I/O since the last call, by name, and why that is not known.

        Of all VMs, or of those in `names`: asking takes time.
        """
        tree = inventory.tree
        if self._delays.problem or tree is None:
            return {}, self._delays.problem
        pids = {
            vm.name: processes_in(tree, vm.cgroup)
            for vm in inventory.vms
            if vm.cgroup and (names is None or vm.name in names)
        }
        return self._delays.sample(pids), self._delays.problem

    def latencies(self, uuids: Collection[str]) -> Mapping[str, DiskLatencies]:
        """Latencies of the disks of these VMs of libvirt, by UUID, as they were read last."""
        return self._latencies.latest(uuids) if self._latencies is not None else {}

    def close(self) -> None:
        """Stop listening."""
        if self._latencies is not None:
            self._latencies.close()
        if self._watch is not None:
            self._watch.close()
        if self._reader is not None:
            self._reader.close()
        self._processes.close()
        self._blocks.close()
        self._delays.close()

    def _with_devices(self, vm: Vm, note: Note) -> Vm:
        return with_devices(vm, self._roots, note)

    def _look_at_groups(self, domains: LatestDomains, note: Note, *, changed: bool) -> None:
        now_s = time.monotonic()
        if self._tree is None or now_s - self._walked_at_s >= REFRESH_S:
            tree = find_tree(self._cgroup_root)
            if tree != self._tree:
                if self._reader is not None:
                    self._reader.close()
                self._tree, self._reader = tree, CounterReader(tree) if tree and tree.io else None
                self._unsettled = _SETTLING_LOOKS
        if self._tree is None:
            note(f"no cgroup tree at {self._cgroup_root}: no I/O of VMs is counted")
            return
        if changed or domains.version != self._joined_from[0] or now_s - self._walked_at_s >= REFRESH_S:
            self._unsettled = _SETTLING_LOOKS
        if self._unsettled > 0:
            self._unsettled -= 1
            self._walked_at_s = now_s
            self._groups.observe(self._tree)
        for sentence in self._groups.notes:
            note(sentence)

    def _join(self, domains: LatestDomains) -> list[Vm]:
        """libvirt's VMs, cgroups and named VMs; the same list as before when all are the same."""
        version, found = self._joined_from
        if version != domains.version or found is not self._groups.found:
            groups = self._groups.found if domains.has_local_vms else []
            self._vms = joined(domains.vms, groups, self._named, self._namespaces)
            self._joined_from = (domains.version, self._groups.found)
            if self._reader is not None:
                self._reader.keep({vm.cgroup for vm in self._vms if vm.cgroup})
        return self._vms

    def _missing_groups(self, vms: Sequence[Vm]) -> list[str]:
        """A sentence for each VM of the configuration whose cgroup is not there."""
        tree = self._tree
        if tree is None:
            return []
        # A group whose I/O was counted is there.
        return [
            f"VM {vm.name}: {missing_group(tree, vm.name, vm.cgroup)}"
            for vm in vms
            if vm.found_by is FoundBy.OPTION
            and vm.cgroup
            and not self._streams[id(vm)][1]
            and not tree.folder(vm.cgroup).is_dir()
        ]

    def _read_streams(self, vms: Sequence[Vm], note: Note) -> list[Stream]:
        streams: list[Stream] = []
        kept: dict[int, tuple[Vm, ByDevice, list[Stream]]] = {}
        nothing: ByDevice = {}
        reader = self._reader
        for vm in vms:
            counted = reader.read(vm.cgroup, note) if reader is not None and vm.cgroup else nothing
            last = self._streams.get(id(vm))
            if last is None or last[0] is not vm or last[1] is not counted:
                last = (vm, counted, streams_from(vm, counted))
            kept[id(vm)] = last
            streams += last[2]
        self._streams = kept
        return streams
