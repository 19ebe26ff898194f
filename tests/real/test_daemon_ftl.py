"""The daemon on a served emulated SSD with fio clients: OPS of a hybrid drive, and a failing server."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest
from commands import slo_ctl
from daemon_host import Cgroups, Clients, cgroups, clients, row_of, running
from nbd_client import NbdClient
from serving import Server, require
from waiting import TIMEOUT_S, until

from slo_ctl.model.status import HostStatus, Verdict

VMS = ("a", "b", "c")
TIME_SCALE = "0.5"
"""Real seconds per modelled second; the window below is in modelled time."""
DEEP = "--iodepth=64"
"""With a limit of some hundred requests a second, waiting for a CPU counts as throttling, too."""
HYBRID = "channels=4,dies=4,block=64KiB,mapping=fast"
CONFIG = """
[daemon]
epoch = "250ms"
window = "20s"
[libvirt]
uri = "none"
"""


def make_drive(root: Path, extra: str = "channels=2,dies=2") -> None:
    names = [word for vm in VMS for word in ("--namespace", f"name={vm}")]
    spec = f"name=ssd0,preset=fast15,size=96MiB,op=25%,precondition=yes,{extra}"
    slo_ctl("device", "create", spec, *names, "--root", str(root))


def configure(root: Path, groups: Cgroups, weights: dict[str, float]) -> None:
    vms = [f'[vm.{vm}]\nweight = {weights[vm]}\ncgroup = "{groups.path(vm)}"' for vm in VMS]
    (root / "slo-ctl.toml").write_text("\n".join([CONFIG, *vms]))


def start_all(writers: Clients, server: Server) -> None:
    for vm in VMS:
        start(writers, server, vm)


def start(writers: Clients, server: Server, vm: str, *options: str) -> None:
    writers.start(
        vm,
        "--ioengine=nbd",
        f"--uri={server.uri(vm)}",
        *("--rw=randwrite", "--bs=4k", "--iodepth=8", "--size=32m", "--time_based", "--runtime=600"),
        *options,
    )


def shares(status: HostStatus) -> dict[str, float]:
    return {row.vm: row.share or 0.0 for row in status.vms}


def close_to(status: HostStatus, weights: dict[str, float], tolerance: float) -> bool:
    got, total = shares(status), sum(weights.values())
    return all(abs(got.get(vm, 0.0) * total / weight - 1) <= tolerance for vm, weight in weights.items())


def ops(server: Server) -> dict[str, tuple[float, object, int]]:
    output = server.statistics()["namespaces"]
    return {n["name"]: (n["weight"], n["limit_iops"], n["space"]["ops_blocks"]) for n in output}


@pytest.mark.slow
def test_shares_on_a_hybrid_drive(root: Path) -> None:
    """Log blocks are the OPS of a hybrid drive: they move to the VM whose merges must cost less."""
    require("fio")
    weights = {"a": 1.0, "b": 3.0, "c": 6.0}
    make_drive(root, HYBRID)
    with cgroups(*VMS) as groups, clients(groups, root) as writers:
        configure(root, groups, weights)
        server = Server(root, "ssd0", "--latency", "real", "--time-scale", TIME_SCALE)
        try:
            before = ops(server)
            start_all(writers, server)
            with running(root) as daemon:

                def shared_with_ops_moved(status: HostStatus) -> bool:
                    now = ops(server)
                    moved = now["a"][2] < before["a"][2] and now["c"][2] > before["c"][2]
                    return close_to(status, weights, 0.1) and moved

                status = daemon.eventually("shares, and OPS moved", shared_with_ops_moved, 300)
                sys.stderr.write(f"{shares(status)}, OPS blocks {ops(server)}\n")
            output = server.statistics()
            assert output["mapping"] == "fast"
            assert all(each["flash"]["full_merges"] > 0 for each in output["namespaces"])
        finally:
            server.stop()


def test_vms_of_a_group_share_one_maximum(root: Path) -> None:
    """The maximum is divided by weight; an unused part goes to the other VM until it is needed again."""
    require("fio")
    make_drive(root)
    with cgroups(*VMS) as groups, clients(groups, root) as writers:
        configure(root, groups, {"a": 1.0, "b": 3.0, "c": 1.0})
        config = (root / "slo-ctl.toml").read_text().replace('window = "20s"', 'window = "4s"')
        (root / "slo-ctl.toml").write_text(f"{config}\n[group.pair]\nmax_iops = 400\n")
        slo_ctl("vm", "set", "a", "b", "group=pair", "--root", str(root))
        server = Server(root, "ssd0", "--latency", "real", "--time-scale", TIME_SCALE)
        try:
            for vm in ("a", "b"):
                start(writers, server, vm, DEEP)
            start(writers, server, "c", "--rate_iops=1000")

            def has(status: HostStatus, **iops: float) -> bool:
                (group,) = status.groups
                rows = {vm: row_of(status, vm).iops or 0.0 for vm in VMS}
                # An idle VM keeps a small part, so that the group may be below its maximum.
                return (
                    all(row_of(status, vm).verdict is Verdict.CAPPED for vm in iops)
                    and all(abs(rows[vm] / wanted - 1) <= 0.1 for vm, wanted in iops.items())
                    and (group.iops or 0.0) <= 1.05 * 400 < rows["c"]
                )

            with running(root) as daemon:
                status = daemon.eventually("parts by weight", lambda s: has(s, a=100, b=300))
                assert row_of(status, "a").reason.startswith("at its part of the maximum of group pair")
                listed = slo_ctl("vm", "list", "--root", str(root)).splitlines()
                places = {line.split()[0]: f"ssd0/{line.split()[0]}" in line for line in listed if line}
                assert all(places[vm] for vm in VMS), listed
                writers.stop("b")
                daemon.eventually("all for a", lambda s: has(s, a=395))
                start(writers, server, "b", DEEP)
                daemon.eventually("parts by weight again", lambda s: has(s, a=100, b=300))
                group = re.compile(r"^group pair \(a, b\): .*max 400: capped$", re.MULTILINE)
                until(lambda: bool(group.search(slo_ctl("status", "--root", str(root)))), "capped in status")
        finally:
            server.stop()


def test_hanging_server_does_not_delay_other_devices(root: Path) -> None:
    slo_ctl("device", "create", "name=ssd0,preset=fast15,size=64MiB,op=25%", "--root", str(root))
    (root / "slo-ctl.toml").write_text(CONFIG)
    server = Server(root, "ssd0", "--latency", "real")
    try:
        with running(root) as daemon:
            daemon.eventually("the device", lambda s: s.devices and not s.devices[0].problem)
            pid = server.pid()
            os.kill(pid, signal.SIGSTOP)
            try:
                began = daemon.eventually("problem", lambda s: s.devices[0].problem)
                # Other work may delay epochs in one window; waiting for the server would delay them in each.
                assert any(daemon.epochs_in(4) > 6 for _ in range(8))
                assert began.devices[0].name == "ssd0"
                assert began.devices[0].problem.startswith("its server does not answer")
                assert daemon.api.get("/v1/plan")["outcomes"] == []
            finally:
                os.kill(pid, signal.SIGCONT)
            daemon.eventually("recovery", lambda s: not s.devices[0].problem)
            lines = [line for line in daemon.log().splitlines() if "does not answer" in line]
            assert len(lines) == 2, "one line for the start, one for the end"
    finally:
        server.stop()


def test_stopped_server_is_a_problem_only_for_a_device_in_use(root: Path) -> None:
    slo_ctl("device", "create", "name=ssd0,preset=fast15,size=64MiB,op=25%", "--root", str(root))
    (root / "slo-ctl.toml").write_text(CONFIG)
    start = f"`slo-ctl device serve ssd0 --root {root}` starts it"
    note = f"device ssd0: not served, and no VM uses it; {start}"
    server = Server(root, "ssd0")
    with running(root) as daemon:
        try:
            status = daemon.eventually("the device", lambda s: s.devices and not s.devices[0].problem)
            assert note not in status.notes
        finally:
            server.stop()
        status = daemon.eventually("the note", lambda s: note in s.notes)
        assert [device.problem for device in status.devices] == [""]
        server = Server(root, "ssd0")
        try:
            daemon.eventually("the server", lambda s: note not in s.notes and not s.devices[0].problem)
            vm = '[vm.web]\nnamespaces = ["ssd0/ssd0"]\n'
            (root / "slo-ctl.toml").write_text(CONFIG + vm)
            daemon.api.post("/v1/reload")
            daemon.eventually(
                "the VM", lambda s: [row.device for row in s.vms if row.vm == "web"] == ["ssd0"]
            )
        finally:
            server.stop()
        problem = f"not served; {start}"
        status = daemon.eventually("the problem", lambda s: s.devices[0].problem == problem)
        assert note not in status.notes
        assert f"device ssd0: {problem}" in daemon.api.get("/v1/plan")["notes"]
        assert row_of(status, "web").verdict is Verdict.NO_MECHANISM


def test_unknown_client_is_named_with_the_configuration_to_add(root: Path) -> None:
    slo_ctl("device", "create", "name=ssd0,preset=fast15,size=64MiB,op=25%", "--root", str(root))
    # The note appears after two windows.
    config = CONFIG.replace('window = "20s"', 'window = "2s"')
    (root / "slo-ctl.toml").write_text(config)
    server = Server(root, "ssd0")
    try:
        with running(root) as daemon, NbdClient(server.run.export("ssd0"), "ssd0") as client:
            deadline_s = time.monotonic() + TIMEOUT_S
            while not (notes := [note for note in daemon.status().notes if "no known VM" in note]):
                assert time.monotonic() < deadline_s, daemon.log()
                client.read(0, 4096)
                time.sleep(0.02)
            what_to_write = 'add [vm.ssd0] with namespaces = ["ssd0/ssd0"] to slo-ctl.toml'
            assert notes == [f"ssd0/ssd0 is used by no known VM: {what_to_write}"]
            (root / "slo-ctl.toml").write_text(f'{config}[vm.ssd0]\nnamespaces = ["ssd0/ssd0"]\n')
            daemon.api.post("/v1/reload")
            daemon.eventually(
                "the VM", lambda s: [row.device for row in s.vms if row.vm == "ssd0"] == ["ssd0"]
            )
            assert "no known VM" not in " ".join(daemon.status().notes)
    finally:
        server.stop()


def test_without_latency_there_is_no_mechanism(root: Path) -> None:
    require("fio")
    make_drive(root)
    with cgroups(*VMS) as groups, clients(groups, root) as writers:
        configure(root, groups, {"a": 1.0, "b": 3.0, "c": 6.0})
        server = Server(root, "ssd0")
        try:
            # Without a limit this would take all CPU time.
            start(writers, server, "b", "--rate_iops=500")
            with running(root) as daemon:

                def has_no_mechanism(status: HostStatus) -> bool:
                    row = row_of(status, "b")
                    return bool(row.iops) and row.verdict is Verdict.NO_MECHANISM

                status = daemon.eventually("b", has_no_mechanism)
                assert "without latency" in row_of(status, "b").reason
                assert status.devices[0].kind == "emulated"
        finally:
            server.stop()
