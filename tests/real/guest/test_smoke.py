"""The guest has the features that the other tests of this folder rely on."""

from __future__ import annotations

import json

import pytest

from .guests import GENERAL
from .machine import Guest

GUEST = GENERAL


def test_systemd_boots_without_failed_units(booted: Guest) -> None:
    state = booted.run("systemctl is-system-running --wait", check=False, timeout_s=120)
    assert state.stdout.strip() == "running", booted.run("systemctl --failed --no-pager", check=False).stdout


def test_cgroup_v2_has_io_control_by_weight_and_limit(booted: Guest) -> None:
    booted.run("mkdir /sys/fs/cgroup/smoke && echo +io >/sys/fs/cgroup/cgroup.subtree_control")
    files = booted.run("ls /sys/fs/cgroup /sys/fs/cgroup/smoke && rmdir /sys/fs/cgroup/smoke").stdout.split()
    assert {"io.cost.model", "io.cost.qos", "io.max", "io.weight", "io.stat"} <= set(files)


def test_namespaces_have_the_ids_they_were_given(booted: Guest) -> None:
    for serial, attached, all_of_them in (
        ("PLAIN0", {1}, {1}),
        ("MULTI0", {1, 2}, {1, 2, 3}),
        ("FDP0", {1, 2}, {1, 2}),
    ):
        name = booted.controller(serial)
        ids = booted.run(f"cat /sys/class/nvme/{name}/{name}*n*/nsid").stdout.split()
        assert {int(each) for each in ids} == attached
        listed = json.loads(booted.run(f"nvme list-ns /dev/{name} --all -o json").stdout)
        assert {each["nsid"] for each in listed["nsid_list"]} == all_of_them


def test_fdp_and_ocp_logs_exist(booted: Guest) -> None:
    statistics = json.loads(
        booted.run(f"nvme fdp stats /dev/{booted.controller('FDP0')} -e 1 -o json").stdout
    )
    assert "hbmw" in {key.lower() for key in statistics} or statistics
    assert booted.run(f"nvme ocp smart-add-log /dev/{booted.controller('MULTI0')} -o json").stdout


def test_namespaces_are_disks_with_a_scheduler(booted: Guest) -> None:
    """Unlike multipath disks, they are accepted by io.cost."""
    name = booted.controller("MULTI0")
    booted.run(f"echo none >/sys/class/nvme/{name}/{name}n1/queue/scheduler")
    device = booted.run(f"cat /sys/class/nvme/{name}/{name}n1/dev").stdout.strip()
    booted.run(f"echo '{device} enable=1' >/sys/fs/cgroup/io.cost.qos")
    assert f"{device} enable=1" in booted.run("cat /sys/fs/cgroup/io.cost.qos").stdout
    booted.run(f"echo '{device} enable=0' >/sys/fs/cgroup/io.cost.qos")


def test_virtio_disks_have_their_serial_number_and_size(booted: Guest) -> None:
    listed = json.loads(booted.run("lsblk -J -b -o NAME,SERIAL,SIZE").stdout)["blockdevices"]
    assert {each["serial"]: each["size"] for each in listed}["VIRTIO0"] == 64 << 20


def test_libvirtd_answers_and_can_emulate(booted: Guest) -> None:
    assert "<domain type='qemu'" in booted.run("virsh capabilities").stdout.replace('"', "'")


def test_commands_return_their_exit_status(booted: Guest) -> None:
    result = booted.run("cat; echo no >&2; exit 3", check=False, stdin="yes")
    assert (result.rc, result.stdout, result.stderr) == (3, "yes", "no\n")
    with pytest.raises(AssertionError, match="code 3"):
        booted.run("exit 3")


def test_logs_are_collected(booted: Guest) -> None:
    booted.collect()
    assert "Linux version" in (booted.logs / "serial-1.log").read_text(errors="replace")
    assert "systemd" in (booted.logs / "journal.log").read_text()
