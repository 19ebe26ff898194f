"""The emulated SSD over vhost-user as a disk of a VM: QEMU's client and the driver of a stock kernel."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from serving import Server, make_device, served
from waiting import until

from .guests import GENERAL
from .machine import Guest
from .vm_scopes import until as wait_in

GUEST = GENERAL
_MIB = 1 << 20


@dataclass(frozen=True)
class Plugged:
    """A disk of the guest, and its server."""

    guest: Guest
    server: Server
    disk: str

    @property
    def path(self) -> str:
        return f"/dev/{self.disk}"

    def wait_for_size(self, size_bytes: int) -> None:
        has_size = f"[ $(blockdev --getsize64 {self.path}) = {size_bytes} ]"
        wait_in(self.guest, has_size)

    def mapped_pages(self) -> int:
        with self.server.control() as control:
            return int(control.statistics()["namespaces"][0]["space"]["mapped_pages"])


@pytest.fixture(scope="module")
def plugged(booted: Guest) -> Iterator[Plugged]:
    # Socket names are limited in length.
    root = Path(tempfile.mkdtemp(prefix="slo-"))
    make_device(root, "name=d,size=192MiB,op=20%,dies=2", "name=a,size=96MiB", "name=b")
    with served(root, "d", "--vhost-user", "--latency", "real") as server:
        booted.plug_vhost_user("shared", server.run.vhost_user_socket("a"), queues=2)
        try:
            by_serial = "grep -lx d-a /sys/block/*/serial"
            wait_in(booted, by_serial)
            disk = booted.run(by_serial).stdout.split("/")[3]
            yield Plugged(booted, server, disk)
        finally:
            booted.unplug_vhost_user("shared")
        assert server.stop() == 0
    shutil.rmtree(root, ignore_errors=True)


def test_kernel_has_a_disk_with_queues(plugged: Plugged) -> None:
    plugged.wait_for_size(96 * _MIB)
    folder = f"/sys/block/{plugged.disk}"
    assert plugged.guest.run(f"ls {folder}/mq | wc -l").stdout.strip() == "1"  # one CPU uses one of two
    assert plugged.guest.run(f"cat {folder}/queue/write_cache").stdout.strip() == "write back"
    with plugged.server.control() as control:
        page_bytes = control.statistics()["page_bytes"]
    granularity = plugged.guest.run(f"cat {folder}/queue/discard_granularity").stdout
    assert int(granularity) == page_bytes


def test_written_data_is_read_back(plugged: Plugged) -> None:
    job = (
        f"fio --name=v --filename={plugged.path} --direct=1 --ioengine=libaio --iodepth=16"
        " --rw=randwrite --bsrange=4k-256k --size=24m --verify=crc32c --do_verify=1 --verify_fatal=1"
        " --output-format=json"
    )
    done = json.loads(plugged.guest.run(job).stdout)["jobs"][0]
    assert done["error"] == 0
    assert done["read"]["io_bytes"] == done["write"]["io_bytes"] == 24 * _MIB


def test_file_system_is_consistent_and_discards(plugged: Plugged) -> None:
    disk = plugged.path
    plugged.guest.run(
        f"mkfs.ext4 -q {disk} && mount {disk} /mnt && cp /usr/bin/bash /mnt/ && sync && umount /mnt"
        f" && fsck.ext4 -fn {disk} && mount {disk} /mnt && cmp /usr/bin/bash /mnt/bash && umount /mnt"
    )
    assert plugged.mapped_pages() > 0
    plugged.guest.run(f"blkdiscard {disk}")
    assert plugged.mapped_pages() == 0
    plugged.guest.run(f"blkdiscard --zeroout --length 8M {disk} && cmp -n 8388608 {disk} /dev/zero")


def test_kernel_sees_a_new_size(plugged: Plugged) -> None:
    with plugged.server.control() as control:
        control.resize("a", 97 * _MIB)
    plugged.wait_for_size(97 * _MIB)


def test_guest_does_not_notice_a_killed_server_under_load(plugged: Plugged) -> None:
    """The next server completes the writes in flight; fio verifies all data that it has written."""
    job = (
        f"fio --name=k --filename={plugged.path} --direct=1 --ioengine=libaio --iodepth=16"
        " --rw=randwrite --bs=4k --size=12m --rate_iops=150 --fsync=64"
        " --verify=crc32c --do_verify=1 --verify_fatal=1 --output-format=json"
    )

    def writes() -> int:
        with plugged.server.control() as control:
            return int(control.statistics()["namespaces"][0]["answered"]["writes"]["requests"])

    def restarted(before: int) -> bool:
        return plugged.server.run.pid_file.exists() and plugged.server.pid() != before

    with ThreadPoolExecutor(1) as beside:
        fio = beside.submit(plugged.guest.run, job)
        killed = 0
        while killed < 5 and not fio.done():
            until(lambda: fio.done() or writes() > 50, "writes of fio")
            process = plugged.server.pid()
            os.kill(process, signal.SIGKILL)
            until(lambda before=process: restarted(before), "another server")  # type: ignore[misc]
            killed += 1
        done = json.loads(fio.result().stdout)["jobs"][0]
    assert killed >= 3
    assert done["error"] == 0
    assert done["read"]["io_bytes"] == done["write"]["io_bytes"] == 12 * _MIB
