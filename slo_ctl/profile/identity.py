"""Which device a profile is of, and under which kernel and scheduler: what makes it valid, or stale."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict

from slo_ctl.base.errors import UserError
from slo_ctl.base.kernel_files import read_bounded
from slo_ctl.decide.scheduler import DeviceFacts
from slo_ctl.drives.places import Places
from slo_ctl.drives.record import DeviceRecord, SsdRecord
from slo_ctl.host.block_device import whole_device
from slo_ctl.model import DeviceNumber
from slo_ctl.profile.target import Kind, Target, parse_uri

# What /sys says about a block device, as the choice of its scheduler needs it. Changes nothing.

_GUEST_DRIVERS = ("virtio_blk", "xen-blkfront", "vbd")


def device_number(given: str, sys: Path) -> DeviceNumber:
    """The whole device that `sda`, `/dev/sda1` or the like names. Raises UserError when there is none."""
    name = given.removeprefix("/dev/")
    numbers = read_bounded(sys / "class" / "block" / name / "dev") if "/" not in name and name else None
    if numbers is None:
        numbers = read_bounded(sys / "block" / name / "dev") if "/" not in name and name else None
    if numbers is not None:
        major, _, minor = numbers.text.strip().partition(":")
        number = DeviceNumber(int(major), int(minor))
    else:
        path = Path(given)
        if not path.is_block_device():
            raise UserError(
                f"{given or 'an empty text'}: no such block device", "lsblk lists them; write sda or /dev/sda"
            )
        status = path.stat()
        number = DeviceNumber(os.major(status.st_rdev), os.minor(status.st_rdev))
    return whole_device(number, sys) or number


def block_facts(number: DeviceNumber, around: IdentitySources, io_cost: bool) -> DeviceFacts:
    """Facts about a device. `io_cost`: the host's cgroups have it."""
    node = (around.sys / "dev" / "block" / str(number)).resolve()
    words = _text(node / "queue" / "scheduler").split()
    queues = node / "mq"
    driver = node / "device" / "driver"
    return DeviceFacts(
        name=node.name,
        number=str(number),
        rotational={"0": False, "1": True}.get(_text(node / "queue" / "rotational")),
        hardware_queues=sum(1 for _ in queues.iterdir()) if queues.is_dir() else None,
        offered=tuple(word.strip("[]") for word in words),
        current=next((word[1:-1] for word in words if word.startswith("[")), ""),
        io_cost=io_cost,
        in_guest=driver.exists() and driver.resolve().name in _GUEST_DRIVERS,
    )


def has_io_cost(cgroup_root: Path) -> bool:
    """Whether cgroup v2 with io.cost is there."""
    return (cgroup_root / "io.cost.qos").exists()


def _text(path: Path) -> str:
    try:
        file = read_bounded(path)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}", "run as root") from None
    return file.text.strip() if file else ""


_KEY_CHARACTERS = 12
BLOCK_DEVICE = "block device"
"""The place of a profile of a device itself, not of a file on it."""


class Identity(BaseModel):
    """A device, the place on it, and what is between it and those who use it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str
    serial: str
    firmware: str
    place: str
    """`block device`; for a file the file system's type; for an emulated SSD its namespace and options."""
    kernel: str
    scheduler: str
    """Empty: the place has none."""
    device: str = ""
    """The kernel's name for it, which may change from one boot to the next."""
    rotational: bool | None = None
    hardware_queues: int | None = None

    @property
    def hardware_key(self) -> str:
        """The same as long as it is the same device."""
        return _key(self.model, self.serial, self.firmware, self.place)

    @property
    def environment_key(self) -> str:
        """The same as long as times are comparable."""
        return _key(self.kernel, self.scheduler)

    def stale_against(self, now: Identity) -> str:
        """Why times measured under this identity do not hold for `now`; empty when they do."""
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
    """Where to look; tests make it up."""

    places: Places
    """Of emulated devices."""
    sys: Path = Path("/sys")
    mountinfo: Path = Path("/proc/self/mountinfo")
    kernel: str = field(default_factory=platform.release)


def identify(target: Target, around: IdentitySources) -> Identity:
    """The identity of a target. Raises OSError when it cannot be looked at."""
    if target.kind is Kind.NBD:
        return _export(target, around)
    if target.path is None:
        raise ValueError("only an NBD export has no path")
    if target.kind is Kind.BLOCK:
        number = target.path.stat().st_rdev
        return block_identity(DeviceNumber(os.major(number), os.minor(number)), BLOCK_DEVICE, around)
    return _on_file_system(target.path.parent, around)


def block_identity(number: DeviceNumber, place: str, around: IdentitySources) -> Identity:
    """The identity of a place on a block device."""
    whole = whole_device(number, around.sys) or number
    node = (around.sys / "dev" / "block" / str(whole)).resolve()
    model = _first(node, "device/model", "dm/name", "md/level") or node.name
    serial = _first(node, "device/serial", "serial", "wwid", "device/wwid", "dm/uuid", "md/uuid")
    backing = _first(node, "loop/backing_file")
    schedulers = _first(node, "queue/scheduler").split()
    queues = node / "mq"
    return Identity(
        model=model if not backing else "loop",
        serial=serial or backing,
        firmware=_first(node, "device/firmware_rev", "device/rev"),
        place=place if whole == number else f"{place} (partition {number})",
        kernel=around.kernel,
        scheduler=next((word[1:-1] for word in schedulers if word.startswith("[")), ""),
        device=node.name,
        rotational={"0": False, "1": True}.get(_first(node, "queue/rotational")),
        hardware_queues=sum(1 for _ in queues.iterdir()) if queues.is_dir() else None,
    )


def _on_file_system(folder: Path, around: IdentitySources) -> Identity:
    number = folder.stat().st_dev
    kind, source = _mount(DeviceNumber(os.major(number), os.minor(number)), folder, around)
    place = f"file on {kind}"
    if os.major(number):
        return block_identity(DeviceNumber(os.major(number), os.minor(number)), place, around)
    # Some file systems (btrfs) have numbers of their own, and a device all the same.
    if source.startswith("/dev/") and Path(source).is_block_device():
        device = Path(source).stat().st_rdev
        return block_identity(DeviceNumber(os.major(device), os.minor(device)), place, around)
    return Identity(
        model=f"{kind} without a device",
        serial=source,
        firmware="",
        place=place,
        kernel=around.kernel,
        scheduler="",
    )


def _mount(number: DeviceNumber, folder: Path, around: IdentitySources) -> tuple[str, str]:
    """Type and source of the file system that `folder` is on."""
    file = read_bounded(around.mountinfo)
    best, found = -1, ("unknown", "")
    for line in (file.text if file else "").splitlines():
        before, dash, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if not dash or len(fields) < 5 or len(kind) < 2:
            continue
        point = fields[4].replace("\\040", " ")
        if fields[2] == str(number) and folder.resolve().is_relative_to(point) and len(point) > best:
            best, found = len(point), (kind[0], kind[1])
    return found


def _export(target: Target, around: IdentitySources) -> Identity:
    address = parse_uri(target.given)
    served = _emulated(address.socket, around)
    if served is not None:
        return served
    where = address.socket or urlsplit(target.given).netloc
    return Identity(
        model="NBD export",
        serial=f"{where}/{address.export}",
        firmware="",
        place="NBD export",
        kernel=around.kernel,
        scheduler="",
    )


def _emulated(socket: str | None, around: IdentitySources) -> Identity | None:
    """The emulated SSD of ours that listens there."""
    from slo_ctl.drives.store import DeviceStore

    store = DeviceStore(around.places)
    for name in store.names() if socket is not None else ():
        try:
            record = store.load(name)
        except UserError:
            continue  # Damaged: it does not identify the server.
        run = around.places.run_of(name)
        for namespace in record.namespace:
            if socket in (str(run.export(namespace.name)), str(run.all_exports)):
                return emulated_identity(record, namespace.name, around)
    return None


def emulated_identity(record: DeviceRecord, namespace: str, around: IdentitySources) -> Identity:
    """The identity of a namespace of an emulated device."""
    ssd = record if isinstance(record, SsdRecord) else None
    shape = _key(record.model_dump_json(exclude={"name", "created", "namespace"}))
    return Identity(
        model=f"EMULATED {'SSD' if ssd else 'disk'} {record.name}",
        serial=f"{record.created} {shape}",
        firmware="",
        place=f"namespace {namespace}: {record.spec}",
        kernel=around.kernel,
        scheduler=record.scheduler,
        device=record.name,
        rotational=ssd is None,
        hardware_queues=ssd.drive.dies if ssd else 1,
    )


def _first(node: Path, *names: str) -> str:
    """Content of the first of these files that has any."""
    for name in names:
        try:
            file = read_bounded(node / name)
        except OSError:
            continue  # Not every kernel lets everybody read serial numbers.
        text = " ".join(file.text.split()) if file else ""
        if text:
            return text
    return ""


def _key(*parts: str) -> str:
    return sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:_KEY_CHARACTERS]
