"""The Debian package of this tree in a guest: built, installed, and brought back to as it was installed."""

from __future__ import annotations

import subprocess
from pathlib import Path

from .machine import Guest
from .recipe import TREE

_BUILD_S = 1800.0
_INSTALL_S = 1800.0
"""Unpacking 140 MB and compiling Python under emulation."""
_DAEMON_S = 900.0
# Its own limit is 90 s, which the daemon took to start in a guest on a busy machine (load 17).
_SLOW_SYSTEMD = """
mkdir -p /etc/systemd/system.conf.d
printf '[Manager]\\nDefaultTimeoutStartSec=10min\\n' >/etc/systemd/system.conf.d/emulated.conf
systemctl daemon-reexec
"""
_RESET = """
systemctl stop slo-ctld 'slo-ctl-*' 'machine-qemu*.scope'
for vm in $(virsh list --all --name); do virsh destroy $vm; virsh undefine $vm; done >/dev/null 2>&1
systemctl reset-failed
rm -rf /etc/slo-ctl /var/lib/slo-ctl/* /run/systemd/system/slo-ctl* /run/slo-ctl/*
cp -a /root/etc-slo-ctl /etc/slo-ctl
systemctl daemon-reload
systemd-tmpfiles --create slo-ctl.conf
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


def install(guest: Guest, package: Path) -> None:
    """By apt, which has no network to get anything else from; the daemon that this starts is up.

    Raises CommandError.
    """
    guest.run(_SLOW_SYSTEMD)
    guest.put(package, "/root/")
    command = (
        f"DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends /root/{package.name}"
    )
    # Into a file: the daemon that it starts must not hold the connection.
    guest.run(f"{command} >/root/install.log 2>&1 || (cat /root/install.log; false)", timeout_s=_INSTALL_S)
    guest.run(f"rm /root/{package.name} && cp -a /etc/slo-ctl /root/etc-slo-ctl")
    guest.run("until systemctl is-active -q slo-ctld; do sleep 0.5; done", timeout_s=_DAEMON_S)


def reset(guest: Guest) -> None:
    """Configuration and state as installed; no unit, no scope of a VM and no VM runs.

    Raises CommandError.
    """
    guest.run(_RESET, timeout_s=_DAEMON_S)
