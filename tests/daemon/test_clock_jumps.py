"""The daemon when the wall clock is set while it runs."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from fake_status import AT, host_status, vm_status

from slo_ctl.base.clock import Clock, ClockJumps
from slo_ctl.config.settings import Config, LibvirtConfig
from slo_ctl.daemon.files import DaemonPlaces
from slo_ctl.daemon.loop import Daemon
from slo_ctl.record.history import Recorder
from slo_ctl.record.history_reader import read_vm

DAY_S = 86_400.0
YEAR_S = 365 * DAY_S


class Machine:
    """A machine whose clock the test sets."""

    def __init__(self) -> None:
        self.up_s, self.booted_at, self.suspended_s = 1000.0, float(AT), 0.0
        self.clock = Clock(
            monotonic_s=lambda: self.up_s,
            suspended_s=lambda: self.suspended_s,
            time_s=lambda: self.booted_at + self.up_s + self.suspended_s,
            cpu_s=lambda: 0.0,
        )


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.mark.parametrize("jump_s", [YEAR_S, -YEAR_S, 3600.0])
def test_up_is_the_time_since_the_start_although_the_clock_was_set(
    tmp_path: Path, machine: Machine, caplog: pytest.LogCaptureFixture, jump_s: float
) -> None:
    config = Config(libvirt=LibvirtConfig(None))
    daemon = Daemon(config, DaemonPlaces(tmp_path), clock=machine.clock)
    caplog.set_level(logging.WARNING, "slo_ctl.daemon")
    try:
        daemon.epoch()
        machine.up_s += 100
        machine.booted_at += jump_s
        for _ in range(2):
            status = daemon.epoch()
            assert status.at - status.started_at == pytest.approx(100)
            assert daemon.controller.health().started_at == status.started_at
        assert len([each for each in caplog.messages if each.startswith("the clock was set")]) == 1
    finally:
        daemon.stop(undo=True)


def test_a_host_that_is_suspended_has_the_right_time(
    tmp_path: Path, machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    """One that is suspended every night deleted nothing for its age, and seemed to have started again."""
    daemon = Daemon(Config(libvirt=LibvirtConfig(None)), DaemonPlaces(tmp_path), clock=machine.clock)
    try:
        started_at = daemon.epoch().started_at
        machine.up_s += 100
        machine.suspended_s += DAY_S / 3
        assert daemon.epoch().started_at == started_at
        assert caplog.messages == []
        machine.booted_at += DAY_S
        daemon.epoch()
        assert "history: entries are not deleted by age for a day" in caplog.text
    finally:
        daemon.stop(undo=True)


def test_a_clock_that_is_adjusted_slowly_is_not_taken_for_one_that_was_set(machine: Machine) -> None:
    """Otherwise the start time in the metrics would change all the time."""
    jumps = ClockJumps(machine.clock)
    for _ in range(9):
        machine.booted_at += 0.1
        assert jumps.since_last() == 0
    machine.booted_at += 0.2
    assert jumps.since_last() == pytest.approx(1.1)
    assert jumps.since_last() == 0


class Recording:
    """The history of a daemon on this machine, which has recorded ten minutes."""

    def __init__(self, path: Path, machine: Machine) -> None:
        self.path, self.machine = path, machine
        self.recorder = Recorder(path, DAY_S, 1 << 30, machine.clock)
        self.start = machine.clock.time_s()
        self.run(600)

    def run(self, for_s: float) -> None:
        for _ in range(100):
            self.recorder.add(host_status(vms=(vm_status("web"),), at=self.machine.clock.time_s()), (), ())
            assert self.recorder.problem == ""
            self.machine.up_s += for_s / 100

    def set_clock(self, by_s: float) -> None:
        self.machine.booted_at += by_s
        self.recorder.clock_was_set(by_s)

    def first_samples(self) -> int:
        found = read_vm(self.path, "web", self.start, self.start + 540, limit=9)
        return sum(point.samples for point in found.points)


@pytest.fixture
def recording(tmp_path: Path, machine: Machine) -> Recording:
    return Recording(tmp_path / "history.db", machine)


def test_a_clock_that_is_set_forward_by_mistake_does_not_delete_the_history(recording: Recording) -> None:
    before = recording.first_samples()
    assert before > 0
    recording.set_clock(YEAR_S)
    recording.run(for_s=DAY_S / 2)
    assert recording.first_samples() >= before
    recording.set_clock(-YEAR_S)
    recording.run(for_s=600)
    assert recording.first_samples() >= before
    # When the clock is right again, old records are deleted as before.
    recording.run(for_s=2 * DAY_S)
    assert recording.first_samples() == 0


def test_a_clock_that_stays_where_it_was_set_is_believed_after_a_day(recording: Recording) -> None:
    recording.set_clock(YEAR_S)
    recording.run(for_s=DAY_S + 60)
    recording.run(for_s=600)
    assert recording.first_samples() == 0
