"""Placement of namespaces, owner of the spare capacity, and refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slo_ctl.base.errors import UserError
from slo_ctl.decide.drive_pool import strongest
from slo_ctl.decide.namespace_plan import GRANULARITY_BYTES, DriveContext, MapPlan, MapRequest, plan_map
from slo_ctl.model.mapping import (
    AddDisk,
    AttachNamespace,
    CreateNamespace,
    Deallocate,
    LbaFormat,
    SpareOwner,
)
from slo_ctl.model.nvme import (
    DriveOps,
    EnduranceGroup,
    Isolation,
    NamespaceOps,
    NvmeController,
    NvmeDevice,
    NvmeNamespace,
    NvmSet,
    PlacementHandle,
)

GIB = 1 << 30
FORMATS = (LbaFormat(0, 512, 0, 2), LbaFormat(1, 4096, 8, 0), LbaFormat(4, 4096, 0, 1))
CONTROLLER = NvmeController(
    name="nvme1",
    model="Model",
    serial="S1",
    firmware="1",
    vendor=0x144D,
    controller_id=5,
    subsystem_nqn="nqn",
    oacs=1 << 3,
    ctratt=0,
    total_bytes=100 * GIB,
    unallocated_bytes=60 * GIB,
    max_namespaces=16,
)


def drive(*namespaces: NvmeNamespace, **more: Any) -> NvmeDevice:
    return NvmeDevice(CONTROLLER, namespaces, **more)


def namespace(nsid: int, gib: int = 10, **more: Any) -> NvmeNamespace:
    blocks = gib * GIB // 512
    return NvmeNamespace(
        nsid, more.pop("attached", True), blocks, blocks, 0, 512, name=f"nvme1n{nsid}", **more
    )


def plan(device: NvmeDevice, request: MapRequest, **around: Any) -> MapPlan:
    return plan_map(device, request, DriveContext(formats=FORMATS, **around))


def test_namespace_on_a_plain_drive_is_a_capacity_partition() -> None:
    made = plan(drive(namespace(1)), MapRequest("web", 10 * GIB, spare_bytes=2 * GIB))
    assert made.mapping.steps == (
        CreateNamespace(10 * GIB // 4096, 4096, 4),
        AttachNamespace(5),
        AddDisk(None, None, 10 * GIB, whole=True),
    )
    assert made.mapping.placement.isolation == Isolation.CAPACITY
    assert made.mapping.spare.owner is SpareOwner.DRIVE
    assert any("the drive's own" in note for note in made.notes)


def test_spare_is_exclusive_in_an_unused_endurance_group() -> None:
    groups = (EnduranceGroup(1, 50 * GIB, 20 * GIB), EnduranceGroup(2, 50 * GIB, 15 * GIB))
    device = drive(namespace(1, endurance_group=1), groups=groups)
    made = plan(device, MapRequest("web", 10 * GIB, spare_bytes=GIB))
    create = made.mapping.steps[0]
    assert isinstance(create, CreateNamespace)
    assert create.endurance_group == 2
    assert made.mapping.spare.owner is SpareOwner.VM
    assert made.mapping.placement.isolation == Isolation.ISOLATED
    elsewhere = plan(device, MapRequest("web", 10 * GIB, group=1))
    assert elsewhere.mapping.placement.isolation == Isolation.CAPACITY


def test_nvm_sets_are_preferred_to_endurance_groups() -> None:
    sets = (NvmSet(1, 1, 50 * GIB, 20 * GIB), NvmSet(2, 1, 50 * GIB, 20 * GIB))
    device = drive(namespace(1, nvm_set=1, endurance_group=1), groups=(EnduranceGroup(1),), sets=sets)
    create = plan(device, MapRequest("web", GIB)).mapping.steps[0]
    assert isinstance(create, CreateNamespace)
    assert (create.nvm_set, create.endurance_group) == (2, 1)


def test_fdp_namespace_gets_an_unused_handle() -> None:
    group = EnduranceGroup(1, fdp_enabled=True, handles_used=(True, False, False))
    device = drive(namespace(1, endurance_group=1), groups=(group,))
    made = plan(device, MapRequest("web", GIB), supports_placement_handles=True)
    create = made.mapping.steps[0]
    assert isinstance(create, CreateNamespace)
    assert create.handles == (1,)
    assert made.mapping.placement.isolation == Isolation.SEPARATION
    without = plan(device, MapRequest("web", GIB), supports_placement_handles=False)
    assert without.mapping.placement.isolation == Isolation.CAPACITY
    assert any("nvme-cli" in note for note in without.notes)
    used = replace(group, handles_used=(True, True))
    none_left = plan(replace(device, groups=(used,)), MapRequest("web", GIB), supports_placement_handles=True)
    assert any("every reclaim unit handle is in use" in note for note in none_left.notes)


def reporting_ops(blocks_of_size: int, *namespaces: NvmeNamespace, **more: Any) -> NvmeDevice:
    """A drive with blocks of 1 GiB that reports OPS, and `blocks_of_size` as the size of each namespace."""
    entries = tuple(NamespaceOps(each.nsid, 2, 1, blocks_of_size, 0, 0, 0, 0) for each in namespaces)
    return drive(*namespaces, ops=DriveOps(0.0, GIB, 4096, 5, 0, entries), **more)


def test_on_a_drive_with_ops_of_each_namespace_its_ops_is_isolated() -> None:
    group = EnduranceGroup(1, fdp_enabled=True, handles_used=(True, False))
    device = reporting_ops(10, namespace(1), groups=(group,))
    offered = strongest(device)
    assert (offered.isolation, offered.by) == (Isolation.ISOLATED, "namespaces with OPS of their own")
    assert "OPS" in offered.isolates
    assert "OPS" not in offered.shares
    mapping = plan(
        device, MapRequest("web", 10 * GIB, spare_bytes=GIB), supports_placement_handles=True
    ).mapping
    assert (mapping.placement.isolation, mapping.placement.by) == (
        "isolated OPS",
        "a namespace with OPS of its own",
    )
    # Unallocated capacity also serves the drive.
    assert mapping.spare.owner is SpareOwner.DRIVE


def test_namespaces_that_report_the_blocks_of_one_pool_share_their_ops() -> None:
    device = reporting_ops(20, namespace(1), namespace(2))
    assert strongest(device).isolation is Isolation.CAPACITY
    assert "over-provisioning" in strongest(device).shares
    assert plan(device, MapRequest("web", 10 * GIB)).mapping.placement.isolation == "capacity partition"


def test_spares_of_earlier_mappings_stay_unallocated() -> None:
    device = drive()
    first = plan(device, MapRequest("web", 20 * GIB, spare_bytes=15 * GIB)).mapping
    left = replace(device, controller=replace(CONTROLLER, unallocated_bytes=40 * GIB))
    with pytest.raises(UserError) as error:
        plan(left, MapRequest("db", 30 * GIB), mappings=(first,))
    assert "15GiB of it reserved as spare" in error.value.hint
    plan(left, MapRequest("db", 25 * GIB), mappings=(first,))


def test_an_adopted_namespace_is_attached_only_if_it_is_not() -> None:
    device = drive(namespace(1), namespace(3, attached=False))
    there = plan(device, MapRequest("web", adopt=1)).mapping
    assert there.steps == (AddDisk(None, None, 10 * GIB, whole=True),)
    assert not there.attached_by_us
    attached = plan(device, MapRequest("web", adopt=3)).mapping
    assert attached.steps[0] == AttachNamespace(5)
    assert attached.attached_by_us


def test_unused_part_of_an_adopted_namespace_is_deallocated() -> None:
    made = plan(drive(namespace(1)), MapRequest("web", 8 * GIB, adopt=1))
    assert made.mapping.steps == (
        Deallocate(8 * GIB, 2 * GIB),
        AddDisk(None, None, 8 * GIB, whole=False),
    )
    assert made.mapping.spare.how == "deallocated"


def test_shared_handles_separate_nothing() -> None:
    group = EnduranceGroup(1, fdp_enabled=True, handles_used=(True, True))
    one, other = PlacementHandle(0, 0), PlacementHandle(0, 1)
    shared = drive(
        namespace(1, endurance_group=1, handles=(one,)),
        namespace(2, endurance_group=1, handles=(one, other)),
        groups=(group,),
    )
    assert plan(shared, MapRequest("web", adopt=1)).mapping.placement.isolation == Isolation.CAPACITY
    apart = replace(
        shared, namespaces=(shared.namespaces[0], replace(shared.namespaces[1], handles=(other,)))
    )
    assert plan(apart, MapRequest("web", adopt=1)).mapping.placement.isolation == Isolation.SEPARATION


@pytest.mark.parametrize(
    ("request_", "around", "message"),
    [
        (MapRequest("web"), {}, "the size of the namespace is missing"),
        (MapRequest("web", 61 * GIB), {}, "no room"),
        (MapRequest("web", GIB, group=3), {}, "no endurance group 3"),
        (MapRequest("web", adopt=9), {}, "no namespace 9"),
        (MapRequest("web", adopt=1), {"users": {1: "disk vda of VM db"}}, "in use: disk vda of VM db"),
        (MapRequest("web", 11 * GIB, adopt=1), {}, "too little"),
        (MapRequest("web", 9 * GIB, adopt=1, spare_bytes=2 * GIB), {}, "too little"),
        (MapRequest("web", adopt=1, spare_bytes=10 * GIB), {}, "too little"),
        (MapRequest("web", adopt=1, group=2), {}, "not in 2"),
    ],
)
def test_impossible_mappings_are_refused_with_a_hint(
    request_: MapRequest, around: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message) as error:
        plan(drive(namespace(1)), request_, **around)
    assert error.value.hint


def test_a_drive_without_namespace_management_is_named_and_its_namespaces_offered() -> None:
    device = replace(drive(namespace(1)), controller=replace(CONTROLLER, oacs=0))
    with pytest.raises(UserError, match="no namespace management") as error:
        plan(device, MapRequest("web", GIB))
    assert "--adopt 1" in error.value.hint


def test_formats_with_metadata_are_not_used() -> None:
    with pytest.raises(UserError, match="no LBA format"):
        plan_map(drive(), MapRequest("web", GIB), DriveContext(formats=(LbaFormat(0, 4096, 8, 0),)))


@given(
    size=st.integers(1, 70 * GIB),
    spare=st.integers(0, 70 * GIB),
    kept=st.integers(0, 60 * GIB),
    left=st.integers(0, 100 * GIB),
)
def test_capacity_is_never_allocated_twice(size: int, spare: int, kept: int, left: int) -> None:
    """A new namespace, its spare and the earlier spares never exceed the unallocated capacity."""
    device = replace(drive(), controller=replace(CONTROLLER, unallocated_bytes=left))
    earlier = plan(drive(), MapRequest("db", GRANULARITY_BYTES)).mapping
    earlier = replace(earlier, spare=replace(earlier.spare, size_bytes=kept, how="unallocated"))
    try:
        made = plan(device, MapRequest("web", size, spare_bytes=spare), mappings=(earlier,)).mapping
    except UserError:
        rounded = -(-size // GRANULARITY_BYTES) * GRANULARITY_BYTES
        assert rounded + spare + kept > left
        return
    assert made.size_bytes % GRANULARITY_BYTES == 0
    assert size <= made.size_bytes < size + GRANULARITY_BYTES
    assert made.size_bytes + made.spare.size_bytes + kept <= left


@given(whole=st.integers(1, 1 << 24), size=st.integers(1, 1 << 34))
def test_slice_and_spare_add_up_to_the_namespace(whole: int, size: int) -> None:
    space = NvmeNamespace(1, True, whole, whole, 0, 512)
    request = MapRequest("web", size, adopt=1)
    if size > space.size_bytes:
        with pytest.raises(UserError, match="too little"):
            plan(drive(space), request)
        return
    made = plan(drive(space), request).mapping
    assert size <= made.size_bytes
    assert made.size_bytes + made.spare.size_bytes == space.size_bytes
