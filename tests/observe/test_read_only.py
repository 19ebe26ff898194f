"""Observing a host changes no file."""

from __future__ import annotations

from pathlib import Path

from fake_host import SCOPE, FakeHost

from slo_ctl.host.cgroup import require_tree
from slo_ctl.observe.streams import read_inventory


def test_observing_changes_no_file(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    host.group(
        f"machine.slice/{SCOPE.format(id=1, name='web')}", io__stat="8:0 rios=1\n", cgroup__procs="1\n"
    )
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    for path in tmp_path.rglob("*"):
        path.chmod(0o500 if path.is_dir() else 0o400)
    inventory = read_inventory(require_tree(host.root), None, {}, host.roots)
    assert [vm.name for vm in inventory.vms] == ["web"]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    for path in before:
        path.chmod(0o700)
