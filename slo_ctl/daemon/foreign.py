"""What keeps settings of slo-ctl from their effect: limits that others have set, and groups inside a VM's."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Generic, NamedTuple, TypeVar

from slo_ctl.act.cgroup import LIMIT_NAMES, CgroupActuator
from slo_ctl.act.journal import Original
from slo_ctl.decide.device_use import did_io
from slo_ctl.host.cgroup import CgroupTree, group_inside
from slo_ctl.host.libvirt import DomainXmlError, foreign_limits
from slo_ctl.model.host import DeviceNumber, Vm
from slo_ctl.model.sample import VmSample
from slo_ctl.model.setting import ActError, Knob, Lever, Setting, value_text
from slo_ctl.observe.streams import Inventory

EPOCHS = 60
"""Epochs in which each VM is looked at once; a new one at once. Each look reads a dozen files."""


Found = TypeVar("Found")


class SpreadOverEpochs(Generic[Found]):
    """Values of VMs that are computed again once in `EPOCHS` epochs, spread over the VMs."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[Found, ...]] = {}
        self._turn = 0

    def update(
        self, vms: Sequence[Vm], compute: Callable[[Sequence[Vm]], Mapping[str, tuple[Found, ...]]]
    ) -> dict[str, tuple[Found, ...]]:
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
        self._found = SpreadOverEpochs[str]()

    def update(self, tree: CgroupTree | None, vms: Iterable[Vm]) -> dict[str, str]:
        """One such group of each of these VMs; others are left out."""
        if tree is None or tree.version != 1:
            return {}

        def inside(due: Sequence[Vm]) -> dict[str, tuple[str, ...]]:
            found = {vm.name: group_inside(tree, vm.cgroup or "") for vm in due}
            return {name: (group,) if group else () for name, group in found.items()}

        in_groups = [vm for vm in vms if vm.cgroup]
        return {name: found[0] for name, found in self._found.update(in_groups, inside).items() if found}


class ForeignLimit(NamedTuple):
    """Limits of a VM on a managed device that slo-ctl has not set."""

    text: str
    """Such as `disk vda has total_iops_sec=300`."""
    device: DeviceNumber
    iops: float
    bytes_s: float
    """The most that these limits allow; infinite without one."""

    def is_reached(self, window: VmSample) -> bool:
        """Whether they may be why the VM did not get more in the window."""
        rates = (
            (window.iops, self.iops),
            (window.guest_iops, self.iops),
            (window.bandwidth_bytes_s, self.bytes_s),
        )
        return any(_HELD_FROM * limit <= rate <= _HELD_UNTIL * limit for rate, limit in rates if rate)


_HELD_FROM, _HELD_UNTIL = 0.9, 1.5
"""Rates at which a VM is held by a limit, relative to it: limiters err by 2 to 4 %, and readings by 3 %. A VM
that does far more goes on in the direction that has no limit.
"""


class ForeignLimits:
    """Limits of VMs, on the devices that they use, that slo-ctl has not set."""

    def __init__(self) -> None:
        self._spread = SpreadOverEpochs[ForeignLimit]()
        self._found: Mapping[str, tuple[ForeignLimit, ...]] = {}

    def update(
        self,
        cgroups: CgroupActuator | None,
        inventory: Inventory,
        devices: Mapping[str, DeviceNumber],
        settings: Iterable[Setting],
    ) -> None:
        """Look for them. `devices`: numbers of managed devices by name; `settings`: wanted."""
        if cgroups is None:
            self._found = {}
            return
        names = {number: name for name, number in devices.items()}

        def found(due: Sequence[Vm]) -> dict[str, tuple[ForeignLimit, ...]]:
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
        self._found = self._spread.update([vm for vm in inventory.vms if not vm.state.is_off], found)

    def notes(self, vms: Collection[str]) -> list[str]:
        """A sentence for each limit of these VMs."""
        found = {vm: limits for vm, limits in self._found.items() if vm in vms}
        notes = [f"VM {vm}: {limit.text}, which slo-ctl has not set" for vm in found for limit in found[vm]]
        return list(dict.fromkeys(notes))

    def reached(self, vm: str, device: DeviceNumber | None, window: VmSample) -> str:
        """The limits that may be why the VM did not get more of the device; may be empty."""
        limits = [limit for limit in self._found.get(vm, ()) if limit.device == device]
        return "; ".join(limit.text for limit in limits if limit.is_reached(window))


def _is_limit(knob: Knob) -> bool:
    """Whether it is a limit of a VM on a block device."""
    if knob.lever is Lever.SYSTEMD_PROPERTY:
        return knob.name in LIMIT_NAMES
    return knob.lever in (Lever.CGROUP_LIMIT, Lever.LIBVIRT_LIMIT)


def raised_limits(settings: Iterable[Setting], originals: Mapping[Knob, Original]) -> list[str]:
    """A sentence for each limit of others, in `originals`, that a higher one replaces."""
    replaced = {
        knob: original.value
        for knob, original in originals.items()
        if original.value is not None and _is_limit(knob)
    }
    notes = []
    for setting in settings if replaced else ():
        before = replaced.get(setting.knob)
        if isinstance(before, float) and isinstance(setting.value, float) and setting.value > before:
            notes.append(
                f"VM {setting.vm}: {setting.knob} is {value_text(setting.value)} instead of "
                f"{value_text(before)}, which slo-ctl had not set; that is restored when it stops"
            )
    return notes


def _on_disks(
    vm: Vm, own: Collection[tuple[str, str]], xml: str, devices: Collection[DeviceNumber]
) -> Iterator[ForeignLimit]:
    """Limits of disks on managed devices. `own`: names and devices of slo-ctl's settings.

    A VM whose disks on a device do not all have a limit of a kind has none of it.
    """
    limited = {device for _, device in own}
    limits = {target: limits for target, limits in _limits_of_disks(xml).items() if target not in limited}
    for number in devices:
        disks = [disk.target for disk in vm.disks if number in disk.devices]
        of_disks = {target: limits[target] for target in disks if target in limits}
        if not of_disks:
            continue
        texts = [
            f"disk {target} has {', '.join(f'{name}={value:.0f}' for name, value in found.items())}"
            for target, found in of_disks.items()
        ]
        most = [_most(of_disks[target]) if target in of_disks else (math.inf, math.inf) for target in disks]
        iops, bytes_s = (sum(values) for values in zip(*most, strict=True))
        yield ForeignLimit(" and ".join(texts), number, iops, bytes_s)


def _on_cgroup(
    cgroups: CgroupActuator, vm: Vm, own: Collection[tuple[str, str]], devices: Mapping[DeviceNumber, str]
) -> Iterator[ForeignLimit]:
    """Limits of the VM's cgroup on these devices, on v2 also of those around it, which limit it as well.

    What cannot be read is left out.
    """
    group = PurePosixPath(vm.cgroup or "")
    around = () if cgroups.version == 1 else group.parents[:-1]
    for number in sorted(devices) if vm.cgroup else ():
        own_limits = {name for name, device in own if device == str(number)}
        for place in (group, *around):
            names = [name for name in LIMIT_NAMES if place != group or name not in own_limits]
            limits = dict(_limits(cgroups, place, number, names))
            if limits:
                values = " and ".join(f"{value:.0f} {name}" for name, value in limits.items())
                text = f"on {devices[number]} ({number}) cgroup {place} is limited to {values}"
                yield ForeignLimit(text, number, *_most(limits))


def _most(limits: Mapping[str, float]) -> tuple[float, float]:
    """IOPS and bytes/s that limits by name allow together; infinite without one.

    A limit of one direction only counts for the sum, as the rates of directions are not known.
    """
    iops = sum(value for name, value in limits.items() if "iops" in name)
    bytes_s = sum(value for name, value in limits.items() if "bytes" in name)
    return iops or math.inf, bytes_s or math.inf


def _limits_of_disks(xml: str) -> dict[str, dict[str, float]]:
    try:
        return foreign_limits(xml) if "<iotune>" in xml else {}
    except (DomainXmlError, ValueError):
        return {}


def _limits(
    cgroups: CgroupActuator, place: PurePosixPath, device: DeviceNumber, names: Iterable[str]
) -> Iterator[tuple[str, float]]:
    for name in names:
        with suppress(ActError):
            limit = cgroups.read(Knob(Lever.CGROUP_LIMIT, str(place), name, str(device)))
            if limit is not None:
                yield name, limit
