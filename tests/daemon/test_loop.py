"""Epochs on a mock host: files below a root, and an observer that returns what the test sets."""

from __future__ import annotations

import dataclasses
import errno
import logging
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from slo_ctl.act.journal import Journal, Original
from slo_ctl.api.messages import RefusalError
from slo_ctl.base.errors import UserError
from slo_ctl.config.load import load
from slo_ctl.config.settings import Config, DaemonConfig, HooksConfig, LibvirtConfig
from slo_ctl.daemon.files import DaemonPlaces, only_daemon
from slo_ctl.daemon.log import RecentSentences
from slo_ctl.daemon.loop import Daemon
from slo_ctl.daemon.service import StoppedAtOnce, serve, summary
from slo_ctl.daemon.slos import Resolver
from slo_ctl.drives.places import places as device_places
from slo_ctl.drives.store import DeviceStore
from slo_ctl.host.cgroup import CgroupTree
from slo_ctl.host.disk_latency import DiskLatencies
from slo_ctl.host.task_delay import BlockDelay
from slo_ctl.model.host import FoundBy, Vm, VmState
from slo_ctl.model.setting import Knob, Lever, Outcome, OutcomeState
from slo_ctl.model.slo import SLO_KEYS, Slo, SloEntry, SloUpdate
from slo_ctl.model.status import DeviceStatus, HostStatus, Verdict
from slo_ctl.observe.host import HostObserver
from slo_ctl.observe.streams import Inventory
from slo_ctl.show.history import folded_events

WEB = Vm("web", FoundBy.CGROUP_NAME, VmState.RUNNING)
CONFIG = Config(libvirt=LibvirtConfig(None))


class FakeObserver(HostObserver):
    def __init__(self) -> None:
        self.vms: tuple[Vm, ...] = (WEB,)
        self.notes: tuple[str, ...] = ()
        self.cgroups: Mapping[str, str] = {}
        self.closed = False
        self.tree: CgroupTree | None = None

    def observe(self) -> Inventory:
        return Inventory(self.tree, None, self.vms, (), self.notes)

    def configure(self, cgroups: Mapping[str, str], namespaces: Mapping[str, Sequence[str]]) -> None:  # noqa: ARG002
        self.cgroups = cgroups

    def delays(self, inventory: Inventory, names: Collection[str]) -> dict[str, BlockDelay]:
        pytest.fail(f"no VM does I/O on a block device: {inventory.vms}, {names}")

    def latencies(self, uuids: Collection[str]) -> Mapping[str, DiskLatencies]:
        assert not uuids, "no VM of libvirt has disks on a managed device"
        return {}

    def take_tuned(self) -> set[str]:
        return set()

    def announce(self, xml: str) -> str:
        pytest.fail(f"starts {xml}")

    def close(self) -> None:
        self.closed = True


@contextmanager
def daemon_on(
    root: Path, observer: FakeObserver, config: Config = CONFIG, *, dry_run: bool = False
) -> Iterator[Daemon]:
    daemon = Daemon(config, DaemonPlaces(root), make_observer=lambda *_: observer, dry_run=dry_run)
    try:
        yield daemon
    finally:
        daemon.stop(undo=True)


UNSET = SloUpdate(unset=frozenset(SLO_KEYS))


def verdicts(daemon: Daemon) -> dict[str, Verdict]:
    return {row.vm: row.verdict for row in daemon.epoch().vms}


def test_slos_of_vm_set_take_effect_in_the_next_epoch(tmp_path: Path) -> None:
    with daemon_on(tmp_path, FakeObserver()) as daemon:
        assert verdicts(daemon) == {"web": Verdict.OK}
        (reply,) = daemon.controller.change_slos(["web"], SloUpdate({"weight": 3.0}))
        assert (reply.slo.weight, reply.slo_source) == (3.0, "vm set")
        row = daemon.epoch().vms[0]
        assert (row.slo.weight, row.verdict) == (3.0, Verdict.NO_MECHANISM)
        daemon.controller.change_slos(["web"], UNSET)
        assert verdicts(daemon) == {"web": Verdict.OK}


def test_user_of_each_slo_change_is_in_log_and_history(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "slo_ctl.daemon")
    with daemon_on(tmp_path, FakeObserver()) as daemon:
        daemon.epoch()
        daemon.controller.change_slos(["web"], SloUpdate({"weight": 3.0}), user="alice")
        daemon.controller.change_slos(["web"], UNSET, user="bob", dry_run=True)
        daemon.controller.change_slos(["web"], SloUpdate({"weight": 3.0}), user="carol")  # as it was
        daemon.epoch()
        found = daemon.controller.history("web", None, None, 10)
    assert [event.text for event in folded_events([found]) if event.text.startswith("SLO:")] == [
        "SLO: set weight=3 by alice"
    ]
    assert [each for each in caplog.messages if "set" in each] == ["VM web: alice set weight=3"]


def test_missing_vm_is_unknown_vm(tmp_path: Path) -> None:
    with daemon_on(tmp_path, FakeObserver()) as daemon:
        daemon.epoch()
        with pytest.raises(RefusalError, match="VM wed not found") as error:
            daemon.controller.change_slos(["wed"], SloUpdate({"weight": 3.0}))
        assert "web" in error.value.hint
        with pytest.raises(RefusalError, match="nothing was set for VM wed with `vm set`"):
            daemon.controller.change_slos(["wed"], UNSET)
        assert daemon.controller.change_slos(["wed"], SloUpdate({"weight": 3.0}), force=True)[0].notes
        assert verdicts(daemon) == {"web": Verdict.OK, "wed": Verdict.UNKNOWN_VM}
        assert "degraded (first: wed: unknown-vm)" in summary(daemon.epoch())


@pytest.mark.parametrize("dry_run", [False, True])
def test_hook_does_not_delay_epochs_and_is_not_run_by_dry_runs(tmp_path: Path, dry_run: bool) -> None:
    hook, said = tmp_path / "hook", tmp_path / "said"
    hook.write_text(f'#!/bin/sh\nexec > {said}\necho "$SLO_CTL_VM $SLO_CTL_PREVIOUS $SLO_CTL_VERDICT"\n')
    hook.chmod(0o755)
    config = replace(CONFIG, hooks=HooksConfig(on_verdict=(str(hook),)))
    with daemon_on(tmp_path, FakeObserver(), config, dry_run=dry_run) as daemon:
        daemon.epoch()
        daemon.controller.change_slos(["web"], SloUpdate({"weight": 3.0}))
        assert verdicts(daemon) == {"web": Verdict.NO_MECHANISM}
    assert (said.read_text() if said.exists() else "") == ("" if dry_run else "web ok no-mechanism\n")


def test_a_class_that_changes_at_reload_changes_its_vms(tmp_path: Path) -> None:
    file = tmp_path / "slo-ctl.toml"
    file.write_text('[libvirt]\nuri = "none"\n[class.gold]\nweight = 3\n')
    with daemon_on(tmp_path, FakeObserver(), load(tmp_path)) as daemon:
        daemon.epoch()
        with pytest.raises(RefusalError, match="class=glod is not a class") as error:
            daemon.controller.change_slos(["web"], SloUpdate(class_name="glod"))
        assert error.value.hint == "did you mean gold?"
        (reply,) = daemon.controller.change_slos(["web"], SloUpdate(class_name="gold"))
        assert (reply.slo.weight, reply.class_name, reply.vm_set_class) == (3.0, "gold", "gold")
        file.write_text('[libvirt]\nuri = "none"\n[class.gold]\nweight = 5\n')
        assert daemon.reload() == ""
        assert daemon.epoch().vms[0].slo.weight == 5.0
        file.write_text('[libvirt]\nuri = "none"\n')
        assert daemon.reload() == ""
        status = daemon.epoch()
        assert status.vms[0].slo.weight == 1.0
        assert "web: class: gold by `vm set` is not in the configuration and is ignored" in status.notes


def test_a_reloaded_configuration_counts_before_the_next_epoch(tmp_path: Path) -> None:
    """An epoch may be an hour: a new class is known at once, and a rejected file is reported at once."""
    file, none = tmp_path / "slo-ctl.toml", '[libvirt]\nuri = "none"\n'
    file.write_text(none)
    with daemon_on(tmp_path, FakeObserver(), load(tmp_path)) as daemon:
        daemon.epoch()
        file.write_text(f"{none}[class.gold]\nweight = 3\n")
        assert daemon.reload() == ""
        assert daemon.controller.take_changed()
        (reply,) = daemon.controller.change_slos(["web"], SloUpdate(class_name="gold"))
        assert reply.slo.weight == 3.0
        daemon.controller.take_changed()
        file.write_text(f"{none}[class.gold]\nwieght = 3\n")
        problem = daemon.reload()
        assert "unknown key wieght" in problem
        assert daemon.controller.health().config_problem == problem
        assert daemon.controller.take_changed()


def test_a_refused_page_address_leaves_the_metrics_where_they_were(tmp_path: Path) -> None:
    with daemon_on(tmp_path, FakeObserver()) as daemon, socket.create_server(("127.0.0.1", 0)) as taken:
        first, second = (f"127.0.0.1:{port}" for port in free_ports(2))
        file, none = tmp_path / "slo-ctl.toml", '[libvirt]\nuri = "none"\n'
        file.write_text(f'{none}[metrics]\nlisten = "{first}"\n')
        assert daemon.reload() == ""
        page = f"127.0.0.1:{taken.getsockname()[1]}"
        file.write_text(f'{none}[metrics]\nlisten = "{second}"\n[page]\nlisten = "{page}"\n')
        assert "[page] listen" in daemon.reload()
        assert answers(first)
        assert not answers(second)


def test_metrics_and_page_can_exchange_their_addresses(tmp_path: Path) -> None:
    """The reload was refused, as the address of the one was that of the other until then."""
    with daemon_on(tmp_path, FakeObserver()) as daemon:
        addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
        for metrics, page in (addresses, reversed(addresses)):
            (tmp_path / "slo-ctl.toml").write_text(
                f'[libvirt]\nuri = "none"\n[metrics]\nlisten = "{metrics}"\n[page]\nlisten = "{page}"\n'
            )
            assert daemon.reload() == ""
            assert (daemon.metrics.address, daemon.page.address) == (metrics, page)
            assert answers(metrics)
            assert answers(page)


@pytest.mark.parametrize("host", ["a..b", "a" * 70])
def test_a_host_name_that_cannot_be_encoded_is_rejected(tmp_path: Path, host: str) -> None:
    """It raised UnicodeError, which ended the daemon at SIGHUP."""
    with daemon_on(tmp_path, FakeObserver()) as daemon:
        (tmp_path / "slo-ctl.toml").write_text(
            f'[libvirt]\nuri = "none"\n[metrics]\nlisten = "{host}:9464"\n'
        )
        assert f"[metrics] listen = '{host}:9464'" in daemon.reload()


def test_an_address_that_another_program_took_meanwhile_does_not_end_the_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with daemon_on(tmp_path, FakeObserver()) as daemon:
        first, second = (f"127.0.0.1:{port}" for port in free_ports(2))
        file, none = tmp_path / "slo-ctl.toml", '[libvirt]\nuri = "none"\n'
        file.write_text(f'{none}[metrics]\nlisten = "{first}"\n')
        assert daemon.reload() == ""
        with monkeypatch.context() as patch:
            patch.setattr("slo_ctl.host.bounded_server._listening_socket", _in_use)
            file.write_text(f'{none}[metrics]\nlisten = "{second}"\n')
            assert f"[metrics] listen = '{second}'" in daemon.reload()
        file.write_text(f'{none}[metrics]\nlisten = "{first}"\n')
        assert daemon.reload() == ""
        assert answers(first)


def _in_use(_host: str, _port: int) -> socket.socket:
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def test_a_second_signal_in_an_epoch_restores_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended the epoch, and then settings were restored until a third signal came."""
    stops: list[bool] = []

    def stop(*, undo: bool) -> list[Outcome]:
        stops.append(undo)
        return []

    def epoch() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.raise_signal(number)

    places = DaemonPlaces(tmp_path)
    with daemon_on(tmp_path, FakeObserver()) as daemon, only_daemon(places.lock) as lock:
        monkeypatch.setattr(daemon, "stop", stop)
        monkeypatch.setattr(daemon, "epoch", epoch)
        with pytest.raises(StoppedAtOnce):
            serve(daemon, lock, epoch_s=None, keep=False, say=lambda _: None)
        monkeypatch.undo()
    assert stops == [False]


def test_the_status_has_the_interval_of_the_option_also_after_a_reload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The alert for a daemon that hangs, the page and `top` take it for the time between epochs."""
    (tmp_path / "slo-ctl.toml").write_text('[libvirt]\nuri = "none"\n')
    with daemon_on(tmp_path, FakeObserver()) as daemon, only_daemon(DaemonPlaces(tmp_path).lock) as lock:
        epoch, seen = daemon.epoch, list[HostStatus]()

        def one_epoch() -> HostStatus:
            assert daemon.reload() == ""
            seen.append(epoch())
            signal.raise_signal(signal.SIGTERM)
            return seen[-1]

        monkeypatch.setattr(daemon, "epoch", one_epoch)
        monkeypatch.setattr(daemon, "stop", lambda **_: [])
        serve(daemon, lock, epoch_s=60.0, keep=False, say=lambda _: None)
        monkeypatch.undo()
    assert [status.epoch_s for status in seen] == [60.0]


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(probe.getsockname()[1]) for probe in probes]


def answers(address: str) -> bool:
    host, _, port = address.partition(":")
    try:
        socket.create_connection((host, int(port)), 5).close()
    except ConnectionRefusedError:
        return False
    return True


def test_a_vm_that_a_pattern_matches_has_its_slo(tmp_path: Path) -> None:
    (tmp_path / "slo-ctl.toml").write_text('[libvirt]\nuri = "none"\n[vm."w*"]\nweight = 3\n')
    with daemon_on(tmp_path, FakeObserver(), load(tmp_path)) as daemon:
        (row,) = daemon.epoch().vms
        assert (row.vm, row.slo.weight, row.slo_source) == ("web", 3.0, "config slo-ctl.toml:4")


def test_several_vms_are_changed_together_or_not_at_all(tmp_path: Path) -> None:
    with daemon_on(tmp_path, FakeObserver()) as daemon:
        daemon.epoch()
        with pytest.raises(RefusalError, match="VM wed not found"):
            daemon.controller.change_slos(["web", "wed"], SloUpdate({"weight": 3.0}))
        (checked,) = daemon.controller.change_slos(["web"], SloUpdate({"weight": 3.0}), dry_run=True)
        assert checked.slo.weight == 3.0
        assert daemon.epoch().vms[0].slo.weight == 1.0


def test_minimums_above_the_capacity_are_refused_or_forced(tmp_path: Path) -> None:
    with daemon_on(tmp_path, FakeObserver()) as daemon:
        status = daemon.epoch()
        row = dataclasses.replace(status.vms[0], device="ssd0")
        device = DeviceStatus("ssd0", "emulated", "", "", 10.0, capacity_iops=1000.0, sum_min_iops=600.0)
        daemon.controller.published = dataclasses.replace(
            daemon.controller.published, status=dataclasses.replace(status, devices=(device,), vms=(row,))
        )
        assert daemon.controller.change_slos(["web"], SloUpdate({"min_iops": 400.0}))[0].notes == ()
        with pytest.raises(RefusalError, match="1,100 IOPS, above its capacity of 1,000") as error:
            daemon.controller.change_slos(["web"], SloUpdate({"min_iops": 500.0}))
        assert error.value.status == 409
        # Both VMs on the device together.
        other = dataclasses.replace(row, vm="db")
        daemon.controller.published = dataclasses.replace(
            daemon.controller.published,
            status=dataclasses.replace(status, devices=(device,), vms=(row, other)),
            names=frozenset(["web", "db"]),
        )
        with pytest.raises(RefusalError, match="1,200 IOPS, above its capacity of 1,000"):
            daemon.controller.change_slos(["web", "db"], SloUpdate({"min_iops": 300.0}))
        assert (
            "overcommitted"
            in daemon.controller.change_slos(["web"], SloUpdate({"min_iops": 500.0}), force=True)[0].notes[0]
        )


def test_a_change_says_that_a_device_cannot_be_set_now(tmp_path: Path) -> None:
    with daemon_on(tmp_path, FakeObserver()) as daemon:
        status = daemon.epoch()
        row = dataclasses.replace(status.vms[0], device="ssd0")
        device = DeviceStatus("ssd0", "emulated", "", "", 10.0, problem="the server does not answer")
        daemon.controller.published = dataclasses.replace(
            daemon.controller.published, status=dataclasses.replace(status, devices=(device,), vms=(row,))
        )
        (reply,) = daemon.controller.change_slos(["web"], SloUpdate({"weight": 3.0}))
        assert reply.notes == ("VM web: nothing can be set on ssd0 now: the server does not answer",)


def test_minimums_above_the_estimate_are_refused_before_anything_was_measured(tmp_path: Path) -> None:
    with daemon_on(tmp_path, FakeObserver()) as daemon:
        status = daemon.epoch()
        row = dataclasses.replace(status.vms[0], device="ssd0")
        device = DeviceStatus("ssd0", "emulated", "", "", 10.0, estimated_iops=9000.0)
        daemon.controller.published = dataclasses.replace(
            daemon.controller.published, status=dataclasses.replace(status, devices=(device,), vms=(row,))
        )
        assert daemon.controller.change_slos(["web"], SloUpdate({"min_iops": 8000.0}))[0].notes == ()
        with pytest.raises(RefusalError, match=r"9,500 IOPS, above its capacity of 9,000 \(estimated from"):
            daemon.controller.change_slos(["web"], SloUpdate({"min_iops": 9500.0}))
        assert (
            "overcommitted"
            in daemon.controller.change_slos(["web"], SloUpdate({"min_iops": 9500.0}), force=True)[0].notes[0]
        )


def test_invalid_configuration_keeps_the_last_valid_one(tmp_path: Path) -> None:
    observer = FakeObserver()
    file = tmp_path / "slo-ctl.toml"
    file.write_text('[libvirt]\nuri = "none"\n[vm.web]\nweight = 2\ncgroup = "/x/web"\n')
    with daemon_on(tmp_path, observer, load(tmp_path)) as daemon:
        file.write_text('[libvirt]\nuri = "none"\n[vm.web]\nweight = -2\n')
        problem = daemon.reload()
        assert "slo-ctl.toml:4" in problem
        status = daemon.epoch()
        assert (status.config_problem, status.vms[0].slo.weight) == (problem, 2.0)
        file.write_text('[libvirt]\nuri = "none"\n[vm.web]\nweight = 5\ncgroup = "/y"\n')
        assert daemon.reload() == ""
        status = daemon.epoch()
        assert (status.config_problem, status.vms[0].slo.weight) == ("", 5.0)
        assert observer.cgroups == {"web": "/y"}


def test_the_log_says_what_a_reload_adds_and_removes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file that an editor had truncated, or that was missing, was reloaded without a message."""
    caplog.set_level(logging.INFO, "slo_ctl.daemon")
    file = tmp_path / "slo-ctl.toml"
    file.write_text('[libvirt]\nuri = "none"\n[vm.web]\ncgroup = "/x/web"\n[vm.db]\ncgroup = "/x/db"\n')
    with daemon_on(tmp_path, FakeObserver(), load(tmp_path)) as daemon:
        daemon.reload()
        file.write_text("")
        daemon.reload()
        file.write_text("[vm.web]\n")
        daemon.reload()
        file.unlink()
        daemon.reload()
    assert [record.message for record in caplog.records if "configuration" in record.message] == [
        "configuration reloaded",
        "configuration reloaded: 0 devices, 0 VMs (before: 0 devices, 2 VMs)",
        "configuration reloaded: 0 devices, 1 VM (before: 0 devices, 0 VMs)",
        f"no configuration in {tmp_path}, the defaults are used: 0 devices, 0 VMs (before: 0 devices, 1 VM)",
    ]


def test_damaged_files_of_an_earlier_run_do_not_stop_the_daemon(tmp_path: Path) -> None:
    (tmp_path / "journal.json").write_text("{")
    with pytest.raises(UserError, match=r"journal\.json"):
        # No file is left open.
        Daemon(CONFIG, DaemonPlaces(tmp_path), make_observer=lambda *_: pytest.fail("observes"))
    (tmp_path / "journal.json").unlink()
    (tmp_path / "slos.json").write_text("{")
    with pytest.raises(UserError, match=r"slos\.json"):
        Daemon(CONFIG, DaemonPlaces(tmp_path), make_observer=lambda *_: FakeObserver())
    (tmp_path / "slos.json").unlink()
    with daemon_on(tmp_path, FakeObserver()) as daemon:
        daemon.controller.change_slos(["web"], SloUpdate({"weight": 4.0}), force=True)
        daemon.epoch()
        (tmp_path / "slos.json").write_text("{")
        status = daemon.epoch()
        assert status.vms[0].slo.weight == 4.0
        assert any("slos.json" in note for note in status.notes)


def test_temporary_files_of_a_killed_daemon_are_removed(tmp_path: Path) -> None:
    ended = subprocess.Popen(["/bin/true"])
    ended.wait()
    left = tmp_path / f".slos.json.{ended.pid}.partial"
    left.write_text("{")
    with daemon_on(tmp_path, FakeObserver(), dry_run=True):
        assert left.exists()
    with daemon_on(tmp_path, FakeObserver()):
        assert not left.exists()


def test_a_history_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "history.db").mkdir()
    with daemon_on(tmp_path, FakeObserver()) as daemon:
        daemon.epoch()
        assert any("history" in note for note in daemon.epoch().notes)
        (tmp_path / "history.db").rmdir()
        daemon.epoch()
        assert not any("history" in note for note in daemon.epoch().notes)


def test_device_failure_is_logged_once_and_does_not_affect_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "slo-ctl.toml"
    file.write_text(
        '[libvirt]\nuri = "none"\n[[device]]\nname = "ssd0"\n[[device]]\nname = "ssd1"\n'
        '[[device]]\nname = "disk"\npath = "/dev/nowhere"\n'
    )
    from slo_ctl.drives.plan import plan_device

    store = DeviceStore(device_places(tmp_path))
    for name in ("ssd0", "ssd1"):
        store.create(plan_device(f"name={name},preset=fast15,size=64MiB", ()))

    def fail(*_: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr("slo_ctl.daemon.block.ManagedBlock.find", fail)
    caplog.set_level(logging.INFO, "slo_ctl.daemon")
    locks = (store.locked("ssd0"), store.locked("ssd1"))  # as if served by servers that do not answer
    with locks[0], locks[1], daemon_on(tmp_path, FakeObserver(), load(tmp_path)) as daemon:
        for _ in range(3):
            status = daemon.epoch()
    problems = {device.name: device.problem for device in status.devices}
    assert problems["disk"] == "unexpected RuntimeError: boom"
    assert all("control.sock" in problems[name] for name in ("ssd0", "ssd1"))
    assert not any("not served" in note for note in status.notes)
    assert sum("boom" in record.message for record in caplog.records) == 1
    assert sum(record.exc_info is not None for record in caplog.records) == 1


def test_calls_of_other_threads_run_in_the_loop(tmp_path: Path) -> None:
    with daemon_on(tmp_path, FakeObserver()) as daemon:
        daemon.epoch()
        plans = []
        thread = threading.Thread(target=lambda: plans.append(daemon.controller.plan()))
        thread.start()
        deadline = time.monotonic() + 60
        while thread.is_alive() and time.monotonic() < deadline:
            daemon.controller.run_requests()
            time.sleep(0.01)
        thread.join()
        assert plans[0].outcomes == ()
        assert daemon.controller.health().epochs == 1


def test_a_dry_run_touches_nothing(tmp_path: Path) -> None:
    with daemon_on(tmp_path, FakeObserver(), dry_run=True) as daemon:
        daemon.epoch()
        daemon.plan()
    assert list(tmp_path.iterdir()) == []


def test_undo_restores_and_sets_nothing(tmp_path: Path) -> None:
    """The SLOs in force must not cause any setting during an undo."""
    group = tmp_path / "cgroup" / "web"
    group.mkdir(parents=True)
    weight = group / "io.bfq.weight"
    weight.write_text("default 700\n")
    knob = Knob(Lever.CGROUP_WEIGHT, "/web", "weight")
    Journal(tmp_path / "journal.json").add({knob: Original(300.0, "web")})
    observer = FakeObserver()
    observer.tree = CgroupTree(2, tmp_path / "cgroup")
    config = dataclasses.replace(CONFIG, default_slo=Slo(5.0))
    daemon = Daemon(config, DaemonPlaces(tmp_path), make_observer=lambda *_: observer)
    (outcome,), _ = daemon.undo()
    assert (outcome.state, outcome.before, outcome.after) == (OutcomeState.RESTORED, 700.0, 300.0)
    assert weight.read_text() == "default 300\n"
    assert observer.closed
    assert len(Journal(tmp_path / "journal.json")) == 0
    assert not (tmp_path / "history.db").exists()


def test_undo_reports_what_waits_for_a_server_and_forgets_deleted_devices(tmp_path: Path) -> None:
    """The output was `nothing to restore`, and entries of a deleted device stayed in the journal."""
    (tmp_path / "devices" / "ssd0").mkdir(parents=True)
    kept, gone = (Knob(Lever.FTL_WEIGHT, f"{name}/web", "weight") for name in ("ssd0", "old"))
    Journal(tmp_path / "journal.json").add({kept: Original(1.0, "web"), gone: Original(1.0, "web")})
    daemon = Daemon(CONFIG, DaemonPlaces(tmp_path), make_observer=lambda *_: FakeObserver())
    restored, (outcome,) = daemon.undo()
    assert restored == []
    assert (outcome.setting.knob, outcome.state) == (kept, OutcomeState.UNAPPLIED)
    assert outcome.reason == f"kept until ssd0 is served: `slo-ctl device serve ssd0 --root {tmp_path}`"
    assert list(Journal(tmp_path / "journal.json").originals()) == [kept]


def test_slos_are_resolved_only_after_changes() -> None:
    resolver, config = Resolver(), dataclasses.replace(CONFIG, daemon=DaemonConfig())
    first = resolver.resolve(["a", "b"], {"a": SloEntry({"weight": 2.0})}, {}, config)
    assert resolver.resolve(["a", "b"], {"a": SloEntry({"weight": 2.0})}, {}, config) is first
    second = resolver.resolve(["a", "b"], {"a": SloEntry({"weight": 3.0})}, {}, config)
    assert (first["a"].slo.weight, second["a"].slo.weight) == (2.0, 3.0)


def test_reasons_are_logged_once() -> None:
    reasons = RecentSentences(2)
    assert reasons.add(["x", "y", "x"]) == ["x", "y"]
    assert reasons.add(["x"]) == []
    assert reasons.ended == ["y"]
    assert reasons.add(["y"]) == []
    assert reasons.recent == ("x", "y")
    assert reasons.add(["z"]) == ["z"]
    assert reasons.add(["x"]) == ["x"]


def test_systemd_weight_mapping_is_detected_and_passed_on(tmp_path: Path) -> None:
    """Also if the tree appears, or the scheduler is selected, only after the first epoch."""
    scheduler = tmp_path / "sys" / "block" / "sda" / "queue" / "scheduler"
    scheduler.parent.mkdir(parents=True)
    scheduler.write_text("[none] bfq")
    (tmp_path / "run" / "systemd" / "system").mkdir(parents=True)
    observer = FakeObserver()
    config = dataclasses.replace(CONFIG, libvirt=LibvirtConfig("test:///nowhere"))
    daemon = Daemon(
        config,
        DaemonPlaces(tmp_path),
        make_observer=lambda *_: observer,
        sys=tmp_path / "sys",
        run=tmp_path / "run",
    )
    try:
        daemon.epoch()
        assert daemon._actuators.libvirt is not None
        assert not daemon._actuators.libvirt.systemd_maps_weights
        scheduler.write_text("none [bfq]")
        observer.tree = CgroupTree(2, tmp_path)
        daemon.epoch()
        assert daemon._actuators.libvirt.systemd_maps_weights
    finally:
        daemon.stop(undo=True)
