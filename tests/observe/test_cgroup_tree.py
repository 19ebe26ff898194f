"""Which cgroup hierarchy a host has, and the groups of VMs in it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fake_host import PLAIN, SCOPE, FakeHost

from slo_ctl.base.errors import UserError
from slo_ctl.host import cgroup
from slo_ctl.host.cgroup import find_tree, named_group, require_tree, walk_groups
from slo_ctl.host.libvirt import Machine, machine_of


def no_note(text: str) -> None:
    raise AssertionError(text)


def test_v2_tree_with_io_controller_is_found(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    tree = find_tree(host.root)
    assert tree is not None
    assert (tree.version, tree.root, tree.io) == (2, host.root, True)


@pytest.mark.parametrize("named", ["", "blkio"])
def test_v1_is_found_by_its_mount_or_the_parent_directory(tmp_path: Path, named: str) -> None:
    host = FakeHost(tmp_path, version=1)
    tree = find_tree(host.root / named)
    assert tree is not None
    assert (tree.version, tree.root) == (1, host.root / "blkio")


def test_hybrid_hosts_keep_block_io_on_v1_unless_v2_has_it(tmp_path: Path) -> None:
    host = FakeHost(tmp_path, version=1)
    controllers = host.root / "unified" / "cgroup.controllers"
    controllers.parent.mkdir()
    controllers.write_text("hugetlb\n")
    assert require_tree(host.root).version == 1
    controllers.write_text("hugetlb io\n")
    assert require_tree(host.root).version == 2


def test_v2_without_io_still_lists_vms(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    (host.root / "cgroup.controllers").write_text("")
    tree = find_tree(host.root)
    assert tree is not None
    assert tree.io is False


def test_host_without_cgroups_has_no_tree(tmp_path: Path) -> None:
    assert find_tree(tmp_path) is None
    with pytest.raises(UserError, match="no cgroup tree"):
        require_tree(tmp_path / "none")


@pytest.mark.parametrize(
    ("folder", "machine"),
    [
        (r"machine-qemu\x2d3\x2dweb\x2d1.scope", Machine(3, "web-1")),
        (r"machine-qemu\x2d12\x2dcaf\xc3\xa9.scope", Machine(12, "caf\xe9")),
        ("qemu-7-db.libvirt-qemu", Machine(7, "db")),
        ("qemu-7-a.scope-b.libvirt-qemu", Machine(7, "a.scope-b")),
        (r"machine-qemu\x2d1\x2d\x1b[2J.scope", Machine(1, "\x1b[2J")),
        # libvirt 9.0 for a VM named in other letters than ASCII.
        ("qemu-25.libvirt-qemu", Machine(25, "")),
        (r"machine-qemu\x2d25.scope", Machine(25, "")),
        (r"machine-lxc\x2d3\x2dweb.scope", None),
        ("machine.slice", None),
        ("qemu-x-db.libvirt-qemu", None),
        ("qemu-99999999999999999999-db.libvirt-qemu", None),
        ("session-1.scope", None),
    ],
)
def test_cgroup_names_of_machines_are_recognised(folder: str, machine: Machine | None) -> None:
    assert machine_of(folder) == machine


def test_names_escaped_or_truncated_by_libvirt_match() -> None:
    assert Machine(1, "myvm").may_be("my_vm")
    assert Machine(1, "averylong").may_be("a very_long-name")
    assert not Machine(1, "other").may_be("web")
    assert Machine(1, "").may_be("база")
    assert not Machine(1, "").may_be("web")


def test_groups_are_found_at_any_depth_without_descending_further(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    web = SCOPE.format(id=1, name="web")
    host.group(f"machine.slice/{web}/libvirt/emulator")
    host.group(f"machine.slice/{web}/{SCOPE.format(id=9, name='inner')}")
    host.group(f"machine/production.partition/{PLAIN.format(id=2, name='db')}")
    host.group("system.slice/sshd.service")
    (host.root / "loop").symlink_to(host.root)
    found = {path: machine for path, _, machine in walk_groups(require_tree(host.root), machine_of, no_note)}
    assert found == {
        f"/machine.slice/{web}": Machine(1, "web"),
        "/machine/production.partition/qemu-2-db.libvirt-qemu": Machine(2, "db"),
    }


@pytest.mark.skipif(os.geteuid() != 0, reason="gives directories to another user")
def test_no_user_can_claim_to_be_a_vm_in_a_group_of_their_own(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    web, user = SCOPE.format(id=1, name="web"), "user.slice/user-1000.slice/user@1000.service"
    host.group(f"machine.slice/{web}")
    host.group(f"{user}/{web}")
    os.chown(host.root / user, 1000, 1000)
    found = [path for path, *_ in walk_groups(require_tree(host.root), machine_of, no_note)]
    assert found == [f"/machine.slice/{web}"]


def test_walk_is_bounded_and_reports_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = FakeHost(tmp_path)
    for number in range(5):
        host.group(f"g{number}")
    monkeypatch.setattr(cgroup, "MAX_GROUPS", 3)
    notes: list[str] = []
    assert list(walk_groups(require_tree(host.root), machine_of, notes.append)) == []
    assert notes == ["more than 3 cgroups: the others were ignored"]


def test_vanishing_groups_are_ignored(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    tree = require_tree(host.root)
    (host.group("gone")).rmdir()
    assert list(walk_groups(tree, machine_of, no_note)) == []
    (host.root / "cgroup.controllers").unlink()
    host.root.rmdir()
    assert list(walk_groups(tree, machine_of, no_note)) == []


def test_group_is_given_by_path_or_directory(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    folder = host.group("a/b")
    tree = require_tree(host.root)
    assert named_group(tree, "a/b") == named_group(tree, "/a/b/") == named_group(tree, str(folder)) == "/a/b"


@pytest.mark.parametrize("path", ["nope", "../..", "/", "", "a/../..", "out", "a\0b", "cgroup.controllers"])
def test_invalid_group_names_are_refused(tmp_path: Path, path: str) -> None:
    host = FakeHost(tmp_path)
    (host.root / "out").symlink_to(tmp_path)
    with pytest.raises(UserError) as refused:
        named_group(require_tree(host.root), path)
    assert refused.value.hint
