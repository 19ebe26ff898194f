"""A running guest: boot, commands over ssh, files, reset, logs."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .build import Parts
from .drives import Drive, qemu_arguments
from .qmp import QmpError, qmp

BOOT_S = 900.0
"""A boot takes 30 s on an idle machine, and 370 s at load 13."""
_TRIES = 2
_MEMORY = "2G"
_COMMAND_S = 600.0
"""Default minimum: what takes a second takes a minute on a very busy machine."""
_HANDSHAKE_S = 120.0
_POLL_S = 0.25
_FIRST = ("nice", "-n", "-5")
"""Raise the priority if root: a guest that waits for a CPU distorts its measurements."""
_READY = re.compile(r"guest-ready ([0-9a-f-]{36})")
"""The line that a boot writes to the console after sshd listens (`customize.sh`)."""
_NO_USE = "ata_generic,ata_piix,kvm_amd,kvm_intel,pcspkr,psmouse"
"""Unused drivers, whose loading takes seconds."""


class GuestError(Exception):
    """The guest did not boot, or has stopped."""


class CommandError(AssertionError):
    """A command in the guest failed, which fails the test."""


@dataclass(frozen=True)
class Result:
    """Exit status and output of a command in the guest."""

    command: str
    rc: int
    stdout: str
    stderr: str


class Guest:
    """A running guest. `logs` is a folder that is kept."""

    def __init__(
        self,
        parts: Parts,
        drives: tuple[Drive, ...],
        logs: Path,
        root_image: Path | None = None,
        boot_options: tuple[str, ...] = (),
    ) -> None:
        """Does not boot yet. `root_image` replaces that of the parts.

        `boot_options` are those of the kernel and of systemd.
        """
        self.logs = logs
        self.boot_s = 0.0
        """Time from QEMU's start until ssh answered."""
        self._drives = drives
        self._boot_options = boot_options
        self._parts = parts
        self._root_image = parts.root_image if root_image is None else root_image
        # Not in a folder of pytest, which keeps those of the last runs: disk images are large.
        self._folder = Path(tempfile.mkdtemp(prefix="slo-guest-", dir="/var/tmp"))
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0

    @property
    def _qmp(self) -> Path:
        return self._folder / "qmp"

    def start(self) -> None:
        """Boot, with a second attempt if that fails. Raises GuestError."""
        self.logs.mkdir(parents=True, exist_ok=True)
        for attempt in range(1, _TRIES + 1):
            self._launch(attempt)
            began = time.monotonic()
            try:
                self._wait_for_ssh(began + BOOT_S)
            except GuestError:
                self.kill()
                if attempt == _TRIES:
                    raise
            else:
                self.boot_s = time.monotonic() - began
                return

    @property
    def _disk(self) -> Path:
        return self._folder / "root.qcow2"

    def _launch(self, attempt: int) -> None:
        self._disk.unlink(missing_ok=True)
        base = ("-F", "raw", "-b", str(self._root_image))
        create = ("create", "-q", "-f", "qcow2", *base, str(self._disk))
        made = subprocess.run(
            [*self._parts.program("usr/bin/qemu-img"), *create], capture_output=True, text=True, check=False
        )
        if made.returncode:
            raise GuestError(f"no overlay: {made.stderr}")
        self._port = _free_port()
        with (self.logs / f"qemu-{attempt}.log").open("wb") as log:
            self._process = subprocess.Popen(
                # QEMU must not outlive a killed test run, and other tests run on the same machine.
                [*_FIRST, *("setpriv", "--pdeathsig", "KILL", "--"), *self._command(attempt)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._parts.environment(),
            )

    def _command(self, attempt: int) -> list[str]:
        options = [
            *("console=ttyS0", "root=/dev/vda", "rw", "panic=-1", "net.ifnames=0"),
            *("mitigations=off", "audit=0", "systemd.show_status=0", f"modprobe.blacklist={_NO_USE}"),
            "nvme_core.multipath=N",  # multipath disks have no scheduler and refuse io.cost
            "systemd.service_watchdogs=no",  # without a CPU, services miss their watchdog deadlines
            "no_timer_check",  # timer interrupts may be late, and the kernel would panic
            "tsc=nowatchdog",  # the watchdog would reject the TSC as late; other clocks are slow to read
            "init_on_alloc=0",  # zeroing each page twice is slow under emulation
            *self._boot_options,
        ]
        return [
            *self._parts.program("usr/bin/qemu-system-x86_64"),
            *self._parts.firmware(),
            *("-nodefaults", "-display", "none", "-accel", "tcg,thread=multi", "-cpu", "Nehalem"),
            *("-m", _MEMORY, "-smp", "1"),
            # For vhost-user disks, whose servers share the memory.
            *(
                "-object",
                f"memory-backend-memfd,id=ram,share=on,size={_MEMORY}",
                "-machine",
                "memory-backend=ram",
            ),
            *("-serial", f"file:{self.logs / f'serial-{attempt}.log'}"),
            *("-qmp", f"unix:{self._qmp},server=on,wait=off"),
            *(
                "-kernel",
                str(self._parts.kernel),
                "-initrd",
                str(self._parts.initrd),
                "-append",
                " ".join(options),
            ),
            *("-drive", f"file={self._disk},if=none,id=root,format=qcow2,cache=unsafe"),
            *("-device", "virtio-blk-pci,drive=root,serial=ROOT", "-device", "virtio-rng-pci"),
            *("-netdev", f"user,id=net,hostfwd=tcp:127.0.0.1:{self._port}-:22"),
            *("-device", "virtio-net-pci,netdev=net,romfile="),
            *qemu_arguments(self._drives, self._folder),
        ]

    def _wait_for_ssh(self, deadline: float, other_than_boot: str = "") -> None:
        """Wait until sshd answers, in another boot than the given one."""
        assert self._process is not None
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                code = self._process.returncode
                raise GuestError(f"QEMU ended with {code}, see {self.logs}{self._last_words()}")
            boots = _READY.findall(self._console())
            if boots and boots[-1] != other_than_boot:
                with suppress(subprocess.TimeoutExpired):
                    if self._ssh("true", "", timeout_s=_HANDSHAKE_S).rc == 0:
                        return
            time.sleep(_POLL_S)
        raise GuestError(f"the guest does not answer, see {self.logs}{self._last_words()}")

    def _console(self) -> str:
        """Console output since QEMU started."""
        logs = sorted(self.logs.glob("serial-*.log"))
        return logs[-1].read_text(errors="replace") if logs else ""

    def _last_words(self) -> str:
        return f":\n{self._console()[-2000:]}"

    def _options(self) -> list[str]:
        settings = {
            "BatchMode": "yes",
            "ConnectTimeout": f"{_HANDSHAKE_S:.0f}",
            "ControlMaster": "auto",  # a handshake takes a second under emulation
            "ControlPath": str(self._folder / "ssh"),
            "ControlPersist": "yes",
            "IdentitiesOnly": "yes",
            "IdentityFile": str(self._parts.private_key),
            "LogLevel": "ERROR",
            "StrictHostKeyChecking": "no",
            "UserKnownHostsFile": "/dev/null",
        }
        return ["-F", "/dev/null", *(f"-o{name}={value}" for name, value in settings.items())]

    def ssh_command(self) -> list[str]:
        """A command line that opens a shell in the guest, or runs the words that are appended."""
        return ["ssh", *self._options(), "-p", str(self._port), "root@127.0.0.1"]

    def _ssh(self, command: str, stdin: str, timeout_s: float) -> Result:
        # Output goes to files: the persistent connection keeps its descriptors, so a pipe would not end.
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            done = subprocess.run(
                [*self.ssh_command(), "--", command],
                input=stdin.encode(),
                stdout=out,
                stderr=err,
                timeout=timeout_s,
                check=False,
            )
            out.seek(0)
            err.seek(0)
            stdout, stderr = (each.read().decode(errors="replace") for each in (out, err))
        return Result(command, done.returncode, stdout, stderr)

    def run(
        self, command: str, *, timeout_s: float = _COMMAND_S, check: bool = True, stdin: str = ""
    ) -> Result:
        """Run a shell command as root. With `check`, a code other than 0 fails the test and shows its output.

        A timeout also fails the test; the command may continue in the guest.
        """
        try:
            result = self._ssh(command, stdin, max(timeout_s, _COMMAND_S))
        except subprocess.TimeoutExpired as error:
            raise CommandError(f"in the guest, not within {timeout_s} s: {command}") from error
        if check and result.rc:
            output = f"{result.stdout[-2000:]}{result.stderr[-2000:]}"
            raise CommandError(f"in the guest, code {result.rc}: {command}\n{output}")
        return result

    def put(self, path: Path, to: str = "/root/") -> None:
        """Copy a file or folder into the guest."""
        target = f"root@127.0.0.1:{to}"
        command = ["scp", *self._options(), "-P", str(self._port), "-q", "-r", "-p", str(path), target]
        done = subprocess.run(command, capture_output=True, text=True, timeout=BOOT_S, check=False)
        if done.returncode:
            raise CommandError(f"cannot copy {path} to {target}: {done.stderr}")

    def boot_id(self) -> str:
        """The boot ID, which changes with every boot."""
        return self.run("cat /proc/sys/kernel/random/boot_id").stdout.strip()

    def reset(self) -> None:
        """Press the reset button, and wait until the guest has booted again from the same disks."""
        before = self.boot_id()
        qmp(self._qmp, "system_reset")
        self._forget_connection()
        self._wait_for_ssh(time.monotonic() + BOOT_S, other_than_boot=before)

    def _forget_connection(self) -> None:
        subprocess.run(
            ["ssh", *self._options(), "-O", "exit", "root@127.0.0.1"],
            capture_output=True,
            timeout=20,
            check=False,
        )

    def plug_vhost_user(self, name: str, socket_path: Path, *, queues: int) -> None:
        """Attach a disk whose server shares the guest's memory; QEMU reconnects to the server."""
        where = {"type": "unix", "data": {"path": str(socket_path)}}
        backend = {"type": "socket", "data": {"addr": where, "server": False, "reconnect-ms": 200}}
        qmp(self._qmp, "chardev-add", id=f"{name}-server", backend=backend)
        options = {"driver": "vhost-user-blk-pci", "id": name, "chardev": f"{name}-server"}
        qmp(self._qmp, "device_add", **options, **{"num-queues": queues})

    def plug_nbd(self, name: str, socket_path: Path, export: str) -> None:
        """Attach a disk over NBD, to which QEMU reconnects; `name` is its serial number."""
        where = {"type": "unix", "path": str(socket_path)}
        node = {"driver": "nbd", "node-name": f"{name}-node", "server": where, "export": export}
        qmp(self._qmp, "blockdev-add", **node, **{"reconnect-delay": 3600})
        options = {"driver": "virtio-blk-pci", "id": name, "drive": f"{name}-node", "serial": name}
        qmp(self._qmp, "device_add", **options)

    def plug_image(self, name: str, image: Path) -> None:
        """Attach a read-only disk; `name` is its serial number."""
        node = {"driver": "file", "node-name": f"{name}-node", "filename": str(image), "read-only": True}
        qmp(self._qmp, "blockdev-add", **node)
        options = {"driver": "virtio-blk-pci", "id": name, "drive": f"{name}-node", "serial": name}
        qmp(self._qmp, "device_add", **options)

    def unplug_vhost_user(self, name: str) -> None:
        """Detach the disk. Raises QmpError if the guest does not release it."""
        self._unplug(name, "chardev-remove", id=f"{name}-server")

    def unplug_image(self, name: str) -> None:
        """Detach the disk. Raises QmpError if the guest does not release it."""
        self._unplug(name, "blockdev-del", **{"node-name": f"{name}-node"})

    def _unplug(self, name: str, remove: str, **backend: str) -> None:
        """Request the guest to release a disk; `remove` is QEMU's command that removes its backend."""
        qmp(self._qmp, "device_del", id=name)
        deadline = time.monotonic() + _COMMAND_S
        while True:
            try:
                # QEMU refuses this while the disk uses the backend.
                qmp(self._qmp, remove, **backend)
            except QmpError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_POLL_S)
            else:
                return

    def collect(self) -> None:
        """Copy the journal and the kernel log into `logs`, as far as the guest still answers."""
        for name, command in (("journal", "journalctl --no-pager -o short"), ("dmesg", "dmesg")):
            with suppress(CommandError):
                (self.logs / f"{name}.log").write_text(self.run(command).stdout)

    def runs(self) -> bool:
        """Whether QEMU runs."""
        return self._process is not None and self._process.poll() is None

    def disk(self, serial: str) -> str:
        """Current name of a drive's first block device: it may differ after a reboot."""
        named = self.run(
            f"lsblk -dno NAME,SERIAL | sort | awk '$2 == \"{serial}\" {{print $1}}'"
        ).stdout.split()
        assert named, f"no disk {serial}"
        return named[0]

    def controller(self, serial: str) -> str:
        """Current name of an NVMe drive, such as `nvme0`."""
        return self.run(f"basename $(dirname $(grep -lw {serial} /sys/class/nvme/*/serial))").stdout.strip()

    def number(self, name: str) -> str:
        """The device number of a block device."""
        return self.run(f"cat /sys/block/{name}/dev").stdout.strip()

    def kill(self) -> None:
        """Send SIGKILL to QEMU, without notice to the guest."""
        self._forget_connection()
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        """Collect the logs, stop QEMU, remove the disk images."""
        try:
            if self.runs():
                self.collect()
                with suppress(QmpError):  # QEMU is killed below
                    qmp(self._qmp, "quit")
            self.kill()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
