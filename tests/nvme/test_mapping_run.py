"""Mappings on a mock drive: every step, and a crash at every moment."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from mock_drive import BLOCK, MockDrive, MockTool
from xml_domains import XmlDomains

from slo_ctl.act.mapping import MappingRun, MappingStore, Namespaces
from slo_ctl.base.errors import UserError
from slo_ctl.decide.namespace_plan import (
    DriveContext,
    MapRequest,
    created_before_crash,
    identity_of,
    plan_map,
    plan_unmap,
)
from slo_ctl.host.nvme.drive import discover
from slo_ctl.model.mapping import NamespaceMapping, Purpose
from slo_ctl.model.nvme import NvmeDevice

GIB = 1 << 30

pytestmark = pytest.mark.skipif(not BLOCK.is_block_device(), reason=f"{BLOCK} is missing")


class Crash(BaseException):
    """The program crashes here."""


class CrashingStore(MappingStore):
    """Crashes the program just before or just after the n-th write."""

    def __init__(self, path: Path, at: int, after: bool) -> None:
        super().__init__(path)
        self._left = at
        self._after = after
        self.crashed = False

    def put(self, old: NamespaceMapping | None, new: NamespaceMapping | None) -> None:
        self._left -= 1
        self.crashed = self._left == 0
        if self.crashed and not self._after:
            raise Crash
        super().put(old, new)
        if self.crashed:
            raise Crash


class Host:
    def __init__(self, folder: Path, drive: MockDrive) -> None:
        self.drive = drive
        self.store = MappingStore(folder / "mappings.json")
        self.domains = XmlDomains("web", "db")
        self._path = folder / "mappings.json"

    def read_device(self) -> NvmeDevice:
        return discover(MockTool(self.drive), "nvme1", self.drive.sys)

    def namespaces(self, device: NvmeDevice) -> Namespaces:
        tool = MockTool(self.drive)
        return Namespaces(tool, device, self.drive.sys, self.drive.dev)

    def run(
        self, mapping: NamespaceMapping, previous: NamespaceMapping | None, store: MappingStore | None = None
    ) -> NamespaceMapping | None:
        device = self.read_device()
        run = MappingRun(store or self.store, device, self.namespaces(device), self.domains, self.drive.dev)
        return run.carry_out(mapping, previous, lambda _step: None)

    def plan(self, request: MapRequest) -> NamespaceMapping:
        device = self.read_device()
        around = DriveContext(
            formats=self.namespaces(device).formats(),
            users={},
            mappings=self.store.all(),
            supports_placement_handles=True,
        )
        return plan_map(device, request, around).mapping

    def crashing(self, at: int, after: bool) -> CrashingStore:
        return CrashingStore(self._path, at, after)

    def resume(self) -> NamespaceMapping | None:
        """As `vm map --resume` does."""
        (found,) = self.store.all()
        todo = found
        if found.nsid is None and found.namespaces_before is not None:
            nsid = created_before_crash(found, self.read_device(), ())
            todo = replace(found, nsid=nsid, done=1) if nsid else replace(found, namespaces_before=None)
        return self.run(todo, found)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path, MockDrive(tmp_path / "drive"))


def test_mapping_is_created_and_undone_completely(host: Host) -> None:
    mapping = host.run(host.plan(MapRequest("web", 4 * GIB)), None)
    assert mapping is not None
    assert mapping.complete
    assert (mapping.nsid, mapping.target) == (1, "vda")
    assert host.store.all() == (mapping,)
    (made,) = host.drive.namespaces.values()
    assert made["nsze"] * made["block"] == 4 * GIB
    assert made["block"] == 4096
    assert host.domains.by_name["web"].targets == ["vda"]
    undo = plan_unmap(mapping, host.read_device(), "", delete=True, unplug=False)
    assert host.run(undo, mapping) is None
    assert host.drive.namespaces == {}
    assert host.store.all() == ()
    assert host.domains.by_name["web"].targets == []
    assert host.drive.commands == ["create-ns", "attach-ns", "detach-ns", "delete-ns"]


def test_unmap_without_delete_keeps_the_data(host: Host) -> None:
    mapping = host.run(host.plan(MapRequest("web", GIB)), None)
    assert mapping is not None
    host.run(plan_unmap(mapping, host.read_device(), "", delete=False, unplug=False), mapping)
    assert [each["attached"] for each in host.drive.namespaces.values()] == [False]


def test_adopted_namespace_is_never_deleted(host: Host) -> None:
    host.drive.add(7, 2 * GIB)
    mapping = host.run(host.plan(MapRequest("db", adopt=7)), None)
    assert mapping is not None
    assert not mapping.created
    assert host.drive.namespaces[7]["attached"]
    with pytest.raises(UserError, match="never deleted"):
        plan_unmap(mapping, host.read_device(), "", delete=True, unplug=False)
    host.run(plan_unmap(mapping, host.read_device(), "", delete=False, unplug=False), mapping)
    assert not host.drive.namespaces[7]["attached"]


def test_refusal_by_the_drive_leaves_nothing_behind(tmp_path: Path) -> None:
    refusal = "NVMe status: Invalid Command Opcode: A reserved coded value(0x4001)\n"
    host = Host(tmp_path, MockDrive(tmp_path / "drive", refuses_create=refusal))
    host.drive.add(3, GIB)
    with pytest.raises(UserError) as error:
        host.run(host.plan(MapRequest("web", GIB)), None)
    assert "cannot create namespaces" in error.value.message
    assert "--adopt" in error.value.hint
    assert host.store.all() == ()
    assert list(host.drive.namespaces) == [3]


def test_missing_vm_keeps_the_namespace_until_undo(host: Host) -> None:
    with pytest.raises(UserError, match="no VM mail"):
        host.run(host.plan(MapRequest("mail", GIB)), None)
    (left,) = host.store.all()
    assert (left.done, left.nsid) == (2, 1)
    host.run(plan_unmap(left, host.read_device(), "", delete=True, unplug=False), left)
    assert host.drive.namespaces == {}


def test_namespace_of_a_vm_that_was_undefined_is_unmapped(host: Host) -> None:
    """`vm unmap` failed because the VM was missing, and the namespace could not be deleted with it."""
    mapping = host.run(host.plan(MapRequest("web", GIB)), None)
    assert mapping is not None
    del host.domains.by_name["web"]
    undo = plan_unmap(mapping, host.read_device(), "", delete=True, unplug=False)
    assert host.run(undo, mapping) is None
    assert host.drive.namespaces == {}


def test_namespace_of_a_vm_that_was_renamed_is_not_taken_away(host: Host) -> None:
    mapping = host.run(host.plan(MapRequest("web", GIB)), None)
    assert mapping is not None
    host.domains.by_name["shop"] = host.domains.by_name.pop("web")
    undo = plan_unmap(mapping, host.read_device(), "", delete=True, unplug=False)
    device = host.read_device()
    with pytest.raises(UserError) as refusal:
        MappingRun(
            *(host.store, device, host.namespaces(device), host.domains, host.drive.dev),
            user_of=lambda _nsid: "disk vda of VM shop",
        ).carry_out(undo, mapping, lambda _step: None)
    message = "VM web does not exist any more, but namespace 1 is in use: disk vda of VM shop"
    assert refusal.value.message == message
    assert "renamed" in refusal.value.hint
    assert host.drive.namespaces[1]["attached"]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", range(1, 11))
def test_crash_at_any_moment_can_be_resumed(tmp_path: Path, at: int, after: bool) -> None:
    """Mapping and unmapping, interrupted before or after each write of the record."""
    host = Host(tmp_path, MockDrive(tmp_path / "drive"))
    host.drive.add(9, 3 * GIB)
    store = host.crashing(at, after)
    try:
        mapping = host.run(host.plan(MapRequest("web", GIB)), None, store)
        assert mapping is not None
        undo = plan_unmap(mapping, host.read_device(), "", delete=True, unplug=False)
        host.run(undo, mapping, store)
    except Crash:
        assert store.crashed
    if not host.store.all():
        # Before the first record, or after the last: as if there had been no request.
        assert list(host.drive.namespaces) == [9]
        return
    (found,) = host.store.all()
    if found.complete and found.purpose is Purpose.MAP:
        went_on: NamespaceMapping | None = found
    else:
        went_on = host.resume()
    if found.purpose is Purpose.UNMAP:
        assert went_on is None
        assert list(host.drive.namespaces) == [9]
        assert host.domains.by_name["web"].targets == []
        return
    assert went_on is not None
    assert went_on.complete
    assert sorted(host.drive.namespaces) == [9, went_on.nsid]
    assert host.drive.commands.count("create-ns") == 1
    assert host.domains.by_name["web"].targets == ["vda"]


def test_two_candidates_after_a_crash_are_refused(host: Host) -> None:
    mapping = replace(host.plan(MapRequest("web", GIB)), namespaces_before=())
    host.drive.add(4, GIB)
    host.drive.add(5, GIB)
    with pytest.raises(UserError, match="4, 5"):
        created_before_crash(mapping, host.read_device(), ())
    assert created_before_crash(mapping, host.read_device(), (4,)) == 5
    host.drive.add(5, 2 * GIB)
    assert created_before_crash(replace(mapping, namespaces_before=(4,)), host.read_device(), ()) is None


def test_replaced_namespace_is_not_touched(host: Host) -> None:
    mapping = host.run(host.plan(MapRequest("web", GIB)), None)
    assert mapping is not None
    other = replace(mapping, nguid="f" * 32)
    with pytest.raises(UserError, match="not the one that was mapped"):
        plan_unmap(other, host.read_device(), "", delete=True, unplug=False)
    gone = replace(mapping, nsid=77)
    with pytest.raises(UserError, match="no namespace 77 any more"):
        plan_unmap(gone, host.read_device(), "", delete=True, unplug=False)
    assert identity_of(host.read_device()) == mapping.drive


def test_namespace_in_use_is_not_detached(host: Host) -> None:
    mapping = host.run(host.plan(MapRequest("web", GIB)), None)
    assert mapping is not None
    with pytest.raises(UserError, match="in use: disk vda of VM web"):
        plan_unmap(mapping, host.read_device(), "disk vda of VM web", delete=True, unplug=False)


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"format_version": 1}', '{"format_version": 1, "mappings": [{"vm": "web"}]}', "x" * 100],
)
def test_damaged_record_is_reported_and_kept(tmp_path: Path, content: str) -> None:
    path = tmp_path / "mappings.json"
    path.write_text(content)
    with pytest.raises(UserError, match=r"mappings\.json is damaged"):
        MappingStore(path).all()
    assert path.read_text() == content


def test_a_record_of_a_later_version_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "mappings.json"
    path.write_text('{"format_version": 2, "mappings": []}')
    with pytest.raises(UserError, match="format_version 2"):
        MappingStore(path).all()


def test_second_mapping_at_the_same_time_is_refused(tmp_path: Path) -> None:
    first, second = MappingStore(tmp_path / "m.json"), MappingStore(tmp_path / "m.json")
    with first.locked(), pytest.raises(UserError, match="another slo-ctl"), second.locked():
        pass


def test_namespace_used_since_planning_is_not_detached(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a mount after the plan was made."""
    mapping = host.run(host.plan(MapRequest("web", 4 * GIB)), None)
    assert mapping is not None
    device = host.read_device()
    undo = plan_unmap(mapping, device, "", delete=True, unplug=False)
    monkeypatch.setattr("slo_ctl.act.mapping._CLOSE_TIMEOUT_S", 0.0)
    users = {1: "mounted"}
    run = MappingRun(
        host.store,
        device,
        host.namespaces(device),
        host.domains,
        host.drive.dev,
        lambda nsid: users.get(nsid, ""),
    )
    with pytest.raises(UserError, match="still in use: mounted"):
        run.carry_out(undo, mapping, lambda _step: None)
    assert host.drive.namespaces[1]["attached"]
    (left,) = host.store.all()
    assert (left.purpose, left.complete) == (Purpose.UNMAP, False)
    users.clear()
    assert run.carry_out(left, left, lambda _step: None) is None
    assert host.drive.namespaces == {}
