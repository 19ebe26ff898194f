"""Devices that are built on others: LVM and other device mapper, RAID, loop devices."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_host import FakeHost
from fake_sys import block_device

from slo_ctl.host.block_device import devices_below, nearest_with_scheduler, origin, probe
from slo_ctl.host.cgroup import CgroupTree
from slo_ctl.model.host import DeviceNumber, Disk, FoundBy, IoCounters, Vm
from slo_ctl.observe import streams
from slo_ctl.observe.streams import streams_of, with_devices

NVME, SECOND = DeviceNumber(259, 0), DeviceNumber(259, 1)
THIN, POOL, META, DATA = (DeviceNumber(253, minor) for minor in (5, 3, 1, 2))
RAID, LOOP = DeviceNumber(9, 0), DeviceNumber(7, 0)


@pytest.fixture
def sys(tmp_path: Path) -> Path:
    """As the kernel has it: a thin volume on a partition, and a RAID of a partition and a second drive."""
    root = tmp_path / "sys"
    nvme = block_device(root, "nvme0n1", str(NVME), dev=str(NVME), queue__scheduler="[none] bfq")
    for number, part in (("259:3", "nvme0n1p2"), ("259:6", "nvme0n1p5")):
        folder = nvme / part
        folder.mkdir()
        (folder / "dev").write_text(f"{number}\n")
        (folder / "partition").write_text("2\n")
        (root / "dev" / "block" / number).symlink_to(folder)
    block_device(root, "nvme1n1", str(SECOND), dev=str(SECOND))
    below = {
        META: ("dm-1", ["nvme0n1/nvme0n1p2"]),
        DATA: ("dm-2", ["nvme0n1/nvme0n1p2"]),
        POOL: ("dm-3", ["dm-1", "dm-2"]),
        THIN: ("dm-5", ["dm-3"]),
        RAID: ("md0", ["nvme0n1/nvme0n1p5", "nvme1n1"]),
    }
    for device, (name, lower) in below.items():
        slaves = block_device(root, name, str(device), dev=str(device)) / "slaves"
        slaves.mkdir()
        for each in lower:
            (slaves / Path(each).name).symlink_to(root / "devices" / each)
    return root


def test_all_levels_below_a_volume_are_found_once(sys: Path) -> None:
    assert devices_below(THIN, sys) == (POOL, META, DATA, NVME)
    assert devices_below(RAID, sys) == (NVME, SECOND)
    assert devices_below(NVME, sys) == ()
    assert devices_below(DeviceNumber(8, 0), sys) == ()


def test_systemd_sets_limits_of_a_volume_on_the_only_device_below_it(sys: Path) -> None:
    assert origin(META, sys) == NVME, "on a partition"
    assert origin(THIN, sys) == POOL, "which is on two"
    assert [origin(device, sys) for device in (POOL, RAID, NVME)] == [POOL, RAID, NVME]
    (sys / "devices" / "nvme0n1" / "slaves").mkdir()
    (sys / "devices" / "nvme0n1" / "slaves" / "dm-1").symlink_to(sys / "devices" / "dm-1")
    assert origin(META, sys) == NVME, "a cycle"


def test_disks_with_a_scheduler_are_named_not_the_volumes_between(sys: Path) -> None:
    for disk in ("nvme0n1", "nvme1n1"):
        (sys / "devices" / disk / "queue").mkdir(exist_ok=True)
        (sys / "devices" / disk / "queue" / "scheduler").write_text("[none]\n")
    assert nearest_with_scheduler(sys / "devices" / "dm-5") == ["nvme0n1"]
    assert nearest_with_scheduler(sys / "devices" / "md0") == ["nvme0n1", "nvme1n1"]


def test_a_loop_device_is_on_the_device_of_its_file(
    sys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a file.img"
    block_device(sys, "loop0", str(LOOP), loop__backing_file=str(file))
    assert devices_below(LOOP, sys) == (), "its file was deleted"
    monkeypatch.setattr("slo_ctl.host.block_device.device_behind", lambda path, _: {str(file): THIN}[path])
    assert devices_below(LOOP, sys) == (THIN, POOL, META, DATA, NVME)


def test_a_cycle_ends(sys: Path) -> None:
    """No kernel has one; a loop device whose file is on itself is refused, too."""
    (sys / "devices" / "dm-1" / "slaves" / "dm-5").symlink_to(sys / "devices" / "dm-5")
    assert set(devices_below(THIN, sys)) == {POOL, META, DATA, NVME}


def test_a_disk_on_a_volume_is_on_the_devices_below(
    sys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its I/O on the managed drive was that of no disk: no p99, nothing under DISKS, no limit of QEMU."""
    monkeypatch.setattr(streams, "device_behind", lambda path, _: {"/dev/vg/a": THIN, "/dev/md0": RAID}[path])
    roots = FakeHost(tmp_path).roots
    disk = Disk("vda", "block", "/dev/vg/a", copy="/dev/md0")
    found = with_devices(Vm("web", FoundBy.LIBVIRT, disks=(disk,)), streams.HostRoots(roots.proc, sys), print)
    (disk,) = found.disks
    assert disk.devices == (THIN, POOL, META, DATA, NVME)
    assert disk.copy_devices == (RAID, NVME, SECOND)


def test_streams_below_a_volume_are_those_of_its_disk() -> None:
    disk = Disk("vda", "block", "/dev/vg/a", THIN, below=(POOL, DATA, NVME))
    vm = Vm("web", FoundBy.LIBVIRT, cgroup="/web", disks=(disk,))
    counters = {each: IoCounters(reads=1) for each in (THIN, DATA, NVME, SECOND)}
    found = [(each.disk, each.device) for each in streams_of(vm, counters)]
    assert found == [(disk, THIN), (disk, DATA), (disk, NVME), (None, SECOND)]


def test_a_volume_without_scheduler_says_what_has_weights(sys: Path, tmp_path: Path) -> None:
    """The advice was to write to a file that does not exist: /sys/block/dm-5/queue/scheduler."""
    found = probe(CgroupTree(2, tmp_path), sys, [THIN, RAID, NVME]).devices
    assert found[THIN].problem == (
        "dm-5 is built on nvme0n1 and has no scheduler, and io.cost refuses it (limits work; for weights "
        "manage what is below instead)"
    )
    assert "md0 is built on nvme0n1 and nvme1n1 " in found[RAID].problem
    assert found[THIN].limits
    assert "echo bfq > /sys/block/nvme0n1/queue/scheduler" in found[NVME].problem
