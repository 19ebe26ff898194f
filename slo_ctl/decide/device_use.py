"""Uses of managed block devices by VMs, and the levers that each use has. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from slo_ctl.model.host import BlockCapability, Capabilities, DeviceNumber, FoundBy, Stream, Vm
from slo_ctl.model.setting import Lever
from slo_ctl.model.slo import Slo

# The systemd unit of a cgroup, from its path.

_UNIT = re.compile(r"[A-Za-z0-9:_.\\@-]{1,240}\.(?:scope|service|slice)", re.ASCII)
"""Characters that systemd allows in the name of a unit."""
_USER_MANAGER = re.compile(r"user@\d{1,10}\.service", re.ASCII)


@lru_cache(maxsize=4096)
def unit_of(cgroup: str) -> str | None:
    """The unit that a cgroup, named as in /proc/PID/cgroup, belongs to; None if it is not that of a unit.

    None, too, for a group inside that of a unit, which systemd does not manage, and for units of a user's
    systemd, which the system's systemd does not know.
    """
    *above, last = cgroup.strip("/").split("/")
    if any(_USER_MANAGER.fullmatch(part) for part in above):
        return None
    # systemd puts an underscore before names that look like files of the kernel.
    name = last.removeprefix("_")
    return name if _UNIT.fullmatch(name) else None


NO_IOTUNE = frozenset({"vhostuser", "vhostvdpa"})
"""Kinds of disks whose I/O does not pass through QEMU."""


@dataclass(frozen=True, slots=True)
class HostState:
    """VMs and streams of a host, and the SLOs in force."""

    vms: Sequence[Vm]
    streams: Sequence[Stream]
    slos: Mapping[str, Slo]
    """SLO by VM; a VM without one is not controlled."""
    with_slo: Collection[str]
    """VMs with an SLO of their own; the others have the default."""
    weighted: Collection[str] = ()
    """VMs whose weight was set."""
    unapplied: Collection[str] = ()
    """VMs whose IOPS limit could not be applied in the previous epoch."""
    inner_groups: Mapping[str, str] = field(default_factory=dict)
    """By VM: a group inside its cgroup whose processes limits of cgroup v1 do not reach."""


@dataclass(frozen=True, slots=True)
class Use:
    """Use of one managed block device by one VM."""

    vm: Vm
    slo: Slo
    device: str
    can: BlockCapability
    targets: tuple[str, ...]
    """Disks on the device whose I/O QEMU can limit."""
    untouchable: tuple[str, ...]
    """Disks on the device whose I/O does not pass through QEMU."""
    own_slo: bool
    """Whether the VM has an SLO of its own; otherwise it has the default."""
    shares: bool
    """Whether the VM did I/O on the device."""
    by_systemd: bool
    """Whether the VM's cgroup is that of a systemd unit, which would overwrite other programs' changes."""
    inner_group: str = ""
    """A group inside its cgroup whose processes limits of the cgroup do not reach; empty without one."""

    @property
    def by_libvirt(self) -> bool:
        """Whether settings of the VM are made through libvirt."""
        return self.vm.found_by is FoundBy.LIBVIRT and self.vm.uuid is not None

    @property
    def weight_lever(self) -> Lever:
        if self.by_libvirt:
            return Lever.LIBVIRT_WEIGHT
        return Lever.SYSTEMD_PROPERTY if self.by_systemd else Lever.CGROUP_WEIGHT

    @property
    def limit_lever(self) -> Lever:
        """Lever of limits on reads and writes of the VM's cgroup."""
        if self.by_libvirt:
            return Lever.LIBVIRT_LIMIT
        return Lever.SYSTEMD_PROPERTY if self.by_systemd else Lever.CGROUP_LIMIT

    @property
    def limitable(self) -> bool:
        """Whether the VM's IOPS on the device can be limited."""
        if self.untouchable:
            return False
        if self.by_libvirt and self.targets:
            return True
        return bool(self.can.limits and self.place and not self.inner_group)

    @property
    def limit_step_iops(self) -> float:
        """Step in which limits of IOPS act on the device; 0: they are exact, as those of QEMU."""
        return 0.0 if self.by_libvirt and self.targets else self.can.limit_step_iops

    @property
    def key(self) -> tuple[str, str]:
        """Names of the VM and of the device."""
        return (self.vm.name, self.device)

    @property
    def place(self) -> str:
        """UUID or cgroup that settings of the VM are addressed by; empty if it has none."""
        return (self.vm.uuid if self.by_libvirt else self.vm.cgroup) or ""


def uses_of(host: HostState, devices: Mapping[str, DeviceNumber], capabilities: Capabilities) -> list[Use]:
    """Uses of managed block devices (`devices`: numbers by name) by running VMs that have an SLO."""
    numbers = {number: name for name, number in devices.items()}
    streams = ManagedStreams(host.streams, numbers)
    uses = []
    for vm in host.vms:
        if vm.name not in host.slos or vm.state.is_off:
            continue
        named = vm.name in host.with_slo or vm.found_by is FoundBy.OPTION
        unit = capabilities.systemd and unit_of(vm.cgroup or "") is not None
        for number in sorted(used_by(vm, numbers, streams, named=named)):
            if (can := capabilities.devices.get(number)) is None:
                continue
            disks = [disk for disk in vm.disks if number in disk.devices]
            # A limit of QEMU acts on all devices below a disk, each of which may need another one.
            by_qemu = all(len(numbers.keys() & set(disk.devices)) == 1 for disk in disks)
            uses.append(
                Use(
                    vm=vm,
                    slo=slo_on(vm, number, host.slos[vm.name]),
                    device=numbers[number],
                    can=can,
                    targets=tuple(disk.target for disk in disks if by_qemu and disk.kind not in NO_IOTUNE),
                    untouchable=tuple(disk.target for disk in disks if disk.kind in NO_IOTUNE),
                    own_slo=named,
                    shares=number in streams.with_io[vm.name],
                    by_systemd=unit,
                    inner_group=host.inner_groups.get(vm.name, ""),
                )
            )
    return uses


class ManagedStreams:
    """Managed devices by VM, as their streams have them."""

    def __init__(self, streams: Iterable[Stream], managed: Collection[DeviceNumber]) -> None:
        self.all: defaultdict[str, set[DeviceNumber]] = defaultdict(set)
        self.with_io: defaultdict[str, set[DeviceNumber]] = defaultdict(set)
        self.on_emulated: set[str] = set()
        """VMs with a stream on an emulated SSD."""
        for stream in streams:
            if stream.tenant is not None:
                self.on_emulated.add(stream.vm)
            elif stream.device is not None and stream.device in managed:
                self.all[stream.vm].add(stream.device)
                if did_io(stream):
                    self.with_io[stream.vm].add(stream.device)


def used_by(
    vm: Vm, managed: Collection[DeviceNumber], streams: ManagedStreams, *, named: bool
) -> set[DeviceNumber]:
    """Managed devices that a VM uses. `named`: by the configuration, so that it needs no I/O to count."""
    on_disks = {device for disk in vm.disks for device in disk.devices if device in managed}
    used = on_disks | (streams.all if named else streams.with_io)[vm.name]
    if named and not vm.disks and not used and vm.name not in streams.on_emulated:
        # Its disks are unknown: any device may be its.
        return set(managed)
    return used


def copied_to(vm: Vm, device: DeviceNumber | None) -> tuple[str, ...]:
    """Disks of a VM that libvirt copies to a device on which the VM has none."""
    if device is None or not vm.disks or any(device in disk.devices for disk in vm.disks):
        return ()
    return tuple(disk.target for disk in vm.disks if device in disk.copy_devices)


def slo_on(vm: Vm, device: DeviceNumber | None, slo: Slo) -> Slo:
    """The part of a VM's SLO that applies on a device: its bounds are for the guest's I/O, not for copies."""
    return Slo(weight=slo.weight) if copied_to(vm, device) else slo


def did_io(stream: Stream) -> bool:
    """Whether a stream did any I/O. Counters of a cgroup list a device with zeros once it has a limit."""
    counters = stream.counters
    return counters is not None and bool(
        counters.reads or counters.writes or counters.read_bytes or counters.written_bytes
    )
