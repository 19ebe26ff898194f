"""Two daemons at once."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from slo_ctl.base.errors import UserError
from slo_ctl.daemon.files import DeviceClaims, only_daemon
from slo_ctl.model.host import DeviceNumber


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


def test_full_disk_does_not_prevent_that_settings_are_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    path = tmp_path / "daemon.lock"
    with only_daemon(path), pytest.raises(UserError, match="PID unknown"), only_daemon(path):
        pass


def test_unusable_lock_path_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="--root"), only_daemon(tmp_path / "file" / "daemon.lock"):
        pass
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(UserError, match="exists and is not a regular file"), only_daemon(tmp_path / "fifo"):
        pass
    (tmp_path / "link").symlink_to("/nonexistent")
    with pytest.raises(UserError), only_daemon(tmp_path / "link"):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root refuses the directories of others")
def test_root_refuses_a_directory_that_others_can_change(tmp_path: Path) -> None:
    folder = tmp_path / "slo"
    folder.mkdir(mode=0o755)
    os.chown(folder, 65534, -1)
    with (
        pytest.raises(UserError, match=f"{folder} belongs to user nobody"),
        only_daemon(folder / "run" / "lock"),
    ):
        pass
    assert not (folder / "run").exists()
    os.chown(folder, 0, -1)
    folder.chmod(0o777)
    with pytest.raises(UserError, match=f"{folder} is writable by every user"), only_daemon(folder / "lock"):
        pass
    folder.chmod(0o1777)
    with only_daemon(folder / "run" / "lock"):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root refuses the directories of others")
def test_root_accepts_a_directory_of_the_user_who_called_sudo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.chown(tmp_path, 65534, -1)
    monkeypatch.setenv("SUDO_UID", "65534")
    with only_daemon(tmp_path / "lock"):
        pass


def test_a_device_is_claimed_by_one_daemon_until_it_releases_it(tmp_path: Path) -> None:
    first, second = DeviceClaims(tmp_path / "run"), DeviceClaims(tmp_path / "run")
    disk, other = DeviceNumber(7, 0), DeviceNumber(7, 1)
    assert [first.take(disk), first.take(disk), second.take(other)] == ["", "", ""]
    assert second.take(disk) == f"PID {os.getpid()}"
    first.keep([disk])
    assert second.take(disk)
    first.keep([])
    assert not second.take(disk)
    second.keep([])


def test_looking_at_a_claim_does_not_take_it(tmp_path: Path) -> None:
    owner, viewer = DeviceClaims(tmp_path / "run"), DeviceClaims(tmp_path / "run")
    disk = DeviceNumber(7, 0)
    assert viewer.holder(disk) == ""
    assert not (tmp_path / "run").exists()
    assert owner.take(disk) == ""
    assert viewer.holder(disk) == f"PID {os.getpid()}"
    owner.keep([])
    assert viewer.holder(disk) == ""
    assert owner.take(disk) == ""
    owner.keep([])


def test_a_lock_whose_file_was_removed_is_taken_again(tmp_path: Path) -> None:
    """A second daemon could start while the first one ran, with the same journal."""
    path = tmp_path / "run" / "daemon.lock"
    with only_daemon(path) as lock:
        assert lock.restore() == ""
        shutil.rmtree(path.parent)
        assert lock.restore() == ""
        with pytest.raises(UserError, match="daemon already running"), only_daemon(path):
            pass
        path.unlink()
        with only_daemon(path):  # the other daemon was faster
            assert lock.restore() == f"PID {os.getpid()}"
        assert lock.restore() == ""


def test_a_claim_whose_file_was_removed_is_taken_again(tmp_path: Path) -> None:
    first, second = DeviceClaims(tmp_path / "run"), DeviceClaims(tmp_path / "run")
    disk = DeviceNumber(7, 0)
    assert first.take(disk) == ""
    shutil.rmtree(tmp_path / "run")
    assert first.take(disk) == ""
    assert second.take(disk) == f"PID {os.getpid()}"
    first.keep([])


def test_a_daemon_that_cannot_write_locks_claims_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    claims = DeviceClaims(tmp_path / "file" / "run")
    assert not claims.take(DeviceNumber(7, 0))
    claims.keep([])
