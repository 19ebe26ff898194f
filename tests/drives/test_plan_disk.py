"""Options of disks: what comes of them, and what is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from slo_ctl.base.errors import UserError
from slo_ctl.drives.plan import plan_device, wants_ageing
from slo_ctl.drives.record import DiskRecord, needs_flash, read_record, to_toml


def plan(spec: str, *namespaces: str) -> DiskRecord:
    record = plan_device(spec, namespaces)
    assert isinstance(record, DiskRecord)
    return record


def test_a_preset_is_a_whole_disk() -> None:
    record = plan("name=hdd0,preset=cheetah-15k7")
    assert (record.kind, record.scheduler, record.size_bytes) == (
        "disk",
        "fifo",
        300_000_000_000 // 65536 * 65536,
    )
    assert (record.disk.seek_average_ns, record.disk.rotation_ns) == (3_400_000, 4_000_000)
    assert not wants_ageing("name=hdd0,preset=cheetah-15k7")


def test_raid0_and_its_parts() -> None:
    record = plan(
        "name=r,class=raid0,disks=4,stripe=128KiB,size=4GiB,write_cache=no", "name=a,size=1GiB", "name=b"
    )
    assert (record.kind, record.array.disks, record.array.stripe_bytes) == ("raid0", 4, 128 << 10)
    assert record.disk.write_cache_bytes == 0
    assert [(each.name, each.size_bytes) for each in record.namespace] == [("a", 1 << 30), ("b", 3 << 30)]


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    record = plan("name=r,class=raid0", "name=a,weight=3", "name=b")
    (tmp_path / "device.toml").write_text(to_toml(record))
    assert read_record(tmp_path) == record
    (tmp_path / "device.toml").write_text(to_toml(record).replace("[disk]", "[disc]"))
    with pytest.raises(UserError, match="disk: Field required"):
        read_record(tmp_path)


@pytest.mark.parametrize(
    ("spec", "namespaces", "said"),
    [
        ("preset=cheetah-15k7", (), "no name"),
        ("name=d,class=disc", (), "class"),
        ("name=d,class=disk,disks=2", (), "raid0"),
        ("name=d,class=raid0,disks=1", (), "disks=1"),
        ("name=d,class=raid0,disks=65", (), "disks"),
        ("name=d,class=ssd,preset=cheetah-15k7", (), "hard disk"),
        ("name=d,class=disk,preset=cheetah", (), "preset"),
        ("name=d,class=disk,stripe=1000", (), "stripe"),
        ("name=d,class=disk,size=3TiB", (), "more than the disks hold"),
        ("name=d,class=disk,op=20%", (), "op"),
        ("name=d,class=disk,age=yes", (), "age"),
        ("name=d,class=disk,size=1GiB", ("name=a,size=2GiB",), "larger"),
        ("name=d,class=disk,size=1GiB", ("name=a,size=1GiB", "name=b"), "larger"),
        ("name=d,class=disk,size=1GiB", ("name=a", "name=a"), "twice"),
        ("name=d,class=disk,size=1GiB", ("size=1GiB",), "no name"),
        ("name=d,class=disk,size=1GiB", ("name=a,size=1000",), "sectors"),
    ],
)
def test_bad_disk_specifications_are_refused(spec: str, namespaces: tuple[str, ...], said: str) -> None:
    with pytest.raises(UserError, match=said):
        plan_device(spec, namespaces)


def test_a_disk_has_no_flash() -> None:
    with pytest.raises(UserError, match="hard disk"):
        needs_flash(plan("name=d,class=disk"), "`device age`")
