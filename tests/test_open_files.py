"""Kernel files that stay open between reads."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slo_ctl.base.kernel_files import OpenFiles, is_readable


def text_of(files: OpenFiles, path: Path) -> str | None:
    found = files.read(str(path))
    return None if found is None else found.text


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as started:
        yield started


def test_kernel_file_stays_open_until_it_is_gone(process: subprocess.Popen[bytes]) -> None:
    files, path = OpenFiles(), Path(f"/proc/{process.pid}/oom_score_adj")
    for value in ("800\n", "900\n", "1000\n"):
        path.write_text(value)
        assert text_of(files, path) == value
        assert len(files) == 1
    process.kill()
    process.wait()
    assert text_of(files, path) is None
    assert len(files) == 0


def test_ordinary_file_that_is_replaced_is_opened_again(tmp_path: Path) -> None:
    files, path = OpenFiles(), tmp_path / "io.stat"
    path.write_text("old")
    assert text_of(files, path) == "old"
    path.unlink()
    assert text_of(files, path) is None
    path.write_text("new")
    assert text_of(files, path) == "new"
    assert len(files) == 0


def test_no_more_files_stay_open_than_allowed() -> None:
    files, paths = OpenFiles(most=1), [Path("/proc/version"), Path("/proc/filesystems")]
    for _ in range(2):
        assert [text_of(files, path) for path in paths] == [path.read_text() for path in paths]
        assert len(files) == 1
    files.close(str(paths[0]))
    assert text_of(files, paths[1]) == paths[1].read_text()
    assert len(files) == 1


@pytest.mark.parametrize("number", [None, 1500])
def test_pipe_is_waited_for_whatever_its_number(number: int | None) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    reader, writer = os.pipe()
    if number is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, number + 1), hard))
        os.dup2(reader, number)
        os.close(reader)
        reader = number
    try:
        assert not is_readable(reader, 0.01)
        os.write(writer, b"x")
        assert is_readable(reader, 10.0)
        os.read(reader, 1)
    finally:
        os.close(writer)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert is_readable(reader, 10.0)  # the child has exited
    os.close(reader)
