"""Limits that others have set, and groups inside those of VMs."""

from __future__ import annotations

from pathlib import Path

import pytest

from slo_ctl.act.cgroup import CgroupActuator
from slo_ctl.daemon.foreign import ForeignLimits, InnerGroups
from slo_ctl.host.cgroup import CgroupTree
from slo_ctl.model.host import DeviceNumber, FoundBy, IoCounters, Stream, Vm
from slo_ctl.model.setting import Knob, Lever, Setting

LOOP = DeviceNumber(7, 0)
WEB = Vm("web", FoundBy.OPTION, cgroup="/slo/web")
STREAM = Stream("web", None, "/slo/web", LOOP, IoCounters(reads=1))
_V1 = "blkio.throttle.{}_device"


def notes_of(tree: CgroupTree, *settings: Setting) -> list[str]:
    return ForeignLimits().notes(CgroupActuator(tree), [WEB], [STREAM], {"fast": LOOP}, settings)


def test_limits_of_others_are_named_and_own_ones_are_not(tmp_path: Path) -> None:
    """A VM that a forgotten limit held at 300 IOPS was `ok`, and nothing told why it got no more."""
    folder = tmp_path / "slo" / "web"
    folder.mkdir(parents=True)
    for name in ("read_iops", "write_iops", "read_bps", "write_bps"):
        (folder / _V1.format(name)).write_text("")
    tree = CgroupTree(1, tmp_path)
    assert notes_of(tree) == []
    (folder / _V1.format("read_iops")).write_text("7:0 300\n7:1 5\n")
    (tmp_path / "slo" / _V1.format("read_iops")).write_text("7:0 9\n")  # of v1, it limits no group inside
    (note,) = notes_of(tree)
    assert note == (
        "VM web: on fast (7:0) cgroup /slo/web is limited to 300 read_iops, which slo-ctl has not set"
    )
    own = Setting(Knob(Lever.CGROUP_LIMIT, "/slo/web", "read_iops", "7:0"), 300.0, "web", "max_iops")
    assert notes_of(tree, own) == []


def test_limits_of_groups_around_it_are_named_on_v2(tmp_path: Path) -> None:
    (tmp_path / "slo" / "web").mkdir(parents=True)
    (tmp_path / "slo" / "web" / "io.max").write_text("")
    (tmp_path / "slo" / "io.max").write_text("7:0 rbps=max wbps=4096 riops=max wiops=max\n")
    (note,) = notes_of(CgroupTree(2, tmp_path))
    assert "cgroup /slo is limited to 4096 write_bytes_s" in note


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
    for _ in range(20):
        found = groups.update(tree, [WEB])
    assert found == {}, "it is looked for again"
