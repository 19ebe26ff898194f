"""The guest is the KVM host that the other tests of this folder take it for."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from .drives import Fdp, Medium, Namespace, NvmeSubsystem, PlainNvme, VirtioDisk

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Boot
    from .machine import Guest

_SIZE_BYTES = 64 << 20
_SMALL = Medium(_SIZE_BYTES)
_DRIVES = (
    PlainNvme("PLAIN0", _SMALL),
    NvmeSubsystem(
        "MULTI0", (Namespace(1, _SMALL), Namespace(2, _SMALL), Namespace(3, _SMALL, attached=False)), ocp=True
    ),
    NvmeSubsystem("FDP0", (Namespace(7, _SMALL, fdp_handles="0-3"),), fdp=Fdp()),
    VirtioDisk("VIRTIO0", _SMALL),
)


@pytest.fixture(scope="module")
def guest(boot: Boot) -> Guest:
    return boot(_DRIVES)


def controller(guest: Guest, serial: str) -> str:
    """The name of a drive; names follow the order in which the kernel found them."""
    return guest.run(f"basename $(dirname $(grep -lw {serial} /sys/class/nvme/*/serial))").stdout.strip()


def test_systemd_is_up_and_content(guest: Guest) -> None:
    state = guest.run("systemctl is-system-running --wait", check=False, timeout_s=120)
    assert state.stdout.strip() == "running", guest.run("systemctl --failed --no-pager", check=False).stdout


def test_cgroup_v2_has_io_control_by_weight_and_limit(guest: Guest) -> None:
    guest.run("mkdir /sys/fs/cgroup/smoke && echo +io >/sys/fs/cgroup/cgroup.subtree_control")
    files = guest.run("ls /sys/fs/cgroup /sys/fs/cgroup/smoke && rmdir /sys/fs/cgroup/smoke").stdout.split()
    assert {"io.cost.model", "io.cost.qos", "io.max", "io.weight", "io.stat"} <= set(files)


def test_namespaces_have_the_ids_they_were_given(guest: Guest) -> None:
    for serial, attached, all_of_them in (
        ("PLAIN0", {1}, {1}),
        ("MULTI0", {1, 2}, {1, 2, 3}),
        ("FDP0", {7}, {7}),
    ):
        name = controller(guest, serial)
        ids = guest.run(f"cat /sys/class/nvme/{name}/{name}*n*/nsid").stdout.split()
        assert {int(each) for each in ids} == attached
        listed = json.loads(guest.run(f"nvme list-ns /dev/{name} --all -o json").stdout)
        assert {each["nsid"] for each in listed["nsid_list"]} == all_of_them


def test_fdp_and_ocp_logs_are_there(guest: Guest) -> None:
    statistics = json.loads(guest.run(f"nvme fdp stats /dev/{controller(guest, 'FDP0')} -e 1 -o json").stdout)
    assert "hbmw" in {key.lower() for key in statistics} or statistics
    assert guest.run(f"nvme ocp smart-add-log /dev/{controller(guest, 'MULTI0')} -o json").stdout


def test_namespaces_are_disks_with_a_scheduler(guest: Guest) -> None:
    """Unlike those of multipath: io.cost takes them."""
    name = controller(guest, "MULTI0")
    guest.run(f"echo none >/sys/class/nvme/{name}/{name}n1/queue/scheduler")
    device = guest.run(f"cat /sys/class/nvme/{name}/{name}n1/dev").stdout.strip()
    guest.run(f"echo '{device} enable=1' >/sys/fs/cgroup/io.cost.qos")
    assert f"{device} enable=1" in guest.run("cat /sys/fs/cgroup/io.cost.qos").stdout
    guest.run(f"echo '{device} enable=0' >/sys/fs/cgroup/io.cost.qos")


def test_virtio_disks_have_their_serial_number_and_size(guest: Guest) -> None:
    listed = json.loads(guest.run("lsblk -J -b -o NAME,SERIAL,SIZE").stdout)["blockdevices"]
    assert {each["serial"]: each["size"] for each in listed}["VIRTIO0"] == _SIZE_BYTES


def test_libvirtd_answers_and_can_emulate(guest: Guest) -> None:
    assert "<domain type='qemu'" in guest.run("virsh capabilities").stdout.replace('"', "'")


def test_files_go_in_and_out(guest: Guest, tmp_path: Path) -> None:
    content = os.urandom(1 << 20)
    (tmp_path / "in").write_bytes(content)
    guest.put(tmp_path / "in", "/root/in")
    guest.get("/root/in", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == content


def test_commands_tell_how_they_ended(guest: Guest) -> None:
    result = guest.run("cat; echo no >&2; exit 3", check=False, stdin="yes")
    assert (result.rc, result.stdout, result.stderr) == (3, "yes", "no\n")
    with pytest.raises(AssertionError, match="code 3"):
        guest.run("exit 3")


def test_logs_are_collected(guest: Guest) -> None:
    guest.collect()
    assert "Linux version" in (guest.logs / "serial-1.log").read_text(errors="replace")
    assert "systemd" in (guest.logs / "journal.log").read_text()
