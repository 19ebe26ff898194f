"""The guest with the Debian package of this tree installed, as an image that other guests start from."""

from __future__ import annotations

import hashlib
import subprocess
import time
from typing import TYPE_CHECKING

from .machine import Guest, Machine
from .recipe import TREE

if TYPE_CHECKING:
    from pathlib import Path

    from .build import Parts

_BUILD_S = 900.0
_INSTALL_S = 900.0
"""Unpacking 140 MB and compiling Python under emulation."""
_KEPT_S = 3600.0
"""Another run may use the image of another package meanwhile."""
# Its own limit is 90 s, which the daemon took to start in a guest on a busy machine (load 17).
_PATIENT_SYSTEMD = """
mkdir -p /etc/systemd/system.conf.d
printf '[Manager]\\nDefaultTimeoutStartSec=10min\\n' >/etc/systemd/system.conf.d/emulated.conf
systemctl daemon-reexec
"""


class CannotPackageError(Exception):
    """There is no package, and why."""


def built_package(folder: Path) -> Path:
    """The package as `make deb` makes it; built if `folder` is not there yet. Raises CannotPackageError."""
    if found := sorted(folder.glob("slo-ctl_*.deb")):
        return found[0]
    folder.mkdir(exist_ok=True)
    # build/env.sh is what make runs commands under.
    command = f". build/env.sh && DEB_DIR='{folder}' scripts/deb.sh"
    try:
        done = subprocess.run(
            ["bash", "-c", command], cwd=TREE, capture_output=True, text=True, check=False, timeout=_BUILD_S
        )
    except subprocess.TimeoutExpired as error:
        raise CannotPackageError(f"scripts/deb.sh took more than {_BUILD_S:.0f} s") from error
    if done.returncode:
        raise CannotPackageError(f"scripts/deb.sh: {done.stderr[-500:]}")
    return next(folder.glob("slo-ctl_*.deb"))


def installed_image(parts: Parts, package: Path, logs: Path) -> Path:
    """An image with the package installed by apt, which had no network to get anything else from.

    Made once for each package, beside the guest it belongs to. Raises GuestError, CommandError.
    """
    image = parts.folder / f"with-package-{hashlib.sha256(package.read_bytes()).hexdigest()[:16]}.qcow2"
    if image.exists():
        return image
    for each in parts.folder.glob("with-package-*"):
        if time.time() - each.stat().st_mtime > _KEPT_S:
            each.unlink()
    guest = Guest(parts, Machine(), logs)
    try:
        guest.start()
        guest.run(_PATIENT_SYSTEMD)
        guest.put(package, "/root/")
        install = (
            f"DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends /root/{package.name}"
        )
        # Into a file: the daemon that it starts must not hold the connection.
        guest.run(
            f"{install} >/root/install.log 2>&1 || (cat /root/install.log; false)", timeout_s=_INSTALL_S
        )
        guest.run(f"rm /root/{package.name}")
        guest.power_off(keep_disk_as=image)
    finally:
        guest.close()
    return image
