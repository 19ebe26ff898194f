"""Commands with a directory that cannot be written: the hint names the actual cause."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tmpfs_mount import tmpfs

from slo_ctl.base.files import hint_for
from slo_ctl.cli import app

DEVICE = ("--size", "128MiB", "--op", "25%", "--namespace", "name=web")
COMMANDS = [
    ["daemon", "--once"],
    ["apply"],
    ["vm", "set", "web", "weight=3", "--force"],
    ["device", "create", "ssd0", *DEVICE],
    ["device", "profile", "/srv/missing"],
    ["device", "write-size", "/srv/missing"],
]


def make_read_only(root: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", root], check=True)


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    with tmpfs(tmp_path / "root") as root:
        (root / "slo-ctl.toml").write_text('[libvirt]\nuri = "none"\n')
        make_read_only(root)
        yield root


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_read_only_directory_is_named_as_the_cause_also_to_root(
    read_only: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The hint was to run as root."""
    assert app.run([*command, "--root", str(read_only)]) == 2
    error, hint = capsys.readouterr().err.splitlines()[-2:]
    assert str(read_only) in error
    assert error.endswith("Read-only file system")
    assert hint == "hint: mount that file system for writing, or use another directory with --root DIR"


def test_devices_in_a_read_only_directory_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether they are served was asked with a lock for writing."""
    with tmpfs(tmp_path / "root") as root:
        assert app.run(["device", "create", "ssd0", *DEVICE, "--root", str(root)]) == 0
        make_read_only(root)
        capsys.readouterr()
        for command in (["device", "list"], ["device", "show", "ssd0"]):
            assert app.run([*command, "--root", str(root)]) == 0
            out, err = capsys.readouterr()
            assert "ssd0" in out
            assert not err


@pytest.mark.parametrize("user", [0, 1000])
@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM])
def test_root_gets_no_hint_to_run_as_root(monkeypatch: pytest.MonkeyPatch, number: int, user: int) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    hint = hint_for(OSError(number, os.strerror(number)), "run as root")
    assert ("run as root" in hint) is (user != 0)


def test_a_file_in_the_place_of_a_directory_is_named_as_the_cause(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    root = str(tmp_path / "file" / "root")
    assert app.run(["device", "create", "ssd0", *DEVICE, "--root", root]) == 2
    assert "a file is in the place of one of its directories" in capsys.readouterr().err
