"""Which SLO is in force for every VM, and its part of its group's bounds; worked out when it changed."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from slo_ctl.base.errors import UserError
from slo_ctl.config import Config
from slo_ctl.daemon.device_view import DeviceView
from slo_ctl.decide.groups import Rates, slos_in_group
from slo_ctl.decide.slo_sources import METADATA, VM_SET, resolve
from slo_ctl.host.libvirt import fields_of
from slo_ctl.model import IoCounters, Slo, Vm
from slo_ctl.model.slo import ResolvedSlo, SloBySource, SloEntry, SloFields, SloGroup
from slo_ctl.observe.streams import Inventory
from slo_ctl.record.slo_store import SloStore, StoredSlos


class Metadata:
    """SLO fields in libvirt metadata by VM, read again only where a domain's XML has changed."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        """Fields that are not valid."""
        self._known: dict[str, tuple[str, SloFields, list[str]]] = {}

    def of(self, inventory: Inventory) -> dict[str, SloFields]:
        """Metadata of the VMs that have any."""
        known: dict[str, tuple[str, SloFields, list[str]]] = {}
        found = {}
        self.notes = []
        for vm in inventory.vms:
            xml = inventory.domain_xml.get(vm.uuid or "")
            if xml is None or vm.uuid is None:
                continue
            before = self._known.get(vm.uuid)
            if before is None or before[0] is not xml:
                notes: list[str] = []
                before = (xml, fields_of(xml, notes.append), notes)
            known[vm.uuid] = before
            self.notes += before[2]
            if before[1]:
                found[vm.name] = before[1]
        self._known = known
        return found


# Which SLO is in force for every VM, from all who say something about it.


class VmSet:
    """SLOs of `slo-ctl vm set`, as they were when the file could last be read."""

    def __init__(self, path: Path) -> None:
        """Raises UserError when the file is damaged."""
        self.store = SloStore(path)
        self.slos = self.store.read()
        self.problem = ""
        """Why the file on disk is not what is in force."""

    def refresh(self) -> None:
        """Look again; a file that has become unreadable leaves everything as it was."""
        try:
            self.slos, self.problem = self.store.read(), ""
        except UserError as error:
            self.problem = str(error)


def slo_by_source(
    vm: str, vm_set: StoredSlos, metadata: Mapping[str, SloFields], config: Config
) -> SloBySource:
    """SLO of a VM in each source, as `resolve` takes it."""
    given = config.with_slo_of(vm)
    found = {
        VM_SET: vm_set.get(vm, SloEntry()),
        METADATA: SloEntry(metadata.get(vm, {})),
        **(given.by_source() if given else {}),
    }
    return {source: entry for source, entry in found.items() if entry.is_set}


class Resolver:
    """SLOs of all VMs, resolved again only where one of their sources has changed."""

    def __init__(self) -> None:
        self._sources: tuple[object, ...] = ()
        self._known: dict[str, tuple[object, ResolvedSlo]] = {}
        self._resolved: dict[str, ResolvedSlo] = {}

    def resolve(
        self,
        vms: Collection[str],
        vm_set: StoredSlos,
        metadata: Mapping[str, SloFields],
        config: Config,
    ) -> dict[str, ResolvedSlo]:
        """SLO of every VM named; the same object as before when nothing has changed."""
        sources = (list(vms), vm_set, metadata, config)
        if sources == self._sources:
            return self._resolved
        known: dict[str, tuple[object, ResolvedSlo]] = {}
        for vm in vms:
            by_source = slo_by_source(vm, vm_set, metadata, config)
            classes = [config.classes.get(entry.class_name or "") for entry in by_source.values()]
            groups = [entry.group_name in config.groups for entry in by_source.values()]
            basis = (by_source, config.default_slo, classes, groups)
            before = self._known.get(vm)
            if before is not None and before[0] == basis:
                known[vm] = before
            else:
                resolved = resolve(vm, by_source, config.default_slo, config.classes, config.groups)
                known[vm] = (basis, resolved)
        self._sources, self._known = sources, known
        self._resolved = {vm: resolved for vm, (_, resolved) in known.items()}
        return self._resolved


def named_by(vm_set: StoredSlos, config: Config) -> dict[str, str]:
    """Source that names each VM, which may not be on the host."""
    named = {vm: f"config {given.source}" for vm, given in config.vms.items()}
    return {**dict.fromkeys(vm_set, "`vm set`"), **named}


# Groups of VMs from epoch to epoch: what their VMs did, and the part that each has of its group's bounds.


_REMEMBERED = 5
"""A VM's use is the highest of this many epochs, so that parts grow at once and shrink slowly."""


class Groups:
    """Divides the bounds of groups, epoch by epoch."""

    def __init__(self) -> None:
        self._counted: dict[tuple[str, str], tuple[float, int, int]] = {}
        """By VM and device: when, and requests and bytes until then."""
        self._did: dict[str, deque[Rates]] = defaultdict(lambda: deque(maxlen=_REMEMBERED))
        self._last: dict[str, tuple[SloGroup, dict[str, Slo]]] = {}
        """By group, what was decided last."""

    def slos(
        self, vms: Iterable[Vm], resolved: Mapping[str, ResolvedSlo], groups: Mapping[str, SloGroup]
    ) -> dict[str, Slo]:
        """The SLOs of all VMs that have a part of a group's bounds now."""
        own: dict[str, dict[str, Slo]] = defaultdict(dict)
        for vm in vms:
            name = resolved[vm.name].group_name
            if name is not None and vm.state.may_do_io:
                own[name][vm.name] = resolved[vm.name].slo
        did = {vm: _most(rates) for vm, rates in self._did.items() if rates}
        self._last = {
            name: (groups[name], slos_in_group(groups[name], slos, did, self._before(groups[name])))
            for name, slos in own.items()
        }
        return {vm: slo for _, slos in self._last.values() for vm, slo in slos.items()}

    def _before(self, group: SloGroup) -> dict[str, Slo]:
        """What was decided last, unless the group has changed since."""
        last, slos = self._last.get(group.name, (None, {}))
        return slos if last is not None and last.fields == group.fields else {}

    def observe(self, devices: Sequence[DeviceView], now_s: float) -> None:
        """Take an epoch into account: what the VMs of groups did in it. `now_s` is monotonic time."""
        members = {vm for _, slos in self._last.values() for vm in slos}
        views = [(vm, device, device.vms[vm]) for device in devices for vm in device.vms if vm in members]
        counted = {(vm, device.name): (now_s, *_counts(got.window.totals)) for vm, device, got in views}
        rates: dict[str, list[Rates]] = defaultdict(list)
        for vm, device, got in views:
            key = vm, device.name
            if key in self._counted and counted[key][0] > self._counted[key][0]:
                scale = device.time_scale / (counted[key][0] - self._counted[key][0])
                _, requests, length_bytes = map(_increase, counted[key], self._counted[key])
                rates[vm].append(Rates(requests * scale, length_bytes * scale, got.wants_more))
        self._counted = counted
        for vm in [vm for vm in self._did if vm not in members]:
            del self._did[vm]
        for vm, each in rates.items():
            self._did[vm].append(_together(each))


def _counts(totals: IoCounters) -> tuple[int, int]:
    return (totals.reads or 0) + (totals.writes or 0), (totals.read_bytes or 0) + (totals.written_bytes or 0)


def _increase(now: float, before: float) -> float:
    """How much a counter grew; 0 when it was reset."""
    return max(0.0, now - before)


def _together(rates: Sequence[Rates]) -> Rates:
    """On several devices."""
    return Rates(
        sum(each.iops for each in rates),
        sum(each.bytes_s for each in rates),
        any(each.wants_more for each in rates),
    )


def _most(rates: Sequence[Rates]) -> Rates:
    """Of several epochs."""
    return Rates(max(each.iops for each in rates), max(each.bytes_s for each in rates), rates[-1].wants_more)
