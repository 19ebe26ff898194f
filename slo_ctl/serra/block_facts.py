"""What /sys says about a block device, as the choice of its scheduler needs it. Changes nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from slo_ctl.decide.scheduler_choice import DeviceFacts
from slo_ctl.errors import UserError
from slo_ctl.model import DeviceNumber
from slo_ctl.observe.block_device import whole_device
from slo_ctl.observe.bounded_file import read_bounded

if TYPE_CHECKING:
    from slo_ctl.serra.identity import Surroundings

_GUEST_DRIVERS = ("virtio_blk", "xen-blkfront", "vbd")


def device_number(given: str, sys: Path) -> DeviceNumber:
    """The whole device that `sda`, `/dev/sda1` or the like names. Raises UserError when there is none."""
    name = given.removeprefix("/dev/")
    told = read_bounded(sys / "class" / "block" / name / "dev") if "/" not in name and name else None
    if told is None:
        told = read_bounded(sys / "block" / name / "dev") if "/" not in name and name else None
    if told is not None:
        major, _, minor = told.text.strip().partition(":")
        number = DeviceNumber(int(major), int(minor))
    else:
        path = Path(given)
        if not path.is_block_device():
            raise UserError(
                f"{given}: there is no such block device", "lsblk lists them; write sda or /dev/sda"
            )
        status = path.stat()
        number = DeviceNumber(os.major(status.st_rdev), os.minor(status.st_rdev))
    return whole_device(number, sys) or number


def block_facts(number: DeviceNumber, around: Surroundings, io_cost: bool) -> DeviceFacts:
    """What is known of a device. `io_cost`: the host's cgroups have it."""
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
