"""Two daemons at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slo_ctl.base.errors import UserError
from slo_ctl.daemon.files import only_daemon


def test_second_daemon_error_names_pid(tmp_path: Path) -> None:
    path = tmp_path / "run" / "daemon.lock"
    with (
        only_daemon(path),
        pytest.raises(UserError, match=rf"already running \(PID {os.getpid()}\)"),
        only_daemon(path),
    ):
        pass
    with only_daemon(path):
        assert path.read_text().strip() == str(os.getpid())


def test_a_lock_of_a_dead_daemon_is_free(tmp_path: Path) -> None:
    path = tmp_path / "daemon.lock"
    path.write_text("12345678901234567890\n")
    with only_daemon(path):
        assert path.read_text() == f"{os.getpid()}\n"


def test_unusable_lock_path_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="--root"), only_daemon(tmp_path / "file" / "daemon.lock"):
        pass
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(UserError, match="fifo is not a regular file"), only_daemon(tmp_path / "fifo"):
        pass
    (tmp_path / "link").symlink_to("/nonexistent")
    with pytest.raises(UserError), only_daemon(tmp_path / "link"):
        pass
