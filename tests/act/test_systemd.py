"""Properties of units with a mock systemd, which stores them and writes the cgroup files."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_sys import block_device
from hypothesis import given
from hypothesis import strategies as st
from jeepney import HeaderFields, Message, Parser, new_error, new_method_return

from slo_ctl.act.cgroup import CgroupActuator
from slo_ctl.act.journal import Journal
from slo_ctl.act.keeper import SettingKeeper
from slo_ctl.act.systemd import LATENCY_TARGET, NOT_SET, WEIGHT, Entries, SystemBus, SystemdActuator
from slo_ctl.decide.device_use import unit_of
from slo_ctl.host.cgroup import CgroupTree
from slo_ctl.model.setting import ActError, Knob, Lever, OutcomeState, Setting

SCOPE = r"machine-qemu\x2d1\x2dweb.scope"
PLACE = f"/machine.slice/{SCOPE}"
NVME = "259:0"
NODE = "/dev/nvme0n1"
KEYS = {
    "IOReadIOPSMax": "riops",
    "IOWriteIOPSMax": "wiops",
    "IOReadBandwidthMax": "rbps",
    "IOWriteBandwidthMax": "wbps",
}


class FakeSystemd:
    """Stores properties of one unit, with the D-Bus values of systemd 257."""

    def __init__(self, folder: Path) -> None:
        self.group = folder / "cgroup" / PLACE.lstrip("/")
        self.group.mkdir(parents=True)
        self.sys = folder / "sys"
        block_device(self.sys, "nvme0n1", NVME)
        self.by_device: dict[str, Entries] = {}
        self.weight = NOT_SET
        self.assigned: list[tuple[str, int | Entries]] = []
        self.deaf = False
        self.is_service = False
        self.before_each: Callable[[], object] = lambda: None
        self.realise()
        self._cgroups = CgroupActuator(CgroupTree(2, folder / "cgroup"), self.sys)
        self.actuator = SystemdActuator(self._cgroups, self.sys, self)

    def waiting_for(self, moment: Callable[[], object], timeout_s: float) -> SystemdActuator:
        """An actuator with a short timeout; each of its calls first waits for `moment`."""
        self.before_each = moment
        return SystemdActuator(self._cgroups, self.sys, self, timeout_s=timeout_s)

    def kept(self, unit: str, name: str) -> int | Entries | None:
        assert unit == SCOPE
        if not self.is_service:
            return None
        return self.weight if name == WEIGHT else self.entries(unit, [name])[name]

    def stop(self) -> None:
        shutil.rmtree(self.group)

    def start(self) -> None:
        self.group.mkdir()
        self.realise()

    def realise(self) -> None:
        if not self.group.is_dir():
            return
        weight = 100 if self.weight == NOT_SET else self.weight
        (self.group / "io.weight").write_text(f"default {weight}\n")
        mapped = weight if weight <= 100 else 100 + (weight - 100) * 900 // 9900
        (self.group / "io.bfq.weight").write_text(f"default {mapped}\n")
        limits = {key: self.by_device.get(name, {}).get(NODE, NOT_SET) for name, key in KEYS.items()}
        values = [f"{key}={'max' if value == NOT_SET else value}" for key, value in limits.items()]
        (self.group / "io.max").write_text(f"{NVME} {' '.join(values)}\n")
        latency = self.by_device.get(LATENCY_TARGET, {}).get(NODE, NOT_SET)
        (self.group / "io.latency").write_text("" if latency == NOT_SET else f"{NVME} target={latency}\n")

    def entries(self, unit: str, names: Sequence[str]) -> dict[str, Entries]:
        self.before_each()
        assert unit == SCOPE
        known = {name: self.by_device.get(name, {}).items() for name in names}
        return {name: {path: of for path, of in each if of != NOT_SET} for name, each in known.items()}

    def set(self, unit: str, name: str, value: int | Entries) -> None:
        self.before_each()
        assert unit == SCOPE
        self.assigned.append((name, value))
        if self.deaf:
            return
        if isinstance(value, int):
            assert name == WEIGHT
            self.weight = value
        else:
            self.by_device.setdefault(name, {}).update(value)
        self.realise()


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSystemd:
    monkeypatch.setattr("slo_ctl.act.systemd._VERIFY_SHARE", 0.02)
    return FakeSystemd(tmp_path)


def knob(name: str, device: str = NVME) -> Knob:
    return Knob(Lever.SYSTEMD_PROPERTY, PLACE, name, "" if name.endswith("weight") else device)


@pytest.mark.parametrize(
    ("name", "value", "assigned"),
    [
        ("cost_weight", 300.0, ("IOWeight", 300)),
        ("weight", 300.0, ("IOWeight", 2300)),
        ("weight", 50.0, ("IOWeight", 50)),
        ("read_iops", 500.0, ("IOReadIOPSMax", {NODE: 500})),
        ("write_iops", 7.0, ("IOWriteIOPSMax", {NODE: 7})),
        ("read_bytes_s", 1048576.0, ("IOReadBandwidthMax", {NODE: 1048576})),
        ("write_bytes_s", 4096.0, ("IOWriteBandwidthMax", {NODE: 4096})),
        ("latency_us", 5000.0, ("IODeviceLatencyTargetUSec", {NODE: 5000})),
    ],
)
def test_properties_are_set_read_back_and_restored(
    systemd: FakeSystemd, tmp_path: Path, name: str, value: float, assigned: tuple[str, int | Entries]
) -> None:
    keeper = SettingKeeper([systemd.actuator], Journal(tmp_path / "journal.json"))
    files = {path: path.read_text() for path in systemd.group.iterdir()}
    setting = Setting(knob(name), value, "web", "as set")
    (outcome,) = keeper.apply([setting])
    assert (outcome.state, outcome.before, outcome.after) == (OutcomeState.APPLIED, None, value)
    assert systemd.assigned == [assigned]
    (outcome,) = keeper.apply([setting])
    assert outcome.state is OutcomeState.UNCHANGED
    # As after a crash: only the journal remains.
    (outcome,) = SettingKeeper([systemd.actuator], Journal(tmp_path / "journal.json")).undo()
    assert outcome.state is OutcomeState.RESTORED
    assert systemd.assigned[-1] == (assigned[0], NOT_SET if name.endswith("weight") else {NODE: NOT_SET})
    assert {path: path.read_text() for path in systemd.group.iterdir()} == files


@pytest.mark.parametrize("name", ["weight", "cost_weight", "read_iops", "latency_us"])
@pytest.mark.parametrize("own", [None, 300.0])
def test_a_service_that_was_stopped_is_started_without_the_settings(
    systemd: FakeSystemd, tmp_path: Path, name: str, own: float | None
) -> None:
    """The journal forgot them with the cgroup, but systemd keeps the properties of a service until the next
    boot: they were taken for the operator's when it started again, and stayed.
    """
    systemd.is_service = True
    if own is not None:
        systemd.actuator.write(knob(name), own)
    before = systemd.actuator.read(knob(name))
    keeper = SettingKeeper([systemd.actuator], Journal(tmp_path / "journal.json"))
    setting = Setting(knob(name), 200.0, "web", "test")
    keeper.apply([setting])
    systemd.stop()
    assert {outcome.state for outcome in keeper.apply([])} == {OutcomeState.RESTORED}
    assert not Journal(tmp_path / "journal.json").originals()
    systemd.start()
    assert systemd.actuator.read(knob(name)) == before == own


def test_settings_of_a_scope_end_with_it(systemd: FakeSystemd, tmp_path: Path) -> None:
    keeper = SettingKeeper([systemd.actuator], Journal(tmp_path / "journal.json"))
    keeper.apply([Setting(knob("read_iops"), 200.0, "web", "test")])
    systemd.stop()
    assigned = list(systemd.assigned)
    keeper.apply([])
    assert (len(Journal(tmp_path / "journal.json")), systemd.assigned) == (0, assigned)


def test_weight_of_the_unit_is_restored(systemd: FakeSystemd, tmp_path: Path) -> None:
    systemd.weight = 70
    systemd.realise()
    keeper = SettingKeeper([systemd.actuator], Journal(tmp_path / "journal.json"))
    keeper.apply([Setting(knob("cost_weight"), 300.0, "web", "")])
    keeper.undo()
    assert systemd.assigned == [("IOWeight", 300), ("IOWeight", 70)]


def test_device_name_used_by_the_property_is_kept(systemd: FakeSystemd) -> None:
    systemd.by_device["IOReadIOPSMax"] = {NODE: 900, "/dev/gone": 5}
    systemd.actuator.write(knob("read_iops"), 400.0)
    assert systemd.by_device["IOReadIOPSMax"] == {NODE: 400, "/dev/gone": 5}


def test_value_refused_by_systemd_is_reported(systemd: FakeSystemd, tmp_path: Path) -> None:
    systemd.deaf = True
    keeper = SettingKeeper([systemd.actuator], Journal(tmp_path / "journal.json"))
    outcomes = keeper.apply([Setting(knob(name), 300.0, "web", "") for name in ("cost_weight", "read_iops")])
    assert [(each.state, each.reason) for each in outcomes] == [
        (OutcomeState.UNAPPLIED, "300 was written, none is read")
    ] * 2


def test_limit_of_a_volume_is_refused_as_systemd_would_set_it_on_the_drive(
    systemd: FakeSystemd, tmp_path: Path
) -> None:
    """The drive may not be managed at all, or have a limit of its own for the same VM."""
    slaves = block_device(systemd.sys, "dm-0", "253:0", dev="253:0") / "slaves"
    slaves.mkdir()
    (slaves / "nvme0n1").symlink_to(systemd.sys / "devices" / "nvme0n1")
    (systemd.sys / "devices" / "nvme0n1" / "dev").write_text(f"{NVME}\n")
    keeper = SettingKeeper([systemd.actuator], Journal(tmp_path / "journal.json"))
    of_volume = Setting(replace(knob("read_iops"), device="253:0"), 100.0, "web", "its maximum")
    for (outcome,) in (keeper.plan([of_volume]), keeper.apply([of_volume])):
        assert outcome.state is OutcomeState.UNAPPLIED
        assert outcome.reason.startswith("systemd would set it on /dev/nvme0n1, which /dev/dm-0 is on")
    assert systemd.assigned == []


def test_limit_written_without_systemd_is_kept(systemd: FakeSystemd, tmp_path: Path) -> None:
    """systemd writes all four limits of a device at once; those it was not asked to set become max."""
    (systemd.group / "io.max").write_text(f"{NVME} rbps=max wbps=5000 riops=max wiops=max\n")
    keeper = SettingKeeper([systemd.actuator], Journal(tmp_path / "journal.json"))
    (outcome,) = keeper.apply([Setting(knob("read_iops"), 400.0, "web", "")])
    assert outcome.state is OutcomeState.UNAPPLIED
    assert "that systemd did not set (write_bytes_s 5000)" in outcome.reason
    assert systemd.assigned == []
    # A limit that systemd set is not one of those.
    systemd.by_device["IOWriteBandwidthMax"] = {NODE: 5000}
    (outcome,) = keeper.apply([Setting(knob("read_iops"), 400.0, "web", "")])
    assert outcome.state is OutcomeState.APPLIED


def test_later_limit_written_by_others_is_kept(systemd: FakeSystemd, tmp_path: Path) -> None:
    keeper = SettingKeeper([systemd.actuator], Journal(tmp_path / "journal.json"))
    keeper.apply([Setting(knob("read_iops"), 400.0, "web", "")])
    (systemd.group / "io.max").write_text(f"{NVME} rbps=max wbps=5000 riops=400 wiops=max\n")
    (outcome,) = keeper.undo()
    assert outcome.state is OutcomeState.RESTORED
    # Written last; the kernel keeps the others, while this file is a plain file.
    assert (systemd.group / "io.max").read_text().startswith(f"{NVME} wbps=5000\n")


def test_group_without_controller_gets_it_from_systemd(systemd: FakeSystemd) -> None:
    """systemd enables it with the first property."""
    for name in ("io.weight", "io.max"):
        (systemd.group / name).unlink()
    (systemd.group.parent / "cgroup.subtree_control").write_text("cpu memory\n")
    assert systemd.actuator.read(knob("cost_weight")) is None
    systemd.actuator.write(knob("read_iops"), 400.0)
    assert systemd.actuator.read(knob("read_iops")) == 400.0


def test_hanging_systemd_is_not_waited_for(tmp_path: Path) -> None:
    systemd = FakeSystemd(tmp_path)
    answers = threading.Event()
    actuator = systemd.waiting_for(lambda: answers.wait(20.0), timeout_s=0.05)
    for _ in range(2):
        with pytest.raises(ActError, match="systemd has not answered"):
            actuator.write(knob("cost_weight"), 300.0)
    answers.set()
    # A stop waits longer: hanging calls have ended before anything is restored.
    actuator.wait_longer()
    assert systemd.weight == 300
    actuator.write(knob("cost_weight"), None)
    assert systemd.weight == NOT_SET
    actuator.close()


def test_slow_systemd_still_applies_the_change(tmp_path: Path) -> None:
    """Although no call returns in time, and nothing counts as restored meanwhile."""
    systemd = FakeSystemd(tmp_path)
    begins, slow = threading.Event(), threading.Event()
    actuator = systemd.waiting_for(lambda: begins.wait(60.0) and slow.wait(0.1), timeout_s=0.01)
    keeper = SettingKeeper([actuator], Journal(tmp_path / "journal.json"))
    setting = Setting(knob("read_iops"), 400.0, "web", "")
    (outcome,) = keeper.apply([setting])
    assert (outcome.state, "has not answered" in outcome.reason) == (OutcomeState.UNAPPLIED, True)
    (outcome,) = keeper.apply([])
    assert (outcome.state, "has not answered" in outcome.reason) == (OutcomeState.UNAPPLIED, True)
    begins.set()
    deadline = time.monotonic() + 60
    while keeper.apply([setting])[0].state is not OutcomeState.UNCHANGED:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert systemd.by_device["IOReadIOPSMax"] == {NODE: 400}
    slow.set()
    actuator.wait_longer()
    assert [each.state for each in keeper.undo()] == [OutcomeState.RESTORED]
    assert actuator.read(setting.knob) is None
    actuator.close()


def test_write_without_systemd_is_detected(systemd: FakeSystemd, tmp_path: Path) -> None:
    keeper = SettingKeeper([systemd.actuator], Journal(tmp_path / "journal.json"))
    setting = Setting(knob("cost_weight"), 300.0, "web", "")
    keeper.apply([setting])
    (systemd.group / "io.weight").write_text("default 5\n")
    (outcome,) = keeper.apply([setting], verify_all=True)
    assert (outcome.state, outcome.reason) == (OutcomeState.APPLIED, "another program had set it to 5")


@pytest.mark.parametrize("place", ["/machine.slice/x", "/", "/user.slice/user@0.service/app.slice/x.scope"])
def test_other_groups_are_refused(systemd: FakeSystemd, place: str) -> None:
    with pytest.raises(ActError, match="not the cgroup of a systemd unit"):
        systemd.actuator.write(Knob(Lever.SYSTEMD_PROPERTY, place, "cost_weight"), 300.0)
    assert systemd.assigned == []


def test_device_that_is_gone_is_reported(systemd: FakeSystemd) -> None:
    with pytest.raises(ActError, match="no longer exists") as refused:
        systemd.actuator.write(knob("read_iops", "8:0"), 5.0)
    assert refused.value.target_removed


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
def test_unit_of_a_group_is_found(cgroup: str, unit: str | None) -> None:
    assert unit_of(cgroup) == unit


@given(st.text())
def test_unit_names_have_no_special_characters(cgroup: str) -> None:
    unit = unit_of(cgroup)
    assert unit is None or (unit.isascii() and not set(unit) & set(" \n\0'\"$;|&/"))


# The D-Bus protocol: a private bus on which a unit's manager sends recorded replies.

MANAGER = "org.freedesktop.systemd1"
UNIT_PATH = "/org/freedesktop/systemd1/unit/web"


class BusServer:
    """Serves one connection at a time: authenticates, greets, and answers calls from `answers`."""

    def __init__(self, path: Path, answers: dict[str, tuple[str, tuple[Any, ...]]]) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self._answers = answers
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        # Closing alone does not end accept(), which may take connections of the next socket with its number.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                with connection, suppress(OSError):
                    self._talk(connection)

    def _talk(self, connection: socket.socket) -> None:
        # Byte by byte, as the data after BEGIN in the same packet is a message.
        line = b""
        while not line.endswith(b"BEGIN\r\n"):
            byte = connection.recv(1)
            if not byte:
                return
            line += byte
            if line.endswith(b"\r\n") and b"AUTH" in line:
                connection.sendall(b"OK 00112233445566778899aabbccddeeff\r\n")
                line = b""
        parser = Parser()
        while data := connection.recv(4096):
            parser.add_data(data)
            while (message := parser.get_next_message()) is not None:
                connection.sendall(self._reply(message).serialise(serial=1))

    def _reply(self, call: Message) -> Message:
        member = call.header.fields[HeaderFields.member]
        if member == "Hello":
            return new_method_return(call, "s", (":1.1",))
        self.calls.append((member, call.body))
        of_property = f"{member} {call.body[-1]}"
        signature, body = self._answers[of_property if of_property in self._answers else member]
        if signature == "error":
            name, text = body
            return new_error(call, name, "s", (text,))
        return new_method_return(call, signature or None, body)


@contextmanager
def bus(
    folder: Path, monkeypatch: pytest.MonkeyPatch, answers: dict[str, tuple[str, tuple[Any, ...]]]
) -> Iterator[BusServer]:
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={folder / 'bus'}")
    server = BusServer(folder / "bus", answers)
    try:
        yield server
    finally:
        server.close()


def test_properties_are_read_over_d_bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"LoadUnit": ("o", (UNIT_PATH,)), "Get": ("v", (("a(st)", [(NODE, 500)]),))}
    with bus(tmp_path, monkeypatch, answers) as server:
        assert SystemBus().entries(SCOPE, ["IOReadIOPSMax"]) == {"IOReadIOPSMax": {NODE: 500}}
    assert server.calls == [("LoadUnit", (SCOPE,)), ("Get", (f"{MANAGER}.Scope", "IOReadIOPSMax"))]


@pytest.mark.parametrize(
    ("state", "transient", "kept"),
    [("loaded", False, {NODE: 500}), ("loaded", True, None), ("not-found", False, None)],
)
def test_properties_of_a_stopped_unit_are_read_over_d_bus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, transient: bool, kept: Entries | None
) -> None:
    answers: dict[str, tuple[str, tuple[Any, ...]]] = {
        "LoadUnit": ("o", (UNIT_PATH,)),
        "Get LoadState": ("v", (("s", state),)),
        "Get Transient": ("v", (("b", transient),)),
        "Get IOReadIOPSMax": ("v", (("a(st)", [(NODE, 500)]),)),
    }
    with bus(tmp_path, monkeypatch, answers):
        assert SystemBus().kept("vm.service", "IOReadIOPSMax") == kept


def test_properties_are_set_over_d_bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with bus(tmp_path, monkeypatch, {"SetUnitProperties": ("", ())}) as server:
        SystemBus().set(SCOPE, "IOWeight", 300)
        SystemBus().set(SCOPE, "IOReadIOPSMax", {NODE: NOT_SET})
    assert [body for _, body in server.calls] == [
        (SCOPE, True, [("IOWeight", ("t", 300))]),
        (SCOPE, True, [("IOReadIOPSMax", ("a(st)", [(NODE, NOT_SET)]))]),
    ]


@pytest.mark.parametrize(
    ("name", "text", "gone"),
    [
        (f"{MANAGER}.NoSuchUnit", "Unit x.scope not loaded.", True),
        ("org.freedesktop.DBus.Error.AccessDenied", "Permission denied", False),
    ],
)
def test_refusal_by_systemd_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, gone: bool
) -> None:
    answers = {"LoadUnit": ("error", (name, text))}
    with bus(tmp_path, monkeypatch, answers), pytest.raises(ActError, match=text) as refused:
        SystemBus().entries("x.scope", ["IOReadIOPSMax"])
    assert refused.value.target_removed == gone


def test_missing_system_bus_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={tmp_path / 'none'}")
    with pytest.raises(ActError, match="the system bus cannot be reached") as refused:
        SystemBus().set(SCOPE, "IOWeight", 300)
    assert "dbus" in refused.value.hint
