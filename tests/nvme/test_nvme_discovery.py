"""Discovery of drives: MULTI0 and FDP0 of the recordings, and variants of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fake_nvme import FakeNvme, multi, recorded, sysfs, with_fdp

from slo_ctl.base.errors import UserError
from slo_ctl.decide.drive_pool import strongest
from slo_ctl.host.nvme.command import NvmeCommandError, NvmeTool
from slo_ctl.host.nvme.drive import controller_of, discover
from slo_ctl.model.nvme import EnduranceGroup, Isolation, NvmeDevice, NvmSet

VERSIONS = ("2.3", "2.13", "3.0")
NAMES: dict[str, int | None] = {"nvme1n1": 2, "nvme1n2": 1}
"""As in the guest: the first name does not have the first NSID."""


def found(fake: FakeNvme, sys: Path) -> NvmeDevice:
    return discover(NvmeTool(str(fake.program)), "nvme1", sys)


@pytest.mark.parametrize("version", VERSIONS)
def test_attached_and_detached_namespaces_are_listed(tmp_path: Path, version: str) -> None:
    device = found(multi(tmp_path / "bin", version), sysfs(tmp_path / "sys", NAMES))
    assert [(each.nsid, each.name, each.attached) for each in device.namespaces] == [
        (1, "nvme1n2", True),
        (2, "nvme1n1", True),
        (3, None, False),
    ]
    assert device.controller.transport == "pcie"
    assert device.groups == (EnduranceGroup(1),)
    assert device.ocp
    assert device.notes == ()
    offered = strongest(device)
    assert offered.isolation is Isolation.CAPACITY
    assert "oacs bit 3" in offered.why


@pytest.mark.parametrize("version", VERSIONS)
def test_fdp_configuration_is_discovered(tmp_path: Path, version: str) -> None:
    device = found(with_fdp(tmp_path / "bin", version), sysfs(tmp_path / "sys", NAMES))
    (group,) = device.groups
    assert group.fdp_enabled
    assert group.handles_in_use == 8
    assert [len(each.handles) for each in device.namespaces] == [4, 4, 0]
    offered = strongest(device)
    assert offered.isolation is Isolation.SEPARATION
    assert "garbage collection" in offered.shares


def test_disabled_fdp_separates_nothing(tmp_path: Path) -> None:
    fake = with_fdp(tmp_path / "bin", "2.13")
    fake.put_first("fdp usage", err="NVMe status: FDP Disabled(0x4029)\n", code=1)
    device = found(fake, sysfs(tmp_path / "sys", NAMES))
    assert not device.groups[0].fdp_enabled
    assert device.groups[0].fdp_configs
    assert strongest(device).isolation is Isolation.CAPACITY
    assert device.notes == ()


def test_sets_and_groups_isolate_only_where_there_are_two(tmp_path: Path) -> None:
    device = found(multi(tmp_path / "bin", "2.13"), sysfs(tmp_path / "sys", NAMES))
    one, other = NvmSet(1, 1, 1 << 40, 0), NvmSet(2, 1, 1 << 40, 0)
    assert strongest(replace(device, sets=(one,))).isolation is Isolation.CAPACITY
    assert strongest(replace(device, sets=(one, other))).by == "NVM sets"
    groups = (EnduranceGroup(1), EnduranceGroup(2))
    assert strongest(replace(device, groups=groups)).isolation is Isolation.ISOLATED
    alone = replace(
        device, controller=replace(device.controller, oacs=0), namespaces=device.namespaces[:1], groups=()
    )
    assert strongest(alone).isolation is Isolation.NONE


def test_nvm_sets_are_queried(tmp_path: Path) -> None:
    fake = multi(tmp_path / "bin", "2.13")
    identified = recorded("2.13/id-ctrl")
    identified["ctratt"] |= 1 << 2
    fake.put_first("id-ctrl /dev/nvme1", identified)
    # Keys of nvme-print-json.c, v2.13; 2.3 has the numbers as strings.
    entry = {"endurance_group_id": 1, "total_nvmset_cap": "1099511627776", "unalloc_nvmset_cap": 0}
    fake.add("id-nvmset /dev/nvme1", {"nid": 2, "NVMSet": [{"nvmset_id": id_, **entry} for id_ in (1, 2)]})
    device = found(fake, sysfs(tmp_path / "sys", NAMES))
    assert device.sets == (NvmSet(1, 1, 1 << 40, 0), NvmSet(2, 1, 1 << 40, 0))


def test_nsids_are_found_without_sysfs(tmp_path: Path) -> None:
    fake = multi(tmp_path / "bin", "2.13")
    fake.add("list --verbose", recorded("2.13/list-v"))
    device = found(fake, sysfs(tmp_path / "sys", dict.fromkeys(NAMES)))
    assert {each.name: each.nsid for each in device.namespaces if each.name} == NAMES


def test_names_without_any_nsid_are_left_out(tmp_path: Path) -> None:
    device = found(multi(tmp_path / "bin", "2.13"), sysfs(tmp_path / "sys", dict.fromkeys(NAMES)))
    assert [each.name for each in device.namespaces] == [None] * 3
    assert any("NSID is unknown" in note for note in device.notes)


def test_one_bad_namespace_is_a_note(tmp_path: Path) -> None:
    fake = multi(tmp_path / "bin", "2.13")
    fake.put_first("id-ns --namespace-id=2", '{"nsze": "many"')
    device = found(fake, sysfs(tmp_path / "sys", NAMES))
    assert [each.nsid for each in device.namespaces] == [1, 3]
    assert device.notes[0].startswith("namespace 2: ")


def test_failed_identify_is_reported(tmp_path: Path) -> None:
    fake = multi(tmp_path / "bin", "2.13")
    fake.put_first("id-ctrl", err="/dev/nvme1: Permission denied\n", code=1)
    with pytest.raises(NvmeCommandError, match="Permission denied"):
        found(fake, sysfs(tmp_path / "sys", NAMES))


def test_multipath_is_recognised(tmp_path: Path) -> None:
    sys = sysfs(tmp_path / "sys", NAMES, multipath=True)
    device = found(multi(tmp_path / "bin", "2.13"), sys)
    assert device.controller.multipath
    assert [each.name for each in device.namespaces] == ["nvme1n2", "nvme1n1", None]


def test_controller_of_a_namespace_or_path_is_found(tmp_path: Path) -> None:
    sys = sysfs(tmp_path / "sys", NAMES)
    assert {controller_of(each, sys) for each in ("nvme1", "/dev/nvme1", "/dev/nvme1n2")} == {"nvme1"}
    with pytest.raises(UserError, match="NVMe drive /dev/nvme7 not found"):
        controller_of("/dev/nvme7", sys)
    with pytest.raises(UserError, match="has no NVMe drive"):
        controller_of("/dev/nvme7", tmp_path / "none")
