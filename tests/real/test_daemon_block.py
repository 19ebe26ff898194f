"""The daemon on a real block device: weights by bfq, limits by throttling, everything restored."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from cgroup_groups import loop_device, remove_group
from daemon_host import Cgroups, cgroups, clients, row_of, running
from serving import require
from waiting import until

from slo_ctl.act.cgroup import CgroupActuator
from slo_ctl.cli import app
from slo_ctl.host.cgroup import find_tree
from slo_ctl.model.host import DeviceNumber
from slo_ctl.model.setting import Knob, Lever
from slo_ctl.model.status import HostStatus, Verdict

GROUP = "measured times, and the kernel's switches"

MAXIMUM = 700
SHARES_S = 20.0
"""Five windows. On a busy machine bfq sometimes served readers of different weights equally for minutes."""
WARNED = "WARNING VM b on fast: unapplied: "
CONFIG = """
[daemon]
epoch = "250ms"
window = "{window_s}s"
[libvirt]
uri = "none"
[[device]]
name = "fast"
path = "{path}"
"""


def configure(root: Path, path: str, groups: Cgroups, slos: dict[str, str], window_s: int = 4) -> None:
    vms = [f'[vm.{vm}]\n{slo}\ncgroup = "{groups.path(vm)}"' for vm, slo in slos.items()]
    (root / "slo-ctl.toml").write_text("\n".join([CONFIG.format(path=path, window_s=window_s), *vms]))


def fio_on(path: str) -> tuple[str, ...]:
    common = ("--rw=randread", "--bs=4k", "--direct=1", "--iodepth=16", "--ioengine=libaio")
    return (f"--filename={path}", *common, "--time_based", "--runtime=600")


def knobs(groups: Cgroups, vms: tuple[str, ...], number: DeviceNumber) -> dict[Knob, float | None]:
    tree = find_tree()
    assert tree is not None
    actuator = CgroupActuator(tree)
    found = {}
    for vm in vms:
        for knob in (
            Knob(Lever.CGROUP_WEIGHT, groups.path(vm), "weight"),
            Knob(Lever.CGROUP_LIMIT, groups.path(vm), "read_iops", str(number)),
        ):
            found[knob] = actuator.read(knob)
    return found


def ratio(groups: Cgroups, number: DeviceNumber) -> float:
    """Weight of b divided by that of a."""
    a, b = (value for knob, value in knobs(groups, ("a", "b"), number).items() if knob.name == "weight")
    return (b or 0.0) / (a or 1.0)


@pytest.mark.slow
def test_limits_are_removed_before_another_cgroup_tree_is_used(root: Path) -> None:
    with cgroups("a") as groups, loop_device(16 << 20) as (path, number):
        before = knobs(groups, ("a",), number)
        configure(root, path, groups, {"a": f"max_iops = {MAXIMUM}"})
        with running(root) as daemon:
            daemon.eventually("its limit", lambda _: knobs(groups, ("a",), number) != before)
            file = root / "slo-ctl.toml"
            (root / "empty").mkdir()
            file.write_text(f'{file.read_text()}\n[cgroup]\nroot = "{root / "empty"}"\n')
            assert daemon.api.post("/v1/reload")["config_problem"] == ""
            daemon.eventually("no limit", lambda _: knobs(groups, ("a",), number) == before)
            assert daemon.stop() == 0, daemon.log()


@pytest.mark.slow
def test_limits_and_weights_are_set_and_restored(root: Path) -> None:
    require("fio")
    vms = ("a", "b", "c")
    with (
        cgroups(*vms) as groups,
        loop_device(64 << 20) as (path, number),
        clients(groups, root) as readers,
    ):
        queue = Path("/sys/block") / Path(path).name / "queue" / "scheduler"
        assert "[none]" in queue.read_text()
        slos = {"a": "weight = 1", "b": f"weight = 3\nmax_iops = {MAXIMUM}", "c": "weight = 6"}
        configure(root, path, groups, slos)
        before = knobs(groups, vms, number)
        readers.start("b", *fio_on(path))
        # Two clients that read all the time at real-time priority would leave no CPU for the third. While bfq
        # waits for the next request of these clients, b does not always reach its maximum.
        for vm in ("a", "c"):
            readers.start(vm, *fio_on(path), "--rate_iops=2000")
        with running(root) as daemon:

            def capped(status: HostStatus) -> bool:
                row = row_of(status, "b")
                return row.verdict is Verdict.CAPPED and abs((row.iops or 0.0) / MAXIMUM - 1) <= 0.03

            status = daemon.eventually("b at its maximum", capped)
            by_vm = {row.vm: row for row in status.vms}
            assert by_vm["a"].device == "fast"
            assert "bfq" in by_vm["a"].backend
            assert "[bfq]" in queue.read_text(), "weights need it, with or without a profile"
            now = knobs(groups, vms, number)
            weights = [value for knob, value in now.items() if knob.name == "weight"]
            assert [weight / (weights[0] or 1) for weight in weights if weight] == [1, 3, 6]
            slice_idle = queue.parent / "iosched" / "slice_idle"
            until(
                lambda: slice_idle.read_text().strip() == "0",
                "bfq does not idle: every VM has its share",
            )

            # A broken configuration is reported with its line, and the last valid one stays in force.
            (root / "slo-ctl.toml").write_text("[daemon]\nepoch = 'soon'\n")
            problem = str(daemon.api.post("/v1/reload")["config_problem"])
            assert "slo-ctl.toml:2" in problem
            output = daemon.eventually("problem", lambda s: s.config_problem)
            assert output.config_problem == problem
            assert row_of(output, "b").slo.max_iops == MAXIMUM
            # Without its maximum, b is not throttled; with two busy VMs left, bfq decides the shares.
            readers.stop("b")
            configure(root, path, groups, {"a": "weight = 1", "b": "weight = 3", "c": "weight = 3"})
            assert daemon.api.post("/v1/reload")["config_problem"] == ""

            def shared(status: HostStatus) -> bool:
                a, c = (row_of(status, vm).iops for vm in ("a", "c"))
                return bool(a and c and abs(c / a / 3 - 1) <= 0.15)

            def shared_by_new_clients() -> bool:
                for vm in ("a", "c"):
                    readers.stop(vm)
                    readers.start(vm, *fio_on(path))
                return daemon.becomes(shared, SHARES_S)

            until(shared_by_new_clients, "bfq shares")
            assert slice_idle.read_text().strip() == "8", "shares need it"
            now = knobs(groups, vms, number)
            assert [now[Knob(Lever.CGROUP_WEIGHT, groups.path(vm), "weight")] for vm in vms] == [
                100,
                300,
                300,
            ]
            daemon.eventually("b idle", lambda status: row_of(status, "b").verdict is Verdict.IDLE)
            limit = Knob(Lever.CGROUP_LIMIT, groups.path("b"), "read_iops", str(number))
            daemon.eventually("no limit", lambda _: knobs(groups, ("b",), number)[limit] is None)
            assert daemon.stop() == 0
        assert "[none]" in queue.read_text()
        assert knobs(groups, vms, number) == before


@pytest.mark.slow
@pytest.mark.parametrize("accounting", ["1", "0"])
def test_low_demand_is_distinguished_from_low_service(root: Path, accounting: str) -> None:
    require("fio")
    switch = Path("/proc/sys/kernel/task_delayacct")
    if not os.access(switch, os.W_OK):
        pytest.skip("this kernel does not account delays, or not root")
    before = switch.read_text()
    switch.write_text(accounting)
    try:
        with (
            cgroups("a", "b") as groups,
            loop_device(64 << 20, "bfq", low_latency=0) as (path, _),
            clients(groups, root) as readers,
        ):
            configure(root, path, groups, {"a": "weight = 1", "b": "weight = 9"}, window_s=2)
            one_at_a_time = ("--ioengine=psync", "--iodepth=1")
            readers.start("a", *fio_on(path), *one_at_a_time, "--numjobs=4")
            readers.start("b", *fio_on(path), *one_at_a_time, "--rate_iops=20")
            with running(root) as daemon:

                def output(status: HostStatus) -> bool:
                    row = row_of(status, "b")
                    if accounting == "0":
                        return (
                            row.verdict is Verdict.INSUFFICIENT
                            and "assuming that it wants more" in row.reason
                        )
                    # The device is busy, and b is far below its share.
                    return row.verdict is Verdict.OK and row.reason == "demand met"

                daemon.eventually(f"b with task_delayacct={accounting}", output)
    finally:
        switch.write_text(before)


@pytest.mark.slow
def test_vm_at_a_limit_of_others_does_not_miss_its_share(root: Path) -> None:
    require("fio")
    with (
        cgroups("a", "b") as groups,
        loop_device(64 << 20, "bfq", low_latency=0) as (path, number),
        clients(groups, root) as readers,
    ):
        limit = Knob(Lever.CGROUP_LIMIT, groups.path("b"), "read_iops", str(number))
        tree = find_tree()
        assert tree is not None
        CgroupActuator(tree).write(limit, 50.0)
        configure(root, path, groups, {"a": "weight = 1", "b": "weight = 9"}, window_s=2)
        for vm in ("a", "b"):
            readers.start(vm, *fio_on(path))
        with running(root) as daemon:
            row = row_of(
                daemon.eventually(
                    "b at the limit", lambda status: row_of(status, "b").verdict is Verdict.CAPPED
                ),
                "b",
            )
            assert row.reason == (
                f"at a limit that slo-ctl has not set: on fast ({number}) cgroup {groups.path('b')} "
                "is limited to 50 read_iops"
            )
        assert CgroupActuator(tree).read(limit) == 50.0


def test_first_epoch_counts_on_the_scheduler_that_it_sets(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with cgroups("a", "b") as groups, loop_device(16 << 20) as (path, _):
        configure(root, path, groups, {"a": "weight = 2", "b": "weight = 4"})

        def settings(*words: str, code: int) -> set[tuple[str, str]]:
            assert app.run([*words, "--json", "--root", str(root)]) == code
            outcomes = json.loads(capsys.readouterr().out)["outcomes"]
            return {(each["setting"]["knob"]["lever"], each["setting"]["vm"]) for each in outcomes}

        planned = settings("plan", code=3)
        assert planned == {("device scheduler", ""), ("cgroup weight", "a"), ("cgroup weight", "b")}
        assert settings("apply", code=0) == planned
        assert settings("apply", "--undo", code=0) == planned
        with running(root) as daemon:
            daemon.eventually("idle", lambda status: row_of(status, "b").verdict is Verdict.IDLE)
        # Hooks and alerts are not told that the host lacks something that the daemon provides.
        assert "no-mechanism" not in daemon.log()


def test_vm_whose_cgroup_does_not_exist_is_off(root: Path) -> None:
    with cgroups("a", "b") as groups, loop_device(16 << 20, "bfq", low_latency=0) as (path, _):
        configure(root, path, groups, {"a": "weight = 1", "b": "weight = 4\nmax_iops = 100"})
        remove_group(groups.folder("b"))
        with running(root) as daemon:
            row = row_of(daemon.eventually("both", lambda s: {"a", "b"} <= {row.vm for row in s.vms}), "b")
            assert (row.verdict, row.reason) == (Verdict.IDLE, "it is shut off")
            groups.folder("b").mkdir()
            daemon.eventually("limited", lambda status: row_of(status, "b").device == "fast")
            assert "unapplied" not in daemon.log()
            remove_group(groups.folder("b"))
            # An epoch that had already begun may not find the cgroup of its decision; later epochs must.
            off = daemon.eventually("off again", lambda status: row_of(status, "b").state == "shut off")
            before = daemon.log().count(WARNED)
            daemon.eventually("some epochs", lambda status: status.at > off.at + 1.0)
            daemon.stop()
        assert daemon.log().count(WARNED) == before <= 1
        groups.folder("b").mkdir()


def test_detached_device_is_a_problem_until_it_is_attached_again(root: Path) -> None:
    with cgroups("a") as groups, loop_device(16 << 20, "bfq", low_latency=0) as (path, _):
        configure(root, path, groups, {"a": "weight = 1\nmax_iops = 100"})
        image = Path("/sys/block", Path(path).name, "loop", "backing_file").read_text().strip()
        with running(root) as daemon:
            daemon.eventually("managed", lambda status: row_of(status, "a").device == "fast")
            subprocess.run(["losetup", "--detach", path], check=True)
            status = daemon.eventually("detached", lambda status: status.devices[0].problem)
            assert status.devices[0].problem == f"{path} has size 0: nothing is attached to it"
            subprocess.run(["losetup", path, image], check=True)
            daemon.eventually("attached", lambda status: not status.devices[0].problem)


def test_a_device_has_one_daemon_whatever_its_directory(root: Path) -> None:
    """A second daemon would take the settings of the first for the original ones."""
    other = root / "other"
    other.mkdir()
    with cgroups("a") as groups, loop_device(16 << 20, "bfq", low_latency=0) as (path, _):
        for folder in (root, other):
            configure(folder, path, groups, {"a": "weight = 1\nmax_iops = 100"})
        with running(root) as first:
            first.eventually("managed", lambda status: row_of(status, "a").device == "fast")
            with running(other) as second:
                status = second.eventually("refused", lambda status: status.devices[0].problem)
                assert f"managed by another daemon (PID {first.process.pid})" in status.devices[0].problem
                assert not (other / "journal.json").exists()
                assert first.stop() == 0
                second.eventually("managed", lambda status: row_of(status, "a").device == "fast")


def test_a_disk_is_managed_once_whatever_it_is_called(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its VMs were on one of two devices that are the same, and their I/O counted for both."""
    with loop_device(16 << 20) as (path, _):
        link = root / "link"
        link.symlink_to(path)
        devices = "".join(
            f'[[device]]\nname = "{name}"\npath = "{each}"\nscheduler = "{scheduler}"\n'
            for name, each, scheduler in (("first", path, "none"), ("second", link, "mq-deadline"))
        )
        (root / "slo-ctl.toml").write_text(f'[libvirt]\nuri = "none"\n{devices}')
        why = f"{link} is the block device of first, too: remove "
        assert app.run(["config", "check", "--root", str(root)]) == 0
        assert f"device second (slo-ctl.toml:7): {why}one of them" in capsys.readouterr().err
        with running(root) as daemon:
            status = daemon.eventually("an epoch", lambda status: len(status.devices) == 2)
            assert [device.problem for device in status.devices] == [
                "",
                f"{why}the [[device]] of one of them",
            ]
            assert not daemon.api.get("/v1/plan")["outcomes"][1:]
            assert "unapplied" not in daemon.log()


def test_check_notes_a_device_that_is_on_another(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing said that the limits of a drive and of a volume on it both count."""
    with loop_device(16 << 20) as (lower, _):
        command = ["losetup", "--find", "--show", lower]
        upper = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        try:
            paths = {"drive": lower, "volume": upper, "gone": f"{root}/nothing", "folder": root}
            tables = (f'[[device]]\nname = "{name}"\npath = "{path}"\n' for name, path in paths.items())
            (root / "slo-ctl.toml").write_text("".join(tables))
            assert app.run(["config", "check", "--root", str(root)]) == 0
        finally:
            subprocess.run(["losetup", "--detach", upper], check=True)
    shown = capsys.readouterr().err
    assert f"note: device volume (slo-ctl.toml:4): {upper} is on drive, which is managed, too: " in shown
    assert f"note: device gone (slo-ctl.toml:7): there is no {root}/nothing now\n" in shown
    neither = f"{root} is neither a block device nor an NVMe controller now"
    assert f"note: device folder (slo-ctl.toml:10): {neither}\n" in shown
    assert shown.count("is on") == 1


def test_shares_settle_before_they_are_judged(root: Path) -> None:
    require("fio")
    with (
        cgroups("a", "b") as groups,
        loop_device(64 << 20, "bfq", low_latency=0) as (path, _),
        clients(groups, root) as readers,
    ):
        configure(root, path, groups, {"a": "weight = 1", "b": "weight = 1"})
        for vm in ("a", "b"):
            readers.start(vm, *fio_on(path))
        with running(root) as daemon:
            daemon.eventually("equal", lambda status: row_of(status, "a").verdict is Verdict.OK)
            # With the new weight, a is far below its share at once.
            daemon.api.put("/v1/vms/a/slo", {"fields": {"weight": 9}})
            status = daemon.eventually("measured", lambda s: (row_of(s, "a").target_share or 0.0) > 0.8)
            row = row_of(status, "a")
            assert row.verdict is Verdict.SETTLING, row
            assert row.reason.startswith("the SLO of a changed ")
            daemon.eventually("settled", lambda s: row_of(s, "a").verdict is not Verdict.SETTLING)


def test_second_daemon_is_refused_and_keep_on_stop_keeps(root: Path) -> None:
    require("fio")
    with cgroups("a", "b") as groups, loop_device(16 << 20, "bfq", low_latency=0) as (path, number):
        configure(root, path, groups, {"a": "weight = 1", "b": "weight = 4"})
        before = knobs(groups, ("a", "b"), number)
        with running(root, "--keep") as daemon:
            with pytest.raises(AssertionError, match=rf"already running \(PID {daemon.process.pid}\)"):
                running(root).__enter__()
            daemon.eventually("weights", lambda _: ratio(groups, number) == 4)
            in_force = knobs(groups, ("a", "b"), number)
            assert in_force != before
            assert daemon.stop() == 0
        assert knobs(groups, ("a", "b"), number) == in_force
        # A change by another program is reverted within some epochs; a clean stop later restores its value.
        with running(root) as daemon:
            weight = groups.folder("b") / "blkio.bfq.weight"
            if weight.exists():
                weight.write_text("55")
                daemon.eventually("drift", lambda _: knobs(groups, ("a", "b"), number) == in_force)
                before[Knob(Lever.CGROUP_WEIGHT, groups.path("b"), "weight")] = 55.0
        assert knobs(groups, ("a", "b"), number) == before
