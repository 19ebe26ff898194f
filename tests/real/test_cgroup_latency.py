"""p99 of clients in cgroups on a block device, measured in the kernel by bpftrace."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from cgroup_groups import fio, groups, io_tree, loop_device
from daemon_host import Cgroups, cgroups, clients, running
from newer_bpftrace import search_path
from waiting import until

from slo_ctl.host.bio_latency import BioLatencies
from slo_ctl.host.cgroup import CgroupTree
from slo_ctl.model.host import DeviceNumber
from slo_ctl.model.status import HostStatus, Verdict, VmStatus
from slo_ctl.observe.block import p99_of

pytestmark = pytest.mark.slow
GROUP = "measured times, and the kernel's switches"

SIZE_BYTES = 64 << 20
BUCKET = 4 / 3
"""Maximum ratio of neighbouring bucket bounds."""
FIO_S = 0.002
"""What fio adds at most to p99 and mean: system calls, and waiting for a CPU."""
ATTEMPTS = 3
HELD_IOPS = 50
LOST = 0.02
"""Maximum part of the requests that is not counted: those that complete between two intervals."""
CONFIG = """
[daemon]
epoch = "250ms"
window = "5s"
[libvirt]
uri = "none"
[cgroup]
latency_histograms = true
[[device]]
name = "first"
path = "{slow_path}"
[[device]]
name = "second"
path = "{quick_path}"
[vm.slow]
cgroup = "{slow}"
p99 = "1us"
[vm.quick]
cgroup = "{quick}"
p99 = "100s"
"""
READS = ("--rw=randread", "--bs=4k", "--direct=1", "--ioengine=libaio", "--time_based", "--runtime=600")
FEW = "--rate_iops=500"
"""Enough requests for a p99, at real-time priority without using all CPU time."""


@contextmanager
def measuring(number: DeviceNumber) -> Iterator[BioLatencies]:
    latencies = BioLatencies()
    try:
        latencies.latest({number})
        until(lambda: latencies.running, "measuring")
        yield latencies
    finally:
        latencies.close()


def children_of(pid: int) -> list[int]:
    """Its bpftrace processes."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(rest.split()[1]) == pid and name != "fio":
            found.append(int(stat.parent.name))
    return found


def has_ended(pid: int) -> bool:
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_latencies_agree_with_those_that_fio_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", search_path())
    kinds = {"one": ("--rw=randread", "--iodepth=1"), "many": ("--rw=randrw", "--bs=256k", "--iodepth=32")}
    found: list[list[str]] = []
    # If bpftrace waits for a CPU, more requests complete between two intervals.
    while [] not in found and len(found) < ATTEMPTS:
        found.append(disagreements(io_tree(), kinds))
    assert [] in found


def disagreements(tree: CgroupTree, kinds: Mapping[str, Sequence[str]]) -> list[str]:
    """Differences between the latencies of fio and of bpftrace, for one client of each of these kinds."""
    wrong = []
    with (
        loop_device(SIZE_BYTES) as (path, number),
        loop_device(SIZE_BYTES) as (other_path, other),
        groups(tree, *kinds) as names,
        measuring(number) as latencies,
    ):
        by_group = dict(zip(names, kinds.values(), strict=True))
        clients = {name: fio(name, path, *kind, "--runtime=5") for name, kind in by_group.items()}
        untraced = fio(names[0], other_path, "--rw=randread", "--runtime=2")
        by_fio = {name: json.loads(client.communicate()[0])["jobs"][0] for name, client in clients.items()}
        assert json.loads(untraced.communicate()[0])["jobs"][0]["read"]["total_ios"] > 0
        before = latencies.latest({number})
        until(lambda: latencies.latest({number}) is not before, "an interval")
        last = latencies.latest({number})
        until(lambda: latencies.latest({number}) is not last, "and one more")
        found = latencies.latest({number})
        assert other not in {device for _, device in found}
        for name in names:
            of_group = found[tree.folder(name).stat().st_ino, number]
            for kind, counted in (("read", of_group.reads), ("write", of_group.writes)):
                expected, total = by_fio[name][kind], sum(counted.counts)
                if not (1 - LOST) * expected["total_ios"] <= total <= expected["total_ios"]:
                    wrong.append(f"{name} {kind}: {total} of {expected['total_ios']} requests")
                if not total:
                    continue
                mean_s = expected["clat_ns"]["mean"] / 1e9
                p99_s = expected["clat_ns"]["percentile"]["99.000000"] / 1e9
                mean, p99 = counted.sum_s / total, p99_of(counted)
                if not mean_s - FIO_S <= mean <= (1 + LOST) * mean_s:
                    wrong.append(f"{name} {kind}: mean {mean} s instead of {mean_s} s")
                if p99 is None or not (p99_s - FIO_S) / BUCKET <= p99 <= BUCKET * p99_s:
                    wrong.append(f"{name} {kind}: p99 {p99} s instead of {p99_s} s")
    return wrong


def test_time_that_a_limit_holds_requests_back_is_not_in_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", search_path())
    tree = io_tree()
    if tree.version != 1:
        pytest.skip("sets the limit of cgroup v1")
    with (
        loop_device(SIZE_BYTES) as (path, number),
        groups(tree, "held") as (name,),
        measuring(number) as latencies,
    ):
        limit = tree.folder(name) / "blkio.throttle.read_iops_device"
        limit.write_text(f"{number} {HELD_IOPS}\n")
        client = fio(name, path, "--rw=randread", "--iodepth=1", "--runtime=4")
        by_fio = json.loads(client.communicate()[0])["jobs"][0]["read"]
        before = latencies.latest({number})
        until(lambda: latencies.latest({number}) is not before, "an interval")
        counted = latencies.latest({number})[tree.folder(name).stat().st_ino, number].reads
    assert by_fio["clat_ns"]["mean"] > 0.5e9 / HELD_IOPS
    assert counted.sum_s / sum(counted.counts) < 0.5 * by_fio["clat_ns"]["mean"] / 1e9


def configure(root: Path, slow_path: str, quick_path: str, of: Cgroups) -> None:
    cgroup_of = {vm: of.path(vm) for vm in ("slow", "quick")}
    text = CONFIG.format(slow_path=slow_path, quick_path=quick_path, **cgroup_of)
    (root / "slo-ctl.toml").write_text(text)


def active(status: HostStatus, vm: str) -> VmStatus:
    """The row of the VM on its device; a scan for partition tables may have touched the other device."""
    return max((row for row in status.vms if row.vm == vm), key=lambda row: row.iops or 0.0)


def test_p99_of_clients_is_judged_and_bpftrace_is_started_again(root: Path) -> None:
    environment = {"PATH": search_path()}
    with (
        cgroups("slow", "slow/inner", "quick") as of,
        loop_device(SIZE_BYTES) as (slow_path, _),
        loop_device(SIZE_BYTES) as (quick_path, _),
        clients(of, root) as readers,
    ):
        configure(root, slow_path, quick_path, of)
        (root / "slow").mkdir()
        readers.start("quick", f"--filename={quick_path}", *READS, "--iodepth=1", FEW)
        readers.start("slow/inner", f"--filename={slow_path}", *READS, "--iodepth=32", FEW)
        with running(root, environment=environment) as daemon:

            def judged(what: str) -> None:
                status = daemon.eventually(
                    what,
                    lambda status: (
                        active(status, "slow").verdict is Verdict.INSUFFICIENT
                        and active(status, "quick").verdict is Verdict.OK
                    ),
                )
                assert active(status, "slow").reason.startswith("p99 of reads ")
                assert all((active(status, vm).p99_read_us or 0) > 0 for vm in ("slow", "quick"))

            judged("verdicts")
            assert "no-mechanism" not in daemon.log()
            (child,) = children_of(daemon.process.pid)
            os.kill(child, signal.SIGKILL)
            problem = "latencies of cgroups are not measured: bpftrace exited: signal 9"
            daemon.eventually("the problem", lambda status: any(problem in note for note in status.notes))
            daemon.eventually("no problem", lambda status: not status.notes)
            judged("verdicts again")
            assert daemon.log().count(f"WARNING {problem}") == 1
            assert daemon.log().count(f"INFO over: {problem}") == 1

            (child,) = children_of(daemon.process.pid)
            daemon.kill()
            until(lambda: has_ended(child), "bpftrace ends with the daemon")


def test_daemon_without_bpftrace_says_so_once_and_works(root: Path, tmp_path: Path) -> None:
    with (
        cgroups("slow", "quick") as of,
        loop_device(SIZE_BYTES) as (slow_path, _),
        loop_device(SIZE_BYTES) as (quick_path, _),
        clients(of, root) as readers,
    ):
        configure(root, slow_path, quick_path, of)
        readers.start("quick", f"--filename={quick_path}", *READS, "--iodepth=1", FEW)
        with running(root, environment={"PATH": str(tmp_path)}) as daemon:
            missing = "latencies of cgroups are not measured: bpftrace is not installed: apt install bpftrace"
            daemon.eventually("a note", lambda status: any(missing in note for note in status.notes))
            row = daemon.vm("quick")
            assert row.verdict is Verdict.NO_MECHANISM
            time.sleep(5)  # it retries during this time
            assert daemon.log().count(missing) == 1
            (root / "slo-ctl.toml").write_text(
                (root / "slo-ctl.toml").read_text().replace("latency_histograms = true", "")
            )
            daemon.api.post("/v1/reload")
            daemon.eventually("no note", lambda status: not status.notes)
            assert daemon.stop() == 0
