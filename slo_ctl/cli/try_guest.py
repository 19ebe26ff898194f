"""QEMU guests for `slo-ctl try`: they boot a small program, which is compiled here and writes to its disk."""

from __future__ import annotations

import select
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from slo_ctl.base.errors import UserError

_SOURCES = Path(__file__).parent / "guest"
_COMPILE = (
    *("-m32", "-march=i686", "-O2", "-Wall", "-Wextra", "-Werror", "-ffreestanding", "-nostdlib", "-static"),
    *("-fno-pic", "-fno-pie", "-fno-stack-protector", "-fno-asynchronous-unwind-tables"),
)
_COMPILE_TIMEOUT_S = 60
_QEMU = ("qemu-system-x86_64", "qemu-kvm", "/usr/libexec/qemu-kvm")
_MACHINE = (
    *("-machine", "pc,memory-backend=memory", "-m", "16", "-nodefaults", "-no-reboot"),
    # vhost-user needs memory that is shared with the server of the disk.
    *("-object", "memory-backend-memfd,id=memory,size=16M,share=on"),
    *("-display", "none", "-serial", "stdio"),
)
_QUEUE_SIZE = 256
"""Queue size of the disk: at least three entries for each of 64 outstanding requests."""
_STARTED = b"started"
HAS_DISK = "disk "
"""Printed on the console by a guest that has its disk."""
_START_TIMEOUT_S = 3.0
"""With KVM the program starts in less than 0.5 s."""


@dataclass(frozen=True, slots=True)
class Guests:
    """Program and QEMU options of guests."""

    qemu: str
    program: Path
    accelerator: str
    """Accelerator of QEMU: `kvm` or `tcg`."""

    def command(self, vhost_user_socket: Path, queue_depth: int) -> list[str]:
        """Command of a guest that writes random 4 KiB pages to its disk until it is stopped."""
        return [
            *self._machine(),
            *("-append", f"depth={queue_depth}"),
            *("-chardev", f"socket,id=disk,path={str(vhost_user_socket).replace(',', ',,')}"),
            *("-device", f"vhost-user-blk-pci,chardev=disk,queue-size={_QUEUE_SIZE}"),
        ]

    def starts(self) -> bool:
        """Whether a guest without a disk starts on this host."""
        with subprocess.Popen(  # noqa: S603 - the command is made here
            self._machine(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            consoles = [each for each in (process.stdout,) if each is not None]
            ready, _, _ = select.select(consoles, [], [], _START_TIMEOUT_S)
            started = any(console.readline().startswith(_STARTED) for console in ready)
            process.kill()
        return started

    def _machine(self) -> list[str]:
        return [self.qemu, "-accel", self.accelerator, *_MACHINE, "-kernel", str(self.program)]


def guests_with_kvm(folder: Path) -> Guests:
    """Guests that run on KVM. Raises UserError if they cannot start."""
    guests = Guests(_find_qemu(), compile_program(folder), "kvm")
    if not guests.starts():
        raise UserError("KVM does not work on this host", "use --guests to have QEMU emulate a processor")
    return guests


def guests_anywhere(folder: Path) -> Guests:
    """Guests on KVM, or else on an emulated processor. Raises UserError if neither starts."""
    qemu, program = _find_qemu(), compile_program(folder)
    for accelerator in ("kvm", "tcg"):
        guests = Guests(qemu, program, accelerator)
        if guests.starts():
            return guests
    raise UserError(f"{qemu} cannot boot a guest of machine type pc", "use --no-guests")


def compile_program(folder: Path) -> Path:
    """Compile the program of guests into `folder`. Raises UserError without a C compiler for x86."""
    program = folder / "bare_writer"
    link = f"-Wl,--build-id=none,-z,max-page-size=4096,-T,{_SOURCES / 'bare_writer.ld'}"
    command = ["cc", *_COMPILE, link, str(_SOURCES / "bare_writer.c"), "-o", str(program)]
    try:
        subprocess.run(command, capture_output=True, check=True, timeout=_COMPILE_TIMEOUT_S)  # noqa: S603
    except FileNotFoundError:
        raise UserError(
            "no C compiler for the guests' program", "apt install gcc  # or: dnf install gcc"
        ) from None
    except (OSError, subprocess.SubprocessError) as error:
        raise UserError(f"the guests' program cannot be compiled: {error}", "use --no-guests") from None
    return program


def _find_qemu() -> str:
    for name in _QEMU:
        if (path := shutil.which(name)) is not None:
            return path
    raise UserError("QEMU is not installed", "apt install qemu-system-x86  # or: dnf install qemu-kvm")
