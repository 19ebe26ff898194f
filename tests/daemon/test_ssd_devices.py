"""Emulated devices as the daemon tracks them: namespaces are added and removed, other settings change."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from serving import make_device

from slo_ctl.act.journal import Journal, Original
from slo_ctl.base.clock import now_text
from slo_ctl.cli import app
from slo_ctl.config.settings import Config, DeviceConfig
from slo_ctl.daemon.device import ActivityTracker, MoveSpeed
from slo_ctl.daemon.occupants import Occupant
from slo_ctl.daemon.ssd import EmulatedDevice
from slo_ctl.daemon.ssd_devices import EmulatedDevices
from slo_ctl.decide.request_sizes import DEFAULT_INTERVALS, draw_points
from slo_ctl.drives.places import places
from slo_ctl.drives.record import SETTINGS_FILE
from slo_ctl.drives.store import DeviceStore
from slo_ctl.model.decision import Decision, MovePlan
from slo_ctl.model.host import Stream, Tenant
from slo_ctl.model.measurement import ACCESSES, RAND_READ, RAND_WRITE, Access, Direction, Measurement
from slo_ctl.model.sample import DeviceSample, FlashTiming, TimingModel
from slo_ctl.model.setting import Knob, Lever
from slo_ctl.model.slo import Slo
from slo_ctl.profile.identity import IdentitySources, emulated_identity
from slo_ctl.profile.store import Profile, ProfileStore


class Followed:
    """Device `d`, which is configured and not served."""

    def __init__(self, root: Path) -> None:
        make_device(root, "name=d,size=64MiB,op=40%,dies=2,unallocated=32MiB", "name=a")
        self.root = root
        self.settings = places(root).device("d") / SETTINGS_FILE
        self.journal = Journal(root / "journal")
        self._devices = EmulatedDevices(places(root), self.journal)
        self._config = Config(devices=(DeviceConfig("d", path=None, policy=None),))

    def device(self) -> EmulatedDevice:
        self._devices.refresh(self._config)
        assert self._devices.notes == []
        return self._devices.devices["d"]

    def change(self, *words: str) -> None:
        """`slo-ctl device`."""
        assert app.run(["device", *words, "--root", str(self.root)]) == 0

    def close(self) -> None:
        self._devices.close()


@pytest.fixture
def followed() -> Iterator[Followed]:
    root = Path(tempfile.mkdtemp(prefix="slo-"))
    made = Followed(root)
    yield made
    made.close()
    shutil.rmtree(root)


FLAT = dict.fromkeys(ACCESSES, 100e-6)
SEEKS = FLAT | {RAND_READ: 8e-3, RAND_WRITE: 5e-3}


def store_profile(root: Path, times_s: dict[Access, float], around: IdentitySources | None = None) -> Path:
    """Store a profile for the first namespace of the device `d`."""
    record = DeviceStore(places(root)).load("d")
    found = [
        Measurement(access, size, repetition, time_s + size * 1e-9, 100, 1.0)
        for access, time_s in times_s.items()
        for size in draw_points(DEFAULT_INTERVALS, 2, 0)
        for repetition in range(3)
    ]
    profile = Profile(
        identity=emulated_identity(record, record.namespace[0].name, around or IdentitySources(places(root))),
        target="nbd",
        created=now_text(),
        updated=now_text(),
        span_bytes=1 << 20,
        queue_depth=1,
        intervals=DEFAULT_INTERVALS,
        measurement=tuple(found),
    )
    return ProfileStore(places(root).state / "profiles").save(profile)


def names(device: EmulatedDevice) -> list[str]:
    return [each.name for each in device.record.namespace]


def test_device_is_reopened_only_if_its_namespaces_change(followed: Followed) -> None:
    first = followed.device()
    assert names(first) == ["a"]
    assert followed.device() is first
    followed.change("add", "d", "--namespace", "name=b,size=16MiB")
    second = followed.device()
    assert second is not first
    assert names(second) == ["a", "b"]
    # The settings changed, but not the set of namespaces.
    followed.change("resize", "d/b", "18MiB")
    assert followed.device() is second
    followed.change("remove", "d/b", "--yes")
    third = followed.device()
    assert third is not second
    assert names(third) == ["a"]


def test_recreated_namespace_of_the_same_name_is_noticed(followed: Followed) -> None:
    followed.change("add", "d", "--namespace", "name=b,size=16MiB")
    before = followed.device()
    followed.change("remove", "d/b", "--yes")
    followed.change("add", "d", "--namespace", "name=b,size=8MiB")
    after = followed.device()
    assert after is not before
    assert [each.size_bytes >> 20 for each in after.record.namespace] == [32, 8]


def test_a_recreated_namespace_does_not_get_settings_of_the_former_one(followed: Followed) -> None:
    followed.change("add", "d", "--namespace", "name=b,size=16MiB")
    followed.device()
    knobs = [Knob(Lever.FTL_OPS, f"d/{name}", "ops_blocks") for name in ("a", "b")]
    followed.journal.add(dict.fromkeys(knobs, Original(9.0, "web")))
    followed.change("resize", "d/b", "18MiB")
    followed.device()
    assert list(followed.journal.originals()) == knobs
    followed.change("remove", "d/b", "--yes")
    followed.change("add", "d", "--namespace", "name=b,size=8MiB")
    followed.device()
    assert list(followed.journal.originals()) == knobs[:1]


def test_namespace_added_while_settings_are_unreadable_is_found_later(followed: Followed) -> None:
    before, settings = followed.device(), followed.settings
    followed.change("add", "d", "--namespace", "name=b,size=16MiB")
    kept = settings.read_bytes()
    settings.write_bytes(b"{")
    assert followed.device() is before
    settings.write_bytes(kept)
    assert names(followed.device()) == ["a", "b"]


def test_the_daemon_follows_the_stored_profile_of_a_device(followed: Followed) -> None:
    def average() -> float | None:
        profile = followed.device().profile
        summary = None if profile is None else profile.summary(Direction.READ)
        return None if summary is None else summary.average

    first = followed.device()
    assert average() is None
    stored = store_profile(followed.root, SEEKS)
    assert (average() or 0.0) > 2
    assert followed.device() is first
    # A damaged file leaves the present settings in force; a profile of another kernel does not count.
    damaged = stored.with_suffix(".new")
    damaged.write_text("no profile")
    damaged.replace(stored)
    assert (average() or 0.0) > 2
    stored.unlink()
    store_profile(followed.root, SEEKS, IdentitySources(places(followed.root), kernel="1.0"))
    assert average() is None
    store_profile(followed.root, FLAT)
    assert average() == pytest.approx(1, rel=0.01)
    # With another namespace the device counts as a different one.
    followed.change("add", "d", "--namespace", "name=b,size=16MiB")
    assert average() == pytest.approx(1, rel=0.01)
    assert followed.device() is not first


@pytest.mark.parametrize(("times_s", "scheduler"), [(SEEKS, "fifo"), (FLAT, "wfq")])
def test_device_policy_takes_the_profile_of_an_emulated_disk(
    times_s: dict[Access, float], scheduler: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_device(tmp_path, "name=d,preset=barracuda-xt,size=64MiB", "name=a", "name=b")
    words = ["device", "policy", "d", "--root", str(tmp_path), "--json"]
    assert app.run(words) == 0
    without = json.loads(capsys.readouterr().out)
    assert (without["scheduler"], without["profile"]) == ("fifo", None)
    stored = store_profile(tmp_path, times_s)
    assert app.run(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["scheduler"] == scheduler
    assert "by its profile reads in sequence" in found["choices"][0]["reason"]
    assert found["profile"]["path"] == str(stored)
    assert found["profile"]["stale"] is None
    assert app.run(words[:-1]) == 0
    assert "profile of less than a minute ago: valid" in capsys.readouterr().out


def test_settling_ends_after_a_window() -> None:
    activity = ActivityTracker(window_s=10.0)
    activity.set_change("the policy changed", 100.0)
    assert activity.recent_change(109.0) == "the policy changed 9 s ago"
    assert activity.recent_change(111.0) == ""


def test_speed_of_moves_is_that_of_the_last_minute_in_which_they_went_on() -> None:
    speed = MoveSpeed()

    def blocks_s() -> float | None:
        return speed.blocks_s

    for second in range(200):
        # Ten times as fast before, and one that is paused meanwhile.
        speed.add(float(second), 10 * min(second, 100) + max(0, second - 100), going=second > 30)
        if second in (30, 35):
            assert blocks_s() is None
        if second == 90:
            assert blocks_s() == pytest.approx(10.0)
    assert blocks_s() == pytest.approx(1.0)
    assert speed.measured_s == pytest.approx(60.0)
    speed.add(200.0, 0, going=True)
    assert blocks_s() is None, "another server"
    for second in range(201, 220):
        speed.add(float(second), 0, going=True)
    assert blocks_s() == 0.0
    speed.add(220.0, 0, going=False)
    assert blocks_s() is None


def test_settings_that_have_not_changed_are_the_same_objects(followed: Followed) -> None:
    """The keeper compares objects first; the settings of all namespaces were created anew in every epoch."""
    device = followed.device()
    device.sample = DeviceSample(FlashTiming(64, 50.0, 200.0, 1500.0, 10.0), ())
    device.occupants = {"a": Occupant("web", "web", Slo(max_iops=100.0))}
    weight, limit = device.settings()
    assert (weight.value, limit.value) == (1.0, 100.0)
    assert [id(setting) for setting in device.settings()] == [id(weight), id(limit)]
    device.occupants = {"a": Occupant("web", "web", Slo(max_iops=50.0))}
    same, lower = device.settings()
    assert same is weight
    assert (lower.knob, lower.value) == (limit.knob, 50.0)
    device.occupants = {"a": Occupant("db", "db", Slo(max_iops=50.0))}
    assert [setting.vm for setting in device.settings()] == ["db", "db"]


def test_time_left_of_moves_is_measured_or_the_reason_why_they_wait_is_shown(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = followed.device()
    plans = (MovePlan("a", "b", 30, cost_s=9.0, saving_s=20.0), MovePlan("a", "c", 10))

    def text(blocks_s: float | None, pause: str = "") -> list[str]:
        device.decision = Decision(plans=plans, pause=pause)
        monkeypatch.setattr(MoveSpeed, "blocks_s", blocks_s)
        return [str(move).partition("% done")[2].partition("; costs")[0] for move in device.moves]

    assert text(None) == ["", ""]
    assert text(0.5) == [", about 80 s left"] * 2
    assert text(0.0)[0].startswith(", none in ")
    for speed in (None, 0.0, 0.5):
        assert text(speed, "paused for the p99 of db")[0] == ", paused for the p99 of db"


def test_moves_without_modelled_latency_have_no_cost_in_seconds(followed: Followed) -> None:
    """Its plans count pages, which `status` reported as so many seconds of device time."""
    device = followed.device()
    device.decision = Decision(plans=(MovePlan("a", "b", 30, cost_s=9000.0, saving_s=20000.0),))
    timing = FlashTiming(64, 50.0, 200.0, 1500.0, 10.0)
    device.sample = DeviceSample(timing, ())
    (move,) = device.moves
    assert str(move).endswith(
        "; costs 9,000.0 s of device time and saves 20,000.0 s by the time the drive is overwritten once"
    )
    device.sample = DeviceSample(replace(timing, model=TimingModel.NONE), ())
    (move,) = device.moves
    assert (move.cost_s, move.saving_s) == (None, None)
    assert str(move) == "moving 30 OPS blocks from a to b: 0% done"


def test_a_vm_that_has_moved_to_another_namespace_leaves_its_device(followed: Followed) -> None:
    """Its row stayed, idle, until the daemon was restarted; a client that reconnects keeps it."""
    device = followed.device()
    here, there = (Stream("web", None, "/web", None, tenant=Tenant(name, "a")) for name in ("d", "other"))

    def remains(at_s: float, *streams: Stream, served: bool = True) -> bool:
        device.sample = DeviceSample(FlashTiming(64, 50.0, 200.0, 1500.0, 10.0), ()) if served else None
        return "a" in device.remaining(streams, at_s)

    device.occupants = {"a": Occupant("web", "web", Slo())}
    assert remains(0.0, here)
    assert remains(1000.0), "it may come back"
    assert remains(1000.0, there)
    assert remains(1020.0, here, there)
    assert remains(1100.0, there, served=False)
    assert remains(1120.0, there)
    assert not remains(1131.0, there)
