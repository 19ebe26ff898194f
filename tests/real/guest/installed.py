"""The Debian package of this tree in a guest: installation, and reset to the state after installation."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

from .build import Parts, locked
from .machine import Guest

_INSTALL = Path(__file__).parent / "install.sh"
_BUILD_S = 1800.0
_INSTALL_S = 1800.0
"""For unpacking 140 MB and compiling Python under emulation."""
_DAEMON_S = 900.0
STOP_DAEMON = "systemctl stop slo-ctld"
"""A daemon that is only about to start need not import all of its modules."""
_RESET = """
systemctl stop slo-ctld 'slo-ctl-*' 'machine-qemu*.scope'
ls /etc/libvirt/qemu/*.xml /run/libvirt/qemu/*.xml >/dev/null 2>&1 &&
    for vm in $(virsh list --all --name); do virsh destroy $vm; virsh undefine $vm; done >/dev/null 2>&1
systemctl reset-failed
rm -rf /etc/slo-ctl /var/lib/slo-ctl/* /run/systemd/system/slo-ctl* /run/slo-ctl/*
cp -a /root/etc-slo-ctl /etc/slo-ctl
systemctl daemon-reload
systemd-tmpfiles --create slo-ctl.conf
"""


def image_with_package(parts: Parts, package: Path) -> Path | None:
    """The guest's root image with the package, installed without booting a guest; built if it does not exist.

    None if this process may not mount it.
    """
    if os.geteuid() != 0:
        return None
    content = hashlib.sha256(package.read_bytes() + _INSTALL.read_bytes()).hexdigest()[:16]
    image = parts.folder / f"installed-{content}.img"
    with locked(parts.folder / "installed.lock"):
        if not image.exists() and not _install_in(parts, package, image):
            return None
        for other in parts.folder.glob("installed-*.img"):
            if other != image:
                other.unlink()
    return image


def _install_in(parts: Parts, package: Path, image: Path) -> bool:
    """Whether the installation succeeded; its output is in `installed.log`."""
    partial = image.with_suffix(".partial")
    own = ("unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--net")
    with (parts.folder / "installed.log").open("wb") as log:
        for command in (
            ("cp", "--sparse=always", "--reflink=auto", str(parts.root_image), str(partial)),
            (*own, "sh", str(_INSTALL), str(partial), str(package)),
        ):
            try:
                subprocess.run(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=True, timeout=_BUILD_S
                )
            except (OSError, subprocess.SubprocessError):
                partial.unlink(missing_ok=True)
                return False
    partial.rename(image)
    return True


def install(guest: Guest, package: Path) -> None:
    """Install with apt, which has no network to download other packages; no daemon runs afterwards.

    Raises CommandError.
    """
    guest.put(package, "/root/")
    command = (
        f"DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends /root/{package.name}"
    )
    # Output goes to a file: the daemon that is started would keep the connection open.
    guest.run(f"{command} >/root/install.log 2>&1 || (cat /root/install.log; false)", timeout_s=_INSTALL_S)
    guest.run(f"rm /root/{package.name} && cp -a /etc/slo-ctl /root/etc-slo-ctl")
    guest.run(STOP_DAEMON, timeout_s=_DAEMON_S)


def properties(guest: Guest, *names: str) -> dict[str, str]:
    """Properties of the daemon's unit from systemd."""
    shown = guest.run(f"systemctl show slo-ctld {' '.join(f'-p {name}' for name in names)}").stdout
    return dict(line.split("=", 1) for line in shown.splitlines())


def reset(guest: Guest) -> None:
    """Reset configuration and state to those after installation; stop all units, scopes of VMs and VMs.

    Raises CommandError.
    """
    guest.run(_RESET, timeout_s=_DAEMON_S)
