"""VMs that boot `bare_writer` (slo_ctl/cli/guest), which releases its disk on request."""

from __future__ import annotations

from pathlib import Path

import pytest

from slo_ctl.base.errors import UserError
from slo_ctl.cli.try_clients import compile_program


def compile_writer(folder: Path) -> Path:
    """Compile the program that the VMs boot; skip the test if that is not possible."""
    try:
        return compile_program(folder)
    except UserError as error:
        pytest.skip(f"{error.message} ({error.hint})")


def domain_xml(name: str, program: str, console: str, disk: str = "") -> str:
    """Domain XML of a VM that boots the compiled writer and supports hot-plugging; `disk` is XML."""
    return f"""
        <domain type='qemu'><name>{name}</name><memory unit='MiB'>16</memory><vcpu>1</vcpu>
          <os><type arch='x86_64' machine='pc'>hvm</type><kernel>{program}</kernel></os>
          <features><acpi/></features>
          <on_poweroff>destroy</on_poweroff><on_reboot>destroy</on_reboot>
          <devices>{disk}<controller type='usb' model='none'/><memballoon model='none'/>
            <serial type='file'><source path='{console}'/></serial></devices>
        </domain>"""


def disk_line(size_bytes: int) -> str:
    """The line that a VM prints on its console after it has found a disk."""
    return f"disk 0x{size_bytes:016x}"
