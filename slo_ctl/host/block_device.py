"""Which block device of the host is charged for I/O on a path."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from slo_ctl.base.kernel_files import read_bounded
from slo_ctl.model import DeviceNumber


def device_behind(path: str, sys: Path) -> DeviceNumber | None:
    """The whole device behind a block device or a file; None when it is on none (network, overlay, tmpfs).

    Raises OSError when the path cannot be looked at.
    """
    status = Path(path).stat()
    number = status.st_rdev if stat.S_ISBLK(status.st_mode) else status.st_dev
    return whole_device(DeviceNumber(os.major(number), os.minor(number)), sys)


def whole_device(device: DeviceNumber, sys: Path) -> DeviceNumber | None:
    """The disk of a partition, a disk itself; None for numbers that are no block device's.

    cgroups account I/O by whole devices.
    """
    if device.major == 0:
        # Anonymous: the file system has no device of its own to be charged.
        return None
    link = sys / "dev" / "block" / str(device)
    if not (link / "partition").exists():
        return device
    file = read_bounded(link.resolve().parent / "dev")
    major, _, minor = (file.text if file else "").strip().partition(":")
    return DeviceNumber(int(major), int(minor)) if major.isdigit() and minor.isdigit() else device


def is_held(path: Path) -> bool:
    """Whether the kernel lent the device to a mount, swap, RAID or the like. Raises OSError otherwise."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_EXCL | os.O_CLOEXEC))
    except OSError as error:
        if error.errno == errno.EBUSY:
            return True
        raise
    return False
