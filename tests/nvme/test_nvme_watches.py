"""One watch for all namespaces of an endurance group."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_nvme import sysfs

from slo_ctl.daemon.nvme import NvmeState, NvmeWatch, NvmeWatches
from slo_ctl.model.host import DeviceNumber


class Watch(NvmeWatch):
    """Has fixed groups, and queries no drive."""

    made: list[Watch]
    groups: dict[str, int | None] | None

    def __init__(self, block: str, sys: Path, window_s: float) -> None:
        super().__init__(block, sys, window_s)
        self.running = False
        self.made.append(self)

    def start(self) -> None:
        self.running = True

    def close(self) -> None:
        self.running = False

    def covers(self, block: str) -> bool | None:
        self._groups = self.groups
        return super().covers(block)

    @property
    def state(self) -> NvmeState:
        return NvmeState(placement=f"by {self.block}")


def three_namespaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NvmeWatches:
    monkeypatch.setattr(Watch, "made", [], raising=False)
    monkeypatch.setattr(Watch, "groups", None, raising=False)
    sys = sysfs(tmp_path / "sys", {"nvme1n1": 1, "nvme1n2": 2, "nvme1n3": 3})
    (sys / "dev" / "block").mkdir(parents=True)
    for minor in (1, 2, 3):
        link = sys / "dev" / "block" / f"259:{minor}"
        link.symlink_to(sys / "class" / "nvme" / "nvme1" / f"nvme1n{minor}")
    watches = NvmeWatches(sys, 10.0, Watch)
    blocks = [watches.join(DeviceNumber(259, minor)) for minor in (1, 2, 3)]
    assert blocks == ["nvme1n1", "nvme1n2", "nvme1n3"]
    assert watches.join(DeviceNumber(7, 0)) is None
    return watches


def by(watches: NvmeWatches) -> list[str]:
    return [watches.state(f"nvme1n{minor}").placement.removeprefix("by nvme1") for minor in (1, 2, 3)]


def test_each_endurance_group_is_queried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watches = three_namespaces(tmp_path, monkeypatch)
    # Before the drive has reported its groups.
    assert by(watches) == ["n1", "n1", "n1"]
    assert len(Watch.made) == 1
    Watch.groups = {"nvme1n1": 1, "nvme1n2": 2, "nvme1n3": 1}
    assert by(watches) == by(watches) == ["n1", "n2", "n1"]
    assert [watch.running for watch in Watch.made] == [True, True]


def test_removed_namespace_does_not_affect_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watches = three_namespaces(tmp_path, monkeypatch)
    Watch.groups = dict.fromkeys(("nvme1n1", "nvme1n2", "nvme1n3"), None)
    # Listed by two paths.
    watches.join(DeviceNumber(259, 1))
    watches.leave("nvme1n1")
    assert by(watches) == ["n1", "n1", "n1"]
    watches.leave("nvme1n1")
    assert watches.state("nvme1n2").placement == watches.state("nvme1n3").placement == "by nvme1n2"
    assert [watch.running for watch in Watch.made] == [False, True]
    watches.leave("nvme1n2")
    watches.leave("nvme1n3")
    assert not any(watch.running for watch in Watch.made)


def test_namespace_added_later_is_queried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watches = three_namespaces(tmp_path, monkeypatch)
    Watch.groups = {"nvme1n1": None, "nvme1n2": None}
    assert by(watches) == ["n1", "n1", "n3"]
