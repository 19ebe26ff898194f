"""VMs that boot within two seconds and only write to their disk: kernel, initrd and domain XML."""

from __future__ import annotations

import io
from pathlib import Path
from xml.etree import ElementTree

import pytest

from slo_ctl.drives.attach import SHARED_MEMORY_XML

GUEST = Path(__file__).parents[2] / "build" / "guest"
DISK_WRITER = "disk_writer"
MEMORY_MIB = 96


def require_guest() -> None:
    """Skip the test if kernel or initrd is missing."""
    for name in ("vmlinuz", "init"):
        if not (GUEST / name).exists():
            pytest.skip(f"build/guest/{name} is not there (scripts/setup.sh --real)")


def install_guest(folder: Path) -> None:
    """Copy `vmlinuz` and `initrd` to where QEMU's user can read them."""
    (folder / "vmlinuz").write_bytes((GUEST / "vmlinuz").read_bytes())
    files = {"init": (GUEST / "init").read_bytes()}
    files |= {f"modules/{each.name}": each.read_bytes() for each in sorted((GUEST / "modules").iterdir())}
    (folder / "initrd").write_bytes(cpio(files))


def cpio(files: dict[str, bytes]) -> bytes:
    """An archive in the `newc` format, which Linux unpacks as initramfs."""
    folders = sorted({str(parent) for name in files for parent in Path(name).parents} - {"."})
    archive = io.BytesIO()
    entries = [(name, 0o040755, b"") for name in folders]
    entries += [(name, 0o100755, content) for name, content in files.items()]
    for number, (name, mode, content) in enumerate([*entries, ("TRAILER!!!", 0, b"")], start=1):
        path = name.encode() + b"\0"
        fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(path), 0)
        archive.write(b"070701" + b"".join(b"%08X" % field for field in fields) + path)
        archive.write(bytes(-archive.tell() % 4))
        archive.write(content)
        archive.write(bytes(-archive.tell() % 4))
    return archive.getvalue()


def domain_xml(
    name: str, folder: Path, *, depth: int = 1, uuid: str | None = None, shares_memory: bool = False
) -> str:
    """A VM without disks that boots from `folder` (see `install_guest`); its console goes to NAME.log."""
    domain = ElementTree.Element("domain", type="qemu")

    def add(
        parent: ElementTree.Element, tag: str, text: str | None = None, **attributes: str
    ) -> ElementTree.Element:
        element = ElementTree.SubElement(parent, tag, attributes)
        element.text = text
        return element

    add(domain, "name", name)
    if uuid is not None:
        add(domain, "uuid", uuid)
    add(domain, "memory", str(MEMORY_MIB), unit="MiB")
    add(domain, "vcpu", "1")
    if shares_memory:
        domain.append(ElementTree.fromstring(SHARED_MEMORY_XML))  # noqa: S314 - our own
    system = add(domain, "os")
    add(system, "type", "hvm", arch="x86_64", machine="q35")
    add(system, "kernel", str(folder / "vmlinuz"))
    add(system, "initrd", str(folder / "initrd"))
    add(system, "cmdline", f"console=ttyS0 quiet panic=-1 rdinit=/init {DISK_WRITER}.depth={depth}")
    add(domain, "cpu", mode="maximum")
    devices = add(domain, "devices")
    console = add(devices, "serial", type="file")
    add(console, "source", path=str(folder / f"{name}.log"))
    add(devices, "memballoon", model="none")
    return ElementTree.tostring(domain, encoding="unicode")
