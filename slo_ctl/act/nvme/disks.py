"""A namespace's block device as a disk of a VM of libvirt: in its definition, and in the running VM."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from slo_ctl.act.domain_metadata import AFFECT_CONFIG, AFFECT_LIVE
from slo_ctl.device.attach import choose_target, disk_at
from slo_ctl.errors import UserError

if TYPE_CHECKING:
    from slo_ctl.act.domain_metadata import WritableDomain

BY_ID = Path("/dev/disk/by-id")
_STABLE = ("nvme-uuid.", "nvme-eui.", "nvme-nvme.")
"""Links that udev makes, the better first: by what the drive says of the namespace, or by drive and NSID."""
_LINK_PATIENCE_S = 5.0
_UNPLUG_PATIENCE_S = 10.0
_POLL_S = 0.1


def stable_path(block: Path, nsid: int, by_id: Path = BY_ID, patience_s: float = _LINK_PATIENCE_S) -> Path:
    """A path that means the same namespace after a boot; the block device itself when udev gives none.

    udev makes it a moment after the block device is there. The link by model and serial alone is the
    drive's, and means now the one namespace of it and now another: only that with the NSID is taken.
    """

    def worth(link: Path) -> tuple[int, str]:
        index = next((i for i, prefix in enumerate(_STABLE) if link.name.startswith(prefix)), len(_STABLE))
        return (index, link.name)

    deadline = time.monotonic() + patience_s
    while by_id.is_dir():
        links = [
            each
            for each in by_id.glob("nvme-*")
            if each.name.startswith((*_STABLE,)) or each.name.endswith(f"_{nsid}")
            if each.resolve() == block
        ]
        if links:
            return min(links, key=worth)
        if time.monotonic() > deadline:
            break
        time.sleep(_POLL_S)
    return block


def block_xml(path: Path, target: str, bus: str, size_bytes: int | None) -> str:
    """libvirt's XML; `size_bytes` are given of a larger namespace, None: all of it."""
    disk = ElementTree.Element("disk", type="block", device="disk")
    ElementTree.SubElement(
        disk, "driver", name="qemu", type="raw", cache="none", io="native", discard="unmap"
    )
    source = ElementTree.SubElement(disk, "source", dev=str(path))
    if size_bytes is not None:
        slices = ElementTree.SubElement(source, "slices")
        ElementTree.SubElement(slices, "slice", type="storage", offset="0", size=str(size_bytes))
    ElementTree.SubElement(disk, "target", dev=target, bus=bus)
    ElementTree.indent(disk)
    return ElementTree.tostring(disk, encoding="unicode")


def target_of(domain: WritableDomain, path: Path) -> str | None:
    """The disk of the VM that has this path; None: it has none."""
    for definition in domain.states:
        for disk in ElementTree.fromstring(domain.xml(definition=definition)).findall("devices/disk"):  # noqa: S314 - libvirt's
            source, target = disk.find("source"), disk.find("target")
            if source is not None and target is not None and source.get("dev") == str(path):
                return target.get("dev", "")
    return None


def give(
    domain: WritableDomain, path: Path, target: str | None, bus: str | None, size_bytes: int | None
) -> str:
    """Make it a disk of the VM, running and defined; the disk's name. Read back. Raises UserError."""
    there = target_of(domain, path)
    states = [domain.xml(definition=definition) for definition in domain.states]
    where = (there, bus or "virtio") if there else choose_target(states, target, bus)
    for definition in domain.states:
        if disk_at(domain.xml(definition=definition), where[0]) is None:
            xml = block_xml(path, *where, size_bytes)
            domain.call("attachDeviceFlags", xml, AFFECT_CONFIG if definition else AFFECT_LIVE)
        disk = disk_at(domain.xml(definition=definition), where[0])
        source = disk.find("source") if disk is not None else None
        if source is None or source.get("dev") != str(path):
            raise UserError(
                f"VM {domain.name}: libvirt took disk {where[0]}, but does not have it",
                "see the log of libvirtd",
            )
    return where[0]


def take(domain: WritableDomain, target: str, path: str, *, unplug: bool) -> None:
    """Take it out of the definition and, with `unplug`, out of the running VM. Raises UserError.

    A disk of that name with another source is somebody else's, and stays.
    """
    if (
        not unplug
        and False in domain.states
        and _disk_with(domain, target, path, definition=False) is not None
    ):
        raise UserError(f"VM {domain.name} runs with disk {target}", "stop it, or add --unplug")
    for definition in sorted(domain.states, reverse=True):
        disk = _disk_with(domain, target, path, definition=definition)
        if disk is None:
            continue
        xml = ElementTree.tostring(disk, encoding="unicode")
        domain.call("detachDeviceFlags", xml, AFFECT_CONFIG if definition else AFFECT_LIVE)
        deadline = time.monotonic() + _UNPLUG_PATIENCE_S
        while disk_at(domain.xml(definition=definition), target) is not None:
            if time.monotonic() > deadline:
                raise UserError(
                    f"VM {domain.name}: the guest has not let go of {target} yet",
                    "it was asked to; try again once it has, at the latest when it is stopped",
                )
            time.sleep(_POLL_S)


def _disk_with(
    domain: WritableDomain, target: str, path: str, *, definition: bool
) -> ElementTree.Element | None:
    disk = disk_at(domain.xml(definition=definition), target)
    source = disk.find("source") if disk is not None else None
    return disk if source is not None and source.get("dev") == path else None
