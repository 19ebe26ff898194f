"""Which VM uses which managed block device, and through what it can be steered there. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from slo_ctl.model import DeviceNumber, FoundBy, Lever, Slo, Stream, Vm
from slo_ctl.model.host import BlockCapability, Capabilities

# Which unit of systemd a cgroup belongs to, by its path alone.

_UNIT = re.compile(r"[A-Za-z0-9:_.\\@-]{1,240}\.(?:scope|service|slice)", re.ASCII)
"""Characters that systemd allows in the name of a unit."""
_USER_MANAGER = re.compile(r"user@\d{1,10}\.service", re.ASCII)


@lru_cache(maxsize=4096)
def unit_of(cgroup: str) -> str | None:
    """The unit whose group, named as in /proc/PID/cgroup, this is; None for any other group.

    Groups inside of a unit are not its own: systemd left those to whom it delegated them. Units of a user's
    own systemd are unknown to the system's.
    """
    *above, last = cgroup.strip("/").split("/")
    if any(_USER_MANAGER.fullmatch(part) for part in above):
        return None
    # Names that look like files of the kernel are given an underscore.
    name = last.removeprefix("_")
    return name if _UNIT.fullmatch(name) else None


# Which VM uses which managed block device, and through what it can be steered there.

NO_IOTUNE = frozenset({"vhostuser", "vhostvdpa"})
"""Kinds of disks whose I/O does not pass through QEMU."""


@dataclass(frozen=True, slots=True)
class HostState:
    """VMs on the host and their SLOs."""

    vms: Sequence[Vm]
    streams: Sequence[Stream]
    slos: Mapping[str, Slo]
    """In force, by VM; one without any is left alone."""
    with_slo: Collection[str]
    """VMs that the operator named: the others have the default."""
    unapplied: Collection[str] = ()
    """VMs of which a limit of IOPS did not take in the epoch before."""


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
    own_slo: bool
    """An SLO was set for it; otherwise it has the default."""
    shares: bool
    """Whether it was seen to do I/O there."""
    by_systemd: bool
    """Its group is a unit of systemd, which would overwrite what is written past it."""

    @property
    def by_libvirt(self) -> bool:
        """Whether it is a VM of libvirt, and set through it."""
        return self.vm.found_by is FoundBy.LIBVIRT and self.vm.uuid is not None

    @property
    def weight_lever(self) -> Lever:
        """Lever of its weight."""
        if self.by_libvirt:
            return Lever.LIBVIRT_WEIGHT
        return Lever.SYSTEMD_PROPERTY if self.by_systemd else Lever.CGROUP_WEIGHT

    @property
    def limit_lever(self) -> Lever:
        """Lever of limits on reads and writes of its group."""
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
    def limit_step_iops(self) -> float:
        """That in which limits of its IOPS act there; 0: QEMU, which grants all of them."""
        return 0.0 if self.by_libvirt and self.targets else self.can.limit_step_iops

    @property
    def key(self) -> tuple[str, str]:
        """Names of the VM and of the device."""
        return (self.vm.name, self.device)

    @property
    def place(self) -> str:
        """Place of its knobs; empty where it has none."""
        return (self.vm.uuid if self.by_libvirt else self.vm.cgroup) or ""


def uses_of(host: HostState, devices: Mapping[str, DeviceNumber], capabilities: Capabilities) -> list[Use]:
    """Every use of the managed block devices, by name, by a VM that has an SLO and runs."""
    slos = host.slos
    numbers = {number: name for name, number in devices.items()}
    listed: dict[str, set[DeviceNumber]] = defaultdict(set)
    counted: dict[str, set[DeviceNumber]] = defaultdict(set)
    elsewhere = set()
    for stream in host.streams:
        if stream.tenant is not None:
            elsewhere.add(stream.vm)
        elif stream.device is not None and stream.device in numbers:
            listed[stream.vm].add(stream.device)
            if did_io(stream):
                counted[stream.vm].add(stream.device)
    uses = []
    for vm in host.vms:
        if vm.name not in slos or vm.state.is_off:
            continue
        named = vm.name in host.with_slo or vm.found_by is FoundBy.OPTION
        on_disks = {disk.device for disk in vm.disks if disk.device in numbers and disk.device}
        used = on_disks | (listed if named else counted)[vm.name]
        if named and not vm.disks and not used and vm.name not in elsewhere:
            used = set(numbers)
        for number in sorted(used):
            disks = [disk for disk in vm.disks if disk.device == number]
            targets = tuple(disk.target for disk in disks if disk.kind not in NO_IOTUNE)
            untouchable = tuple(disk.target for disk in disks if disk.kind in NO_IOTUNE)
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
