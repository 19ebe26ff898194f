"""Which block devices the configuration means: those it lists, and the namespaces of the drives it lists."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from slo_ctl.observe.block_device import device_behind
from slo_ctl.observe.nvme_drive import controller_at, namespaces

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slo_ctl.config.settings import DeviceConfig
    from slo_ctl.model import DeviceNumber
    from slo_ctl.observe.nvme_sysfs import Block


@dataclass(frozen=True, slots=True)
class BlockPlace:
    """A block device to manage."""

    path: str
    scheduler: str
    of_drive: str = ""
    """The device of the configuration that it is a namespace of; empty: it is listed itself."""


def block_places(devices: Iterable[DeviceConfig], sys: Path) -> tuple[dict[str, BlockPlace], tuple[str, ...]]:
    """The block devices by name, and a sentence for each drive of which there is none.

    A path to an NVMe controller means every namespace that it has now, each as `NAME-nNSID`. A namespace that
    is listed by itself, or comes with another drive already, keeps that name. Any other path is taken as it
    is: whether there is a block device is found out when it is looked at.
    """
    listed = [device for device in devices if device.path is not None]
    controllers = {each.name: controller_at(each.path or "", sys) for each in listed}
    found = {
        each.name: BlockPlace(each.path or "", each.scheduler)
        for each in listed
        if controllers[each.name] is None
    }
    taken = {number for place in found.values() if (number := _number(place.path, sys)) is not None}
    notes = []
    for drive in listed:
        controller, path = controllers[drive.name], drive.path
        if controller is None or path is None:
            continue
        blocks = namespaces(sys, controller)
        if not blocks:
            notes.append(f"device {drive.name} ({drive.source}): {path} has no namespace that is attached")
        for block in blocks:
            node = Path(path).resolve().parent / block.name
            number = _number(str(node), sys)
            # Without a number udev has yet to make the node.
            if number is not None and number not in taken:
                taken.add(number)
                name = _name(drive.name, block, found)
                found[name] = BlockPlace(str(node), drive.scheduler, of_drive=drive.name)
    return found, tuple(notes)


def _name(drive: str, block: Block, used: Iterable[str]) -> str:
    """Without the kernel's number, which may be another one after a boot."""
    name = f"{drive}-n{block.nsid}"
    return name if block.nsid is not None and name not in used else f"{drive}-{block.name}"


def _number(path: str, sys: Path) -> DeviceNumber | None:
    try:
        return device_behind(path, sys) if Path(path).is_block_device() else None
    except OSError:
        return None
