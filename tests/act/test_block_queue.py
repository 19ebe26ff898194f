"""I/O schedulers and io.cost of a device, on a fake /sys and root group that behave like the kernel."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fake_sys import block_device

from slo_ctl.act.journal import Journal
from slo_ctl.act.keeper import SettingKeeper
from slo_ctl.act.queue import BlockQueueActuator, check_has_scheduler
from slo_ctl.decide.scheduler import cost_knob, scheduler_knob
from slo_ctl.model.setting import ActError, Knob, Lever, OutcomeState, Setting

SCHEDULER = scheduler_knob("sdx", "8:16")
QOS, MODEL = (cost_knob("sdx", "8:16", what) for what in ("qos", "model"))
QOS_OFF = "enable=0 ctrl=auto rpct=0.00 rlat=0 wpct=0.00 wlat=0 min=1.00 max=10000.00"
QOS_ON = "enable=1 ctrl=user rpct=0.00 rlat=0 wpct=0.00 wlat=0 min=100.00 max=100.00"
MODEL_AUTO = "ctrl=auto model=linear rbps=1 rseqiops=1 rrandiops=1 wbps=1 wseqiops=1 wrandiops=1"
MODEL_USER = "ctrl=user model=linear rbps=9 rseqiops=8 rrandiops=7 wbps=6 wseqiops=5 wrandiops=4"
PARAMETERS = {
    "none": {},
    "mq-deadline": {"read_expire": "500", "write_expire": "5000", "fifo_batch": "16"},
    "bfq": {"low_latency": "1", "slice_idle_us": "8000", "max_budget": "0"},
}


class Host:
    """A device whose scheduler loses its parameters when another is selected, and the io.cost files."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, scheduler: str = "mq-deadline") -> None:
        self.sys, self.cgroup = root / "sys", root / "cgroup"
        self.device = block_device(self.sys, "sdx", "8:16")
        (self.device / "queue" / "iosched").mkdir(parents=True)
        self.cgroup.mkdir()
        (self.cgroup / "io.cost.qos").write_text("")
        (self.cgroup / "io.cost.model").write_text("")
        self.writes = 0
        self.choose(scheduler)
        monkeypatch.setattr("slo_ctl.act.queue.write_line", self.write)

    def choose(self, scheduler: str) -> None:
        listed = [f"[{name}]" if name == scheduler else name for name in PARAMETERS]
        (self.device / "queue" / "scheduler").write_text(" ".join(listed) + "\n")
        for path in (self.device / "queue" / "iosched").iterdir():
            path.unlink()
        for name, value in PARAMETERS[scheduler].items():
            (self.device / "queue" / "iosched" / name).write_text(value + "\n")
        (self.device / "queue" / "nr_requests").write_text("256\n")

    def write(self, path: Path, text: str) -> None:
        self.writes += 1
        if path.name == "scheduler":
            if text not in PARAMETERS:
                raise OSError(22, "Invalid argument")
            self.choose(text)
        elif path.parent == self.cgroup:
            self._cost(path, text)
        else:
            path.write_text(text + "\n")

    def _cost(self, path: Path, text: str) -> None:
        number, *words = text.split()
        line = path.read_text().split()[1:] or (QOS_OFF if path.name.endswith("qos") else MODEL_AUTO).split()
        given = dict(word.split("=") for word in words)
        kept = dict(word.split("=") for word in line)
        if given.get("ctrl") == "auto":
            kept = dict(word.split("=") for word in (QOS_OFF if "enable" in kept else MODEL_AUTO).split())
        if given.keys() - {"enable", "ctrl", "model"}:
            given["ctrl"] = "user"  # whatever was written
        path.write_text(f"{number} " + " ".join(f"{k}={v}" for k, v in (kept | given).items()) + "\n")

    def keeper(self, state: Path) -> SettingKeeper:
        return SettingKeeper([BlockQueueActuator(self.sys, self.cgroup)], Journal(state))

    def snapshot(self) -> dict[str, str]:
        return {
            str(path.relative_to(self.device)): path.read_text()
            for path in sorted((self.device / "queue").rglob("*"))
            if path.is_file()
        }


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)


def want(knob: Knob, value: str) -> Setting:
    return Setting(knob, value, "", "the profile says so")


def test_scheduler_and_parameters_are_set_and_restored(host: Host, tmp_path: Path) -> None:
    expire = host.device / "queue" / "iosched" / "read_expire"
    expire.write_text("77\n")
    # The kernel sets it, too, when the scheduler is changed.
    (host.device / "queue" / "nr_requests").write_text("1023\n")
    before = host.snapshot()
    keeper = host.keeper(tmp_path / "journal.json")
    wanted = [want(SCHEDULER, "bfq low_latency=0 slice_idle_us=8000")]
    (outcome,) = keeper.apply(wanted)
    assert outcome.state is OutcomeState.APPLIED
    assert outcome.before == "mq-deadline fifo_batch=16 nr_requests=1023 read_expire=77 write_expire=5000"
    assert outcome.after == "bfq low_latency=0 max_budget=0 nr_requests=256 slice_idle_us=8000"
    written = host.writes
    (outcome,) = keeper.apply(wanted, verify_all=True)
    assert (outcome.state, host.writes) == (OutcomeState.UNCHANGED, written)

    # Another process must be able to restore from the journal alone.
    (outcome,) = host.keeper(tmp_path / "journal.json").undo()
    assert outcome.state is OutcomeState.RESTORED
    assert host.snapshot() == before
    assert len(Journal(tmp_path / "journal.json")) == 0


def test_setting_changed_by_others_is_set_again(host: Host, tmp_path: Path) -> None:
    keeper = host.keeper(tmp_path / "journal.json")
    wanted = [want(SCHEDULER, "bfq low_latency=0")]
    keeper.apply(wanted)
    (host.device / "queue" / "iosched" / "low_latency").write_text("1\n")
    (outcome,) = keeper.apply(wanted, verify_all=True)
    assert outcome.state is OutcomeState.APPLIED
    assert "another program" in outcome.reason
    assert (host.device / "queue" / "iosched" / "low_latency").read_text() == "0\n"


def test_io_cost_is_set_read_back_and_switched_off_again(host: Host, tmp_path: Path) -> None:
    keeper = host.keeper(tmp_path / "journal.json")
    outcomes = keeper.apply([want(MODEL, MODEL_USER), want(QOS, QOS_ON)])
    assert [each.state for each in outcomes] == [OutcomeState.APPLIED] * 2
    assert [each.before for each in outcomes] == [None, None]
    assert (host.cgroup / "io.cost.model").read_text() == f"8:16 {MODEL_USER}\n"
    assert (host.cgroup / "io.cost.qos").read_text() == f"8:16 {QOS_ON}\n"
    outcomes = host.keeper(tmp_path / "journal.json").undo()
    assert [each.state for each in outcomes] == [OutcomeState.RESTORED] * 2
    assert "enable=0" in (host.cgroup / "io.cost.qos").read_text()
    assert "ctrl=auto" in (host.cgroup / "io.cost.model").read_text()


def test_io_cost_of_the_operator_is_restored(host: Host, tmp_path: Path) -> None:
    own = QOS_ON.replace("max=100.00", "max=150.00")
    (host.cgroup / "io.cost.qos").write_text(f"8:0 {QOS_OFF}\n8:16 {own}\n")
    actuator = BlockQueueActuator(host.sys, host.cgroup)
    assert actuator.read(QOS) == own
    (host.cgroup / "io.cost.qos").write_text(f"8:16 {own}\n")
    keeper = host.keeper(tmp_path / "journal.json")
    keeper.apply([want(QOS, QOS_ON)])
    keeper.undo()
    assert (host.cgroup / "io.cost.qos").read_text() == f"8:16 {own}\n"


def test_io_cost_that_was_on_with_values_of_the_kernel_is_restored(host: Host, tmp_path: Path) -> None:
    """As after `echo 8:16 enable=1`. Its values were written back, which makes the kernel keep them."""
    own = QOS_OFF.replace("enable=0", "enable=1")
    (host.cgroup / "io.cost.qos").write_text(f"8:16 {own}\n")
    keeper = host.keeper(tmp_path / "journal.json")
    keeper.apply([want(QOS, QOS_ON)])
    assert {outcome.state for outcome in keeper.undo()} == {OutcomeState.RESTORED}
    assert (host.cgroup / "io.cost.qos").read_text() == f"8:16 {own}\n"


def test_io_cost_that_was_off_with_values_of_the_operator_is_restored(host: Host, tmp_path: Path) -> None:
    own = QOS_ON.replace("enable=1", "enable=0").replace("max=100.00", "max=150.00")
    (host.cgroup / "io.cost.qos").write_text(f"8:16 {own}\n")
    keeper = host.keeper(tmp_path / "journal.json")
    (outcome,) = keeper.apply([want(QOS, QOS_ON)])
    assert (outcome.before, outcome.after) == (own, QOS_ON)
    assert {outcome.state for outcome in keeper.undo()} == {OutcomeState.RESTORED}
    assert (host.cgroup / "io.cost.qos").read_text() == f"8:16 {own}\n"


def test_missing_kernel_module_is_named(host: Host, tmp_path: Path) -> None:
    (outcome,) = host.keeper(tmp_path / "journal.json").apply([want(SCHEDULER, "kyber")])
    assert outcome.state is OutcomeState.UNAPPLIED
    assert "modprobe kyber-iosched" in outcome.reason


def test_missing_parameter_is_reported(host: Host, tmp_path: Path) -> None:
    (outcome,) = host.keeper(tmp_path / "journal.json").apply([want(SCHEDULER, "bfq turbo=1")])
    assert (outcome.state, "turbo" in outcome.reason) == (OutcomeState.UNAPPLIED, True)


def test_removed_or_replaced_device_is_not_touched(host: Host, tmp_path: Path) -> None:
    keeper = host.keeper(tmp_path / "journal.json")
    keeper.apply([want(SCHEDULER, "bfq")])
    link = host.sys / "dev" / "block" / "8:16"
    link.unlink()
    other = host.sys / "devices" / "sdy"
    (other / "queue").mkdir(parents=True)
    (other / "queue" / "scheduler").write_text("[none] bfq\n")
    link.symlink_to(other)
    (outcome,) = keeper.undo()
    assert outcome.state is OutcomeState.RESTORED
    assert "sdx no longer exists" in outcome.reason
    assert (other / "queue" / "scheduler").read_text() == "[none] bfq\n"
    assert len(Journal(tmp_path / "journal.json")) == 0


def test_a_device_added_in_the_place_of_another_keeps_its_own_scheduler(host: Host, tmp_path: Path) -> None:
    """It got the original one of the device that was removed, of another size of queue."""
    keeper = host.keeper(tmp_path / "journal.json")
    keeper.apply([want(SCHEDULER, "bfq low_latency=0")])
    host.device.rename(tmp_path / "removed")
    shutil.copytree(tmp_path / "removed", host.device)
    host.choose("none")
    (outcome,) = keeper.apply([want(SCHEDULER, "bfq low_latency=0")], verify_all=True)
    assert (outcome.state, outcome.before) == (OutcomeState.APPLIED, "none nr_requests=256")
    for each in (keeper, host.keeper(tmp_path / "journal.json")):
        each.undo()
        assert BlockQueueActuator(host.sys, host.cgroup).read(SCHEDULER) == "none nr_requests=256"


def test_partitions_and_stacked_devices_are_refused(tmp_path: Path) -> None:
    disk = tmp_path / "sdx"
    (disk / "sdx1").mkdir(parents=True)
    (disk / "sdx1" / "partition").write_text("1\n")
    with pytest.raises(ActError, match="is a partition"):
        check_has_scheduler(disk / "sdx1")
    (tmp_path / "nvme0n1" / "slaves" / "nvme0c0n1").mkdir(parents=True)
    with pytest.raises(ActError, match="nvme0c0n1"):
        check_has_scheduler(tmp_path / "nvme0n1")


@pytest.mark.parametrize(
    ("knob", "value"),
    [
        (SCHEDULER, ""),
        (SCHEDULER, None),
        (SCHEDULER, 5.0),
        (SCHEDULER, "../../etc"),
        (SCHEDULER, "bfq ../x=1"),
        (SCHEDULER, "bfq low_latency=x"),
        (QOS, "8:0 enable=1; rm"),
        (Knob(Lever.DEVICE_SCHEDULER, "sdx", "scheduler", "../8:16"), "bfq"),
        (Knob(Lever.DEVICE_COST, "sdx", "weights", "8:16"), "a=b"),
    ],
)
def test_invalid_value_is_refused_and_changes_nothing(
    host: Host, tmp_path: Path, knob: Knob, value: str | float | None
) -> None:
    (outcome,) = host.keeper(tmp_path / "journal.json").apply([Setting(knob, value, "", "")])
    assert (outcome.state, host.writes) == (OutcomeState.UNAPPLIED, 0)


def test_missing_io_cost_is_reported(host: Host) -> None:
    with pytest.raises(ActError, match="cgroup v2"):
        BlockQueueActuator(host.sys, None).read(QOS)
    (host.cgroup / "io.cost.qos").unlink()
    with pytest.raises(ActError, match="IOCOST"):
        BlockQueueActuator(host.sys, host.cgroup).read(QOS)


@pytest.mark.parametrize(("tick_ms", "kept"), [(1.0, "10"), (4.0, "12"), (10.0, "10")])
def test_times_are_rounded_to_whole_ticks(
    host: Host, monkeypatch: pytest.MonkeyPatch, tick_ms: float, kept: str
) -> None:
    monkeypatch.setattr("time.clock_getres", lambda _clock: tick_ms / 1e3)
    actuator = BlockQueueActuator(host.sys, None)
    wanted = "mq-deadline read_expire=10 fifo_batch=10"
    assert actuator.normalise(SCHEDULER, wanted) == f"mq-deadline read_expire={kept} fifo_batch=10"
