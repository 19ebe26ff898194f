"""Identity of a device from /sys, and when a profile is stale."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_sys import block_device

from slo_ctl.drives.places import Places
from slo_ctl.drives.plan import plan_device
from slo_ctl.drives.store import DeviceStore
from slo_ctl.model.host import DeviceNumber
from slo_ctl.profile.identity import BLOCK_DEVICE, Identity, IdentitySources, block_identity, identify
from slo_ctl.profile.store import Profile, ProfileStore, age_text
from slo_ctl.profile.target import Kind, Target, find_target


@pytest.fixture
def around(tmp_path: Path) -> IdentitySources:
    return IdentitySources(
        Places(tmp_path / "state", tmp_path / "run"), tmp_path / "sys", tmp_path / "mountinfo", "6.1"
    )


def test_identity_of_an_nvme_drive(around: IdentitySources) -> None:
    block_device(
        around.sys,
        "nvme0n1",
        "259:0",
        queues=4,
        device__model="Fast  Drive ",
        device__serial="S1",
        device__firmware_rev="FW9",
        queue__scheduler="[none] mq-deadline",
        queue__rotational="0",
    )
    found = block_identity(DeviceNumber(259, 0), BLOCK_DEVICE, around)
    assert (found.model, found.serial, found.firmware) == ("Fast Drive", "S1", "FW9")
    assert (found.scheduler, found.kernel) == ("none", "6.1")
    assert (found.rotational, found.hardware_queues) == (False, 4)


def test_partition_has_the_identity_of_its_disk(around: IdentitySources) -> None:
    node = block_device(around.sys, "sda", "8:0", dev="8:0", device__model="M", device__vpd="x")
    part = node / "sda1"
    part.mkdir()
    (part / "partition").write_text("1\n")
    (around.sys / "dev" / "block" / "8:1").symlink_to(part)
    whole, partition = (block_identity(DeviceNumber(8, minor), BLOCK_DEVICE, around) for minor in (0, 1))
    assert whole.model == partition.model == "M"
    assert whole.hardware_key != partition.hardware_key


def test_identity_of_a_device_without_attributes(around: IdentitySources) -> None:
    block_device(around.sys, "vdz", "254:9", dev="254:9")
    found = block_identity(DeviceNumber(254, 9), BLOCK_DEVICE, around)
    assert (found.model, found.serial, found.scheduler, found.rotational) == ("vdz", "", "", None)


def test_path_on_a_file_system_without_device_is_identified(around: IdentitySources, tmp_path: Path) -> None:
    number = tmp_path.stat().st_dev
    import os

    around.mountinfo.write_text(
        f"1 0 {os.major(number)}:{os.minor(number)} / / rw - fuse.odd remote:/x rw\nnonsense\n"
    )
    found = identify(find_target(str(tmp_path)), around)
    assert found.place == "file on fuse.odd"


def identity(**changes: str) -> Identity:
    values = {"model": "m", "serial": "s", "firmware": "f", "place": "p", "kernel": "k", "scheduler": "none"}
    return Identity.model_validate(values | changes)


def test_profile_is_stale_after_a_change_of_kernel_or_scheduler() -> None:
    now = identity()
    assert identity().stale_against(now) == ""
    assert identity(kernel="old").stale_against(now) == "stale: kernel was old, is k"
    assert identity(scheduler="bfq").stale_against(now) == "stale: scheduler was bfq, is none"
    assert identity(kernel="a", scheduler="").stale_against(now).count("was") == 2
    assert identity(firmware="g").hardware_key != now.hardware_key
    assert identity(kernel="old").hardware_key == now.hardware_key
    assert identity(kernel="old").environment_key != now.environment_key


def stored(of: Identity, updated: str = "2026-01-01T00:00:00+00:00") -> Profile:
    return Profile.model_validate(
        {
            "identity": of.model_dump(),
            "target": "t",
            "created": updated,
            "updated": updated,
            "span_bytes": 1,
            "queue_depth": 1,
            "intervals": [{"low_bytes": 8, "high_bytes": 16, "gap_bytes": 8}],
        }
    )


def test_valid_profile_precedes_newer_stale_ones(tmp_path: Path) -> None:
    store = ProfileStore(tmp_path)
    assert store.find(identity()) is None
    store.save(stored(identity(kernel="older"), "2026-01-01T00:00:00+00:00"))
    store.save(stored(identity(kernel="old"), "2026-02-01T00:00:00+00:00"))
    found = store.find(identity())
    assert found is not None
    assert found.stale == "stale: kernel was old, is k", "the newest of them"
    store.save(stored(identity(), "2025-01-01T00:00:00+00:00"))
    found = store.find(identity())
    assert found is not None
    assert found.stale == ""
    assert store.find(identity(serial="another")) is None
    assert not [path for path in tmp_path.iterdir() if "partial" in path.name]


def test_a_devices_profile_is_found_by_its_number(around: IdentitySources, tmp_path: Path) -> None:
    block_device(around.sys, "sda", "8:0", dev="8:0", device__model="Disk", queue__scheduler="[bfq] none")
    number = DeviceNumber(8, 0)
    store = ProfileStore(tmp_path / "profiles")
    assert store.of_device(number, around) is None
    on_it = block_identity(number, "file on ext4", around)
    store.save(stored(on_it))
    found = store.of_device(number, around)
    assert found is not None
    assert found.record.identity == on_it, "better than none"
    own = block_identity(number, BLOCK_DEVICE, around)
    store.save(stored(own.model_copy(update={"kernel": "old"})))
    found = store.of_device(number, around)
    assert found is not None
    assert found.record.identity == on_it, "valid before stale"
    before = own.model_copy(update={"scheduler": "none"})
    store.save(stored(before))
    found = store.of_device(number, around)
    assert found is not None
    assert (found.record.identity, found.stale) == (before, ""), "what it chooses does not make it stale"
    store.save(stored(own, "2026-11-01T00:00:00+00:00"))
    (store.folder / "Other-0-0.json").write_text("damaged, and another device's")
    found = store.of_device(number, around)
    assert found is not None
    assert found.record.identity == own


def test_identity_of_an_export_needs_no_connection(around: IdentitySources) -> None:
    target = find_target("nbd+unix:///x?socket=/no/such.sock", connect=False)
    assert target == Target("nbd+unix:///x?socket=/no/such.sock", Kind.NBD, None, None, 512)
    assert identify(target, around).model == "NBD export"


def test_export_on_the_socket_of_all_is_that_namespace(around: IdentitySources) -> None:
    DeviceStore(around.places).create(plan_device("name=ssd0,size=128MiB", ["name=a", "name=b"]))
    run = around.places.run_of("ssd0")
    for path, place in ((run.export("b"), "b"), (run.all_exports, "b"), (run.all_exports, "a")):
        target = find_target(f"nbd+unix:///{place}?socket={path}", connect=False)
        assert identify(target, around).place.startswith(f"namespace {place}: ")
    unknown = find_target(f"nbd+unix:///c?socket={run.all_exports}", connect=False)
    assert identify(unknown, around).model == "NBD export"


@pytest.mark.parametrize(
    ("age_s", "text"),
    [(5, "less than a minute"), (60, "1 minute"), (7300, "2 hours"), (86400, "1 day"), (1e6, "11 days")],
)
def test_age_of_a_profile_as_text(age_s: float, text: str) -> None:
    assert age_text(age_s) == text
