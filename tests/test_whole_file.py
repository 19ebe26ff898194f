"""Files that are written atomically, and the temporary files of killed writers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slo_ctl.base.files import partial_of, remove_leftovers, replace_file


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_next_write_removes_files_of_killed_writers(tmp_path: Path) -> None:
    (tmp_path / f".state.json.{dead_pid()}.partial").write_bytes(b"half")
    partial_of(tmp_path / "state.json").write_bytes(b"ours, of an earlier process with this number")
    kept = [
        f".other.json.{dead_pid()}.partial",
        f".state.json.{os.getppid()}.partial",
        f".state.json.{dead_pid()}@elsewhere.partial",
        ".state.json.partial",
    ]
    for name in kept:
        (tmp_path / name).write_bytes(b"")
    (tmp_path / f".state.json.{dead_pid()}@{os.uname().nodename}.partial").write_bytes(b"half")
    replace_file(tmp_path / "state.json", b"whole")
    assert {path.name for path in tmp_path.iterdir()} == {"state.json", *kept}
    assert (tmp_path / "state.json").read_bytes() == b"whole"


def test_killed_writer_leaves_one_temporary_file(tmp_path: Path) -> None:
    program = f"""
import os, pathlib, signal
from slo_ctl.base import files
os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
files.replace_file(pathlib.Path({str(tmp_path / "state.json")!r}), b"half")
"""
    for _ in range(3):
        assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -9
        assert len(list(tmp_path.iterdir())) == 1  # only the temporary file of the last writer
    replace_file(tmp_path / "state.json", b"whole")
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


def test_directories_and_links_are_removed_too(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").touch()
    folder = tmp_path / "devices"
    folder.mkdir()
    half_made = folder / f".ssd0.{dead_pid()}.partial"
    half_made.mkdir()
    (half_made / "a.img").touch()
    (folder / f".ssd1.{dead_pid()}.partial").symlink_to(elsewhere)
    (folder / ".ssd2.99999999999.partial").mkdir()
    remove_leftovers(folder)
    assert [path.name for path in folder.iterdir()] == [".ssd2.99999999999.partial"]
    assert (elsewhere / "kept").exists()


def test_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "state.json").write_bytes(b"old")

    def fail(_descriptor: int) -> None:
        raise OSError("no space")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space"):
        replace_file(tmp_path / "state.json", b"new")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"state.json": b"old"}
