"""The daemon keeps a p99 on a real block device by limits on others, and restores those afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest
from cgroup_groups import loop_device
from daemon_host import Cgroups, cgroups, clients, row_of, running
from newer_bpftrace import search_path
from noisy_neighbours import VMS, configure, fio_on, let_the_kernel_count

from slo_ctl.model import HostStatus, Verdict

pytestmark = pytest.mark.slow
GROUP = "measured times, and the kernel's switches"

NO_TARGET = "100s"
PART = 3.0
"""Of the p99 beside the noisy ones, that is the target."""


def limits(groups: Cgroups) -> dict[str, str]:
    return {vm: (groups.folder(vm) / "blkio.throttle.read_iops_device").read_text() for vm in VMS}


def test_p99_is_met_beside_two_noisy_neighbours(root: Path) -> None:
    environment = {"PATH": search_path()}
    with (
        cgroups(*VMS) as groups,
        loop_device(128 << 20) as (path, number),
        clients(groups, root) as readers,
    ):
        let_the_kernel_count(groups, number)
        before = limits(groups)
        for vm in VMS:
            readers.start(vm, *fio_on(path, vm))
        configure(root, path, f'p99 = "{NO_TARGET}"', groups, measured=True)
        with running(root, environment=environment) as daemon:
            first = daemon.eventually("a p99", lambda status: row_of(status, "web").p99_read_us)
            assert limits(groups) == before
            unprotected_us = row_of(first, "web").p99_read_us
            assert unprotected_us is not None
            target_us = unprotected_us / PART

            def met(status: HostStatus) -> bool:
                web, noisy = row_of(status, "web"), row_of(status, "noisy1")
                limited = "limited to" in web.reason and "IOPS for web" in noisy.reason
                return web.verdict is Verdict.OK and limited and (web.p99_read_us or 1e9) <= 1.03 * target_us

            daemon.api.put("/v1/vms/web/slo", {"fields": {"p99": f"{target_us:.0f}us"}})
            daemon.eventually("the p99", met, 180)
            assert all(row_of(daemon.status(), vm).iops for vm in ("noisy1", "noisy2"))

            daemon.api.put("/v1/vms/web/slo", {"fields": {"p99": NO_TARGET}})
            daemon.eventually("limits restored", lambda _: limits(groups) == before, 300)
            assert daemon.stop() == 0
