"""Limits set by other programs, and cgroups inside those of VMs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from slo_ctl.act.cgroup import CgroupActuator
from slo_ctl.act.journal import Original
from slo_ctl.daemon.foreign import EPOCHS, ForeignLimits, InnerGroups, raised_limits
from slo_ctl.host.cgroup import CgroupTree
from slo_ctl.model.host import DeviceNumber, Disk, FoundBy, IoCounters, Stream, Vm, VmState
from slo_ctl.model.sample import VmSample
from slo_ctl.model.setting import Knob, Lever, Setting
from slo_ctl.observe.streams import Inventory

LOOP = DeviceNumber(7, 0)
WEB = Vm("web", FoundBy.OPTION, cgroup="/slo/web")
STREAM = Stream("web", None, "/slo/web", LOOP, IoCounters(reads=1))
_V1 = "blkio.throttle.{}_device"


def notes_of(tree: CgroupTree, *settings: Setting) -> list[str]:
    limits = ForeignLimits()
    limits.update(
        CgroupActuator(tree), Inventory(tree, None, (WEB,), (STREAM,), ()), {"fast": LOOP}, settings
    )
    return limits.notes({"web"})


def test_limits_of_others_are_named_and_own_ones_are_not(tmp_path: Path) -> None:
    """A VM that a forgotten limit held at 300 IOPS was `ok`, and no message explained it."""
    folder = tmp_path / "slo" / "web"
    folder.mkdir(parents=True)
    for name in ("read_iops", "write_iops", "read_bps", "write_bps"):
        (folder / _V1.format(name)).write_text("")
    tree = CgroupTree(1, tmp_path)
    assert notes_of(tree) == []
    (folder / _V1.format("read_iops")).write_text("7:0 300\n7:1 5\n")
    (tmp_path / "slo" / _V1.format("read_iops")).write_text("7:0 9\n")  # v1 does not limit groups inside
    (note,) = notes_of(tree)
    assert note == (
        "VM web: on fast (7:0) cgroup /slo/web is limited to 300 read_iops, which slo-ctl has not set"
    )
    own = Setting(Knob(Lever.CGROUP_LIMIT, "/slo/web", "read_iops", "7:0"), 300.0, "web", "max_iops")
    assert notes_of(tree, own) == []


@pytest.mark.parametrize(("maximum", "raised"), [(1000.0, True), (500.0, False), (300.0, False)])
@pytest.mark.parametrize(
    ("knob", "weight"),
    [
        (Knob(Lever.LIBVIRT_LIMIT, "0-0", "total_iops", "vda"), Knob(Lever.LIBVIRT_WEIGHT, "0-0", "weight")),
        (
            Knob(Lever.SYSTEMD_PROPERTY, "/vm.scope", "read_iops", "7:0"),
            Knob(Lever.SYSTEMD_PROPERTY, "/vm.scope", "weight"),
        ),
    ],
)
def test_a_lower_limit_of_others_that_a_maximum_replaces_is_named(
    knob: Knob, weight: Knob, maximum: float, raised: bool
) -> None:
    originals = {knob: Original(500.0, "web"), weight: Original(100.0, "web")}
    wanted = [Setting(knob, maximum, "web", "its maximum"), Setting(weight, 300.0, "web", "its weight")]
    note = f"VM web: {knob} is 1000 instead of 500, which slo-ctl had not set; that is restored when it stops"
    assert raised_limits(wanted, originals) == [note] * raised
    assert raised_limits(wanted, {knob: Original(None, "web")}) == []


def test_limits_of_groups_around_it_are_named_on_v2(tmp_path: Path) -> None:
    (tmp_path / "slo" / "web").mkdir(parents=True)
    (tmp_path / "slo" / "web" / "io.max").write_text("")
    (tmp_path / "slo" / "io.max").write_text("7:0 rbps=max wbps=4096 riops=max wiops=max\n")
    (note,) = notes_of(CgroupTree(2, tmp_path))
    assert "cgroup /slo is limited to 4096 write_bytes_s" in note


def test_limits_of_disks_that_others_have_set_are_named(tmp_path: Path) -> None:
    disks = (Disk("vda", "block", "/dev/loop0", LOOP), Disk("vdb", "file", "/b", DeviceNumber(8, 0)))
    vm = Vm("web", FoundBy.LIBVIRT, uuid="u", disks=disks)
    tune = "<iotune><read_iops_sec>70</read_iops_sec><group_name>{}</group_name></iotune>"

    def notes_with(group_name: str, *settings: Setting) -> list[str]:
        limits = tune.format(group_name)
        disk_xml = [f"<disk type='block'><target dev='{disk.target}'/>{limits}</disk>" for disk in disks]
        xml = f"<domain><devices>{''.join(disk_xml)}</devices></domain>"
        tree = CgroupTree(1, tmp_path)
        inventory = Inventory(tree, None, (vm,), (), (), {"u": xml})
        foreign = ForeignLimits()
        foreign.update(CgroupActuator(tree), inventory, {"fast": LOOP}, settings)
        return foreign.notes({"web"})

    assert notes_with("own") == ["VM web: disk vda has read_iops_sec=70, which slo-ctl has not set"]
    assert notes_with("slo-ctl-vda") == []
    own = Setting(Knob(Lever.LIBVIRT_LIMIT, "u", "total_iops", "vda"), 300.0, "web", "max_iops")
    assert notes_with("own", own) == []


def test_a_vm_that_starts_is_looked_at_again(tmp_path: Path) -> None:
    """A limit of its definition, which the maximum of its SLO had replaced, was named for another minute."""
    limits = ForeignLimits()
    vm = Vm(
        "web", FoundBy.LIBVIRT, VmState.SHUT_OFF, uuid="u", disks=(Disk("vda", "block", "/dev/loop0", LOOP),)
    )
    tune = "<iotune><total_iops_sec>70</total_iops_sec></iotune>"
    xml = f"<domain><devices><disk type='block'><target dev='vda'/>{tune}</disk></devices></domain>"
    own = Setting(Knob(Lever.LIBVIRT_LIMIT, "u", "total_iops", "vda"), 300.0, "web", "max_iops")

    def notes(vm: Vm, *settings: Setting) -> list[str]:
        inventory = Inventory(None, None, (vm,), (), (), {"u": xml})
        limits.update(CgroupActuator(CgroupTree(1, tmp_path)), inventory, {"fast": LOOP}, settings)
        return limits.notes({"web"})

    assert notes(vm) == []
    running = replace(vm, state=VmState.RUNNING)
    assert notes(running, own) == []
    assert notes(vm) == []
    assert notes(running) == ["VM web: disk vda has total_iops_sec=70, which slo-ctl has not set"]


def test_a_limit_of_others_is_reached_by_what_all_disks_may_do(tmp_path: Path) -> None:
    """A VM that its own <iotune> held was `insufficient` on a busy device."""
    disks = tuple(Disk(name, "block", "/dev/loop0", LOOP) for name in ("vda", "vdb"))
    vm = Vm("web", FoundBy.LIBVIRT, uuid="u", disks=disks)
    tunes = {
        "vda": "<iotune><read_iops_sec>70</read_iops_sec><write_iops_sec>30</write_iops_sec></iotune>",
        "vdb": "<iotune><total_iops_sec>100</total_iops_sec></iotune>",
    }

    def reached(limited: Sequence[str], window: VmSample) -> str:
        of_disks = [
            f"<disk type='block'><target dev='{disk.target}'/>{tunes[disk.target] * (disk.target in limited)}"
            "</disk>"
            for disk in disks
        ]
        xml = f"<domain><devices>{''.join(of_disks)}</devices></domain>"
        limits = ForeignLimits()
        inventory = Inventory(None, None, (vm,), (), (), {"u": xml})
        limits.update(CgroupActuator(CgroupTree(1, tmp_path)), inventory, {"fast": LOOP}, ())
        return limits.reached("web", LOOP, window)

    window = VmSample("web", 10.0, iops=150.0)
    assert reached(["vda", "vdb"], window) == ""
    assert reached(["vda", "vdb"], window._replace(guest_iops=181.0)) == (
        "disk vda has read_iops_sec=70, write_iops_sec=30 and disk vdb has total_iops_sec=100"
    )
    assert reached(["vda", "vdb"], window._replace(iops=800.0)) == "", "far above it"
    assert reached(["vda"], window._replace(iops=110.0)) == "", "the other disk has none"


@pytest.mark.parametrize(("version", "found"), [(1, {"web": "/slo/web/a/b"}), (2, {})])
def test_groups_inside_count_if_they_have_processes(
    tmp_path: Path, version: int, found: dict[str, str]
) -> None:
    inner = tmp_path / "slo" / "web" / "a" / "b"
    inner.mkdir(parents=True)
    for folder in (inner, inner.parent, inner.parent.parent):
        (folder / "cgroup.procs").write_text("")
    tree = CgroupTree(version, tmp_path)
    assert InnerGroups().update(tree, [WEB]) == {}
    (inner / "cgroup.procs").write_text("42\n")
    groups = InnerGroups()
    assert groups.update(tree, [WEB]) == found
    (inner / "cgroup.procs").write_text("")
    for _ in range(EPOCHS):
        found = groups.update(tree, [WEB])
    assert found == {}, "it is looked for again"
