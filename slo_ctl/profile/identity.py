"""Identity of a profiled device, its kernel and scheduler, which decide whether a profile is stale."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator

from slo_ctl.base.errors import UserError
from slo_ctl.base.json_store import StrictModel
from slo_ctl.base.kernel_files import read_text
from slo_ctl.base.text import printable
from slo_ctl.decide.scheduler import DeviceFacts
from slo_ctl.drives.places import ExportPaths, Places
from slo_ctl.drives.record import DeviceRecord, SsdRecord
from slo_ctl.drives.store import DeviceStore
from slo_ctl.host.block_device import device_number, hardware_queues, rotates, schedulers, whole_device
from slo_ctl.model.host import DeviceNumber, parse_device_number
from slo_ctl.profile.target import Kind, Target, parse_uri

# Facts about a block device from /sys, for the choice of its scheduler. Read-only.

_GUEST_DRIVERS = ("virtio_blk", "xen-blkfront", "vbd")


def named_device(device: str, sys: Path) -> DeviceNumber:
    """Number of the whole device of `sda`, `/dev/sda1` or the like. Raises UserError."""
    name = device.removeprefix("/dev/")
    folders = (sys / "class" / "block", sys / "block") if name and "/" not in name else ()
    texts = (read_text(folder / name / "dev").strip() for folder in folders)
    number = next(filter(None, map(parse_device_number, texts)), None)
    if number is None:
        path = Path(device)
        if not path.is_block_device():
            raise UserError(
                f"block device {device or '(empty string)'} not found",
                "write sda or /dev/sda, see `lsblk`",
            )
        number = device_number(path.stat().st_rdev)
    return whole_device(number, sys) or number


def block_facts(number: DeviceNumber, sources: IdentitySources, io_cost: bool) -> DeviceFacts:
    """Facts about a device; `io_cost`: whether the host's cgroups have io.cost."""
    node = (sources.sys / "dev" / "block" / str(number)).resolve()
    active, offered = schedulers(node)
    driver = node / "device" / "driver"
    return DeviceFacts(
        name=node.name,
        number=str(number),
        rotational=rotates(node),
        hardware_queues=hardware_queues(node),
        offered=offered,
        current=active,
        io_cost=io_cost,
        in_guest=driver.exists() and driver.resolve().name in _GUEST_DRIVERS,
    )


def has_io_cost(cgroup_root: Path) -> bool:
    """Whether the host has cgroup v2 with io.cost."""
    return (cgroup_root / "io.cost.qos").exists()


_KEY_CHARACTERS = 12
BLOCK_DEVICE = "block device"
"""`Identity.place` of a device itself, as opposed to a file on it."""


PrintableText = Annotated[str, AfterValidator(printable)]
"""Text of the host, such as a path, with escapes for what JSON cannot have: bytes that are not UTF-8."""


class Identity(StrictModel):
    """A device, the measured place on it, the kernel and the scheduler."""

    model: PrintableText
    serial: PrintableText
    firmware: PrintableText
    place: PrintableText
    """`block device`; type of the file system for a file; namespace and options of an emulated SSD."""
    kernel: str
    scheduler: str
    """I/O scheduler; empty if there is none."""
    device: str = ""
    """Kernel name, which may change with a reboot."""
    rotational: bool | None = None
    hardware_queues: int | None = None

    @property
    def hardware_key(self) -> str:
        """Hash of the device and the place."""
        return _key(self.model, self.serial, self.firmware, self.place)

    @property
    def environment_key(self) -> str:
        """Hash of everything else that measured times depend on."""
        return _key(self.kernel, self.scheduler)

    def stale_against(self, now: Identity) -> str:
        """Why times measured under this identity are not valid for `now`; empty if they are."""
        changes = [
            f"{name} was {before or 'none'}, is {after or 'none'}"
            for name, before, after in (
                ("kernel", self.kernel, now.kernel),
                ("scheduler", self.scheduler, now.scheduler),
            )
            if before != after
        ]
        return f"stale: {'; '.join(changes)}" if changes else ""


@dataclass(frozen=True, slots=True)
class IdentitySources:
    """Directories and files that identities are read from."""

    places: Places
    """Paths of emulated devices."""
    sys: Path = Path("/sys")
    mountinfo: Path = Path("/proc/self/mountinfo")
    kernel: str = field(default_factory=platform.release)


def identify(target: Target, sources: IdentitySources) -> Identity:
    """The identity of a target. Raises OSError when it cannot be read."""
    if target.kind is Kind.NBD:
        return _export(target, sources)
    if target.path is None:
        raise ValueError("only an NBD export has no path")
    if target.kind is Kind.BLOCK:
        return block_identity(device_number(target.path.stat().st_rdev), BLOCK_DEVICE, sources)
    return _on_file_system(target.path.parent, sources)


def block_identity(number: DeviceNumber, place: str, sources: IdentitySources) -> Identity:
    """The identity of a place on a block device."""
    whole = whole_device(number, sources.sys) or number
    node = (sources.sys / "dev" / "block" / str(whole)).resolve()
    model = _first(node, "device/model", "dm/name", "md/level") or node.name
    serial = _first(node, "device/serial", "serial", "wwid", "device/wwid", "dm/uuid", "md/uuid")
    backing = _first(node, "loop/backing_file")
    return Identity(
        model=model if not backing else "loop",
        serial=serial or backing,
        firmware=_first(node, "device/firmware_rev", "device/rev"),
        place=place if whole == number else f"{place} (partition {number})",
        kernel=sources.kernel,
        scheduler=schedulers(node)[0],
        device=node.name,
        rotational=rotates(node),
        hardware_queues=hardware_queues(node),
    )


def _on_file_system(folder: Path, sources: IdentitySources) -> Identity:
    number = device_number(folder.stat().st_dev)
    kind, source = _mount(number, folder, sources)
    place = f"file on {kind}"
    if number.major:
        return block_identity(number, place, sources)
    # Some file systems (btrfs) have anonymous device numbers although they are on a device.
    if source.startswith("/dev/") and Path(source).is_block_device():
        return block_identity(device_number(Path(source).stat().st_rdev), place, sources)
    return Identity(
        model=f"{kind} without a device",
        serial=source,
        firmware="",
        place=place,
        kernel=sources.kernel,
        scheduler="",
    )


def _mount(number: DeviceNumber, folder: Path, sources: IdentitySources) -> tuple[str, str]:
    """Type and source of the file system that `folder` is on."""
    best, found = -1, ("unknown", "")
    for line in read_text(sources.mountinfo).splitlines():
        before, dash, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if not dash or len(fields) < 5 or len(kind) < 2:
            continue
        point = fields[4].replace("\\040", " ")
        if fields[2] == str(number) and folder.resolve().is_relative_to(point) and len(point) > best:
            best, found = len(point), (kind[0], kind[1])
    return found


def _export(target: Target, sources: IdentitySources) -> Identity:
    address = parse_uri(target.given)
    exports = ExportPaths(sources.places.run)
    tenant = exports.tenant_of(os.fsencode(address.socket), address.export) if address.socket else None
    if tenant is not None:
        with suppress(UserError):  # its device is damaged, or was deleted
            record = DeviceStore(sources.places).load(tenant.device)
            if tenant.namespace in [namespace.name for namespace in record.namespace]:
                return emulated_identity(record, tenant.namespace, sources)
    where = address.socket or urlsplit(target.given).netloc
    return Identity(
        model="NBD export",
        serial=f"{where}/{address.export}",
        firmware="",
        place="NBD export",
        kernel=sources.kernel,
        scheduler="",
    )


def emulated_identity(record: DeviceRecord, namespace: str, sources: IdentitySources) -> Identity:
    """The identity of a namespace of an emulated device."""
    ssd = record if isinstance(record, SsdRecord) else None
    shape = _key(record.model_dump_json(exclude={"name", "created", "namespace"}))
    return Identity(
        model=f"EMULATED {'SSD' if ssd else 'disk'} {record.name}",
        serial=f"{record.created} {shape}",
        firmware="",
        place=f"namespace {namespace}: {record.spec}",
        kernel=sources.kernel,
        scheduler=record.scheduler,
        device=record.name,
        rotational=ssd is None,
        hardware_queues=ssd.drive.dies if ssd else 1,
    )


def _first(node: Path, *names: str) -> str:
    """Content of the first of these files that is not empty; serial numbers may be readable by root only."""
    return next(filter(None, (" ".join(read_text(node / name).split()) for name in names)), "")


def _key(*parts: str) -> str:
    return sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:_KEY_CHARACTERS]
