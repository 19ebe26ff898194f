"""Which of udev's links is written into a VM's definition."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from slo_ctl.act.mapping import stable_path

UUID = "nvme-uuid.4b0aa1c4-8c9d-4a9e-8a6a-0d2b5c6f7a88"
WITH_NSID, OF_THE_DRIVE = "nvme-QEMU_NVMe_Ctrl_S0_3", "nvme-QEMU_NVMe_Ctrl_S0"


@pytest.mark.parametrize(
    ("links", "taken"),
    [
        ([OF_THE_DRIVE, WITH_NSID, "nvme-eui.00", UUID], UUID),
        ([OF_THE_DRIVE, WITH_NSID, "nvme-eui.00"], "nvme-eui.00"),
        ([OF_THE_DRIVE, WITH_NSID, "nvme-nvme.1b36-5330-51-00000003"], "nvme-nvme.1b36-5330-51-00000003"),
        ([OF_THE_DRIVE, WITH_NSID], WITH_NSID),
    ],
)
def test_most_specific_link_is_used_and_never_the_drives(
    tmp_path: Path, links: list[str], taken: str
) -> None:
    block, other, by_id = tmp_path / "nvme0n1", tmp_path / "nvme0n2", tmp_path / "by-id"
    block.touch()
    other.touch()
    by_id.mkdir()
    for link in links:
        (by_id / link).symlink_to(block)
    (by_id / "nvme-uuid.0").symlink_to(other)
    assert stable_path(block, 3, by_id) == by_id / taken


def test_block_device_is_used_without_udev(tmp_path: Path) -> None:
    block, by_id = tmp_path / "nvme0n1", tmp_path / "by-id"
    block.touch()
    assert stable_path(block, 3, by_id) == block
    by_id.mkdir()
    (by_id / OF_THE_DRIVE).symlink_to(block)
    assert stable_path(block, 3, by_id, timeout_s=0.0) == block


def test_link_made_late_by_udev_is_waited_for(tmp_path: Path) -> None:
    block, by_id = tmp_path / "nvme0n1", tmp_path / "by-id"
    block.touch()
    by_id.mkdir()
    later = threading.Timer(0.3, (by_id / UUID).symlink_to, [block])
    later.start()
    assert stable_path(block, 3, by_id) == by_id / UUID
