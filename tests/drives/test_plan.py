"""Options of a device become a drive: SSDs and hard disks."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftl_emul import Device
from slo_ctl.base.errors import UserError
from slo_ctl.drives.plan import plan_device, wants_preconditioning
from slo_ctl.drives.record import DiskRecord, SsdRecord, read_record, require_ssd, to_toml

GIB = 1 << 30


def test_the_default_is_one_namespace_of_the_whole_size() -> None:
    made = require_ssd(plan_device("name=ssd0,preset=fast15,size=8GiB,op=15%", []), "this test")
    assert [(each.name, each.size_bytes, each.weight) for each in made.namespace] == [("ssd0", 8 * GIB, 1.0)]
    blocks = made.drive.blocks_per_die * made.drive.dies
    held = made.drive.held_blocks
    usable_bytes = (blocks - held) * made.drive.pages_per_block * made.drive.page_bytes
    assert usable_bytes / made.size_bytes - 1 == pytest.approx(0.15, abs=0.001)


def test_namespaces_divide_the_remaining_space() -> None:
    made = plan_device("name=d,size=4GiB", ["name=a,size=1GiB,weight=3", "name=b", "name=c"])
    assert [each.size_bytes for each in made.namespace] == [GIB, 3 * GIB // 2, 3 * GIB // 2]
    assert [each.weight for each in made.namespace] == [3, 1, 1]


@pytest.mark.parametrize("placement", ["isolated", "shared"])
@pytest.mark.parametrize("preset", ["fast15", "tlc", "qlc"])
def test_planned_drive_can_be_built(placement: str, preset: str) -> None:
    size = {"fast15": "1GiB", "tlc": "24GiB", "qlc": "300GiB"}[preset]
    spec = f"name=d,preset={preset},size={size},op=28%,placement={placement},scheduler=fifo"
    made = require_ssd(plan_device(spec, ["name=a", "name=b"]), "this test")
    assert made.scheduler == "fifo"
    fill(made)
    assert made.isolated == (placement == "isolated")


def fill(made: SsdRecord) -> tuple[Device, list[int]]:
    """The drive of a record with its namespaces, and their tenant numbers."""
    device = Device(made.drive)
    tenants = [
        device.create_tenant(
            namespace.size_bytes // made.drive.page_bytes, made.isolated, namespace.ops_blocks
        )
        for namespace in made.namespace
    ]
    return device, tenants


@pytest.mark.parametrize("placement", ["isolated", "shared"])
@pytest.mark.parametrize("mapping", ["page", "bast", "fast,cluster=2", "fast,cluster=4", "dftl,cmt=500"])
def test_any_mapping_is_planned_kept_and_counted_alike(tmp_path: Path, mapping: str, placement: str) -> None:
    spec = f"name=d,size=256MiB,op=25%,dies=4,block=512KiB,placement={placement},mapping={mapping}"
    made = require_ssd(plan_device(spec, ["name=a", "name=b"]), "this test")
    (tmp_path / "device.toml").write_text(to_toml(made))
    assert read_record(tmp_path) == made
    device, tenants = fill(made)
    assert device.block_pages == made.drive.block_pages
    held = made.drive.held_blocks if made.isolated else 0
    for tenant in tenants:
        # The held blocks alone are less than the minimum of a namespace, and each namespace has at least it.
        space = device.space(tenant)
        assert held < space.min_ops_blocks <= space.ops_blocks


def test_a_device_made_before_there_was_a_choice_maps_by_page(tmp_path: Path) -> None:
    made = plan_device("name=d,size=256MiB", [])
    new = ("kind", "cluster_dies")
    lines = [line for line in to_toml(made).splitlines() if not line.startswith(new)]
    (tmp_path / "device.toml").write_text("\n".join(lines))
    assert read_record(tmp_path) == made


@pytest.mark.parametrize(
    ("spec", "namespaces", "message"),
    [
        ("preset=fast15", [], "name is missing"),
        ("name=d,pre=fast15", [], "unknown key pre"),
        ("name=d,preset=fast16", [], "preset=fast16"),
        ("name=d,size=8XB", [], "size=8XB"),
        ("name=d,op=0%", [], "op"),
        ("name=d,size=16MiB", [], "over-provisioning blocks"),
        ("name=d,placement=here", [], "placement=here"),
        ("name=d,scheduler=cfq", [], "scheduler=cfq"),
        ("name=d,name=e", [], "twice"),
        ("name=d,size=1GiB", ["size=1MiB"], "name is missing"),
        ("name=d,size=1GiB", ["name=a", "name=a"], "2 times"),
        ("name=d,size=1GiB", ["name=a,size=2GiB"], "add up to"),
        ("name=d,size=1GiB", ["name=a,size=1GiB", "name=b"], "leave no space"),
        ("name=d,size=1GiB", ["name=a,size=1GiB", "name=b"], "namespaces' sizes"),
        ("name=d,size=1GiB", ["name=a,weight=0"], "weight=0"),
        ("name=d,size=1GiB", ["name=a,weight=1e-4"], "weight=1e-4"),
        ("name=d,size=1GiB", ["name=a,weight=1e7"], "is more than 1,000,000"),
        ("name=d,precondition=maybe", [], "precondition=maybe"),
        ("name=d,mapping=nftl", [], "mapping=nftl"),
        ("name=d,mapping=page,cluster=2,dies=2", [], "no clustered blocks"),
        ("name=d,mapping=bast,cluster=3,dies=4", [], "cluster=3"),
        ("name=d,mapping=fast,cmt=100", [], "whole map in memory"),
        ("name=d,mapping=fast,victim=random", [], "no GC"),
        ("name=d,size=1GiB", ["name=a,workload=uniform"], "unknown key workload"),
    ],
)
def test_impossible_device_is_refused(spec: str, namespaces: list[str], message: str) -> None:
    with pytest.raises(UserError) as refused:
        plan_device(spec, namespaces)
    assert message in refused.value.message
    assert refused.value.hint
    # The planner is shared with the replay, which has VMs.
    assert "VM" not in str(refused.value)


def plan(spec: str, *namespaces: str) -> DiskRecord:
    record = plan_device(spec, namespaces)
    assert isinstance(record, DiskRecord)
    return record


def test_disk_preset_is_complete() -> None:
    record = plan("name=hdd0,preset=cheetah-15k7")
    assert (record.kind, record.scheduler, record.size_bytes) == (
        "disk",
        "fifo",
        300_000_000_000 // 65536 * 65536,
    )
    assert (record.disk.seek_average_ns, record.disk.rotation_ns) == (3_400_000, 4_000_000)
    assert not wants_preconditioning("name=hdd0,preset=cheetah-15k7")


def test_raid0_keys_are_planned() -> None:
    record = plan(
        "name=r,class=raid0,disks=4,stripe=128KiB,size=4GiB,write_cache=no", "name=a,size=1GiB", "name=b"
    )
    assert (record.kind, record.array.disks, record.array.stripe_bytes) == ("raid0", 4, 128 << 10)
    assert record.disk.write_cache_bytes == 0
    assert [(each.name, each.size_bytes) for each in record.namespace] == [("a", 1 << 30), ("b", 3 << 30)]


def test_written_plan_is_read_back(tmp_path: Path) -> None:
    record = plan("name=r,class=raid0", "name=a,weight=3", "name=b")
    (tmp_path / "device.toml").write_text(to_toml(record))
    assert read_record(tmp_path) == record
    (tmp_path / "device.toml").write_text(to_toml(record).replace("[disk]", "[disc]"))
    with pytest.raises(UserError, match="disk: Field required"):
        read_record(tmp_path)


@pytest.mark.parametrize(
    ("spec", "namespaces", "message"),
    [
        ("preset=cheetah-15k7", (), "name is missing"),
        ("name=d,class=disc", (), "class"),
        ("name=d,class=disk,disks=2", (), "raid0"),
        ("name=d,class=raid0,disks=1", (), "disks=1"),
        ("name=d,class=raid0,disks=65", (), "disks"),
        ("name=d,class=ssd,preset=cheetah-15k7", (), "hard disk"),
        ("name=d,class=disk,preset=cheetah", (), "preset"),
        ("name=d,class=disk,stripe=1000", (), "stripe"),
        ("name=d,class=disk,size=3TiB", (), "more than the disks hold"),
        ("name=d,class=disk,op=20%", (), "op"),
        ("name=d,class=disk,precondition=yes", (), "precondition"),
        ("name=d,class=disk,size=1GiB", ("name=a,size=2GiB",), "larger"),
        ("name=d,class=disk,size=1GiB", ("name=a,size=1GiB", "name=b"), "larger"),
        ("name=d,class=disk,size=1GiB", ("name=a", "name=a"), "twice"),
        ("name=d,class=disk,size=1GiB", ("size=1GiB",), "name is missing"),
        ("name=d,class=disk,size=1GiB", ("name=a,size=1000",), "not a multiple of 512"),
    ],
)
def test_bad_disk_specifications_are_refused(spec: str, namespaces: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        plan_device(spec, namespaces)


def test_hard_disk_has_no_flash_keys() -> None:
    with pytest.raises(UserError, match="hard disk"):
        require_ssd(plan("name=d,class=disk"), "`device precondition`")
