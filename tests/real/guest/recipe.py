"""The contents of the guest, and a key that changes with them."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

HERE = Path(__file__).parent
TREE = HERE.parents[2]
CUSTOMIZE = HERE / "customize.sh"
INIT = HERE / "init"

SUITE = "trixie"
"""Debian 13: QEMU 10 (older ones hang with this kernel under emulation), Linux 6.12, nvme-cli 2.13."""

_FORMAT = 1
"""Increment if `build.py` makes something else from the same packages."""

_BOOTS = (
    "busybox-static",
    "dbus",
    "iproute2",
    "kmod",
    "linux-image-cloud-amd64",
    "openssh-server",
    "systemd-sysv",
    "udev",
)
_BUILDS_AND_RUNS_ITSELF = (
    "e2fsprogs",
    "libarchive13t64",  # mke2fs reads archives with it
    "qemu-system-x86",
    "qemu-utils",
)
_TESTED_WITH = (
    "cgroup-tools",
    "fio",
    "libvirt-clients",
    "libvirt-daemon-system",
    "nbd-client",
    "nbdkit",
    "nvme-cli",
    "polkitd",
    "procps",
    "python3",
    "python3-libvirt",
    "systemd-container",  # with its machined, libvirt puts VMs under machine.slice
    "util-linux",
)


def packages(tree: Path = TREE) -> list[str]:
    """Debian packages in the guest, sorted: our own list, and the dependencies of our package."""
    return sorted(
        {*_BOOTS, *_BUILDS_AND_RUNS_ITSELF, *_TESTED_WITH, *package_depends(tree / "debian/control")}
    )


def package_depends(control: Path) -> list[str]:
    """Names of the dependencies of the binary packages in a `debian/control`; of alternatives the first.

    A missing file has no dependencies. Substitutions (`${misc:Depends}`) are left out: they are known only
    when the package is built, and stand for libc and Python, which are installed.
    """
    if not control.exists():
        return []
    text = re.sub(r"^#.*\n", "", control.read_text(), flags=re.MULTILINE)
    names = []
    for field in re.findall(
        r"^(?:Pre-)?Depends:(.*(?:\n[ \t].*)*)", text, flags=re.MULTILINE | re.IGNORECASE
    ):
        for each in field.split(","):
            name = re.match(r"\s*([a-z0-9][a-z0-9+.-]*)", each)
            if name:
                names.append(name[1])
    own = set(re.findall(r"^Package:\s*(\S+)", text, flags=re.MULTILINE))
    return sorted(set(names) - own)


def key(tree: Path = TREE) -> str:
    """Unchanged as long as the guest would be the same, except for newer versions of packages."""
    parts = [str(_FORMAT), SUITE, *packages(tree), CUSTOMIZE.read_text(), INIT.read_text()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
