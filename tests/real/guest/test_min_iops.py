"""A minimum of IOPS on an NVMe drive against two noisy neighbours, with and without slo-ctl; by its unit.

    .venv/bin/python -m pytest -s tests/real/guest/test_min_iops.py

prints the table that is in docs/policies.md.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING

import pytest

from .drives import Medium, PlainNvme
from .vm_scopes import VmScope, first_that, rates, start, stop

if TYPE_CHECKING:
    from .conftest import Boot
    from .machine import Guest

_WEB, *_NOISY = _SCOPES = (VmScope("web", 1), VmScope("noisy1", 2), VmScope("noisy2", 3))
_DRIVE_IOPS = 1000
"""QEMU's limit: what the three share is the same on every machine."""
_MINIMUM = 150
_SECONDS = 15.0
_SETTLE_S = 30.0
_KEPT = 0.97
_CONFIGURATION = "\n".join(
    (
        '[libvirt]\nuri = "none"\n[[device]]\nname = "nvme"\npath = "/dev/nvme0n1"\nscheduler = "keep"',
        _WEB.configuration(min_iops=_MINIMUM),
        *(each.configuration() for each in _NOISY),
    )
)


@pytest.fixture(scope="module")
def guest(boot: Boot) -> Guest:
    """`web` reads one request at a time, each of the others 32."""
    booted = boot([PlainNvme("PLAIN0", Medium(256 << 20, iops_max=_DRIVE_IOPS))], installed=True)
    booted.run("cat >/etc/slo-ctl/conf.d/guest.toml", stdin=_CONFIGURATION)
    booted.run("systemctl stop slo-ctld", timeout_s=180)
    for each in _SCOPES:
        depth = 1 if each is _WEB else 32
        start(booted, each, "--filename=/dev/nvme0n1", "--rw=randread", "--bs=4k", f"--iodepth={depth}")
    return booted


def measured(guest: Guest) -> dict[str, float]:
    number = guest.run("cat /sys/block/nvme0n1/dev").stdout.strip()
    return rates(guest, _SCOPES, number, _SECONDS)


def limits(guest: Guest) -> str:
    return guest.run("cat /sys/fs/cgroup/machine.slice/machine-qemu*/io.max").stdout


def test_a_minimum_is_kept_against_two_noisy_neighbours(guest: Guest) -> None:
    time.sleep(3.0)
    without = measured(guest)
    assert limits(guest) == ""
    guest.run("systemctl start slo-ctld", timeout_s=180)
    time.sleep(_SETTLE_S)
    kept = first_that(lambda iops: iops["web"] >= _KEPT * _MINIMUM, lambda: measured(guest))
    status = json.loads(guest.run("slo-ctl status --json", timeout_s=120).stdout)
    (web,) = [each for each in status["vms"] if each["vm"] == "web"]
    guest.run("systemctl stop slo-ctld", timeout_s=180)
    assert limits(guest) == ""
    after = measured(guest)
    stop(guest, _SCOPES)

    sys.stdout.write(f"\n| IOPS | without slo-ctl | with it | after it was stopped |\n|{'---|' * 4}\n")
    for each in _SCOPES:
        figures = " | ".join(f"{figure[each.vm]:,.0f}" for figure in (without, kept, after))
        sys.stdout.write(f"| {each.vm} | {figures} |\n")
    sys.stdout.write(f"web is {web['verdict']}: {web['reason']}\n")
    assert max(without["web"], after["web"]) < _MINIMUM / 2
    assert kept["web"] >= _KEPT * _MINIMUM
    # Others pay no more than they have to: the drive is not left idle.
    assert sum(kept.values()) > _DRIVE_IOPS / 2
