"""Weights and a minimum between VMs that each have a namespace of one drive; with the installed package.

    .venv/bin/python -m pytest -s tests/real/guest/test_drive_pool.py

prints the figures that are in docs/validation.md.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .commands import SLO_CTL, start_commands
from .guests import POOL, POOL_IOPS
from .machine import Guest
from .vm_scopes import VmScope, first_that, freeze, rates, start, stop, until

GUEST = POOL
_DB, _WEB, _MAIL = _SCOPES = (VmScope("db", 1), VmScope("web", 2), VmScope("mail", 3))
_NSIDS = {"db": 1, "web": 2, "mail": 5}
"""The last one is attached later. The number of its block device differs from its NSID."""
_WEIGHTS = {"db": 1, "web": 3}
_MINIMUM = 135
"""The minimum of `mail`, whose weight alone would give it 60."""
_WITHIN = 0.15
_KEPT = 0.97
_SECONDS = 12.0
_LOOKS = 8
"""If the guest waits for a CPU of this machine for seconds, that disturbs one observation, not all."""
_STEADY_S, _SETTLE_S = 7.0, 20.0
"""Limits are settled if two epochs have not changed them; some continue to change a little."""
_IN_FORCE_S = 900.0
# Epochs are longer than a second, so that the effect of a limit shows in an emulated guest.
_CONFIGURATION = "\n".join(
    (
        '[daemon]\nepoch = "3s"\n[libvirt]\nuri = "none"',
        '[[device]]\nname = "fast"\npath = "/dev/{controller}"\nscheduler = "keep"',
        *(each.configuration(weight=_WEIGHTS[each.vm]) for each in (_DB, _WEB)),
        _MAIL.configuration(min_iops=_MINIMUM),
    )
)
_SHOW = "slo-ctl status; journalctl -u slo-ctld --no-pager -n 30"


@pytest.fixture(scope="module")
def guest(installed: Guest) -> Iterator[Guest]:
    """`db` and `web` read as fast as they can, each from its own namespace."""
    start_commands(installed)
    for each in (_DB, _WEB):
        read_in(installed, each)
    yield installed
    attach(installed, "detach-ns")


def read_in(guest: Guest, scope: VmScope) -> None:
    nsid_files = f"/sys/block/{guest.controller('POOL0')}n*/nsid"
    node = guest.run(f"basename $(dirname $(grep -lx {_NSIDS[scope.vm]} {nsid_files}))").stdout.strip()
    start(guest, scope, f"--filename=/dev/{node}", "--rw=randread", "--bs=4k", "--iodepth=16")


def attach(guest: Guest, how: str) -> None:
    """Attach or detach the namespace of `mail`."""
    name = guest.controller("POOL0")
    controller_id = guest.run(f"cat /sys/class/nvme/{name}/cntlid").stdout.strip()
    guest.run(f"nvme {how} /dev/{name} -n {_NSIDS['mail']} -c {controller_id}; udevadm settle", timeout_s=120)


def measured(guest: Guest, title: str) -> dict[str, float]:
    iops = rates(guest, _SCOPES, None, _SECONDS)
    output = ", ".join(f"{vm} {each:,.0f}" for vm, each in iops.items())
    sys.stdout.write(f"\n{title}: {output} IOPS\n")
    return iops


def limits(guest: Guest) -> str:
    return guest.run("cat /sys/fs/cgroup/machine.slice/machine-qemu*/io.max").stdout


def until_limited(guest: Guest, scope: VmScope) -> None:
    until(guest, f"grep -q iops '{scope.folder}/io.max'", _IN_FORCE_S, show=_SHOW)


def until_settled(guest: Guest) -> None:
    before, deadline_s = limits(guest), time.monotonic() + _SETTLE_S
    while time.monotonic() < deadline_s:
        time.sleep(_STEADY_S)
        now = limits(guest)
        if now == before:
            return
        before = now


def status(guest: Guest) -> dict[str, dict[str, Any]]:
    output = json.loads(guest.run(f"{SLO_CTL} status --json", check=False, timeout_s=120).stdout)
    return {each["vm"]: each for each in output["vms"]}


def status_that(
    guest: Guest, holds: Callable[[dict[str, dict[str, Any]]], bool]
) -> dict[str, dict[str, Any]]:
    """The first status for which `holds` is true."""
    rows = first_that(holds, lambda: status(guest), looks=30, pause_s=2.0)
    sys.stdout.write("".join(f"{vm}: {row['verdict']}: {row['reason']}\n" for vm, row in rows.items()))
    assert holds(rows)
    return rows


def ratio(iops: dict[str, float]) -> float:
    return iops["web"] / iops["db"]


def test_weights_are_enforced_between_namespaces_of_a_drive(guest: Guest) -> None:
    time.sleep(3.0)
    without = first_that(_equal_rates, lambda: measured(guest, "without slo-ctl"))
    assert _equal_rates(without)
    assert limits(guest) == ""
    guest.run(
        "cat >/etc/slo-ctl/conf.d/guest.toml",
        stdin=_CONFIGURATION.replace("{controller}", guest.controller("POOL0")),
    )
    freeze(guest, (_DB, _WEB), frozen=True)
    guest.run("systemctl start slo-ctld", timeout_s=_IN_FORCE_S)
    freeze(guest, (_DB, _WEB), frozen=False)
    until_limited(guest, _DB)
    until_settled(guest)
    shared = first_that(_as_weights, lambda: measured(guest, "weights 1:3"), looks=_LOOKS)
    assert _as_weights(shared), guest.run(_SHOW, check=False).stdout
    rows = status_that(guest, _reports_shares)
    assert (rows["db"]["device"], rows["web"]["device"]) == ("fast-n1", "fast-n2")


def _equal_rates(iops: dict[str, float]) -> bool:
    """QEMU serves namespaces equally: no VM is throttled."""
    return ratio(iops) == pytest.approx(1.0, rel=_WITHIN)


def _reports_shares(rows: dict[str, dict[str, Any]]) -> bool:
    db, web = rows["db"], rows["web"]
    output = "of the drive's IOPS, target 75.0%" in web["reason"] and web["verdict"] == "ok"
    return output and "IOPS for web" in db["reason"]


def _as_weights(iops: dict[str, float]) -> bool:
    """No VM is below its share, and the drive is not idle."""
    if sum(iops.values()) < 0.85 * POOL_IOPS:
        return False
    found = {vm: iops[vm] / sum(iops.values()) for vm in _WEIGHTS}
    total = sum(_WEIGHTS.values())
    return found == {vm: pytest.approx(weight / total, rel=_WITHIN) for vm, weight in _WEIGHTS.items()}


def test_namespace_attached_later_gets_its_minimum(guest: Guest) -> None:
    attach(guest, "attach-ns")
    nsid_files = f"/sys/block/{guest.controller('POOL0')}n*/nsid"
    until(guest, f"grep -qx {_NSIDS['mail']} {nsid_files}", 60.0, show="nvme list")
    guest.run("udevadm settle")
    read_in(guest, _MAIL)
    until_limited(guest, _WEB)
    until_settled(guest)
    title = f"a minimum of {_MINIMUM} beside them"
    kept = first_that(_has_minimum, lambda: measured(guest, title), looks=_LOOKS)
    assert _has_minimum(kept), guest.run(_SHOW, check=False).stdout
    rows = status_that(guest, lambda rows: bool(rows["mail"]["verdict"] == "ok"))
    assert rows["mail"]["device"] == f"fast-n{_NSIDS['mail']}"


def _has_minimum(iops: dict[str, float]) -> bool:
    return iops["mail"] >= _KEPT * _MINIMUM and ratio(iops) == pytest.approx(3.0, rel=2 * _WITHIN)


def test_limits_are_removed_when_the_daemon_stops(guest: Guest) -> None:
    guest.run("systemctl stop slo-ctld", timeout_s=180)
    assert limits(guest) == ""
    stop(guest, _SCOPES)
