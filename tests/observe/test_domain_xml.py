"""Disks in the XML of domains."""

from __future__ import annotations

import pytest

from slo_ctl.host import libvirt
from slo_ctl.host.libvirt import DomainXmlError, disks_of, is_local
from slo_ctl.model.host import Disk


def domain(*disks: str) -> str:
    return f"<domain><name>a</name><devices>{''.join(disks)}</devices></domain>"


@pytest.mark.parametrize(
    ("kind", "source", "expected"),
    [
        ("file", "<source file='/img/a b.qcow2'/>", "/img/a b.qcow2"),
        ("block", "<source dev='/dev/vg/a'/>", "/dev/vg/a"),
        ("dir", "<source dir='/img'/>", "/img"),
        ("volume", "<source pool='p' volume='v'/>", "p/v"),
        (
            "network",
            "<source protocol='nbd' name='ns'><host transport='unix' socket='/run/x.sock'/></source>",
            "nbd+unix:///ns?socket=/run/x.sock",
        ),
        (
            "network",
            "<source protocol='rbd' name='pool/img'><host name='mon' port='6789'/></source>",
            "rbd://mon:6789/pool/img",
        ),
        ("network", "<source protocol='rbd' name='pool/img'/>", "rbd:///pool/img"),
        ("vhostuser", "<source type='unix' path='/run/vu.sock'/>", "/run/vu.sock"),
        (
            "nvme",
            (
                "<source type='pci' namespace='1'>"
                "<address domain='0x0000' bus='0x01' slot='0x00' function='0x0'/></source>"
            ),
            "nvme://0000:01:00.0/1",
        ),
        ("file", "", None),
        ("file", "<source startupPolicy='optional'/>", None),
    ],
)
def test_disk_sources_are_parsed(kind: str, source: str, expected: str | None) -> None:
    xml = domain(f"<disk type='{kind}' device='disk'>{source}<target dev='vda' bus='virtio'/></disk>")
    assert disks_of(xml) == (Disk("vda", kind, expected),)


@pytest.mark.parametrize(
    ("mirror", "copy"),
    [
        ("<mirror type='block' job='copy' ready='yes'><source dev='/dev/vg/b'/></mirror>", "/dev/vg/b"),
        ("<mirror type='file' job='active-commit'><source file='/img/base'/></mirror>", "/img/base"),
        ("<mirror type='network' job='copy'><source protocol='rbd' name='a'/></mirror>", None),
        ("<mirror type='block' job='copy'/>", None),
    ],
)
def test_copy_that_a_block_job_makes_is_parsed(mirror: str, copy: str | None) -> None:
    xml = domain(f"<disk type='file'><source file='/a'/>{mirror}<target dev='vda'/></disk>")
    assert disks_of(xml) == (Disk("vda", "file", "/a", copy=copy),)


def test_disks_are_in_guest_order_and_may_be_none() -> None:
    xml = domain(
        "<disk type='file'><target dev='vdb'/></disk>", "<disk type='file'><target dev='vda'/></disk>"
    )
    assert [disk.target for disk in disks_of(xml)] == ["vdb", "vda"]
    assert disks_of("<domain/>") == ()


@pytest.mark.parametrize(
    "xml",
    [
        "",
        "<domain>",
        "<!DOCTYPE d [<!ENTITY a 'b'>]><domain>&a;</domain>",
        "x" * (libvirt.LIMIT_CHARACTERS + 1),
        domain("<disk/>" * (libvirt.MAX_DISKS + 1)),
    ],
)
def test_bad_domain_xml_is_refused(xml: str) -> None:
    with pytest.raises(DomainXmlError):
        disks_of(xml)


@pytest.mark.parametrize(
    ("uri", "local"),
    [
        ("qemu:///system", True),
        ("qemu+unix:///system?socket=/run/x", True),
        ("qemu+ssh://host/system", False),
        ("qemu://host/system", False),
        ("qemu+ssh:///system", False),
        ("http://[", False),
    ],
)
def test_paths_are_valid_for_local_daemons_only(uri: str, local: bool) -> None:
    assert is_local(uri) is local
