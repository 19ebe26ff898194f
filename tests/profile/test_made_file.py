"""The file that is created for measuring, and files that killed profiles left behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slo_ctl.base.errors import UserError
from slo_ctl.profile.target import MADE_FILE, MeasuredFile, remove_stale


def test_only_unlocked_leftovers_are_removed(tmp_path: Path) -> None:
    ours = MeasuredFile(tmp_path / f"{MADE_FILE}.{os.getpid()}", 1 << 20)
    left = tmp_path / f"{MADE_FILE}.77"
    left.write_bytes(b"x")
    somebodys = tmp_path / "somebodys"
    somebodys.write_text("data")
    (tmp_path / f"{MADE_FILE}.5").symlink_to(somebodys)
    (tmp_path / f"{MADE_FILE}.notes").write_text("data")
    os.mkfifo(tmp_path / f"{MADE_FILE}.pipe")
    assert remove_stale(tmp_path) == [left]
    assert ours.path.exists()
    assert somebodys.read_text() == "data"
    ours.remove()
    assert not ours.path.exists()
    assert not left.exists()
    assert (tmp_path / f"{MADE_FILE}.notes").exists()


def test_file_of_a_dead_process_is_removed(tmp_path: Path) -> None:
    child = os.fork()
    if not child:
        MeasuredFile(tmp_path / f"{MADE_FILE}.1", 4096)
        os._exit(0)
    os.waitpid(child, 0)
    assert (tmp_path / f"{MADE_FILE}.1").exists()
    assert len(remove_stale(tmp_path)) == 1


def test_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "there"
    path.write_text("data")
    with pytest.raises(UserError, match="File exists"):
        MeasuredFile(path, 4096)
    assert path.read_text() == "data"
