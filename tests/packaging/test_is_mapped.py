"""Which block devices the udev rule ignores, based on the real file of mappings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from installed_tree import TREE

from slo_ctl.act.mapping import MappingStore
from slo_ctl.model.mapping import DriveIdentity, NamespaceMapping, NamespacePlacement, Spare, SpareOwner

MIB = 1 << 20


@pytest.fixture
def mappings(tmp_path: Path) -> Path:
    """VM `web` has namespace 2 of the drive S1."""
    file = tmp_path / "mappings.json"
    mapping = NamespaceMapping(
        vm="web",
        drive=DriveIdentity("QEMU NVMe Ctrl", "S1", "nqn.2019-08.org.qemu:S1"),
        controller="nvme0",
        size_bytes=64 * MIB,
        created=True,
        spare=Spare(0, SpareOwner.DRIVE, ""),
        placement=NamespacePlacement("nothing", "nothing"),
        steps=(),
        nsid=2,
    )
    MappingStore(file).put(None, mapping)
    return file


def sysfs(tmp_path: Path, nsid: int, serial: str) -> Path:
    disk = tmp_path / "sys" / "nvme0" / "nvme0n1"
    (disk / "nvme0n1p1").mkdir(parents=True)
    (disk / "nsid").write_text(f"{nsid}\n")
    (disk / "device").symlink_to("..")
    (disk.parent / "serial").write_text(f"{serial:<20}\n")
    return disk


def ask(device: Path, mappings: Path) -> int:
    script = TREE / "systemd" / "is-mapped.in"
    command = [sys.executable, "-IS", str(script), str(device), str(mappings)]
    return subprocess.run(command, capture_output=True, check=False, timeout=30).returncode


@pytest.mark.parametrize(
    ("nsid", "serial", "status"), [(2, "S1", 0), (1, "S1", 1), (2, "S2", 1), (22, "S1", 1)]
)
def test_mapped_namespace_is_recognised_by_drive_and_nsid(
    tmp_path: Path, mappings: Path, nsid: int, serial: str, status: int
) -> None:
    disk = sysfs(tmp_path, nsid, serial)
    assert ask(disk, mappings) == status
    assert ask(disk / "nvme0n1p1", mappings) == status


@pytest.mark.parametrize("content", [None, "", "{", '{"mappings": [7]}', '{"mappings": [{"drive": {}}]}'])
def test_unidentified_device_is_not_mapped(tmp_path: Path, content: str | None) -> None:
    mappings = tmp_path / "mappings.json"
    if content is not None:
        mappings.write_text(content)
    assert ask(sysfs(tmp_path, 2, "S1"), mappings) == 1


def test_devices_that_are_not_mapped_are_not_reported(tmp_path: Path, mappings: Path) -> None:
    assert ask(tmp_path / "nothing", mappings) == 1
