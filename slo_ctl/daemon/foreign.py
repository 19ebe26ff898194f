"""What keeps settings of slo-ctl from their effect: limits that others have set, and groups inside a VM's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import PurePosixPath

from slo_ctl.act.cgroup import LIMIT_NAMES, CgroupActuator
from slo_ctl.decide.device_use import did_io
from slo_ctl.host.cgroup import CgroupTree, group_inside
from slo_ctl.host.libvirt import DomainXmlError, foreign_limits
from slo_ctl.model.host import DeviceNumber, Vm
from slo_ctl.model.setting import ActError, Knob, Lever, Setting
from slo_ctl.observe.streams import Inventory

EPOCHS = 60
"""Epochs in which each VM is looked at once; a new one at once. Each look reads a dozen files."""


class SpreadOverEpochs:
    """Values of VMs that are computed again once in `EPOCHS` epochs, spread over the VMs."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[str, ...]] = {}
        self._turn = 0

    def update(
        self, vms: Sequence[Vm], compute: Callable[[Sequence[Vm]], Mapping[str, tuple[str, ...]]]
    ) -> dict[str, tuple[str, ...]]:
        """Values by name; of other VMs nothing is kept. `compute`: those of the VMs that are due."""
        self._turn = (self._turn + 1) % EPOCHS
        last = self._found
        due = [vm for index, vm in enumerate(vms) if index % EPOCHS == self._turn or vm.name not in last]
        now = compute(due)
        self._found = {vm.name: now[vm.name] if vm.name in now else last[vm.name] for vm in vms}
        return self._found


class InnerGroups:
    """VMs with processes in groups inside theirs, which limits of cgroup v1 do not reach."""

    def __init__(self) -> None:
        self._found = SpreadOverEpochs()

    def update(self, tree: CgroupTree | None, vms: Iterable[Vm]) -> dict[str, str]:
        """One such group of each of these VMs; others are left out."""
        if tree is None or tree.version != 1:
            return {}

        def inside(due: Sequence[Vm]) -> dict[str, tuple[str, ...]]:
            found = {vm.name: group_inside(tree, vm.cgroup or "") for vm in due}
            return {name: (group,) if group else () for name, group in found.items()}

        in_groups = [vm for vm in vms if vm.cgroup]
        return {name: found[0] for name, found in self._found.update(in_groups, inside).items() if found}


class ForeignLimits:
    """Limits of VMs with an SLO, on the devices that they use, that slo-ctl has not set."""

    def __init__(self) -> None:
        self._found = SpreadOverEpochs()

    def notes(
        self,
        cgroups: CgroupActuator | None,
        vms: Iterable[Vm],
        inventory: Inventory,
        devices: Mapping[str, DeviceNumber],
        settings: Iterable[Setting],
    ) -> list[str]:
        """A sentence for each limit. `devices`: numbers of managed devices by name; `settings`: wanted."""
        if cgroups is None:
            return []
        names = {number: name for name, number in devices.items()}

        def found(due: Sequence[Vm]) -> dict[str, tuple[str, ...]]:
            looked_at = {vm.name for vm in due}
            own: dict[str, set[tuple[str, str]]] = defaultdict(set)
            for setting in settings:
                if setting.vm in looked_at:
                    own[setting.vm] |= {
                        (setting.knob.name, device) for device in setting.knob.device.split(",")
                    }
            used: dict[str, set[DeviceNumber]] = defaultdict(set)
            for stream in inventory.streams:
                if stream.vm in looked_at and stream.device in names and did_io(stream):
                    used[stream.vm].add(stream.device)
            return {
                vm.name: (
                    *_on_disks(vm, own[vm.name], inventory.domain_xml.get(vm.uuid or "", ""), names),
                    *_on_cgroup(
                        cgroups, vm, own[vm.name], {number: names[number] for number in used[vm.name]}
                    ),
                )
                for vm in due
            }

        # What a VM that is shut off has in its definition may be replaced when it starts.
        running = [vm for vm in vms if not vm.state.is_off]
        return [note for notes in self._found.update(running, found).values() for note in notes]


def _on_disks(
    vm: Vm, own: Collection[tuple[str, str]], xml: str, devices: Collection[DeviceNumber]
) -> Iterator[str]:
    """Sentences about limits of disks on managed devices. `own`: names and devices of slo-ctl's settings."""
    limited = {device for _, device in own}
    on_managed = {
        disk.target for disk in vm.disks if any(device in devices for device in disk.devices)
    } - limited
    for disk, limits in _limits_of_disks(xml).items():
        if disk in on_managed:
            yield f"VM {vm.name}: disk {disk} has {limits}, which slo-ctl has not set"


def _on_cgroup(
    cgroups: CgroupActuator, vm: Vm, own: Collection[tuple[str, str]], devices: Mapping[DeviceNumber, str]
) -> Iterator[str]:
    """Sentences about limits of the VM's cgroup on these devices."""
    for number in sorted(devices) if vm.cgroup else ():
        own_limits = {name for name, device in own if device == str(number)}
        for limit in _limits(cgroups, vm.cgroup or "", number, own_limits):
            yield f"VM {vm.name}: on {devices[number]} ({number}) {limit}, which slo-ctl has not set"


def _limits_of_disks(xml: str) -> dict[str, str]:
    try:
        return foreign_limits(xml) if "<iotune>" in xml else {}
    except DomainXmlError:
        return {}


def _limits(
    cgroups: CgroupActuator, cgroup: str, device: DeviceNumber, own_limits: Collection[str]
) -> Iterator[str]:
    """A clause for each other limit of a group, on v2 also of those around it, which limit it as well.

    What cannot be read is left out.
    """
    group = PurePosixPath(cgroup)
    around = () if cgroups.version == 1 else group.parents[:-1]
    for place in (group, *around):
        for name in LIMIT_NAMES:
            if place == group and name in own_limits:
                continue
            with suppress(ActError):
                limit = cgroups.read(Knob(Lever.CGROUP_LIMIT, str(place), name, str(device)))
                if limit is not None:
                    yield f"cgroup {place} is limited to {limit:.0f} {name}"
