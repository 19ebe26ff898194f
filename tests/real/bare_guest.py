"""VMs without an operating system (`bare_writer`): they write to their disk and let go of it when asked."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

_SOURCES = Path(__file__).parent / "bare_writer"
_COMPILE = (
    *("-m32", "-march=i686", "-O2", "-Wall", "-Wextra", "-Werror", "-ffreestanding", "-nostdlib", "-static"),
    *("-fno-pic", "-fno-pie", "-fno-stack-protector", "-fno-asynchronous-unwind-tables"),
)


def compile_writer(folder: Path) -> Path:
    """The program that VMs boot; skips the test where it cannot be made."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler for VMs without an operating system (apt-get install gcc)")
    program = folder / "bare_writer"
    link = f"-Wl,--build-id=none,-z,max-page-size=4096,-T,{_SOURCES / 'bare_writer.ld'}"
    command = ["cc", *_COMPILE, link, str(_SOURCES / "bare_writer.c"), "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        pytest.skip(f"this C compiler makes no 32-bit program: {done.stderr[-300:]}")
    return program


def domain_xml(name: str, program: str, console: str, disk: str = "") -> str:
    """A VM that boots what `compile_writer` made, with what hot-plugging needs; `disk` is XML."""
    return f"""
        <domain type='qemu'><name>{name}</name><memory unit='MiB'>16</memory><vcpu>1</vcpu>
          <os><type arch='x86_64' machine='pc'>hvm</type><kernel>{program}</kernel></os>
          <features><acpi/></features>
          <on_poweroff>destroy</on_poweroff><on_reboot>destroy</on_reboot>
          <devices>{disk}<controller type='usb' model='none'/><memballoon model='none'/>
            <serial type='file'><source path='{console}'/></serial></devices>
        </domain>"""


def disk_line(size_bytes: int) -> str:
    """What a VM says on its console once it has a disk."""
    return f"disk 0x{size_bytes:016x}"
