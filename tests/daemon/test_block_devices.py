"""Which block devices are managed in each epoch, and which share a drive; none of them is real."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from slo_ctl.config.settings import Config, DaemonConfig
from slo_ctl.daemon import block_devices as module
from slo_ctl.daemon.block import ManagedBlock
from slo_ctl.daemon.block_devices import BlockDevices
from slo_ctl.daemon.device import Problems, WindowedMaximums, with_applied_maximums
from slo_ctl.daemon.settings import ConfiguredBlock
from slo_ctl.decide.levers import Wanted
from slo_ctl.drives.places import places
from slo_ctl.model.setting import Knob, Lever, Outcome, OutcomeState, Setting
from slo_ctl.model.slo import Slo
from slo_ctl.observe.streams import Inventory

_DRIVES = {"fast-n1": "nqn.a", "fast-n2": "nqn.a", "db": "nqn.a", "other-n1": "nqn.b", "disk": None}


class Observer:
    """No VM waits for block I/O, and no latencies are measured."""

    def delays(self, *_: object) -> dict[str, object]:
        return {}

    def latencies(self, *_: object) -> dict[str, object]:
        return {}


def block(name: str) -> ConfiguredBlock:
    return ConfiguredBlock(f"/dev/{name}", "keep", "fast")


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch) -> dict[str, ConfiguredBlock]:
    """The configured block devices, which tests change."""
    configured: dict[str, ConfiguredBlock] = {}

    def find(device: ManagedBlock) -> None:
        device.drive = _DRIVES[device.name]

    monkeypatch.setattr(module, "configured_blocks", lambda *_: (dict(configured), ("a note",)))
    monkeypatch.setattr("slo_ctl.daemon.block.ManagedBlock.find", find)
    return configured


def pools(blocks: BlockDevices) -> list[set[str]]:
    blocks.observe(Inventory(None, None, (), (), ()), Observer())  # type: ignore[arg-type]
    return sorted(({device.name for device in pool.devices} for pool in blocks._pools.values()), key=min)


def test_namespaces_of_a_drive_form_one_pool_as_they_change(
    tmp_path: Path, configured: dict[str, ConfiguredBlock]
) -> None:
    blocks = BlockDevices(places(tmp_path), tmp_path / "sys", tmp_path / "run", Problems())
    config = Config()
    configured.update({name: block(name) for name in ("fast-n1", "db", "other-n1", "disk")})
    blocks.refresh(config)
    assert blocks.notes == ("a note",)
    assert pools(blocks) == [{"db", "fast-n1"}, {"disk"}, {"other-n1"}]
    kept, pool = blocks.devices["db"], blocks._pools["nqn.a"]

    configured["fast-n2"] = block("fast-n2")
    del configured["fast-n1"], configured["other-n1"]
    blocks.refresh(config)
    assert pools(blocks) == [{"db", "fast-n2"}, {"disk"}]
    # The state of a drive and of its remaining namespaces is kept.
    assert blocks.devices["db"] is kept
    assert blocks._pools["nqn.a"] is pool

    blocks.refresh(config, emulated=["db"])
    assert blocks.devices.keys() == {"fast-n2", "disk"}
    assert blocks.notes[-1].startswith("device db: an emulated device has this name, so /dev/db is not")
    blocks.refresh(config)
    kept = blocks.devices["db"]

    longer = dataclasses.replace(config, daemon=DaemonConfig(window_s=60.0))
    blocks.refresh(longer)
    assert blocks.devices["db"] is not kept
    blocks.close()


def test_another_device_of_the_same_name_has_not_the_capacity_of_the_one_before(
    tmp_path: Path, configured: dict[str, ConfiguredBlock]
) -> None:
    """`vm set` accepted minimums by the capacity of a device that the configuration no longer names."""
    blocks = BlockDevices(places(tmp_path), tmp_path / "sys", tmp_path / "run", Problems())
    configured["disk"] = block("disk")
    blocks.refresh(Config())
    assert pools(blocks) == [{"disk"}]
    (pool,) = blocks._pools.values()
    pool.capacity.add(100_000.0, has_demand=True)
    blocks.refresh(Config())
    assert pools(blocks) == [{"disk"}]
    assert list(blocks._pools.values()) == [pool]
    configured["disk"] = dataclasses.replace(block("disk"), path="/dev/slow")
    blocks.refresh(Config())
    assert pools(blocks) == [{"disk"}]
    (pool,) = blocks._pools.values()
    assert pool.capacity.iops is None
    blocks.close()


def test_highest_maximum_of_a_window_is_known_once_there_was_one_for_all_of_it() -> None:
    maximums = WindowedMaximums(window_s=10.0)

    def highest_after(at_s: float, **most: float) -> float | None:
        maximums.add({vm: Slo(max_iops=iops) for vm, iops in most.items()}, at_s)
        return maximums.highest_iops("web")

    assert highest_after(0.0, web=500.0) is None
    assert highest_after(10.0, web=500.0) is None
    assert highest_after(11.0, web=100.0) == 500.0, "lowered only now"
    assert highest_after(21.0, web=100.0) == 500.0, "the window begins with the higher one"
    assert highest_after(22.0, web=200.0) == 200.0
    assert highest_after(33.0, web=50.0) == 200.0
    assert highest_after(34.0) is None
    assert highest_after(35.0, web=50.0) is None, "begins anew"


def test_a_limit_has_a_window_to_take_effect_after_it_could_not_be_applied() -> None:
    """With a full disk no limit was set; when there was space again, they were set but had no effect."""
    wanted = Wanted(maximum_slack={("web", "fast"): 20.0, ("db", "fast"): 0.0})
    limit = Setting(Knob(Lever.CGROUP_LIMIT, "/slo/web", "read_iops", "7:0"), 100.0, "web", "its maximum")
    failed = Outcome(limit, OutcomeState.UNAPPLIED, None, None, "No space left on device")
    assert with_applied_maximums(wanted, [failed]).maximum_slack == {("db", "fast"): 0.0}
    weight = dataclasses.replace(limit, knob=dataclasses.replace(limit.knob, name="weight"))
    others = [
        dataclasses.replace(failed, state=OutcomeState.APPLIED),
        dataclasses.replace(failed, setting=weight),
    ]
    assert with_applied_maximums(wanted, others) is wanted
