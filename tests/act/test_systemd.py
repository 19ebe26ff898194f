"""Properties of units, by a systemctl that is made up: it keeps them and writes the cgroup files."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slo_ctl.act.cgroup import CgroupActuator
from slo_ctl.act.journal import Journal
from slo_ctl.act.keeper import SettingKeeper
from slo_ctl.act.systemd import SystemdActuator
from slo_ctl.decide.levers import unit_of
from slo_ctl.host.cgroup import CgroupTree
from slo_ctl.model import Knob, Lever, OutcomeState, Setting
from slo_ctl.model.decision import ActError

SCOPE = r"machine-qemu\x2d1\x2dweb.scope"
PLACE = f"/machine.slice/{SCOPE}"
NVME = "259:0"
KEYS = {
    "IOReadIOPSMax": "riops",
    "IOWriteIOPSMax": "wiops",
    "IOReadBandwidthMax": "rbps",
    "IOWriteBandwidthMax": "wbps",
}


class FakeSystemd:
    """Keeps properties of one unit. What it shows has the form of systemd 257's `systemctl show`."""

    def __init__(self, folder: Path) -> None:
        self.group = folder / "cgroup" / PLACE.lstrip("/")
        self.group.mkdir(parents=True)
        self.sys = folder / "sys"
        device = self.sys / "devices" / "nvme0n1"
        device.mkdir(parents=True)
        (self.sys / "dev" / "block").mkdir(parents=True)
        (self.sys / "dev" / "block" / NVME).symlink_to(device)
        self.properties: dict[str, dict[str, str]] = {}
        self.weight = ""
        self.calls: list[list[str]] = []
        self.deaf = False
        self.realise()
        self._cgroups = CgroupActuator(CgroupTree(2, folder / "cgroup"), self.sys)
        self.actuator = SystemdActuator(self._cgroups, self.sys, self)

    def waiting_for(self, moment: Callable[[], object], patience_s: float) -> SystemdActuator:
        """An actuator with little patience, each of whose calls waits for something first."""

        def slow(arguments: Sequence[str]) -> str:
            moment()
            return self(arguments)

        return SystemdActuator(self._cgroups, self.sys, slow, patience_s=patience_s)

    def realise(self) -> None:
        weight = int(self.weight or 100)
        (self.group / "io.weight").write_text(f"default {weight}\n")
        mapped = weight if weight <= 100 else 100 + (weight - 100) * 900 // 9900
        (self.group / "io.bfq.weight").write_text(f"default {mapped}\n")
        limits = {key: self.properties.get(name, {}) for name, key in KEYS.items()}
        values = [f"{key}={next(iter(of.values()), 'max')}" for key, of in limits.items()]
        (self.group / "io.max").write_text(f"{NVME} {' '.join(values)}\n".replace("infinity", "max"))
        latency = next(iter(self.properties.get("IODeviceLatencyTargetSec", {}).values()), "infinity")
        text = "" if latency == "infinity" else f"{NVME} target={latency.removesuffix('us')}\n"
        (self.group / "io.latency").write_text(text)

    def __call__(self, arguments: Sequence[str]) -> str:
        self.calls.append(list(arguments))
        verb, *_, dashes, unit = arguments if arguments[0] == "show" else arguments[:-1]
        assert (dashes, unit) == ("--", SCOPE)
        if verb == "show":
            names = arguments[1].removeprefix("--property=").split(",")
            output = [(name, *each) for name in names for each in self.properties.get(name, {}).items()]
            return "".join(f"{name}={path} {value}\n" for name, path, value in output if value != "infinity")
        assert verb == "set-property"
        assert "--runtime" in arguments
        name, _, value = arguments[-1].partition("=")
        if self.deaf:
            return ""
        if name == "IOWeight":
            self.weight = value
        else:
            path, _, number = value.rpartition(" ")
            self.properties.setdefault(name, {})[path] = number
        self.realise()
        return ""

    def assigned(self) -> list[str]:
        return [call[-1] for call in self.calls if call[0] == "set-property"]


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSystemd:
    monkeypatch.setattr("slo_ctl.act.systemd._FOLLOWS", 0.02)
    return FakeSystemd(tmp_path)


def knob(name: str, device: str = NVME) -> Knob:
    return Knob(Lever.SYSTEMD_PROPERTY, PLACE, name, "" if name.endswith("weight") else device)


@pytest.mark.parametrize(
    ("name", "value", "assigned"),
    [
        ("cost_weight", 300.0, "IOWeight=300"),
        ("weight", 300.0, "IOWeight=2300"),
        ("weight", 50.0, "IOWeight=50"),
        ("read_iops", 500.0, "IOReadIOPSMax=/dev/nvme0n1 500"),
        ("write_iops", 7.0, "IOWriteIOPSMax=/dev/nvme0n1 7"),
        ("read_bytes_s", 1048576.0, "IOReadBandwidthMax=/dev/nvme0n1 1048576"),
        ("write_bytes_s", 4096.0, "IOWriteBandwidthMax=/dev/nvme0n1 4096"),
        ("latency_us", 5000.0, "IODeviceLatencyTargetSec=/dev/nvme0n1 5000us"),
    ],
)
def test_properties_are_set_read_back_and_taken_back(
    systemd: FakeSystemd, tmp_path: Path, name: str, value: float, assigned: str
) -> None:
    keeper = SettingKeeper([systemd.actuator], Journal(tmp_path / "journal.json"))
    files = {path: path.read_text() for path in systemd.group.iterdir()}
    setting = Setting(knob(name), value, "web", "as set")
    (outcome,) = keeper.apply([setting])
    assert (outcome.state, outcome.before, outcome.after) == (OutcomeState.APPLIED, None, value)
    assert systemd.assigned() == [assigned]
    (outcome,) = keeper.apply([setting])
    assert outcome.state is OutcomeState.UNCHANGED
    # As after a crash: the journal alone is left.
    (outcome,) = SettingKeeper([systemd.actuator], Journal(tmp_path / "journal.json")).undo()
    assert outcome.state is OutcomeState.RESTORED
    assert systemd.assigned()[-1] == (
        "IOWeight=" if name.endswith("weight") else f"{assigned.rpartition(' ')[0]} infinity"
    )
    assert {path: path.read_text() for path in systemd.group.iterdir()} == files


def test_a_weight_that_the_unit_had_is_given_back(systemd: FakeSystemd, tmp_path: Path) -> None:
    systemd.weight = "70"
    systemd.realise()
    keeper = SettingKeeper([systemd.actuator], Journal(tmp_path / "journal.json"))
    keeper.apply([Setting(knob("cost_weight"), 300.0, "web", "")])
    keeper.undo()
    assert systemd.assigned() == ["IOWeight=300", "IOWeight=70"]


def test_a_device_keeps_the_name_that_the_property_has_for_it(systemd: FakeSystemd) -> None:
    systemd.properties["IOReadIOPSMax"] = {"/dev/nvme0n1": "900", "/dev/gone": "5"}
    systemd.actuator.write(knob("read_iops"), 400.0)
    assert systemd.properties["IOReadIOPSMax"]["/dev/nvme0n1"] == "400"


def test_what_systemd_does_not_take_is_told(systemd: FakeSystemd, tmp_path: Path) -> None:
    systemd.deaf = True
    keeper = SettingKeeper([systemd.actuator], Journal(tmp_path / "journal.json"))
    outcomes = keeper.apply([Setting(knob(name), 300.0, "web", "") for name in ("cost_weight", "read_iops")])
    assert [(each.state, each.reason) for each in outcomes] == [
        (OutcomeState.UNAPPLIED, "300 was written, none is read")
    ] * 2


def test_a_limit_written_past_systemd_is_not_taken_away(systemd: FakeSystemd, tmp_path: Path) -> None:
    """systemd writes all four limits of a device at once, those that it does not know of as max."""
    (systemd.group / "io.max").write_text(f"{NVME} rbps=max wbps=5000 riops=max wiops=max\n")
    keeper = SettingKeeper([systemd.actuator], Journal(tmp_path / "journal.json"))
    (outcome,) = keeper.apply([Setting(knob("read_iops"), 400.0, "web", "")])
    assert outcome.state is OutcomeState.UNAPPLIED
    assert "past systemd (write_bytes_s 5000)" in outcome.reason
    assert systemd.assigned() == []
    # A limit that systemd knows is none of those.
    systemd.properties["IOWriteBandwidthMax"] = {"/dev/nvme0n1": "5000"}
    (outcome,) = keeper.apply([Setting(knob("read_iops"), 400.0, "web", "")])
    assert outcome.state is OutcomeState.APPLIED


def test_what_somebody_writes_beside_it_later_outlives_it(systemd: FakeSystemd, tmp_path: Path) -> None:
    keeper = SettingKeeper([systemd.actuator], Journal(tmp_path / "journal.json"))
    keeper.apply([Setting(knob("read_iops"), 400.0, "web", "")])
    (systemd.group / "io.max").write_text(f"{NVME} rbps=max wbps=5000 riops=400 wiops=max\n")
    (outcome,) = keeper.undo()
    assert outcome.state is OutcomeState.RESTORED
    # Written last; the kernel keeps the others, while this file is plain.
    assert (systemd.group / "io.max").read_text().startswith(f"{NVME} wbps=5000\n")


def test_a_group_without_the_controller_has_nothing_of_its_own(systemd: FakeSystemd) -> None:
    """systemd enables it with the first property."""
    for name in ("io.weight", "io.max"):
        (systemd.group / name).unlink()
    (systemd.group.parent / "cgroup.subtree_control").write_text("cpu memory\n")
    assert systemd.actuator.read(knob("cost_weight")) is None
    systemd.actuator.write(knob("read_iops"), 400.0)
    assert systemd.actuator.read(knob("read_iops")) == 400.0


def test_a_systemd_that_hangs_is_not_waited_for(tmp_path: Path) -> None:
    systemd = FakeSystemd(tmp_path)
    answers = threading.Event()
    actuator = systemd.waiting_for(lambda: answers.wait(20.0), patience_s=0.05)
    for _ in range(2):
        with pytest.raises(ActError, match="systemd has not answered"):
            actuator.write(knob("cost_weight"), 300.0)
    answers.set()
    # At the end there is time: what hung has ended before anything is restored.
    actuator.take_time()
    assert systemd.weight == "300"
    actuator.write(knob("cost_weight"), None)
    assert systemd.weight == ""
    actuator.close()


def test_on_a_slow_host_a_change_takes_place_all_the_same(tmp_path: Path) -> None:
    """Though nothing is ever answered in time, and nothing is taken for restored meanwhile."""
    systemd = FakeSystemd(tmp_path)
    slow = threading.Event()
    actuator = systemd.waiting_for(lambda: slow.wait(0.1), patience_s=0.01)
    keeper = SettingKeeper([actuator], Journal(tmp_path / "journal.json"))
    setting = Setting(knob("read_iops"), 400.0, "web", "")
    (outcome,) = keeper.apply([setting])
    assert (outcome.state, "has not answered" in outcome.reason) == (OutcomeState.UNAPPLIED, True)
    (outcome,) = keeper.apply([])
    assert (outcome.state, "has not answered" in outcome.reason) == (OutcomeState.UNAPPLIED, True)
    deadline = time.monotonic() + 20
    while keeper.apply([setting])[0].state is not OutcomeState.UNCHANGED:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert systemd.properties["IOReadIOPSMax"] == {"/dev/nvme0n1": "400"}
    slow.set()
    actuator.take_time()
    assert [each.state for each in keeper.undo()] == [OutcomeState.RESTORED]
    assert actuator.read(setting.knob) is None
    actuator.close()


def test_somebody_who_writes_past_systemd_is_found_out(systemd: FakeSystemd, tmp_path: Path) -> None:
    keeper = SettingKeeper([systemd.actuator], Journal(tmp_path / "journal.json"))
    setting = Setting(knob("cost_weight"), 300.0, "web", "")
    keeper.apply([setting])
    (systemd.group / "io.weight").write_text("default 5\n")
    (outcome,) = keeper.apply([setting], verify_all=True)
    assert (outcome.state, outcome.reason) == (OutcomeState.APPLIED, "somebody else had set it to 5")


@pytest.mark.parametrize("place", ["/machine.slice/x", "/", "/user.slice/user@0.service/app.slice/x.scope"])
def test_other_groups_are_refused(systemd: FakeSystemd, place: str) -> None:
    with pytest.raises(ActError, match="not a group of a unit"):
        systemd.actuator.write(Knob(Lever.SYSTEMD_PROPERTY, place, "cost_weight"), 300.0)
    assert systemd.calls == []


def test_device_that_is_gone_is_reported(systemd: FakeSystemd) -> None:
    with pytest.raises(ActError, match="no longer exists") as refused:
        systemd.actuator.write(knob("read_iops", "8:0"), 5.0)
    assert refused.value.gone


@pytest.mark.parametrize(
    ("cgroup", "unit"),
    [
        (PLACE, SCOPE),
        ("/system.slice/web.service", "web.service"),
        ("/machine.slice", "machine.slice"),
        ("/system.slice/web.service/vm1", None),
        (f"{PLACE}/libvirt/emulator", None),
        ("/machine.slice/_cgroup.scope", "cgroup.scope"),
        ("/user.slice/user-0.slice/user@0.service/x.scope", None),
        ("/a/x y.scope", None),
        ("/a/-rf.scope", "-rf.scope"),
        ("/a/x;reboot.scope", None),
        ("", None),
    ],
)
def test_which_unit_a_group_is_of(cgroup: str, unit: str | None) -> None:
    assert unit_of(cgroup) == unit


@given(st.text())
def test_units_have_no_surprising_characters(cgroup: str) -> None:
    unit = unit_of(cgroup)
    assert unit is None or (unit.isascii() and not set(unit) & set(" \n\0'\"$;|&/"))


def test_missing_systemctl_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    cgroups = CgroupActuator(CgroupTree(2, tmp_path), tmp_path)
    with pytest.raises(ActError, match="systemctl is not installed"):
        SystemdActuator(cgroups, Path("/sys")).write(knob("cost_weight"), 300.0)


def test_refusal_of_systemctl_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "systemctl"
    program.write_text("#!/bin/sh\necho 'Unit x.scope is not loaded.' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    cgroups = CgroupActuator(CgroupTree(2, tmp_path), tmp_path)
    with pytest.raises(ActError, match="is not loaded") as refused:
        SystemdActuator(cgroups, Path("/sys")).write(knob("cost_weight"), 300.0)
    assert refused.value.gone
