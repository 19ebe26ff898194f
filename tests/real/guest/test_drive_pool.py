"""Weights and a minimum between VMs that each have a namespace of one drive; by the installed package.

    .venv/bin/python -m pytest -s tests/real/guest/test_drive_pool.py

prints the figures that are in docs/validation.md.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from .drives import Medium, Namespace, NvmeSubsystem
from .vm_scopes import VmScope, first_that, rates, start, stop, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from .conftest import Boot
    from .machine import Guest

_DRIVE_IOPS = 1000
"""QEMU's limit on all namespaces together, which serves them in turn."""
_MEDIUM = Medium(128 << 20, iops_max=_DRIVE_IOPS, iops_group="drive")
_DB, _WEB, _MAIL = _SCOPES = (VmScope("db", 1), VmScope("web", 2), VmScope("mail", 3))
_NSIDS = {"db": 1, "web": 2, "mail": 5}
"""The last one is attached later. Its block device does not have the number of its NSID."""
_WEIGHTS = {"db": 1, "web": 3}
_MINIMUM = 450
"""Of `mail`, whose weight alone would give it 200."""
_WITHIN = 0.15
_KEPT = 0.97
_SECONDS = 12.0
_SETTLE_S = 25.0
_IN_FORCE_S = 300.0
_CONFIGURATION = "\n".join(
    (
        '[libvirt]\nuri = "none"\n[[device]]\nname = "fast"\npath = "/dev/nvme0"\nscheduler = "keep"',
        *(each.configuration(weight=_WEIGHTS[each.vm]) for each in (_DB, _WEB)),
        _MAIL.configuration(min_iops=_MINIMUM),
    )
)
_SHOW = "slo-ctl status; journalctl -u slo-ctld --no-pager -n 30"


@pytest.fixture(scope="module")
def guest(boot: Boot) -> Guest:
    """`db` and `web` read as much as they can, each from its own namespace."""
    namespaces = tuple(Namespace(nsid, _MEDIUM, attached=vm != "mail") for vm, nsid in _NSIDS.items())
    booted = boot([NvmeSubsystem("DRIVE0", namespaces)], installed=True)
    for each in (_DB, _WEB):
        read_in(booted, each)
    return booted


def read_in(guest: Guest, scope: VmScope) -> None:
    node = guest.run(
        f"basename $(dirname $(grep -lx {_NSIDS[scope.vm]} /sys/block/nvme0n*/nsid))"
    ).stdout.strip()
    start(guest, scope, f"--filename=/dev/{node}", "--rw=randread", "--bs=4k", "--iodepth=16")


def measured(guest: Guest, title: str) -> dict[str, float]:
    iops = rates(guest, _SCOPES, None, _SECONDS)
    told = ", ".join(f"{vm} {each:,.0f}" for vm, each in iops.items())
    sys.stdout.write(f"\n{title}: {told} IOPS\n")
    return iops


def limits(guest: Guest) -> str:
    return guest.run("cat /sys/fs/cgroup/machine.slice/machine-qemu*/io.max").stdout


def until_limited(guest: Guest, scope: VmScope) -> None:
    until(guest, f"grep -q iops '{scope.folder}/io.max'", _IN_FORCE_S, show=_SHOW)


def status(guest: Guest) -> dict[str, dict[str, Any]]:
    told = json.loads(guest.run("slo-ctl status --json", check=False, timeout_s=120).stdout)
    return {each["vm"]: each for each in told["vms"]}


def status_that(
    guest: Guest, holds: Callable[[dict[str, dict[str, Any]]], bool]
) -> dict[str, dict[str, Any]]:
    """The first status of which `holds`."""
    rows = first_that(holds, lambda: status(guest), looks=30, pause_s=2.0)
    sys.stdout.write("".join(f"{vm}: {row['verdict']}: {row['reason']}\n" for vm, row in rows.items()))
    assert holds(rows)
    return rows


def ratio(iops: dict[str, float]) -> float:
    return iops["web"] / iops["db"]


def test_weights_count_between_namespaces_of_a_drive(guest: Guest) -> None:
    time.sleep(3.0)
    without = measured(guest, "without slo-ctl")
    assert ratio(without) == pytest.approx(1.0, rel=_WITHIN)
    assert limits(guest) == ""
    guest.run("cat >/etc/slo-ctl/conf.d/guest.toml", stdin=_CONFIGURATION)
    guest.run("systemctl reload slo-ctld", timeout_s=120)
    until_limited(guest, _DB)
    time.sleep(_SETTLE_S)
    shared = first_that(_as_weights, lambda: measured(guest, "weights 1:3"))
    assert _as_weights(shared), guest.run(_SHOW, check=False).stdout
    rows = status_that(guest, _tells_of_shares)
    assert (rows["db"]["device"], rows["web"]["device"]) == ("fast-n1", "fast-n2")


def _tells_of_shares(rows: dict[str, dict[str, Any]]) -> bool:
    db, web = rows["db"], rows["web"]
    told = "of the drive's IOPS, target 75.0 %" in web["reason"] and web["verdict"] == "ok"
    return told and "IOPS for web" in db["reason"]


def _as_weights(iops: dict[str, float]) -> bool:
    """Nobody is held below its due, and the drive is not left idle."""
    if sum(iops.values()) < 0.85 * _DRIVE_IOPS:
        return False
    found = {vm: iops[vm] / sum(iops.values()) for vm in _WEIGHTS}
    total = sum(_WEIGHTS.values())
    return found == {vm: pytest.approx(weight / total, rel=_WITHIN) for vm, weight in _WEIGHTS.items()}


def test_a_namespace_that_is_attached_later_has_its_minimum(guest: Guest) -> None:
    controller = guest.run("cat /sys/class/nvme/nvme0/cntlid").stdout.strip()
    guest.run(f"nvme attach-ns /dev/nvme0 -n {_NSIDS['mail']} -c {controller}", timeout_s=120)
    until(guest, f"grep -qx {_NSIDS['mail']} /sys/block/nvme0n*/nsid", 60.0, show="nvme list")
    guest.run("udevadm settle")
    read_in(guest, _MAIL)
    until_limited(guest, _WEB)
    time.sleep(_SETTLE_S)
    kept = first_that(_has_minimum, lambda: measured(guest, f"a minimum of {_MINIMUM} beside them"))
    assert _has_minimum(kept), guest.run(_SHOW, check=False).stdout
    rows = status_that(guest, lambda rows: bool(rows["mail"]["verdict"] == "ok"))
    assert rows["mail"]["device"] == f"fast-n{_NSIDS['mail']}"


def _has_minimum(iops: dict[str, float]) -> bool:
    return iops["mail"] >= _KEPT * _MINIMUM and ratio(iops) == pytest.approx(3.0, rel=2 * _WITHIN)


def test_everything_is_given_back_when_it_stops(guest: Guest) -> None:
    guest.run("systemctl stop slo-ctld", timeout_s=180)
    assert limits(guest) == ""
    after = measured(guest, "after it was stopped")
    assert ratio(after) == pytest.approx(1.0, rel=_WITHIN)
    stop(guest, _SCOPES)
