"""Attach a block device to a VM of a real libvirt and detach it, as `vm map` and `vm unmap` do."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from bare_guest import compile_writer, disk_line, domain_xml
from cgroup_groups import loop_device
from libvirt_host import (
    LibvirtHost,
    libvirt_host,  # noqa: F401 - a fixture
)
from waiting import until

from slo_ctl.act.domain import writable_domain
from slo_ctl.act.mapping import add_disk, remove_disk, target_of
from slo_ctl.base.errors import UserError

pytestmark = pytest.mark.slow
NAME = f"slo-give-{os.getpid()}"
SIZE_BYTES, SLICE_BYTES = 8 << 20, 4 << 20


@pytest.fixture
def console(libvirt_host: LibvirtHost, tmp_path: Path) -> Iterator[Path]:  # noqa: F811
    """The console of a running, persistent VM without disks."""
    folder = libvirt_host.folder
    shutil.copy(compile_writer(tmp_path), folder / "bare_writer")
    console = folder / f"{NAME}.log"
    connection = libvirt_host.connect()
    domain = connection.defineXML(domain_xml(NAME, str(folder / "bare_writer"), str(console)))
    try:
        domain.create()
        yield console
    finally:
        if domain.isActive():
            domain.destroy()
        domain.undefine()
        connection.close()


@pytest.mark.parametrize("part_bytes", [None, SLICE_BYTES], ids=["whole", "slice"])
def test_namespace_disk_is_attached_written_and_detached(
    libvirt_host: LibvirtHost,  # noqa: F811
    console: Path,
    part_bytes: int | None,
) -> None:
    with loop_device(SIZE_BYTES) as (device, _), writable_domain(libvirt_host.uri, NAME) as domain:
        path = Path(device)
        assert add_disk(domain, path, None, None, part_bytes) == "vda"
        assert add_disk(domain, path, None, None, part_bytes) == "vda"  # as after a crash
        until(lambda: disk_line(part_bytes or SIZE_BYTES) in console.read_text(), "the VM's disk")
        until(lambda: domain.call("blockStats", "vda")[2] > 100, "writes")
        with pytest.raises(UserError, match="runs with disk vda"):
            remove_disk(domain, "vda", device, unplug=False)
        assert all(device in domain.xml(state) for state in domain.states)
        remove_disk(domain, "vda", device, unplug=True)
        until(lambda: "let go" in console.read_text(), "the VM has released the disk")
        assert target_of(domain, path) is None
        content = path.read_bytes()
        assert any(content[:SLICE_BYTES])
        assert any(content[SLICE_BYTES:]) == (part_bytes is None)
