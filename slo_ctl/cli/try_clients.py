"""Clients of `slo-ctl try`: QEMU guests, which boot a small program that is compiled here and writes to its
disk; logs of traces, which fio replays."""

from __future__ import annotations

import select
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from slo_ctl.base.errors import UserError
from slo_ctl.host.calls import run_program

if TYPE_CHECKING:
    from traces.batch import Batch

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
    if shutil.which("cc") is None:
        raise UserError("no C compiler for the guests' program", "apt install gcc  # or: dnf install gcc")
    result = run_program(command, _COMPILE_TIMEOUT_S, "use --no-guests")
    if result.returncode:
        problem = f"the guests' program cannot be compiled: {result.stderr.strip()[-200:]}"
        raise UserError(problem, "use --no-guests")
    return program


def _find_qemu() -> str:
    for name in _QEMU:
        if (path := shutil.which(name)) is not None:
            return path
    raise UserError("QEMU is not installed", "apt install qemu-system-x86  # or: dnf install qemu-kvm")


# Traces that fio replays.

_MIN_REQUESTS = 200_000
"""A shorter trace is repeated in the log: fio needs a moment to start again after its end."""
_MAX_REQUESTS = 1_000_000
"""Of a longer trace only the first are used: fio reads the whole log into memory."""
_MAX_REQUEST_BYTES = 1 << 20
"""Longer requests are cut: fio has a buffer of the longest for each outstanding request."""
_FILE = "nbd"


def write_fio_log(trace: Path, log: Path, size_bytes: int) -> int:
    """Write the first requests of a trace for a disk of this size: how many they are. Raises UserError.

    Its pages are numbered densely, and wrapped around the end of the disk. Flushes are left out.
    """
    from traces.errors import TraceError
    from traces.reader import open_trace
    from traces.remap import Align, Compact, Modulo, apply

    try:
        reader = open_trace(trace)
        batches = apply(reader, Align(), Compact(reader), Modulo(size_bytes))
        lines = list(islice((line for batch in batches for line in _lines(batch)), _MAX_REQUESTS))
    except TraceError as error:
        raise UserError(error.message, "`slo-ctl trace info` must be able to read it") from None
    if not lines:
        raise UserError(f"{trace} has no requests", "name a trace with reads or writes")
    with log.open("w") as file:
        file.write(f"fio version 2 iolog\n{_FILE} add\n{_FILE} open\n")
        for _ in range(-(-_MIN_REQUESTS // len(lines))):
            file.writelines(lines)
        file.write(f"{_FILE} close\n")
    return len(lines)


def _lines(batch: Batch) -> Iterator[str]:
    from traces.batch import PAGE_BYTES, Op

    actions = {Op.READ: "read", Op.WRITE: "write", Op.TRIM: "trim", Op.WRITE_ZEROES: "write"}
    lengths = batch.length_bytes.clip(max=_MAX_REQUEST_BYTES)
    for op, offset, length in zip(
        batch.op.tolist(), batch.offset_bytes.tolist(), lengths.tolist(), strict=True
    ):
        if op in actions and length >= PAGE_BYTES:
            yield f"{_FILE} {actions[Op(op)]} {offset} {length}\n"
