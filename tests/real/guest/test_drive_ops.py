"""A drive with OPS per namespace, one namespace for each of three VMs: weights, and moves of OPS.

The drive is the emulated SSD over NVMe/TCP, the host is the guest with the installed package.

    .venv/bin/python -m pytest -s tests/real/guest/test_drive_ops.py

prints the figures that are in docs/validation.md.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from serving import Server, make_device, served

from .commands import SLO_CTL, start_commands
from .guests import POOL
from .machine import Guest
from .nvme_tcp import connected_to
from .vm_scopes import VmScope, first_that, freeze, rates, start, stop, until

GUEST = POOL
_SCOPES = (VmScope("db", 1), VmScope("web", 2), VmScope("mail", 3))
_WEIGHTS = {"db": 1, "web": 3, "mail": 6}
_BLOCKS = (4 << 20) // 512
"""Size of each namespace."""
# Slow enough for an emulated CPU, and so small that its GC begins within a minute. With small blocks it
# collects many of them, so that u is known early.
_DRIVE = "name=d,size=13MiB,op=60%,dies=1,block=128KiB,program_us=7000,unallocated=12MiB"
_BLOCK_PAGES = 32
_STEP_IOPS = 10.0
"""Granularity of limits in the guest's kernel: the next limit may be in force for a part of the time."""
_WITHIN = 0.1
_SECONDS = 15.0
_COMMAND_S = 300.0
_IN_FORCE_S = 900.0
# Epochs are longer than a second, so that the effect of a limit shows in an emulated guest. The window is the
# whole test, so that status and the server's counters can be compared exactly.
_CONFIGURATION = "\n".join(
    (
        '[daemon]\nepoch = "4s"\nwindow = "1h"\npolicy = "min_waf"\n[libvirt]\nuri = "none"',
        '[[device]]\nname = "fast"\npath = "/dev/{drive}"\nscheduler = "keep"',
        *(each.configuration(weight=_WEIGHTS[each.vm]) for each in _SCOPES),
    )
)
_SHOW = "slo-ctl status; journalctl -u slo-ctld --no-pager -n 30"


@dataclass(frozen=True)
class Drive:
    guest: Guest
    server: Server
    name: str
    """Such as `nvme3`."""
    nsids: dict[str, int]
    """Block devices by VM."""

    def spaces(self) -> dict[str, dict[str, Any]]:
        """The server's statistics of each VM's namespace."""
        with self.server.control() as control:
            found = {each["nsid"]: each for each in control.statistics()["namespaces"]}
        return {vm: found[nsid] for vm, nsid in self.nsids.items()}

    def ops_blocks(self) -> dict[str, int]:
        return {vm: each["space"]["ops_blocks"] for vm, each in self.spaces().items()}

    def block(self, vm: str) -> str:
        """Current block device of the VM."""
        files = f"/sys/block/{self.name}n*/nsid"
        found = self.guest.run(f"basename $(dirname $(grep -lx {self.nsids[vm]} {files}))")
        return f"/dev/{found.stdout.strip()}"

    def status(self) -> dict[str, dict[str, Any]]:
        output = self.guest.run(f"{SLO_CTL} status --json", check=False, timeout_s=120).stdout
        return {each["vm"]: each for each in json.loads(output)["vms"]}

    def limits(self) -> str:
        return self.guest.run("cat /sys/fs/cgroup/machine.slice/machine-qemu*/io.max").stdout


@pytest.fixture(scope="module")
def drive(installed: Guest) -> Iterator[Drive]:
    """A drive with a namespace for each of three VMs."""
    start_commands(installed)
    root = Path(tempfile.mkdtemp(prefix="slo-"))  # socket names are limited in length
    make_device(root, _DRIVE, "name=other")
    options = ("--latency", "real", "--nvme-tcp", "127.0.0.1:0", "--nvme-allow", "namespaces,ops")
    with served(root, "d", *options) as server, connected_to(installed, server) as name:
        nsids = dict(zip(_WEIGHTS, range(2, 5), strict=True))
        create = f"nvme create-ns /dev/{name} --nsze={_BLOCKS} --ncap={_BLOCKS} --flbas=0"
        controller_id = installed.run(f"cat /sys/class/nvme/{name}/cntlid").stdout.strip()
        for nsid in nsids.values():
            installed.run(f"{create} && nvme attach-ns /dev/{name} -n {nsid} -c {controller_id}")
        there = f"[ $(cat /sys/block/{name}n*/nsid | wc -l) = {1 + len(nsids)} ]"
        installed.run(f"nvme ns-rescan /dev/{name}")
        until(installed, there, _COMMAND_S, show="nvme list")
        yield Drive(installed, server, name, nsids)
        stop(installed, _SCOPES)
    shutil.rmtree(root, ignore_errors=True)


def report(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def test_shares_waf_and_ops_of_three_vms_on_one_drive(drive: Drive) -> None:
    guest = drive.guest
    shown = guest.run(f"{SLO_CTL} device show /dev/{drive.name}", timeout_s=_COMMAND_S).stdout
    assert "isolated OPS by namespaces with OPS of their own" in shown
    # Only on a full drive GC has work to do.
    blocks = {vm: drive.block(vm) for vm in _WEIGHTS}
    fill = " & ".join(f"dd if=/dev/urandom of={block} bs=256k oflag=direct" for block in blocks.values())
    guest.run(f"{fill} & wait", timeout_s=_COMMAND_S)
    for scope in _SCOPES:
        start(guest, scope, f"--filename={blocks[scope.vm]}", "--rw=randwrite", "--bs=4k", "--iodepth=8")
    for scope in _SCOPES:
        until(guest, f"grep -q 'wios=[1-9][0-9]' '{scope.folder}/io.stat'", _COMMAND_S, show="nvme list")
    # The daemon's first observation is made while there are no writes.
    freeze(guest, _SCOPES, frozen=True)
    guest.run("cat >/etc/slo-ctl/conf.d/guest.toml", stdin=_CONFIGURATION.replace("{drive}", drive.name))
    guest.run("systemctl start slo-ctld", timeout_s=_IN_FORCE_S)
    before, split = drive.spaces(), drive.ops_blocks()
    rows = first_that(lambda rows: _ops_of(rows) == split, drive.status, looks=60, pause_s=1.0)
    assert _ops_of(rows) == split, guest.run(_SHOW, check=False).stdout
    freeze(guest, _SCOPES, frozen=False)
    iops = first_that(_as_weights, lambda: _measured(guest), looks=30)
    assert _as_weights(iops), guest.run(_SHOW, check=False).stdout

    # OPS moves after GC has collected 20 blocks of each VM, so that u is known.
    moved = first_that(lambda found: found != split, drive.ops_blocks, looks=150, pause_s=2.0)
    assert moved != split, guest.run(_SHOW, check=False).stdout
    freeze(guest, _SCOPES, frozen=True)
    rows = first_that(lambda rows: _agrees(rows, before, drive.spaces()), drive.status, looks=15, pause_s=2.0)
    now = drive.spaces()
    for vm, row in rows.items():
        report(f"{vm}: OPS {split[vm]} -> {row['ops_blocks']} blocks, u {row['u']:.3f}, WAF {row['waf']:.3f}")
    assert _agrees(rows, before, now), guest.run(_SHOW, check=False).stdout

    # It is restored while the clients write: GC has to empty the blocks first.
    freeze(guest, _SCOPES, frozen=False)
    guest.run("systemctl stop slo-ctld", timeout_s=_COMMAND_S)
    assert drive.limits() == ""
    # The drive goes on moving blocks that are still occupied.
    restored = first_that(lambda found: found == split, drive.ops_blocks, looks=60, pause_s=2.0)
    assert restored == split, guest.run(_SHOW, check=False).stdout


def _measured(guest: Guest) -> dict[str, float]:
    iops = rates(guest, _SCOPES, None, _SECONDS)
    report("weights 1:3:6: " + ", ".join(f"{vm} {each:.1f}" for vm, each in iops.items()) + " IOPS")
    return iops


def _as_weights(iops: dict[str, float]) -> bool:
    """The tolerance allows for steps of limits, and for a guest whose clock may lag."""
    total, weights = sum(iops.values()), sum(_WEIGHTS.values())
    dues = {vm: total * weight / weights for vm, weight in _WEIGHTS.items()}
    return iops == {vm: pytest.approx(due, abs=_STEP_IOPS + _WITHIN * due) for vm, due in dues.items()}


def _ops_of(rows: dict[str, dict[str, Any]]) -> dict[str, int | None]:
    return {vm: row["ops_blocks"] for vm, row in rows.items()}


def _agrees(rows: dict[str, Any], before: dict[str, Any], now: dict[str, Any]) -> bool:
    """Whether the status shows what the server counted since the daemon's first observation."""
    return {vm: (row["ops_blocks"], row["u"], row["waf"]) for vm, row in rows.items()} == {
        vm: _counted(before[vm]["flash"], now[vm]) for vm in _WEIGHTS
    }


def _counted(before: dict[str, int], now: dict[str, Any]) -> tuple[int, Any, Any]:
    names = ("host_page_writes", "gc_page_writes", "victims", "victim_valid_pages")
    host, copied, victims, valid = (now["flash"][name] - before[name] for name in names)
    u = pytest.approx(valid / (_BLOCK_PAGES * victims)) if victims else None
    return now["space"]["ops_blocks"], u, pytest.approx((host + copied) / host)
