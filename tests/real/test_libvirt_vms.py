"""VMs of a real libvirt: its test driver, and a libvirtd with a VM that QEMU emulates."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from slo_ctl.cli import app
from slo_ctl.observe.cgroup import DEFAULT_ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

libvirt = pytest.importorskip("libvirt", reason="libvirt-python is not installed (extra `host`)")

START_S = 20
NAME = f"slo-ctl_test-{os.getpid()}"


def told(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert app.run(["vm", "list", "--json", *words]) == 0
    value: dict[str, Any] = json.loads(capsys.readouterr().out)
    return value


def test_the_test_driver(capsys: pytest.CaptureFixture[str]) -> None:
    found = told(capsys, "--connect", "test:///default")
    assert found["libvirt_uri"] == "test:///default"
    (vm,) = found["vms"]
    assert (vm["name"], vm["state"], vm["found_by"], vm["cgroup"]) == ("test", "running", "libvirt", None)
    assert vm["disks"] == [{"target": "vda", "kind": "file", "source": "/guest/diskimage1", "device": None}]
    assert [stream["disk"] for stream in found["streams"]] == ["vda"]


@pytest.mark.parametrize("uri", ["no-such-driver:///", "qemu+unix:///system?socket=/x"])
def test_no_such_libvirt(uri: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert app.run(["vm", "list", "--connect", uri]) == 2
    told, hint = capfd.readouterr().err.splitlines()
    assert uri in told
    assert hint.startswith("hint: ")


@pytest.fixture(scope="module")
def work() -> Iterator[Path]:
    """A folder that QEMU's own user can reach, which pytest's are not."""
    with tempfile.TemporaryDirectory(prefix="slo-ctl-libvirt-", dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture(scope="module")
def daemon(work: Path) -> Iterator[str]:
    """URI of a libvirtd: the host's if one runs, else one of our own, which is stopped at the end."""
    programs = ("libvirtd", "virtlogd", "qemu-system-x86_64")
    missing = [name for name in programs if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"not installed: {', '.join(missing)}" if missing else "libvirtd's VMs need root")
    if reachable("qemu:///system"):
        yield "qemu:///system"
        return
    config = work / "libvirtd.conf"
    config.write_text(f'unix_sock_dir = "{work}"\nauth_unix_rw = "none"\n')
    before = partitions()
    log = (work / "log").open("wb")
    processes = [
        subprocess.Popen(["virtlogd", "-p", str(work / "virtlogd.pid")], stdout=log, stderr=log),
        subprocess.Popen(
            ["libvirtd", "-f", str(config), "-p", str(work / "libvirtd.pid")], stdout=log, stderr=log
        ),
    ]
    uri = f"qemu+unix:///system?socket={work}/libvirt-sock"
    try:
        deadline = time.monotonic() + START_S
        while not reachable(uri):
            if time.monotonic() > deadline or any(process.poll() is not None for process in processes):
                pytest.skip(f"libvirtd does not start here: {(work / 'log').read_text()[-500:]}")
            time.sleep(0.1)
        yield uri
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait(START_S)
        log.close()
        for left in partitions() - before:
            with suppress(OSError):  # somebody uses it by now
                left.rmdir()


def partitions() -> set[Path]:
    """What libvirtd makes for its VMs on a host without systemd, and leaves behind."""
    return {*DEFAULT_ROOT.glob("machine"), *DEFAULT_ROOT.glob("*/machine")}


def reachable(uri: str) -> bool:
    try:
        libvirt.open(uri).close()
    except libvirt.libvirtError:
        return False
    return True


@pytest.fixture(scope="module")
def domain(daemon: str, work: Path) -> Iterator[Any]:
    """A running VM without an operating system, with an image and an empty CD-ROM drive."""
    image = work / "disk.img"
    with image.open("wb") as file:
        file.truncate(1 << 20)
    connection = libvirt.open(daemon)
    xml = f"""
        <domain type='qemu'><name>{NAME}</name><memory unit='MiB'>32</memory><vcpu>1</vcpu>
          <os><type arch='x86_64' machine='pc'>hvm</type></os>
          <devices>
            <disk type='file' device='disk'><driver name='qemu' type='raw'/>
              <source file='{image}'/><target dev='vda' bus='virtio'/></disk>
            <disk type='file' device='cdrom'><target dev='hda' bus='ide'/><readonly/></disk>
            <memballoon model='none'/>
          </devices>
        </domain>"""
    try:
        domain = connection.createXML(xml, 0)
    except libvirt.libvirtError as error:
        connection.close()
        pytest.skip(f"no VM starts under this libvirtd: {error}")
    yield domain
    domain.destroy()
    connection.close()


def ours(found: dict[str, Any]) -> dict[str, Any]:
    (vm,) = (vm for vm in found["vms"] if vm["name"] == NAME)
    assert isinstance(vm, dict)
    return vm


@pytest.mark.slow
def test_a_running_vm(daemon: str, domain: Any, work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = told(capsys, "--connect", daemon)
    vm = ours(found)
    assert (vm["state"], vm["uuid"], vm["libvirt_id"]) == ("running", domain.UUIDString(), domain.ID())
    assert [(disk["target"], disk["source"]) for disk in vm["disks"]] == [
        ("vda", f"{work}/disk.img"),
        ("hda", None),
    ]
    number = (work / "disk.img").stat().st_dev
    if os.major(number):
        assert vm["disks"][0]["device"] is not None
    assert "vda" in [stream["disk"] for stream in found["streams"] if stream["vm"] == NAME]


@pytest.mark.slow
def test_its_cgroup_holds_its_qemu(daemon: str, domain: Any, capsys: pytest.CaptureFixture[str]) -> None:
    found = told(capsys, "--connect", daemon)
    cgroup = ours(found)["cgroup"]
    if cgroup is None:
        pytest.skip("this libvirtd gives its VMs no cgroup that accounts block I/O")
    folder = Path(found["cgroup"]["root"]) / cgroup.lstrip("/")
    pids = {pid for procs in folder.rglob("cgroup.procs") for pid in read_pids(procs)}
    assert any(domain.UUIDString().encode() in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids)

    alone = [vm for vm in told(capsys, "--no-libvirt")["vms"] if vm["cgroup"] == cgroup]
    assert [(vm["name"], vm["uuid"], vm["found_by"]) for vm in alone] == [
        (NAME, domain.UUIDString(), "cgroup name")
    ]


def read_pids(procs: Path) -> list[str]:
    try:
        return procs.read_text().split()
    except OSError:  # a threaded group has no list
        return []


@pytest.mark.slow
def test_a_paused_vm(daemon: str, domain: Any, capsys: pytest.CaptureFixture[str]) -> None:
    domain.suspend()
    try:
        assert ours(told(capsys, "--connect", daemon))["state"] == "paused"
    finally:
        domain.resume()


def test_the_doctor_reaches_it(daemon: str, capsys: pytest.CaptureFixture[str]) -> None:
    app.run(["doctor", "--json", "--connect", daemon])
    requirements = json.loads(capsys.readouterr().out)["requirements"]
    (found,) = (each for each in requirements if each["name"] == "libvirt")
    assert found["satisfied"], found
