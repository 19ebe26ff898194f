"""Settings that a restored or migrated VM has from its earlier run."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from test_loop import CONFIG, FakeObserver

from slo_ctl.act.journal import Journal, Original
from slo_ctl.act.libvirt import LibvirtActuator
from slo_ctl.daemon.block_devices import BlockDevices
from slo_ctl.daemon.files import DaemonPlaces
from slo_ctl.daemon.loop import Daemon
from slo_ctl.daemon.settings import InheritedSettings
from slo_ctl.model.host import BFQ, DeviceNumber, Disk, FoundBy, Vm, VmState
from slo_ctl.model.setting import Knob, Lever, OutcomeState
from slo_ctl.observe.streams import Inventory

UUID = "6695eb01-f6a4-8304-79aa-97f2502e193f"
DEVICE = DeviceNumber(7, 0)
WEIGHT = Knob(Lever.LIBVIRT_WEIGHT, UUID, BFQ.knob)
PAUSED = Vm(
    *("web", FoundBy.LIBVIRT, VmState.PAUSED, UUID),
    libvirt_id=3,
    disks=(Disk("vda", "block", "/dev/loop0", DEVICE),),
    resumed=True,
)


class Restoring(LibvirtActuator):
    """libvirt with a VM that has weight 100 in its definition."""

    def __init__(self, live: float) -> None:
        self.live = live

    def inherited(self, uuid: str, targets: Iterable[str], *, weight: bool) -> dict[Knob, float | None]:
        assert uuid == UUID
        assert set(targets) <= {"vda"}
        return {WEIGHT: 100.0} if weight and self.live != 100 else {}


def originals(tmp_path: Path, libvirt: Restoring, *seen: tuple[Vm, float]) -> dict[Knob, object]:
    journal, settings = Journal(tmp_path / "journal.json"), InheritedSettings()
    for vm, libvirt.live in seen:
        settings.add_to(journal, Inventory(None, None, (vm,), (), ()), libvirt, [DEVICE])
    return {knob: original.value for knob, original in journal.originals().items()}


def test_the_weight_of_a_vm_that_is_seen_paused_first_is_that_of_its_definition(tmp_path: Path) -> None:
    assert originals(tmp_path, Restoring(100), (PAUSED, 700)) == {WEIGHT: 100}


def test_the_weight_of_a_vm_that_was_paused_by_a_user_may_be_the_users(tmp_path: Path) -> None:
    assert originals(tmp_path, Restoring(100), (replace(PAUSED, resumed=False), 700)) == {}


def test_originals_of_an_earlier_run_are_not_those_of_a_vm_that_was_started_again(tmp_path: Path) -> None:
    """`apply --undo` set the limits of its earlier run on a VM that had been restarted."""
    journal, settings = Journal(tmp_path / "journal.json"), InheritedSettings()
    running = replace(PAUSED, state=VmState.RUNNING, resumed=False)
    limit = Knob(Lever.LIBVIRT_LIMIT, UUID, "total_iops", "vda")

    def see(vm: Vm) -> dict[Knob, Original]:
        settings.add_to(journal, Inventory(None, None, (vm,), (), ()), Restoring(100), [DEVICE])
        return journal.originals()

    see(running)
    journal.add({limit: Original(500.0, "web")})
    # After `kill -9` of the daemon.
    journal, settings = Journal(tmp_path / "journal.json"), InheritedSettings()
    assert limit in see(running)
    resumed = replace(running, libvirt_id=4, resumed=True)
    assert limit in see(replace(resumed, state=VmState.PAUSED))
    assert limit in see(resumed)
    journal, settings = Journal(tmp_path / "journal.json"), InheritedSettings()
    assert limit in see(replace(resumed, resumed=False)), "the same run, after a pause"
    assert limit not in see(replace(running, libvirt_id=5))


def test_a_vm_that_is_paused_to_migrate_away_keeps_its_own_weight(tmp_path: Path) -> None:
    started = replace(PAUSED, state=VmState.RUNNING, resumed=False)
    assert originals(tmp_path, Restoring(100), (started, 700), (PAUSED, 700)) == {}
    assert originals(tmp_path, Restoring(100), (started, 700), (replace(PAUSED, libvirt_id=4), 700)) == {
        WEIGHT: 100
    }


class CountingJournal(Journal):
    """Counts how often all entries are compared with what is there now."""

    passes = 0

    def identify(self, objects: Mapping[str, str]) -> None:
        self.passes += 1
        super().identify(objects)


def test_more_vms_need_no_more_passes_over_the_journal(tmp_path: Path) -> None:
    """500 VMs with five settings each took 200 ms of CPU in each epoch."""
    journal, settings = CountingJournal(tmp_path / "journal.json"), InheritedSettings()
    running = replace(PAUSED, state=VmState.RUNNING, resumed=False)
    vms = tuple(replace(running, name=f"vm{n}", uuid=f"{n:032x}", libvirt_id=1 + n) for n in range(20))
    for _ in range(3):
        settings.add_to(journal, Inventory(None, None, vms, (), ()), Restoring(100), [DEVICE])
    assert journal.passes == 3


class Undone(Restoring):
    """As `Restoring`, and restores the weight."""

    levers = frozenset({Lever.LIBVIRT_WEIGHT})

    def identity(self, knob: Knob) -> str:
        assert knob == WEIGHT
        return ""

    def owns(self, knob: Knob) -> bool:
        return knob == WEIGHT

    def read(self, knob: Knob) -> float | None:
        assert knob == WEIGHT
        return self.live

    def write(self, knob: Knob, value: float | None) -> None:
        assert knob == WEIGHT
        assert value is not None
        self.live = value

    def restore(self, knob: Knob, value: float | None) -> None:
        self.write(knob, value)

    def normalise(self, knob: Knob, value: float | None) -> float | None:
        assert knob == WEIGHT
        return value

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("fails", [False, True])
def test_settings_of_a_vm_that_is_restored_while_the_daemon_stops_are_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    """`apply --undo` did so, a stop did not: the weight of the saved VM stayed after the daemon had ended."""
    observer = FakeObserver()
    daemon = Daemon(CONFIG, DaemonPlaces(tmp_path), make_observer=lambda *_: observer)
    libvirt = Undone(700)
    daemon.epoch()
    monkeypatch.setattr(BlockDevices, "numbers", property(lambda _: {"fast": DEVICE}))
    daemon._actuators.libvirt = libvirt
    daemon._actuators.active.append(libvirt)
    observer.vms = (replace(PAUSED, state=VmState.RUNNING),)
    if fails:
        monkeypatch.setattr(observer, "observe", lambda: 1 / 0)
        daemon._journal.add({WEIGHT: Original(100.0, "web")})
    outcomes = daemon.stop(undo=True)
    assert [outcome.state for outcome in outcomes] == [OutcomeState.RESTORED]
    assert libvirt.live == 100
    with closing(sqlite3.connect(DaemonPlaces(tmp_path).history)) as history:
        assert history.execute("SELECT vm, state FROM outcomes").fetchall() == [("web", "restored")]
