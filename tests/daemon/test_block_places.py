"""Block devices of the configuration, on a fake /sys with an NVMe controller."""

from __future__ import annotations

from pathlib import Path

import pytest

from slo_ctl.config.settings import DeviceConfig
from slo_ctl.daemon import block_devices as module
from slo_ctl.daemon.block_devices import configured_blocks
from slo_ctl.daemon.settings import ConfiguredBlock
from slo_ctl.host.nvme.drive import controller_at, drive_of
from slo_ctl.model.host import DeviceNumber

_NULL = "1:3"
"""/dev/null is a character device that every host has; it represents /dev/nvme0."""


class Drive:
    """/sys with one controller, whose namespaces come and go."""

    def __init__(self, sys: Path, nqn: str = "nqn.test:drive") -> None:
        self.sys = sys
        self.folder = sys / "class" / "nvme" / "nvme0"
        self.folder.mkdir(parents=True)
        (self.folder / "dev").write_text(f"{_NULL}\n")
        (self.folder / "subsysnqn").write_text(f"{nqn}\n")
        (sys / "dev" / "block").mkdir(parents=True)

    def attach(self, block: str, nsid: int | None, folder: str = "") -> None:
        made = self.folder / (folder or block)
        made.mkdir()
        if nsid is not None:
            (made / "nsid").write_text(f"{nsid}\n")
        minor = int(block.rpartition("n")[2])
        if not folder:
            (self.sys / "dev" / "block" / f"259:{minor}").symlink_to(made)

    def detach(self, block: str) -> None:
        for file in (self.folder / block).iterdir():
            file.unlink()
        (self.folder / block).rmdir()


@pytest.fixture
def drive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Drive:
    def number(path: str, sys: Path) -> DeviceNumber | None:
        del sys
        name = Path(path).name
        return DeviceNumber(259, int(name.rpartition("n")[2])) if name.startswith("nvme0n") else None

    monkeypatch.setattr(module, "_number", number)
    return Drive(tmp_path / "sys")


def fast(path: str = "/dev/null", scheduler: str = "auto", name: str = "fast") -> DeviceConfig:
    return DeviceConfig(name, path, None, "slo-ctl.toml:1", scheduler)


def test_namespaces_are_named_by_nsid_as_they_change(drive: Drive) -> None:
    assert configured_blocks([fast()], drive.sys) == (
        {},
        ("device fast (slo-ctl.toml:1): /dev/null has no attached namespace",),
    )
    drive.attach("nvme0n1", 7)
    drive.attach("nvme0n2", 2)
    found, notes = configured_blocks([fast(scheduler="none")], drive.sys)
    assert found == {
        "fast-n2": ConfiguredBlock("/dev/nvme0n2", "none", "fast"),
        "fast-n7": ConfiguredBlock("/dev/nvme0n1", "none", "fast"),
    }
    assert notes == ()
    drive.detach("nvme0n2")
    assert set(configured_blocks([fast()], drive.sys)[0]) == {"fast-n7"}


def test_a_namespace_listed_by_itself_keeps_its_name_and_scheduler(drive: Drive) -> None:
    for minor in (1, 2):
        drive.attach(f"nvme0n{minor}", minor)
    own = fast("/dev/nvme0n2", "bfq", "db")
    for devices in ([fast(), own], [own, fast()]):
        found, _ = configured_blocks(devices, drive.sys)
        assert found == {
            "db": ConfiguredBlock("/dev/nvme0n2", "bfq"),
            "fast-n1": ConfiguredBlock("/dev/nvme0n1", "auto", "fast"),
        }


def test_a_drive_that_is_listed_twice_is_managed_once(drive: Drive, tmp_path: Path) -> None:
    drive.attach("nvme0n1", 1)
    link = tmp_path / "pci-0000:00:04.0-nvme"
    link.symlink_to("/dev/null")
    found, _ = configured_blocks([fast(), fast(str(link), name="same")], drive.sys)
    assert found == {"fast-n1": ConfiguredBlock("/dev/nvme0n1", "auto", "fast")}


def test_taken_or_unknown_names_fall_back_to_the_kernels(drive: Drive) -> None:
    drive.attach("nvme0n1", 1)
    drive.attach("nvme0n2", None)
    other = fast("/dev/sdb", name="fast-n1")
    assert set(configured_blocks([fast(), other], drive.sys)[0]) == {
        "fast-n1",
        "fast-nvme0n1",
        "fast-nvme0n2",
    }


def test_multipath_heads_stand_for_their_paths(drive: Drive) -> None:
    drive.attach("nvme0n1", 4, "nvme0c0n1")
    assert configured_blocks([fast()], drive.sys)[0] == {
        "fast-n4": ConfiguredBlock("/dev/nvme0n1", "auto", "fast")
    }


def test_device_node_not_yet_made_by_udev_is_waited_for(
    drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    drive.attach("nvme0n1", 1)
    monkeypatch.setattr(module, "_number", lambda *_: None)
    assert configured_blocks([fast()], drive.sys)[0] == {}


def test_other_paths_are_used_unchanged(drive: Drive, tmp_path: Path) -> None:
    """A missing block device is reported when it is read."""
    file = tmp_path / "file"
    file.touch()
    for path in ("/dev/zero", "/dev/nowhere", str(file)):
        assert controller_at(path, drive.sys) is None
        assert configured_blocks([fast(path)], drive.sys)[0] == {"fast": ConfiguredBlock(path, "auto")}


def test_namespaces_of_one_subsystem_are_of_one_drive(drive: Drive) -> None:
    drive.attach("nvme0n1", 1)
    drive.attach("nvme0n2", 2)
    found = {drive_of(DeviceNumber(259, minor), drive.sys) for minor in (1, 2)}
    assert found == {"nqn.test:drive"}
    assert drive_of(DeviceNumber(7, 0), drive.sys) is None
    (drive.folder / "subsysnqn").unlink()
    assert drive_of(DeviceNumber(259, 1), drive.sys) == "nvme0"
