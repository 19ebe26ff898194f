"""SLOs in force of all VMs, computed only after a change, with their parts of the bounds of groups."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from slo_ctl.base.errors import UserError
from slo_ctl.config.settings import Config
from slo_ctl.daemon.device import DeviceView
from slo_ctl.decide.groups import Rates, slos_in_group
from slo_ctl.decide.slo_sources import DEFAULT, METADATA, VM_SET
from slo_ctl.host.libvirt import fields_of
from slo_ctl.model.host import IoCounters, Vm
from slo_ctl.model.slo import ResolvedSlo, Slo, SloBySource, SloEntry, SloFields, SloGroup
from slo_ctl.observe.streams import Inventory
from slo_ctl.record.slo_store import SloStore, StoredSlos


class Metadata:
    """SLO fields in libvirt metadata, parsed again only if the XML of a domain has changed."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        """Invalid fields."""
        self._parsed: dict[str, tuple[str, SloFields, list[str]]] = {}
        """XML, its fields and notes, by UUID."""

    def read(self, inventory: Inventory) -> dict[str, SloFields]:
        """Fields by VM, of VMs that have any."""
        parsed: dict[str, tuple[str, SloFields, list[str]]] = {}
        fields_by_vm = {}
        self.notes = []
        for vm in inventory.vms:
            xml = inventory.domain_xml.get(vm.uuid or "")
            if xml is None or vm.uuid is None:
                continue
            entry = self._parsed.get(vm.uuid)
            if entry is None or entry[0] is not xml:
                notes: list[str] = []
                entry = (xml, fields_of(xml, notes.append), notes)
            parsed[vm.uuid] = entry
            _, slo_fields, notes = entry
            self.notes += notes
            if slo_fields:
                fields_by_vm[vm.name] = slo_fields
        self._parsed = parsed
        return fields_by_vm


def slo_by_source(
    vm: str, vm_set: StoredSlos, metadata: Mapping[str, SloFields], config: Config
) -> SloBySource:
    """SLO of a VM in each source, for `resolve`."""
    configured = config.slo_table_of(vm)
    entries = {
        VM_SET: vm_set.get(vm, SloEntry()),
        METADATA: SloEntry(metadata.get(vm, {})),
        **(configured.by_source() if configured else {}),
    }
    return {source: entry for source, entry in entries.items() if entry.is_set}


class Resolver:
    """Resolves the SLOs of all VMs; again only if one of their sources has changed."""

    def __init__(self) -> None:
        self._sources: tuple[object, ...] = ()
        self._resolved: dict[str, ResolvedSlo] = {}

    def resolve(
        self,
        vms: Collection[str],
        vm_set: StoredSlos,
        metadata: Mapping[str, SloFields],
        config: Config,
    ) -> dict[str, ResolvedSlo]:
        """SLOs of these VMs; the same object as before if nothing has changed."""
        sources = (list(vms), vm_set, metadata, config)
        if sources != self._sources:
            self._sources = sources
            self._resolved = {
                vm: config.resolve(vm, slo_by_source(vm, vm_set, metadata, config)) for vm in vms
            }
        return self._resolved


# Groups of VMs.

_RECENT_EPOCHS = 5
"""The rate of a VM is the highest of this many epochs, so that its part grows at once and shrinks slowly."""


class Groups:
    """Divides the bounds of groups among their VMs, by the rates of the last epochs."""

    def __init__(self) -> None:
        self._last_totals: dict[tuple[str, str], tuple[float, int, int]] = {}
        """By VM and device: time of the reading, requests and bytes."""
        self._rates: dict[str, deque[Rates]] = defaultdict(lambda: deque(maxlen=_RECENT_EPOCHS))
        """Rates in the last epochs, by VM."""
        self._parts: dict[str, tuple[SloGroup, dict[str, Slo]]] = {}
        """By group: its bounds, and the SLO of each of its VMs with its part of them."""
        self._own: dict[str, dict[str, Slo]] = {}
        """By group: the SLO of each of its VMs without these parts."""

    def slos(
        self, vms: Iterable[Vm], resolved: Mapping[str, ResolvedSlo], groups: Mapping[str, SloGroup]
    ) -> dict[str, Slo]:
        """SLOs of all VMs in groups that can do I/O, with their parts of the bounds."""
        members: dict[str, dict[str, Slo]] = defaultdict(dict)
        for vm in vms:
            name = resolved[vm.name].group_name
            if name is not None and vm.state.may_do_io:
                members[name][vm.name] = resolved[vm.name].slo
        rates = {vm: _max_rates(recent) for vm, recent in self._rates.items() if recent}
        own, self._own = self._own, dict(members)
        self._parts = {
            name: (
                groups[name],
                slos_in_group(
                    groups[name],
                    slos,
                    rates,
                    self._last_parts(groups[name]),
                    changed=slos != own.get(name),
                ),
            )
            for name, slos in members.items()
        }
        return {vm: slo for _, slos in self._parts.values() for vm, slo in slos.items()}

    def _last_parts(self, group: SloGroup) -> dict[str, Slo]:
        """The parts of the last epoch; none if the bounds have changed."""
        last, slos = self._parts.get(group.name, (None, {}))
        return slos if last is not None and last.fields == group.fields else {}

    def observe(self, devices: Sequence[DeviceView], now_s: float) -> None:
        """Add the rates of an epoch. `now_s`: monotonic time."""
        members = {vm for _, slos in self._parts.values() for vm in slos}
        totals: dict[tuple[str, str], tuple[float, int, int]] = {}
        rates: dict[str, list[Rates]] = defaultdict(list)
        for device in devices:
            for vm, delivered in device.vms.items():
                if vm not in members:
                    continue
                key = (vm, device.name)
                totals[key] = (now_s, *_requests_and_bytes(delivered.window.totals))
                last_s, last_requests, last_bytes = self._last_totals.get(key, totals[key])
                if now_s > last_s:
                    scale = device.time_scale / (now_s - last_s)
                    _, requests, length_bytes = totals[key]
                    iops = max(0.0, requests - last_requests) * scale
                    bytes_s = max(0.0, length_bytes - last_bytes) * scale
                    rates[vm].append(Rates(iops, bytes_s, delivered.wants_more))
        self._last_totals = totals
        for vm in self._rates.keys() - members:
            del self._rates[vm]
        for vm, on_devices in rates.items():
            self._rates[vm].append(_sum_rates(on_devices))


def _requests_and_bytes(totals: IoCounters) -> tuple[int, int]:
    return (totals.reads or 0) + (totals.writes or 0), (totals.read_bytes or 0) + (totals.written_bytes or 0)


def _sum_rates(rates: Sequence[Rates]) -> Rates:
    """Rates on several devices together."""
    return Rates(
        sum(rate.iops for rate in rates),
        sum(rate.bytes_s for rate in rates),
        any(rate.wants_more for rate in rates),
    )


def _max_rates(rates: Sequence[Rates]) -> Rates:
    """Highest rates of several epochs, and the demand in the last one."""
    return Rates(max(rate.iops for rate in rates), max(rate.bytes_s for rate in rates), rates[-1].wants_more)


# All of it, once per epoch.


@dataclass(frozen=True)
class EpochSlos:
    """SLOs of all VMs in one epoch."""

    resolved: Mapping[str, ResolvedSlo]
    """Of the VMs of the host, and of those that are only named."""
    named_by: Mapping[str, str] = field(default_factory=dict)
    """Where VMs are named that may not exist on the host."""
    in_groups: Mapping[str, Slo] = field(default_factory=dict)
    """Of VMs in groups, with their parts of the group's bounds."""
    metadata: dict[str, SloFields] = field(default_factory=dict)
    """Fields in libvirt metadata."""
    own: Mapping[str, Slo] = field(default_factory=dict)
    """Of the VMs of the host, without their parts of groups."""

    @cached_property
    def in_force(self) -> Mapping[str, Slo]:
        """SLOs of the VMs of the host, with their parts of groups."""
        return {**self.own, **self.in_groups}

    @cached_property
    def set_for(self) -> set[str]:
        """VMs with an SLO of their own; the others have the default."""
        with_fields = {vm for vm, slo in self.resolved.items() if slo.slo_source != DEFAULT}
        return {*self.named_by, *self.in_groups, *with_fields}

    @cached_property
    def weighted(self) -> set[str]:
        """VMs whose weight was set."""
        return {vm for vm, slo in self.resolved.items() if slo.sources.get("weight") != DEFAULT}


class VmSlos:
    """SLOs of all VMs: from `vm set`, as of the last time that its file could be read, metadata and
    configuration.
    """

    def __init__(self, path: Path) -> None:
        """Raises UserError if the file of `vm set` is damaged."""
        self.store = SloStore(path)
        self._vm_set = self.store.read()
        self._vm_set_problem = ""
        self._metadata = Metadata()
        self._resolver = Resolver()
        self._groups = Groups()

    def update(self, inventory: Inventory, config: Config) -> EpochSlos:
        try:
            self._vm_set, self._vm_set_problem = self.store.read(), ""
        except UserError as error:
            self._vm_set_problem = str(error)
        named_by = dict.fromkeys(self._vm_set, "`vm set`")
        named_by |= {vm: f"config {entry.source}" for vm, entry in config.vms.items()}
        metadata = self._metadata.read(inventory)
        vms = dict.fromkeys([*(vm.name for vm in inventory.vms), *named_by])
        resolved = self._resolver.resolve(vms, self._vm_set, metadata, config)
        in_groups = self._groups.slos(inventory.vms, resolved, config.groups)
        own = {vm.name: resolved[vm.name].slo for vm in inventory.vms}
        return EpochSlos(resolved, named_by, in_groups, metadata, own)

    def observe(self, devices: Sequence[DeviceView], now_s: float) -> None:
        """Add the rates of an epoch, by which the bounds of groups are divided. `now_s`: monotonic time."""
        self._groups.observe(devices, now_s)

    @property
    def notes(self) -> list[str]:
        """Invalid metadata, and why the file of `vm set` could not be read."""
        return [*self._metadata.notes, *([self._vm_set_problem] if self._vm_set_problem else [])]
