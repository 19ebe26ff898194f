"""`slo-ctl vm map|unmap|maps` from the command line, on a mock drive; no libvirt."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from mock_drive import BLOCK, MockDrive

from slo_ctl.cli import vm_map
from slo_ctl.cli.app import run

GIB = 1 << 30
deletes = pytest.mark.skipif(not os.access(BLOCK, os.R_OK), reason=f"{BLOCK} cannot be opened; not root")
"""A namespace is deleted only after a look at what is on it."""
pytestmark = pytest.mark.skipif(not BLOCK.is_block_device(), reason=f"{BLOCK} is missing")


class Shell:
    def __init__(self, root: Path, drive: MockDrive, capsys: pytest.CaptureFixture[str]) -> None:
        self.root = root
        self._capsys = capsys
        self.drive = drive

    def __call__(self, *words: str) -> tuple[int, str, str]:
        status = run(["vm", *words, "--root", str(self.root)])
        output = self._capsys.readouterr()
        return status, output.out, output.err

    def json(self, *words: str) -> dict[str, Any]:
        status, out, err = self(*words, "--json")
        assert status == 0, err
        found: dict[str, Any] = json.loads(out)
        assert found["format_version"] == 1
        return found


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    drive = MockDrive(tmp_path / "drive")
    monkeypatch.setenv("PATH", f"{drive.program.parent}:/usr/sbin:/usr/bin:/sbin:/bin")
    monkeypatch.setattr(vm_map, "SYS", drive.sys)
    monkeypatch.setattr(vm_map, "DEV", drive.dev)
    root = tmp_path / "root"
    root.mkdir()
    (root / "slo-ctl.toml").write_text('[libvirt]\nuri = "none"\n')
    return Shell(root, drive, capsys)


NEW = ("map", "web", "--device", "/dev/nvme1", "--size", "4GiB", "--no-disk")


@deletes
def test_mapping_is_planned_created_listed_and_removed(shell: Shell) -> None:
    status, out, err = shell(*NEW, "--spare", "1GiB", "--dry-run")
    assert status == 0
    assert "1. create a namespace of 4GiB" in out
    assert "2. attach the new namespace" in out
    assert "capacity partition" in out
    assert "EMULATED" in out
    assert "the drive's own" in err
    assert shell.drive.namespaces == {}
    assert [path.name for path in shell.root.iterdir()] == ["slo-ctl.toml"], "a dry run leaves no file"
    made = shell.json(*NEW, "--yes")
    assert made["complete"]
    assert made["nsid"] == 1
    (listed,) = shell.json("maps")["mappings"]
    assert listed["vm"] == "web"
    assert "capacity partition" in shell("maps")[1]
    status, out, _ = shell("unmap", "web", "1", "--delete", "--dry-run")
    assert status == 0
    assert "delete namespace 1 on nvme1  DESTROYS DATA" in out
    assert shell("unmap", "web", "1", "--delete", "--yes")[0] == 0
    assert shell.drive.namespaces == {}
    assert shell.json("maps")["mappings"] == []


def test_map_requires_confirmation(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    status, _, err = shell(*NEW)
    assert status == 2
    assert "--yes" in err
    assert shell.drive.namespaces == {}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("map", "web"), "--device is missing"),
        (("map", "web", "--device", "/dev/nvme7", "--size", "1GiB"), "NVMe drive /dev/nvme7 not found"),
        (
            ("map", "web", "--device", "/dev/nvme1", "--no-disk", "--yes"),
            "the size of the namespace is missing",
        ),
        (("map", "web", "--device", "/dev/nvme1", "--size", "much"), "--size"),
        (("map", "web", "--device", "/dev/nvme1", "--adopt", "nvme1n9"), "no namespace nvme1n9"),
        (("map", "web", "--device", "/dev/nvme1", "--size", "1GiB"), "libvirt is not configured"),
        (("map", "web", "--resume"), "VM web has no interrupted mapping"),
        (("unmap", "web", "1"), "has no mapped namespace"),
    ],
)
def test_bad_mappings_are_refused(shell: Shell, words: tuple[str, ...], message: str) -> None:
    status, _, err = shell(*words)
    assert status == 2
    assert message in err
    assert shell.drive.namespaces == {}


def test_unmap_requires_the_namespace(shell: Shell) -> None:
    shell.json(*NEW, "--yes")
    status, _, err = shell("unmap", "web", "--yes")
    assert status == 2
    assert "has mapped namespaces 1" in err
    assert list(shell.drive.namespaces) == [1]


def test_a_mapping_can_be_forgotten_without_touching_the_drive(shell: Shell) -> None:
    shell.json(*NEW, "--yes")
    assert shell("unmap", "web", "1", "--forget", "--yes")[0] == 0
    assert shell.json("maps")["mappings"] == []
    assert shell.drive.namespaces[1]["attached"]


def test_forgetting_a_mapping_prints_one_json_object(shell: Shell) -> None:
    shell.json(*NEW, "--yes")
    assert shell.json("unmap", "web", "1", "--forget", "--dry-run")["dry_run"]
    assert len(shell.json("maps")["mappings"]) == 1
    assert shell.json("unmap", "web", "1", "--forget", "--yes")["notes"] == [
        "remove the record; nothing else is changed"
    ]
    assert shell.json("maps")["mappings"] == []


def test_mapping_without_a_namespace_is_removed_except_in_a_dry_run(shell: Shell, tmp_path: Path) -> None:
    shell.json(*NEW, "--yes")
    path = tmp_path / "root" / "mappings.json"
    output = json.loads(path.read_text())
    output["mappings"][0] |= {"done": 0, "nsid": None, "namespaces_before": None}
    path.write_text(json.dumps(output))
    status, out, _ = shell("unmap", "web", "--dry-run")
    assert (status, out) == (0, "web: its namespace had not been created; the mapping would be removed\n")
    assert len(shell.json("maps")["mappings"]) == 1
    assert shell.json("unmap", "web", "--yes")["notes"] == [
        "its namespace had not been created; the mapping is removed"
    ]
    assert shell.json("maps")["mappings"] == []


def test_mapped_namespace_is_not_mapped_twice(shell: Shell) -> None:
    shell.json(*NEW, "--yes")
    status, _, err = shell("map", "db", "--device", "/dev/nvme1", "--adopt", "1", "--no-disk", "--yes")
    assert status == 2
    assert "mapped to VM web" in err


@deletes
def test_unfinished_mapping_is_undone_by_the_suggested_command(shell: Shell, tmp_path: Path) -> None:
    shell.json(*NEW, "--yes")
    path = tmp_path / "root" / "mappings.json"
    output = json.loads(path.read_text())
    output["mappings"][0] |= {"done": 1}
    path.write_text(json.dumps(output))
    status, _, err = shell(*NEW, "--yes")
    assert status == 2
    root = f"--root {tmp_path / 'root'}"
    assert f"complete it: slo-ctl vm map web --resume {root};" in err
    assert err.rstrip().endswith(f"or undo it: slo-ctl vm unmap web 1 {root}")
    assert shell("unmap", "web", "1", "--delete", "--yes")[0] == 0
    assert shell.drive.namespaces == {}


def test_suggested_commands_quote_the_name_of_the_vm(shell: Shell, tmp_path: Path) -> None:
    shell.json("map", "web; reboot", *NEW[2:], "--yes")
    path = tmp_path / "root" / "mappings.json"
    output = json.loads(path.read_text())
    output["mappings"][0] |= {"done": 1}
    path.write_text(json.dumps(output))
    _, _, err = shell("map", "web; reboot", *NEW[2:], "--yes")
    assert "slo-ctl vm map 'web; reboot' --resume" in err
    assert "slo-ctl vm unmap 'web; reboot' 1" in err
    assert "vm map 'web; reboot' --resume" in " ".join(shell("maps")[1].split())


def test_resume_refuses_a_replaced_namespace(shell: Shell, tmp_path: Path) -> None:
    """During the interruption another program deleted our namespace and created one with its NSID."""
    shell.json(*NEW, "--yes")
    path = tmp_path / "root" / "mappings.json"
    output = json.loads(path.read_text())
    output["mappings"][0] |= {"done": 1, "namespace_bytes": 2 * GIB}
    path.write_text(json.dumps(output))
    status, _, err = shell("map", "web", "--resume", "--yes")
    assert status == 2
    assert "is not the one that was mapped" in err
