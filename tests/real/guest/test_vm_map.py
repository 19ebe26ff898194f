"""`slo-ctl vm map` as installed: namespaces of an NVMe drive become disks of VMs and are returned."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from bare_guest import disk_line
from serving import make_device, served

from .commands import SLO_CTL, start_commands
from .guests import POOL
from .machine import Guest, Result
from .nested import NestedVms
from .nvme_tcp import connected_to
from .vm_scopes import until

GUEST = POOL
_SIZE_BYTES = 32 << 20
_SLICE_BYTES = 16 << 20
_FIRST, _SECOND, _DETACHED = 1, 2, 5
"""NSIDs. The kernel names block devices in the order in which it finds them."""
_COMMAND_S = 240.0
_KILLER = """#!/bin/sh
# The step is done, and slo-ctl killed before it can say so.
case "$0 $1" in
    *"{when}"*) "$REAL" "$@"; kill -KILL $PPID; exit 1 ;;
esac
exec "$REAL" "$@"
"""


@dataclass(frozen=True)
class Host:
    guest: Guest
    vms: NestedVms
    drive: str
    """Such as `nvme0`."""

    def vm(self, words: str, *, before: str = "") -> Result:
        """Run `slo-ctl vm`, which may be refused."""
        return self.guest.run(f"{before} {SLO_CTL} vm {words}", check=False, timeout_s=_COMMAND_S)

    def done(self, words: str) -> str:
        result = self.vm(words)
        assert result.rc == 0, f"{result.stdout}{result.stderr}"
        return result.stdout

    def refused(self, words: str) -> str:
        """The error message of a refused command."""
        result = self.vm(words)
        assert result.rc == 2, f"{result.stdout}{result.stderr}"
        return result.stderr

    def maps(self) -> list[dict[str, Any]]:
        output = json.loads(self.done("maps --json"))
        assert output["format_version"] == 1
        found: list[dict[str, Any]] = output["mappings"]
        return found

    def has_none(self) -> bool:
        """Whether no mapping is stored; read without `slo-ctl`, which takes seconds under emulation."""
        text = self.guest.run("cat /var/lib/slo-ctl/mappings.json || true").stdout
        return not text or json.loads(text)["mappings"] == []

    def attached(self) -> set[int]:
        """NSIDs that have block devices."""
        return {int(each) for each in self.guest.run(f"cat /sys/block/{self.drive}n*/nsid").stdout.split()}

    def block(self, nsid: int) -> str:
        """Current name of its block device."""
        found = self.guest.run(f"basename $(dirname $(grep -lx {nsid} /sys/block/{self.drive}n*/nsid))")
        return found.stdout.strip()

    def nsid_behind(self, path: str) -> int:
        return int(self.guest.run(f"cat /sys/block/$(basename $(readlink -f {path}))/nsid").stdout)

    def killed(self, words: str, program: str, when: str) -> None:
        """Run `slo-ctl vm`, and kill it just after a program that it runs has done a step."""
        folder = f"/root/killer-{program}"
        real = self.guest.run(f"command -v {program}").stdout.strip()
        self.guest.run(
            f"mkdir -p {folder}; cat >{folder}/{program}; chmod 755 {folder}/{program}",
            stdin=_KILLER.format(when=when).replace("$REAL", real),
        )
        result = self.vm(words, before=f"PATH={folder}:$PATH")
        assert result.rc == 137, f"{result.stdout}{result.stderr}"

    def hash(self, block: str, offset_bytes: int, length_bytes: int) -> str:
        return self.guest.run(
            f"dd if=/dev/{block} iflag=direct bs=1M skip={offset_bytes >> 20} count={length_bytes >> 20}"
            " status=none | sha256sum"
        ).stdout.split()[0]


@pytest.fixture(scope="module")
def host(installed: Guest, tmp_path_factory: pytest.TempPathFactory) -> Host:
    start_commands(installed)
    vms = NestedVms(installed, tmp_path_factory.mktemp("nested"))
    vms.define("web")
    vms.define("db")
    return Host(installed, vms, installed.controller("POOL0"))


@pytest.fixture(scope="class")
def web_runs(host: Host) -> Iterator[None]:
    host.vms.start("web")
    yield
    host.vms.destroy("web")


def test_drive_without_create_is_named_and_left_unchanged(host: Host) -> None:
    message = host.refused(f"map web --device /dev/{host.drive} --size 64MiB --yes")
    assert "claims namespace management (oacs bit 3), but cannot create namespaces" in message
    assert f"--adopt {_DETACHED}" in message
    assert host.has_none()


@pytest.mark.usefixtures("web_runs")
class TestRunning:
    def test_detached_namespace_becomes_a_disk_of_a_running_vm(self, host: Host) -> None:
        assert host.attached() == {_FIRST, _SECOND}
        made = json.loads(host.done(f"map web --device /dev/{host.drive} --adopt {_DETACHED} --yes --json"))
        assert (made["nsid"], made["complete"], made["created"], made["attached_by_us"]) == (
            _DETACHED,
            True,
            False,
            True,
        )
        assert host.attached() == {_FIRST, _SECOND, _DETACHED}
        # Stable names, as the kernel may number namespaces differently at the next boot.
        assert made["path"].startswith("/dev/disk/by-id/nvme-")
        assert host.nsid_behind(made["path"]) == _DETACHED
        for definition in (False, True):
            assert host.vms.disks("web", definition=definition) == {made["target"]: made["path"]}
        host.vms.says("web", disk_line(_SIZE_BYTES))
        assert [(each["vm"], each["nsid"]) for each in host.maps()] == [("web", _DETACHED)]

    def test_mapped_namespace_is_refused_to_another_vm(self, host: Host) -> None:
        for named in (_DETACHED, host.block(_DETACHED)):
            message = host.refused(f"map db --device /dev/{host.drive} --adopt {named} --yes")
            assert f"namespace {_DETACHED} of {host.drive} is in use: mapped to VM web" in message

    def test_unmap_of_a_running_vm_needs_unplug(self, host: Host) -> None:
        message = host.refused(f"unmap web {_DETACHED} --yes")
        assert "in use: disk vda of VM web" in message
        assert "--unplug" in message
        host.done(f"unmap web {_DETACHED} --unplug --yes")
        host.vms.says("web", "let go")
        assert host.vms.disks("web") == host.vms.disks("web", definition=True) == {}
        assert host.attached() == {_FIRST, _SECOND}
        assert host.maps() == []


def test_namespaces_in_use_are_not_adopted(host: Host) -> None:
    first, second = host.block(_FIRST), host.block(_SECOND)
    host.vms.define("mail", f"/dev/{second}")
    host.guest.run(f"mkfs.ext4 -q /dev/{first} && mount /dev/{first} /mnt")
    message = host.refused(f"map web --device /dev/{host.drive} --adopt {_FIRST} --yes")
    assert f"namespace {_FIRST} of {host.drive} is in use: mounted" in message
    message = host.refused(f"map web --device /dev/{host.drive} --adopt {second} --yes")
    assert f"namespace {_SECOND} of {host.drive} is in use: disk vda of VM mail" in message
    assert host.has_none()
    host.guest.run("umount /mnt; virsh undefine mail")


def test_map_and_unmap_resume_after_a_kill(host: Host) -> None:
    words = f"--device /dev/{host.drive} --adopt {_DETACHED} --size {_SLICE_BYTES} --yes"
    controller = host.guest.run(f"cat /sys/class/nvme/{host.drive}/cntlid").stdout.strip()
    host.guest.run(
        f"nvme attach-ns /dev/{host.drive} -n {_DETACHED} -c {controller}; udevadm settle", timeout_s=120
    )
    until(host.guest, f"grep -qx {_DETACHED} /sys/block/{host.drive}n*/nsid", show="nvme list")
    block = host.block(_DETACHED)
    host.guest.run(
        f"dd if=/dev/urandom of=/dev/{block} oflag=direct bs=1M count={_SIZE_BYTES >> 20} status=none",
        timeout_s=240,
    )
    kept, rest = host.hash(block, 0, _SLICE_BYTES), host.hash(block, _SLICE_BYTES, _SLICE_BYTES)
    host.guest.run(f"nvme detach-ns /dev/{host.drive} -n {_DETACHED} -c {controller}", timeout_s=120)

    host.killed(f"map web {words}", "blkdiscard", "blkdiscard")
    (left,) = host.maps()
    assert (left["complete"], left["done"], len(left["steps"])) == (False, 1, 3)
    assert "is unfinished" in host.refused(f"map web {words}")
    made = json.loads(host.done("map web --resume --yes --json"))
    assert (made["complete"], made["size_bytes"]) == (True, _SLICE_BYTES)
    assert made["spare"]["size_bytes"] == _SIZE_BYTES - _SLICE_BYTES
    block = host.block(_DETACHED)
    assert host.hash(block, 0, _SLICE_BYTES) == kept
    zeroes = host.guest.run(f"head -c {_SLICE_BYTES} /dev/zero | sha256sum").stdout.split()[0]
    assert host.hash(block, _SLICE_BYTES, _SLICE_BYTES) == zeroes != rest

    # The VM sees only its partition, and writes to all of it and to nothing else.
    host.vms.start("web")
    host.vms.says("web", disk_line(_SLICE_BYTES))
    host.vms.destroy("web")
    assert host.hash(block, 0, _SLICE_BYTES) != kept
    assert host.hash(block, _SLICE_BYTES, _SLICE_BYTES) == zeroes

    host.killed(f"unmap web {block} --yes", "nvme", "detach-ns")
    (left,) = host.maps()
    assert (left["purpose"], left["complete"]) == ("unmap", False)
    host.done("map web --resume --yes")
    assert host.attached() == {_FIRST, _SECOND}
    assert host.vms.disks("web", definition=True) == {}
    assert host.has_none()


def test_namespaces_are_created_for_vms_and_deleted_again(host: Host) -> None:
    """On the emulated SSD over NVMe/TCP: QEMU's drive cannot create namespaces."""
    root = Path(tempfile.mkdtemp(prefix="slo-"))  # socket names are limited in length
    make_device(root, "name=d,size=64MiB,op=30%,dies=2,unallocated=60MiB", "name=other")
    options = ("--nvme-tcp", "127.0.0.1:0", "--nvme-allow", "namespaces")
    with served(root, "d", *options) as server, connected_to(host.guest, server) as drive:
        mine = replace(host, drive=drive)
        for vm, size in (("web", 16 << 20), ("db", 8 << 20)):
            made = json.loads(mine.done(f"map {vm} --device /dev/{drive} --size {size} --yes --json"))
            assert (made["complete"], made["created"], made["size_bytes"]) == (True, True, size)
            assert made["placement"]["isolation"] == "isolated OPS"
            assert mine.nsid_behind(made["path"]) == made["nsid"]
            assert mine.vms.disks(vm, definition=True) == {made["target"]: made["path"]}
            # Write as the VM would; a VM takes long to start.
            host.guest.run(f"dd if=/dev/zero of={made['path']} bs=64k count=4 oflag=direct status=none")
        assert mine.attached() == {1, 2, 3}
        with server.control() as control:
            written = {
                each["name"]: each["flash"]["host_page_writes"] for each in control.statistics()["namespaces"]
            }
        assert written["ns2"] == written["ns3"] > 0 == written["other"]
        for vm, nsid in (("web", 2), ("db", 3)):
            mine.done(f"unmap {vm} {nsid} --delete --yes")
            assert mine.vms.disks(vm, definition=True) == {}
        assert mine.has_none()
        with server.control() as control:
            assert [each["nsid"] for each in control.statistics()["namespaces"]] == [1]
        until(host.guest, f'[ "$(cat /sys/block/{drive}n*/nsid)" = 1 ]', show="nvme list")
    shutil.rmtree(root, ignore_errors=True)
