"""Live migration of a VM between two libvirtds, each with a daemon."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from cgroup_groups import loop_device
from daemon_host import DaemonProcess, row_of, running
from libvirt_host import LIMITED_VM, LibvirtHost, domain_xml, running_libvirtd

from slo_ctl.act.journal import Journal

pytestmark = pytest.mark.slow
NAME = f"slo-moving-{os.getpid()}"


class Host:
    """A libvirtd and a daemon, which limits disks on a device of its own to `maximum` IOPS."""

    def __init__(self, libvirtd: LibvirtHost, connection: Any, root: Path, path: str, maximum: int) -> None:
        root.mkdir()
        text = LIMITED_VM.format(uri=libvirtd.uri, path=path, name=NAME, maximum=maximum)
        (root / "slo-ctl.toml").write_text(text)
        self.libvirtd = libvirtd
        self.connection = connection
        self.root = root
        self.path = path
        self.maximum = maximum

    def define(self) -> Any:
        driver = "<driver name='qemu' type='raw' cache='none'/>"
        disk = (
            f"<disk type='block'>{driver}<source dev='{self.path}'/><target dev='vda' bus='virtio'/></disk>"
        )
        return self.connection.defineXML(domain_xml(NAME, disk))

    def limit(self) -> int:
        return int(self.connection.lookupByName(NAME).blockIoTune("vda", 1)["total_iops_sec"])

    def becomes_limited(self, daemon: DaemonProcess) -> None:
        daemon.eventually("its disk", lambda status: row_of(status, NAME).disks == ("vda",))
        daemon.eventually("its limit", lambda _: self.limit() == self.maximum)

    def migrate_to(self, other: Host) -> None:
        import libvirt

        domain = self.connection.lookupByName(NAME)
        texts = {
            libvirt.VIR_MIGRATE_PARAM_DEST_XML: domain.XMLDesc(libvirt.VIR_DOMAIN_XML_MIGRATABLE),
            libvirt.VIR_MIGRATE_PARAM_PERSIST_XML: domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE),
        }
        there = {name: text.replace(self.path, other.path) for name, text in texts.items()}
        flags = libvirt.VIR_MIGRATE_LIVE | libvirt.VIR_MIGRATE_UNSAFE
        flags |= libvirt.VIR_MIGRATE_PERSIST_DEST | libvirt.VIR_MIGRATE_UNDEFINE_SOURCE
        there[libvirt.VIR_MIGRATE_PARAM_URI] = "tcp:127.0.0.1"
        domain.migrate3(other.connection, there, flags)


@contextmanager
def host_of(root: Path, maximum: int) -> Iterator[Host]:
    with running_libvirtd() as libvirtd, loop_device(16 << 20) as (path, _):
        connection = libvirtd.connect()
        try:
            yield Host(libvirtd, connection, root, path, maximum)
        finally:
            connection.close()


def unapplied(log: str) -> list[str]:
    """Lines about settings that could not be applied, except while libvirt is busy with the migration."""
    return [
        line for line in log.splitlines() if "unapplied" in line and "libvirt has not answered" not in line
    ]


def test_a_vm_that_migrates_has_the_limit_of_each_host_and_its_own_at_the_end(root: Path) -> None:
    with ExitStack() as stack:
        first = stack.enter_context(host_of(root / "first", 500))
        second = stack.enter_context(host_of(root / "second", 300))
        # Both share the tree of cgroups, whose names have the number of each VM in its libvirtd.
        first.libvirtd.start_domain(f"{NAME}-number-1", disks="").destroy()
        first.define().create()
        daemons = [stack.enter_context(running(host.root)) for host in (first, second)]
        first.becomes_limited(daemons[0])
        first.migrate_to(second)
        second.becomes_limited(daemons[1])
        second.migrate_to(first)
        first.becomes_limited(daemons[0])
        for host, daemon in zip((first, second), daemons, strict=True):
            assert daemon.stop() == 0, daemon.log()
            assert not unapplied(daemon.log())
            assert len(Journal(host.root / "journal.json")) == 0
        assert first.limit() == 0
