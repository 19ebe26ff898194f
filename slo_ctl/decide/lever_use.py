"""Which VM uses which managed block device, and through what it can be steered there: pure."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slo_ctl.decide.systemd_unit import unit_of
from slo_ctl.model import FoundBy, Lever, VmState

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from slo_ctl.model import DeviceNumber, Slo, Stream, Vm
    from slo_ctl.model.capability import BlockCapability, Capabilities

_OFF = frozenset({VmState.SHUT_OFF, VmState.CRASHED})
_NO_IOTUNE = frozenset({"vhostuser", "vhostvdpa"})
"""Kinds of disks whose I/O does not pass through QEMU."""


@dataclass(frozen=True, slots=True)
class Use:
    """One VM on one managed block device."""

    vm: Vm
    slo: Slo
    device: str
    can: BlockCapability
    targets: tuple[str, ...]
    """Disks that QEMU can limit there."""
    untouchable: tuple[str, ...]
    """Disks there whose I/O is another program's."""
    promised: bool
    """Somebody promised it something; otherwise its SLO is what everybody has."""
    shares: bool
    """It was seen to do I/O there."""
    by_systemd: bool
    """Its group is a unit of systemd, which would overwrite what is written past it."""

    @property
    def by_libvirt(self) -> bool:
        """It is libvirt's, and set through it."""
        return self.vm.found_by is FoundBy.LIBVIRT and self.vm.uuid is not None

    @property
    def weight_lever(self) -> Lever:
        """By which its weight is set."""
        if self.by_libvirt:
            return Lever.LIBVIRT_WEIGHT
        return Lever.SYSTEMD_PROPERTY if self.by_systemd else Lever.CGROUP_WEIGHT

    @property
    def limit_lever(self) -> Lever:
        """By which reads and writes of its group are limited."""
        if self.by_libvirt:
            return Lever.LIBVIRT_LIMIT
        return Lever.SYSTEMD_PROPERTY if self.by_systemd else Lever.CGROUP_LIMIT

    @property
    def limitable(self) -> bool:
        """Whether its IOPS there can be limited."""
        if self.untouchable:
            return False
        return bool((self.by_libvirt and self.targets) or (self.can.limits and self.place))

    @property
    def key(self) -> tuple[str, str]:
        """Names of the VM and of the device."""
        return (self.vm.name, self.device)

    @property
    def place(self) -> str:
        """Of its knobs; empty where it has none."""
        return (self.vm.uuid if self.by_libvirt else self.vm.cgroup) or ""


def uses_of(
    vms: Sequence[Vm],
    slos: Mapping[str, Slo],
    streams: Sequence[Stream],
    devices: Mapping[str, DeviceNumber],
    capabilities: Capabilities,
    promised: Collection[str] | None,
) -> list[Use]:
    """Every use by a VM that has an SLO and runs; arguments as those of `levers.settings_for`."""
    numbers = {number: name for name, number in devices.items()}
    listed: dict[str, set[DeviceNumber]] = defaultdict(set)
    counted: dict[str, set[DeviceNumber]] = defaultdict(set)
    elsewhere = set()
    for stream in streams:
        if stream.tenant is not None:
            elsewhere.add(stream.vm)
        elif stream.device is not None and stream.device in numbers:
            listed[stream.vm].add(stream.device)
            if did_io(stream):
                counted[stream.vm].add(stream.device)
    uses = []
    for vm in vms:
        if vm.name not in slos or vm.state in _OFF:
            continue
        named = promised is None or vm.name in promised or vm.found_by is FoundBy.OPTION
        on_disks = {disk.device for disk in vm.disks if disk.device in numbers and disk.device}
        used = on_disks | (listed if named else counted)[vm.name]
        if named and not vm.disks and not used and vm.name not in elsewhere:
            used = set(numbers)
        for number in sorted(used):
            disks = [disk for disk in vm.disks if disk.device == number]
            targets = tuple(disk.target for disk in disks if disk.kind not in _NO_IOTUNE)
            untouchable = tuple(disk.target for disk in disks if disk.kind in _NO_IOTUNE)
            if (can := capabilities.devices.get(number)) is not None:
                shares = number in counted[vm.name]
                unit = capabilities.systemd and unit_of(vm.cgroup or "") is not None
                place = (numbers[number], can, targets, untouchable)
                uses.append(Use(vm, slos[vm.name], *place, named, shares, unit))
    return uses


def did_io(stream: Stream) -> bool:
    """Whether any I/O was counted; a device may be listed with zeros, such as once it is limited."""
    counters = stream.counters
    return counters is not None and bool(
        counters.reads or counters.writes or counters.read_bytes or counters.written_bytes
    )
