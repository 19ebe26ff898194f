"""Attach namespaces to and detach them from a VM that QEMU emulates, with an SLO in its metadata."""

from __future__ import annotations

import grp
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import tiny_guest
from libvirt_host import LibvirtHost, disk_xml, domain_xml, libvirt_host  # noqa: F401 - a fixture
from serving import Server, make_device, served
from waiting import until

from slo_ctl.act import mapping
from slo_ctl.cli import app
from slo_ctl.drives.attach import SHARED_MEMORY_XML, qemu_credentials
from slo_ctl.host.libvirt import disks_of

GROUP = "VMs called web or db"

libvirt = pytest.importorskip("libvirt", reason="libvirt-python is not installed (extra `host`)")

pytestmark = pytest.mark.slow

SCSI = "<controller type='scsi' model='virtio-scsi'/>"


@pytest.fixture
def root(libvirt_host: LibvirtHost) -> Path:  # noqa: F811
    """A root whose sockets QEMU's user can access, with a device of two namespaces."""
    root = libvirt_host.folder / "r"
    if not root.exists():
        root.mkdir(mode=0o755)
        make_device(root, "name=ssd0,size=64MiB,op=30%,dies=2", "name=a,size=32MiB", "name=b,size=16MiB")
        (root / "slo-ctl.toml").write_text(f'[libvirt]\nuri = "{libvirt_host.uri}"\n')
    return root


@contextmanager
def defined(host: LibvirtHost, name: str, *, start: bool = True) -> Iterator[Any]:
    """A persistent VM that is removed at the end."""
    connection = host.connect()
    disks = disk_xml(host.image(f"{name}.img"), "vda") + SCSI
    try:
        domain = connection.defineXML(domain_xml(name, disks, ""))
        try:
            if start:
                domain.create()
            yield domain
        finally:
            if domain.isActive():
                domain.destroy()
            domain.undefine()
    finally:
        connection.close()


@pytest.fixture(scope="module")
def db(libvirt_host: LibvirtHost) -> Iterator[Any]:  # noqa: F811
    """A persistent VM that does not run; defining one takes seconds."""
    with defined(libvirt_host, "db", start=False) as domain:
        yield domain


def group_of_qemu(domain: Any) -> str:
    who = qemu_credentials(domain.XMLDesc(0))
    assert who is not None
    return grp.getgrgid(min(who.gids)).gr_name


def vm(root: Path, *words: str) -> int:
    return app.run(["vm", *words, "--root", str(root)])


def targets(domain: Any, *, definition: bool = False) -> list[str]:
    xml = domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE if definition else 0)
    return [disk.target for disk in disks_of(xml)]


def test_disk_is_attached_and_detached(
    libvirt_host: LibvirtHost,  # noqa: F811
    root: Path,
    db: Any,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with defined(libvirt_host, "web") as web:
        group = group_of_qemu(web)
        assert vm(root, "attach", "web", "ssd0/a") == 4  # the device is not served
        assert f"hint: serve it first: slo-ctl device serve ssd0 --group {group}" in capsys.readouterr().err
        with served(root, "ssd0", "--group", "root"):
            assert vm(root, "attach", "web", "ssd0/a") == 2
            output, hint = capsys.readouterr().err.splitlines()
            assert "who may not use" in output
            assert f"--group {group}" in hint
        assert targets(web) == ["vda"]
        with served(root, "ssd0", "--vhost-user") as server:
            assert vm(root, "attach", "web", "ssd0", "--size", "20MiB", "--bus", "scsi") == 0
            assert "ssd0/a (EMULATED) attached as sda: running VM, definition" in capsys.readouterr().out
            assert "sda" in targets(web)
            assert "sda" in targets(web, definition=True)
            (a, b) = server.statistics()["namespaces"]
            assert (a["name"], b["name"]) == ("a", "b")

            # A namespace can belong to one VM only.
            assert vm(root, "attach", "db", "ssd0/a") == 2
            assert "ssd0/a is used by VM web (sda)" in capsys.readouterr().err
            assert vm(root, "attach", "db", "ssd0", "--json") == 0
            attached = json.loads(capsys.readouterr().out)
            assert attached["namespace"] == "ssd0/b"
            assert (attached["target"], attached["live"], attached["persistent"]) == ("vdb", False, True)
            assert targets(db) == ["vda", "vdb"]
            assert vm(root, "attach", "web", "ssd0") == 2
            assert "no free namespace" in capsys.readouterr().err

            # Disks that do not belong to slo-ctl are not touched.
            assert vm(root, "detach", "web", "vda") == 2
            assert "is not a namespace of an emulated SSD" in capsys.readouterr().err
            assert vm(root, "detach", "web", "vdx") == 2
            assert "sda (ssd0/a)" in capsys.readouterr().err

            assert vm(root, "detach", "web", "sda") == 0
            assert targets(web) == targets(web, definition=True) == ["vda"]
            assert vm(root, "detach", "db", "vdb") == 0
            assert targets(db) == ["vda"]

            # A VM without an operating system never releases a PCI disk.
            assert vm(root, "attach", "web", "ssd0/b", "--live", "--target", "vdc") == 0
            assert targets(web) == ["vda", "vdc"]
            assert targets(web, definition=True) == ["vda"]
            monkeypatch.setattr(mapping, "_UNPLUG_TIMEOUT_S", 0.2)
            capsys.readouterr()
            assert vm(root, "detach", "web", "vdc") == 1
            assert "the guest has not released vdc yet" in capsys.readouterr().err

            assert vm(root, "attach", "db", "ssd0/a", "--live") == 2
            assert "VM db does not run" in capsys.readouterr().err

            check_disk_in_shared_memory(libvirt_host, root, server, capsys)


def check_disk_in_shared_memory(
    host: LibvirtHost,
    root: Path,
    server: Server,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A VM of libvirt whose QEMU has its own user writes over vhost-user, also after the server is killed."""
    tiny_guest.require_guest()
    tiny_guest.install_guest(host.folder)

    def writes() -> int:
        return int(server.statistics()["namespaces"][0]["answered"]["writes"]["requests"])

    connection = host.connect()
    try:
        connection.defineXML(tiny_guest.domain_xml("shm", host.folder))
        assert vm(root, "attach", "shm", "ssd0/a", "--bus", "vhost-user") == 2
        assert SHARED_MEMORY_XML in capsys.readouterr().err
        connection.lookupByName("shm").undefine()
        domain = connection.defineXML(tiny_guest.domain_xml("shm", host.folder, shares_memory=True))
        assert vm(root, "attach", "shm", "ssd0/a", "--bus", "vhost-user", "--target", "vda") == 0
        domain.create()
        try:
            until(lambda: writes() > 20, "writes of the VM")
            before = server.pid()
            os.kill(before, signal.SIGKILL)
            until(lambda: server.run.pid_file.exists() and server.pid() != before, "another server")
            until(lambda: writes() > 20, "writes after the server was killed")
            capsys.readouterr()
            assert vm(root, "show", "shm", "--json") == 0
            assert '"tenant": "ssd0/a"' in capsys.readouterr().out
        finally:
            domain.destroy()
            domain.undefine()
    finally:
        connection.close()


def test_slo_is_stored_in_the_metadata_of_libvirt(
    root: Path, db: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert vm(root, "set", "db", "weight=3,max_bandwidth=10MiB", "--metadata") == 0
    assert "weight 3 (metadata)" in capsys.readouterr().out
    db.create()
    assert vm(root, "set", "db", "min=5", "--metadata") == 0
    for flags in (0, libvirt.VIR_DOMAIN_XML_INACTIVE):
        assert 'weight="3" min_iops="5" max_bandwidth="10MiB"/>' in db.XMLDesc(flags)
    capsys.readouterr()
    assert vm(root, "show", "db", "--json") == 0
    output = json.loads(capsys.readouterr().out)
    assert (output["state"], output["source"]) == ("running", "metadata")
    assert (output["slo"]["weight"], output["slo"]["min_iops"]) == (3, 5)
    assert vm(root, "unset", "db", "--metadata") == 0
    for flags in (0, libvirt.VIR_DOMAIN_XML_INACTIVE):
        assert "slo-ctl.org" not in db.XMLDesc(flags)
