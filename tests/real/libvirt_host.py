"""A private libvirtd that can be killed, stopped and started without affecting the one of the host.

Its state is in its own mount namespace, so that several can run at once. Use:

    from libvirt_host import LibvirtHost, libvirt_host  # noqa: F401 - a fixture, one libvirtd for the module
    def test_it(libvirt_host: LibvirtHost) -> None:
        domain = libvirt_host.start_domain("name")  # destroyed by the fixture

QEMU's user can access `libvirt_host.folder`. `libvirt_host.uri` is the value for `--connect` and for the
configuration.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from slo_ctl.host.cgroup import DEFAULT_ROOT

START_S = 300.0
_POLL_S = 0.05
_OWN_FOLDERS = ("/run/libvirt", "/var/lib/libvirt", "/etc/libvirt", "/var/cache/libvirt", "/var/log/libvirt")
LIMITED_VM = """
[daemon]
epoch = "250ms"
[libvirt]
uri = "{uri}"
[[device]]
name = "fast"
path = "{path}"
[vm.{name}]
max_iops = {maximum}
"""
"""Configuration of a daemon that limits a VM on one device."""
_PROGRAMS = ("libvirtd", "virtlogd", "qemu-system-x86_64", "unshare")


# Starts each command it reads (a JSON list per line) and prints its PID. It reaps all processes below it,
# including QEMU processes that libvirtd leaves to init: libvirtd waits 40 s for each zombie to be reaped.
_HOLDER = """
import ctypes, json, os, signal, sys

def reap(number, frame):
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return

if ctypes.CDLL(None).prctl(36, 1, 0, 0, 0):  # PR_SET_CHILD_SUBREAPER
    sys.exit("no subreaper")
signal.signal(signal.SIGCHLD, reap)
print("there", flush=True)
for line in sys.stdin:
    words = json.loads(line)
    print(os.posix_spawnp(words[0], words, os.environ, file_actions=[
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), (os.POSIX_SPAWN_DUP2, 2, 1)]), flush=True)
"""


class LibvirtHost:
    """A libvirtd whose VMs are emulated by QEMU."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.uri = f"qemu+unix:///system?socket={quote(str(folder / 'libvirt-sock'))}"
        # libvirt migrates no VM to a host of the same UUID.
        config = {"unix_sock_dir": folder, "auth_unix_rw": "none", "host_uuid": uuid.uuid4()}
        lines = [f'{key} = "{value}"\n' for key, value in config.items()]
        (folder / "libvirtd.conf").write_text("".join(lines))
        self._log = (folder / "log").open("ab")
        self._made: list[Any] = []
        self._virtlogd: int | None = None
        self.pid: int | None = None
        """PID of the libvirtd that runs now."""
        mounts = " && ".join(f"mkdir -p {each} && mount -t tmpfs none {each}" for each in _OWN_FOLDERS)
        # If root can use KVM but QEMU's user cannot, libvirt regards its cached capabilities of QEMU as old
        # and probes QEMU ten times for each VM. These tests do not use KVM.
        no_kvm = folder / "no-kvm"
        no_kvm.touch(mode=0)
        mounts += f" && if [ -e /dev/kvm ]; then mount --bind '{no_kvm}' /dev/kvm; fi"
        # libvirt cannot move that mount into the private /dev of a VM.
        mounts += " && echo 'namespaces = []' > /etc/libvirt/qemu.conf"
        # Closing its stdin ends the mount namespace and all processes.
        script = f'{mounts} && exec "$0" -c "$1"'
        unshare = ("unshare", "--mount", "--propagation", "private")
        self._holder = subprocess.Popen(
            [*unshare, "sh", "-c", script, sys.executable, _HOLDER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        if self._answer() != "there":
            self.close()
            pytest.skip(f"no mount namespace here: {self.log()}")
        self._virtlogd = self._inside("virtlogd", "-p", str(folder / "virtlogd.pid"))

    def _answer(self) -> str:
        assert self._holder.stdout is not None
        return self._holder.stdout.readline().strip()

    def _inside(self, *command: str) -> int:
        """Start a program in the namespace and return its PID."""
        assert self._holder.stdin is not None
        self._holder.stdin.write(json.dumps(command) + "\n")
        self._holder.stdin.flush()
        return int(self._answer())

    @property
    def etc(self) -> Path:
        """Its /etc/libvirt."""
        return Path(f"/proc/{self._holder.pid}/root/etc/libvirt")

    def log(self) -> str:
        """The end of libvirtd's log."""
        return (self.folder / "log").read_text(errors="replace")[-800:]

    def start(self) -> None:
        """Start libvirtd and wait until it answers; skip the test if it does not."""
        self.pid = self._inside(
            "libvirtd", "-f", str(self.folder / "libvirtd.conf"), "-p", str(self.folder / "libvirtd.pid")
        )
        deadline = time.monotonic() + START_S
        while not self.answers():
            if time.monotonic() > deadline or not runs(self.pid):
                pytest.skip(f"libvirtd does not start here: {self.log()}")
            time.sleep(_POLL_S)

    def answers(self) -> bool:
        """Whether a connection can be opened."""
        import libvirt

        try:
            libvirt.open(self.uri).close()
        except libvirt.libvirtError:
            return False
        return True

    def kill(self) -> None:
        """Send SIGKILL to libvirtd; its VMs continue."""
        assert self.pid is not None
        end(self.pid, signal.SIGKILL)
        self.pid = None

    def freeze(self) -> None:
        """Send SIGSTOP to libvirtd: it does not answer until `thaw`."""
        assert self.pid is not None
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        assert self.pid is not None
        os.kill(self.pid, signal.SIGCONT)

    def connect(self) -> Any:
        """Open a read-write connection; the caller closes it."""
        import libvirt

        return libvirt.open(self.uri)

    def image(self, name: str, size_bytes: int = 1 << 20) -> Path:
        """Create a sparse disk image."""
        path = self.folder / name
        with path.open("wb") as file:
            file.truncate(size_bytes)
        return path

    def start_domain(self, name: str, *, disks: str | None = None, metadata: str = "") -> Any:
        """Start a transient VM without a bootable disk. `disks` is XML; the default is one image as `vda`."""
        import libvirt

        xml = domain_xml(name, self._default_disk(name) if disks is None else disks, metadata)
        connection = self.connect()
        try:
            domain = connection.createXML(xml, 0)
        except libvirt.libvirtError as error:
            connection.close()
            pytest.skip(f"no VM starts under this libvirtd: {error}")
        self._made.append(connection)
        return domain

    def _default_disk(self, name: str) -> str:
        return disk_xml(self.image(f"{name}.img"), "vda")

    def close(self) -> None:
        """Stop libvirtd and all VMs."""
        if self.pid is not None:
            self.thaw()
            self._destroy_all()
            end(self.pid)
        for connection in self._made:
            connection.close()
        if self._virtlogd is not None:
            self._end_vms()
            end(self._virtlogd)
        assert self._holder.stdin is not None
        assert self._holder.stdout is not None
        self._holder.stdin.close()
        self._holder.wait(START_S)
        self._holder.stdout.close()
        self._log.close()

    def _destroy_all(self) -> None:
        """Destroy all VMs through libvirt, which removes their cgroups."""
        import libvirt

        with suppress(libvirt.libvirtError):  # remaining VMs are killed below
            connection = self.connect()
            for domain in connection.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE):
                domain.destroy()
            connection.close()

    def _end_vms(self) -> None:
        """QEMU outlives libvirtd."""
        run = Path(f"/proc/{self._holder.pid}/root/run/libvirt/qemu")
        for file in run.glob("*.pid"):
            with suppress(OSError, ValueError):
                pid = int(file.read_text())
                if b"qemu" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]:
                    end(pid, signal.SIGKILL)


def domain_xml(name: str, disks: str, metadata: str = "") -> str:
    """Domain XML of a VM without a bootable disk."""
    return f"""
        <domain type='qemu'><name>{name}</name><metadata>{metadata}</metadata>
          <memory unit='MiB'>32</memory><vcpu>1</vcpu>
          <os><type arch='x86_64' machine='pc'>hvm</type></os>
          <features><acpi/></features>
          <devices>{disks}<memballoon model='none'/></devices>
        </domain>"""


def disk_xml(image: Path, target: str) -> str:
    """A raw image as a virtio disk."""
    return (
        f"<disk type='file' device='disk'><driver name='qemu' type='raw'/>"
        f"<source file='{image}'/><target dev='{target}' bus='virtio'/></disk>"
    )


def runs(pid: int) -> bool:
    """Whether the process exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def end(pid: int, number: int = signal.SIGTERM) -> None:
    """End a process whose parent is another process, and wait until it is gone."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)
    deadline = time.monotonic() + START_S
    while runs(pid):
        if time.monotonic() > deadline:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S)


def partitions() -> set[Path]:
    """Cgroups that libvirtd creates for its VMs on a host without systemd and does not remove."""
    return {*DEFAULT_ROOT.glob("machine"), *DEFAULT_ROOT.glob("*/machine")}


@contextmanager
def running_libvirtd() -> Iterator[LibvirtHost]:
    """A libvirtd without VMs."""
    pytest.importorskip("libvirt", reason="libvirt-python is not installed (extra `host`)")
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"not installed: {', '.join(missing)}" if missing else "libvirtd's VMs need root")
    before = partitions()
    with tempfile.TemporaryDirectory(prefix="slo-ctl-libvirt-", dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        host = LibvirtHost(Path(folder))
        try:
            host.start()
            yield host
        finally:
            host.close()
            for left in partitions() - before:
                for folder, _, _ in os.walk(left, topdown=False):
                    with suppress(OSError):  # another process may use it now
                        Path(folder).rmdir()


@pytest.fixture(scope="module")
def libvirt_host() -> Iterator[LibvirtHost]:
    """One libvirtd for all tests of a module."""
    with running_libvirtd() as host:
        yield host
