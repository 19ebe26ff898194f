"""Counters of the metrics, from outcomes of epochs."""

from __future__ import annotations

from collections import Counter

from slo_ctl.daemon.device import DeviceView
from slo_ctl.daemon.status import EventCounters
from slo_ctl.decide.verdict import Delivered
from slo_ctl.model.host import DeviceNumber
from slo_ctl.model.setting import Knob, Lever, Outcome, OutcomeState, Setting, SettingValue

SDA = DeviceNumber(8, 0)
DEVICES = (
    DeviceView("sda", "block", "", "", 10.0, vms={"web": Delivered(disks=("vda", "vdb")), "db": Delivered()}),
    DeviceView("ssd0", "emulated", "", "", 10.0, moved_s=1.5, moved_blocks=7, vms={"web": Delivered()}),
)


def outcome(
    knob: Knob, after: SettingValue, state: OutcomeState = OutcomeState.UNCHANGED, vm: str = "web"
) -> Outcome:
    return Outcome(Setting(knob, after, vm, ""), state, None, after)


def on_ssd(namespace: str, name: str = "total_iops") -> Knob:
    return Knob(Lever.FTL_LIMIT, f"ssd0/{namespace}", name)


def on_sda(name: str) -> Knob:
    return Knob(Lever.CGROUP_LIMIT, "/vms/db", name, "8:0")


def test_settings_are_counted_from_0_over_all_epochs() -> None:
    counters = EventCounters()
    epoch = [
        outcome(on_ssd("a"), 100.0, OutcomeState.APPLIED),
        outcome(on_ssd("b"), 100.0, OutcomeState.UNAPPLIED),
        outcome(on_sda("read_iops"), 50.0),
    ]
    counters.add(epoch, epoch, DEVICES, {}, epochs=1, missed_epochs=0, hooks=Counter())
    counts_of_first = counters.counts
    hooks = Counter({("webhook", "done"): 1})
    counters.add(epoch[:1], epoch[:1], DEVICES, {}, epochs=2, missed_epochs=4, hooks=hooks)
    first, second = counts_of_first(), counters.counts()
    assert len(first.settings) == 3 * len(Lever)
    assert {key: n for key, n in first.settings.items() if n} == {
        ("emulated SSD limit", "applied"): 1,
        ("emulated SSD limit", "unapplied"): 1,
    }
    assert second.settings["emulated SSD limit", "applied"] == 2
    assert (second.epochs, second.missed_epochs, second.hooks) == (2, 4, {("webhook", "done"): 1})
    assert (second.moved_s, second.moved_blocks) == ({"ssd0": 1.5}, {"ssd0": 7})


def test_limits_in_force_are_listed_by_device() -> None:
    counters = EventCounters()
    counters.add(
        [
            outcome(on_ssd("a"), 100.0),
            outcome(on_ssd("b"), 50.0, OutcomeState.APPLIED),
            outcome(on_ssd("c"), None),
            outcome(on_ssd("d"), 7.0, OutcomeState.RESTORED),
            outcome(on_ssd("e"), 7.0, OutcomeState.PLANNED),
            outcome(on_ssd("a", "total_bytes_s"), 1e6),
            outcome(on_sda("read_iops"), 30.0, vm="db"),
            outcome(on_sda("write_iops"), 70.0, vm="db"),
            outcome(Knob(Lever.LIBVIRT_LIMIT, "uuid", "total_iops", "vdb,vdc"), 20.0),
            outcome(Knob(Lever.LIBVIRT_LIMIT, "uuid", "total_iops", "vdz"), 20.0),
            outcome(Knob(Lever.LIBVIRT_LIMIT, "uuid", "read_iops", "8:0"), 40.0),
            outcome(Knob(Lever.CGROUP_LIMIT, "/vms/db", "read_iops", "8:16"), 20.0),
            outcome(Knob(Lever.CGROUP_WEIGHT, "/vms/db", "weight", "8:0"), 20.0),
        ],
        (),
        DEVICES,
        {"sda": SDA},
        epochs=1,
        missed_epochs=0,
        hooks=Counter(),
    )
    counts = counters.counts()
    assert counts.limits_iops == {
        ("web", "ssd0", "total"): 150.0,
        ("db", "sda", "read"): 30.0,
        ("db", "sda", "write"): 70.0,
        ("web", "sda", "total"): 20.0,
        ("web", "sda", "read"): 40.0,
    }
    assert counts.limits_bytes_s == {("web", "ssd0", "total"): 1e6}
