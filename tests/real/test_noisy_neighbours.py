"""A minimum and a p99 on a real block device are kept by limits on others, which are restored afterwards."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from cgroup_groups import loop_device
from daemon_host import Cgroups, Clients, cgroups, clients, row_of, running
from newer_bpftrace import search_path
from noisy_neighbours import COUNTED_BELOW, VMS, configure, fio_on, let_the_kernel_count, rates, reads
from waiting import until

from slo_ctl.act.journal import Journal
from slo_ctl.daemon.files import DaemonPlaces
from slo_ctl.model.host import DeviceNumber
from slo_ctl.model.status import HostStatus, Verdict

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed"),
]
GROUP = "measured times, and the kernel's switches"

MINIMUM = 300.0
TRIES = 3
WINDOW_S = 3.0
NO_TARGET = "100s"
PART = 3.0
"""Of the p99 beside the noisy ones, that is the target."""


@dataclass(frozen=True)
class BusyDevice:
    """A loop device that all VMs read from."""

    path: str
    number: DeviceNumber
    groups: Cgroups
    readers: Clients

    def limits(self) -> dict[str, list[str]]:
        files = [f"blkio.throttle.{side}_iops_device" for side in ("read", "write")]
        return {vm: [(self.groups.folder(vm) / file).read_text() for file in files] for vm in VMS}


@contextmanager
def busy_device(root: Path) -> Iterator[BusyDevice]:
    with (
        cgroups(*VMS) as groups,
        loop_device(128 << 20) as (path, number),
        clients(groups, root) as readers,
    ):
        let_the_kernel_count(groups, number)
        for vm in VMS:
            readers.start(vm, *fio_on(path, vm))
        yield BusyDevice(path, number, groups, readers)


def kept(status: HostStatus) -> bool:
    row = row_of(status, "web")
    return row.verdict is Verdict.OK and (row.iops or 0.0) >= 0.97 * MINIMUM


def limits_are_reported(status: HostStatus) -> bool:
    web, noisy = row_of(status, "web"), row_of(status, "noisy1")
    return "limited to" in web.reason and "IOPS for web" in noisy.reason


def minimum_kept(held: dict[str, float], without: dict[str, float]) -> bool:
    """The others have most of what they had: nobody is throttled by more than it takes."""
    web_kept = held["web"] >= max(0.8 * MINIMUM, 2 * without["web"])
    return web_kept and held["noisy1"] + held["noisy2"] >= 0.4 * (without["noisy1"] + without["noisy2"])


def test_minimum_is_met_beside_two_noisy_neighbours(root: Path) -> None:
    with busy_device(root) as device:
        groups, number, before = device.groups, device.number, device.limits()
        until(lambda: all(reads(groups, number).values()), "all of them read")
        time.sleep(1.0)
        without = rates(groups, number, 5.0)
        if without["web"] >= MINIMUM:
            pytest.skip(f"this device gives web {without['web']:.0f} IOPS beside the noisy ones anyway")
        configure(root, device.path, f"min_iops = {MINIMUM}", groups, window_s=WINDOW_S)
        with running(root) as daemon:
            daemon.eventually("the minimum", lambda status: kept(status) and limits_are_reported(status))
            # Over some time, not just once. Other work on this machine may spoil one time, but not all.
            held: list[dict[str, float]] = []
            while not (held and minimum_kept(held[-1], without)):
                assert len(held) < TRIES, (without, held)
                held.append(rates(groups, number, 8.0))

            # A crash leaves limits behind; the journal knows what was there.
            daemon.kill()
        assert len(Journal(DaemonPlaces(root).journal)) > 0
        with running(root) as daemon:
            daemon.eventually("the minimum again", kept)
            # Nobody left to be protected: limits go, step by step.
            device.readers.stop("web")
            daemon.eventually("limits restored", lambda _: device.limits() == before, 300)
            assert daemon.stop() == 0
        assert device.limits() == before
        assert str(COUNTED_BELOW) in before["noisy1"][0]


def test_p99_is_met_beside_two_noisy_neighbours(root: Path) -> None:
    with busy_device(root) as device:
        before = device.limits()
        target = f'p99 = "{NO_TARGET}"'
        configure(
            root, device.path, target, device.groups, measured=True, window_s=WINDOW_S, noisy_weight=8.0
        )
        with running(root, environment={"PATH": search_path()}) as daemon:
            first = daemon.eventually("a p99", lambda status: row_of(status, "web").p99_read_us)
            assert device.limits() == before
            unprotected_us = row_of(first, "web").p99_read_us
            assert unprotected_us is not None
            target_us = unprotected_us / PART

            def met(status: HostStatus) -> bool:
                web = row_of(status, "web")
                p99_us = web.p99_read_us or 1e9
                return (
                    web.verdict is Verdict.OK and limits_are_reported(status) and p99_us <= 1.03 * target_us
                )

            daemon.api.put("/v1/vms/web/slo", {"fields": {"p99": f"{target_us:.0f}us"}})
            daemon.eventually("the p99", met, 180)
            assert all(row_of(daemon.status(), vm).iops for vm in ("noisy1", "noisy2"))

            daemon.api.put("/v1/vms/web/slo", {"fields": {"p99": NO_TARGET}})
            daemon.eventually("limits restored", lambda _: device.limits() == before, 300)
            assert daemon.stop() == 0
