"""VMs of a real libvirt: its test driver, and a libvirtd with a VM that QEMU emulates."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from libvirt_host import LibvirtHost, disk_xml, libvirt_host  # noqa: F401 - a fixture

from slo_ctl.cli import app

libvirt = pytest.importorskip("libvirt", reason="libvirt-python is not installed (extra `host`)")

NAME = f"slo-ctl_test-{os.getpid()}"


def output(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert app.run(["vm", "list", "--json", *words]) == 0
    value: dict[str, Any] = json.loads(capsys.readouterr().out)
    return value


def test_vms_of_libvirts_test_driver_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    found = output(capsys, "--connect", "test:///default")
    assert found["libvirt_uri"] == "test:///default"
    (vm,) = found["vms"]
    assert (vm["name"], vm["state"], vm["found_by"], vm["cgroup"]) == ("test", "running", "libvirt", None)
    disk = {"target": "vda", "kind": "file", "source": "/guest/diskimage1", "device": None}
    assert vm["disks"] == [{**disk, "below": [], "copy": None, "copy_device": None, "copy_below": []}]
    assert [stream["disk"] for stream in found["streams"]] == ["vda"]


@pytest.mark.parametrize("uri", ["no-such-driver:///", "qemu+unix:///system?socket=/x"])
def test_unreachable_libvirt_is_reported(uri: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert app.run(["vm", "list", "--connect", uri]) == 2
    output, hint = capfd.readouterr().err.splitlines()
    assert uri in output
    assert hint.startswith("hint: ")


@pytest.fixture(scope="module")
def domain(libvirt_host: LibvirtHost) -> Any:  # noqa: F811
    """A running VM without an operating system, with an image and an empty CD-ROM drive."""
    cdrom = "<disk type='file' device='cdrom'><target dev='hda' bus='ide'/><readonly/></disk>"
    return libvirt_host.start_domain(NAME, disks=disk_xml(libvirt_host.image("disk.img"), "vda") + cdrom)


def ours(found: dict[str, Any]) -> dict[str, Any]:
    (vm,) = (vm for vm in found["vms"] if vm["name"] == NAME)
    assert isinstance(vm, dict)
    return vm


@pytest.mark.slow
def test_running_vm_is_found_with_its_disks(
    libvirt_host: LibvirtHost,  # noqa: F811
    domain: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = output(capsys, "--connect", libvirt_host.uri)
    vm = ours(found)
    assert (vm["state"], vm["uuid"], vm["libvirt_id"]) == ("running", domain.UUIDString(), domain.ID())
    assert [(disk["target"], disk["source"]) for disk in vm["disks"]] == [
        ("vda", str(libvirt_host.folder / "disk.img")),
        ("hda", None),
    ]
    number = (libvirt_host.folder / "disk.img").stat().st_dev
    if os.major(number):
        assert vm["disks"][0]["device"] is not None
    assert "vda" in [stream["disk"] for stream in found["streams"] if stream["vm"] == NAME]


@pytest.mark.slow
def test_cgroup_of_a_vm_contains_its_qemu(
    libvirt_host: LibvirtHost,  # noqa: F811
    domain: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = output(capsys, "--connect", libvirt_host.uri)
    cgroup = ours(found)["cgroup"]
    if cgroup is None:
        pytest.skip("this libvirtd gives its VMs no cgroup that accounts block I/O")
    folder = Path(found["cgroup"]["root"]) / cgroup.lstrip("/")
    pids = {pid for procs in folder.rglob("cgroup.procs") for pid in read_pids(procs)}
    assert any(domain.UUIDString().encode() in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids)

    alone = [vm for vm in output(capsys, "--no-libvirt")["vms"] if vm["cgroup"] == cgroup]
    assert [(vm["name"], vm["uuid"], vm["found_by"]) for vm in alone] == [
        (NAME, domain.UUIDString(), "cgroup name")
    ]


def read_pids(procs: Path) -> list[str]:
    try:
        return procs.read_text().split()
    except OSError:  # a threaded group has no list of processes
        return []


@pytest.mark.slow
def test_paused_vm_is_shown_as_paused(
    libvirt_host: LibvirtHost,  # noqa: F811
    domain: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    domain.suspend()
    try:
        assert ours(output(capsys, "--connect", libvirt_host.uri))["state"] == "paused"
    finally:
        domain.resume()


def test_doctor_reaches_libvirt(libvirt_host: LibvirtHost, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    app.run(["doctor", "--json", "--connect", libvirt_host.uri])
    requirements = json.loads(capsys.readouterr().out)["requirements"]
    (found,) = (each for each in requirements if each["name"] == "libvirt")
    assert found["satisfied"], found
