"""Which NVMe drive a path means as a whole, and which drive a block device is a namespace of: by /sys."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from slo_ctl.observe import nvme_sysfs

if TYPE_CHECKING:
    from slo_ctl.model import DeviceNumber

MAX_NAMESPACES = 1024
"""Of one drive, that are managed."""


def controller_at(path: str, sys: Path) -> str | None:
    """The controller, such as `nvme0`, whose character device a path or link leads to; else None."""
    try:
        status = Path(path).stat()
    except OSError:
        return None
    if not stat.S_ISCHR(status.st_mode):
        return None
    number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
    known = nvme_sysfs.controllers(sys)
    return next((name for name in known if nvme_sysfs.attribute(sys, name, "dev") == number), None)


def namespaces(sys: Path, controller: str) -> list[nvme_sysfs.Block]:
    """Block devices of the namespaces that a controller has now, by NSID where it is known.

    Heads of multipath stand for their paths.
    """
    found = {block.name: block for block in nvme_sysfs.blocks(sys, controller)}
    ordered = sorted(found.values(), key=lambda block: (block.nsid is None, block.nsid or 0, block.name))
    return ordered[:MAX_NAMESPACES]


def drive_of(number: DeviceNumber, sys: Path) -> str | None:
    """What all namespaces of one NVMe subsystem have in common; None for a device that is no namespace.

    It is the NQN of the subsystem, or the controller's name on a kernel that does not tell it.
    """
    block = (sys / "dev" / "block" / str(number)).resolve().name
    controllers = nvme_sysfs.controllers_of(sys, block)
    if not controllers:
        return None
    return nvme_sysfs.attribute(sys, controllers[0], "subsysnqn") or controllers[0]
