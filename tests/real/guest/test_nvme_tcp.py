"""The emulated SSD over NVMe/TCP, used by the host driver of a stock kernel."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from serving import Server, make_device, served
from waiting import until

from .guests import GENERAL
from .machine import Guest
from .nvme_tcp import connected_to
from .vm_scopes import until as wait_in

GUEST = GENERAL


@dataclass(frozen=True)
class Connected:
    """A subsystem that the guest is connected to."""

    guest: Guest
    server: Server
    controller: str
    disks: tuple[str, str]
    since_s: float
    """Uptime of the guest before it connected."""


def disks_by_nsid(guest: Guest, controller: str, count: int) -> list[str]:
    """Block devices in the order of their NSIDs; the kernel finds them in any order."""
    listed = f"grep -H . /sys/class/nvme/{controller}/{controller}n*/nsid"
    wait_in(guest, f"[ $({listed} | wc -l) = {count} ]")
    found = [line.rsplit("/nsid:", 1) for line in guest.run(listed).stdout.split()]
    return [path.rsplit("/", 1)[1] for path, _ in sorted(found, key=lambda each: int(each[1]))]


@pytest.fixture(scope="module")
def connected(booted: Guest) -> Iterator[Connected]:
    # Socket names are limited in length.
    root = Path(tempfile.mkdtemp(prefix="slo-"))
    spec = "name=d,size=320MiB,op=20%,dies=2,unallocated=64MiB"
    make_device(root, spec, "name=a,size=192MiB", "name=b,size=32MiB")
    options = ("--nvme-tcp", "127.0.0.1:0", "--nvme-allow", "namespaces,ops")
    since_s = float(booted.run("cut -d ' ' -f 1 /proc/uptime").stdout)
    with (
        served(root, "d", *options) as server,
        # With digests as well: those of the kernel and of the server must agree.
        connected_to(booted, server, "--hdr-digest", "--data-digest") as controller,
    ):
        first, second = disks_by_nsid(booted, controller, 2)
        yield Connected(booted, server, controller, (first, second), since_s)
    shutil.rmtree(root, ignore_errors=True)


def test_kernel_connects_the_emulated_drive(connected: Connected) -> None:
    sizes = [connected.guest.run(f"blockdev --getsize64 /dev/{disk}").stdout for disk in connected.disks]
    assert [int(size) >> 20 for size in sizes] == [192, 32]
    # Another test may have removed a controller of the same name, and with it a keep alive in progress.
    since = f"awk -F '[][]' '$2 >= {connected.since_s}'"
    kernel = connected.guest.run(f"dmesg | {since} | grep {connected.controller}").stdout
    assert "new ctrl" in kernel
    assert "failed" not in kernel
    controller = json.loads(connected.guest.run(f"nvme id-ctrl /dev/{connected.controller} -o json").stdout)
    assert controller["mn"].strip() == "slo-ctl emulated SSD"
    # Namespace management and directives.
    assert controller["oacs"] == 1 << 3 | 1 << 5
    assert (int(controller["tnvmcap"]) >> 20, int(controller["unvmcap"]) >> 20) == (288, 64)


def test_written_data_is_read_back(connected: Connected) -> None:
    job = (
        f"fio --name=v --filename=/dev/{connected.disks[0]} --direct=1 --ioengine=libaio --iodepth=16"
        " --rw=randwrite --bsrange=4k-256k --size=24m --verify=crc32c --do_verify=1 --verify_fatal=1"
        " --output-format=json"
    )
    done = json.loads(connected.guest.run(job).stdout)["jobs"][0]
    assert done["error"] == 0
    assert done["read"]["io_bytes"] == done["write"]["io_bytes"] == 24 << 20


def test_file_system_is_consistent_and_discards(connected: Connected) -> None:
    disk = f"/dev/{connected.disks[1]}"
    connected.guest.run(
        f"mkfs.ext4 -q {disk} && mount {disk} /mnt && cp /usr/bin/bash /mnt/ && sync && umount /mnt"
        f" && fsck.ext4 -fn {disk} && mount {disk} /mnt && cmp /usr/bin/bash /mnt/bash && umount /mnt"
    )
    with connected.server.control() as control:
        before = control.statistics()["namespaces"][1]["space"]["mapped_pages"]
    connected.guest.run(f"blkdiscard {disk}")
    with connected.server.control() as control:
        after = control.statistics()["namespaces"][1]["space"]["mapped_pages"]
    assert before > 0
    assert after == 0


def test_logs_report_flash_writes(connected: Connected) -> None:
    device = f"/dev/{connected.controller}"
    smart = json.loads(connected.guest.run(f"nvme smart-log {device} -o json").stdout)
    extended = json.loads(connected.guest.run(f"nvme ocp smart-add-log {device} -o json").stdout)
    with connected.server.control() as control:
        statistics = control.statistics()
    flash = [namespace["flash"] for namespace in statistics["namespaces"]]
    host = sum(each["host_page_writes"] for each in flash) * statistics["page_bytes"]
    media = host + sum(each["gc_page_writes"] for each in flash) * statistics["page_bytes"]
    assert smart["data_units_written"] == -(-host // 512_000)
    units = extended["Physical media units written"]
    assert units["hi"] << 64 | units["lo"] == media


def test_kernel_sees_a_new_size_and_survives_a_server_restart(connected: Connected) -> None:
    disk = f"/dev/{connected.disks[1]}"
    with connected.server.control() as control:
        control.resize("b", 36 << 20)
    grown = f"[ $(blockdev --getsize64 {disk}) = {36 << 20} ]"
    wait_in(connected.guest, grown)
    connected.guest.run(f"echo before | dd of={disk} bs=512 conv=sync,fsync status=none")
    # The server restarts at once with the same socket; the kernel reconnects after ten seconds.
    os.kill(connected.server.pid(), signal.SIGKILL)
    found = connected.guest.run(f"dd if={disk} bs=512 count=1 iflag=direct status=none | head -c 6").stdout
    assert found == "before"


@dataclass(frozen=True)
class NvmeCli:
    """nvme-cli in the guest, for the controller."""

    guest: Guest
    controller: str

    def json(self, words: str, device: str = "") -> dict[str, Any]:
        command, _, options = words.partition(" -")
        output = self.guest.run(
            f"nvme {command} {device or '/dev/' + self.controller} {'-' + options if options else ''} -o json"
        ).stdout
        found: dict[str, Any] = json.loads(output)
        return found

    def run(self, command: str, options: str) -> None:
        self.guest.run(f"nvme {command} /dev/{self.controller} {options}")

    def nsids(self, options: str = "") -> list[int]:
        return [each["nsid"] for each in self.json(f"list-ns{options}")["nsid_list"]]

    def controller_id(self) -> str:
        return self.guest.run(f"cat /sys/class/nvme/{self.controller}/cntlid").stdout.strip()

    def until(self, holds: str) -> None:
        wait_in(self.guest, holds)

    def until_there(self, nsid: int, *, there: bool = True) -> None:
        listed = f"grep -qx {nsid} /sys/class/nvme/{self.controller}/{self.controller}n*/nsid"
        self.until(listed if there else f"! {listed}")


def test_namespace_is_created_attached_formatted_and_deleted(connected: Connected) -> None:
    guest = connected.guest
    nvme = NvmeCli(guest, connected.controller)
    blocks = (32 << 20) // 512
    nvme.run("create-ns", f"--nsze={blocks} --ncap={blocks} --flbas=0")
    assert (nvme.nsids(), nvme.nsids(" --all")) == ([1, 2], [1, 2, 3])
    nvme.run("attach-ns", f"--namespace-id=3 --controllers={nvme.controller_id()}")
    nvme.run("ns-rescan", "")
    nvme.until_there(3)
    disk = f"/dev/{disks_by_nsid(guest, connected.controller, 3)[2]}"
    assert guest.run(f"blockdev --getsize64 {disk}").stdout.strip() == str(32 << 20)
    guest.run(
        f"mkfs.ext4 -q {disk} && mount {disk} /mnt && cp /usr/bin/bash /mnt/ && sync && umount /mnt"
        f" && fsck.ext4 -fn {disk}"
    )

    # All settings survive a restart of the server.
    os.kill(connected.server.pid(), signal.SIGKILL)
    guest.run(f"mount {disk} /mnt && cmp /usr/bin/bash /mnt/bash && umount /mnt")
    assert nvme.nsids() == [1, 2, 3]
    with connected.server.control() as control:
        made = control.statistics()["namespaces"][2]
    assert (made["name"], made["nsid"], made["space"]["isolated"]) == ("ns3", 3, True)
    assert made["space"]["ops_blocks"] >= 2 * made["space"]["min_ops_blocks"]
    guest.run(f"blkdiscard {disk}")

    nvme.run("detach-ns", f"--namespace-id=3 --controllers={nvme.controller_id()}")
    nvme.until_there(3, there=False)
    assert (nvme.nsids(), nvme.nsids(" --all")) == ([1, 2], [1, 2, 3])
    nvme.run("delete-ns", "--namespace-id=3")
    assert nvme.nsids(" --all") == [1, 2]
    refused = guest.run(
        f"nvme create-ns /dev/{connected.controller} --nsze=8000000 --ncap=8000000 --flbas=0", check=False
    )
    assert refused.rc != 0
    assert "Insufficient Capacity" in refused.stdout + refused.stderr


def test_placement_logs_match_the_counters_of_the_ftl(connected: Connected) -> None:
    nvme = NvmeCli(connected.guest, connected.controller)
    (configuration,) = nvme.json("fdp configs --endgrp-id=1")["configs"]
    assert (configuration["nrg"], configuration["nruh"]) == (1, 1024)
    handles = nvme.json("fdp usage --endgrp-id=1")["ruhus"]
    assert [each["ruha"] != 0 for each in handles[:3]] == [True, True, False]
    status = nvme.json("fdp status --namespace-id=2", f"/dev/{connected.disks[1]}")["ruhss"]
    assert [(each["pid"], each["ruhid"]) for each in status] == [(0, 1)]
    statistics = nvme.json("fdp stats --endgrp-id=1")
    group = nvme.json("endurance-log --group-id=1")
    nvme.run("fdp events", "--endgrp-id=1 --host-events")
    with connected.server.control() as control:
        stats = control.statistics()
    flash = [namespace["flash"] for namespace in stats["namespaces"]]
    # The deleted namespace is counted as well.
    host, media = int(statistics["hbmw"]), int(statistics["mbmw"])
    left = sum(each["host_page_writes"] for each in flash) * stats["page_bytes"]
    copied = sum(each["gc_page_writes"] for each in flash) * stats["page_bytes"]
    assert left < host < left + (32 << 20)
    assert media - host >= copied
    assert int(group["data_units_written"]) == -(-host // 10**9)


def test_vendor_command_moves_ops(connected: Connected) -> None:
    nvme = NvmeCli(connected.guest, connected.controller)

    def ops() -> list[int]:
        page = connected.guest.run(
            f"nvme get-log /dev/{connected.controller} --log-id=0xe0 --log-len=192 --raw-binary"
            " | od -An -v -td8"
        ).stdout.split()
        # The second number of each entry; header and entries have the same length.
        return [int(page[9]), int(page[17])]

    first, second = ops()
    nvme.run("admin-passthru", "--opcode=0xc0 --namespace-id=1 --cdw10=2 --cdw11=3")
    with connected.server.control() as control:
        until(lambda: control.statistics()["moves"]["pending"] == [], "the blocks are moved")
    assert ops() == [first - 3, second + 3]
