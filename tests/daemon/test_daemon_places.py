"""Locations of the daemon's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from slo_ctl.cli.vm_host import VmHost
from slo_ctl.daemon.files import DaemonPlaces


def test_all_paths_are_in_the_given_root() -> None:
    places = DaemonPlaces(Path("/tmp/x"))  # noqa: S108 - a name only
    assert places.config == places.state == Path("/tmp/x")  # noqa: S108
    assert str(places.api_socket) == "/tmp/x/run/api.sock"  # noqa: S108
    assert str(places.lock) == "/tmp/x/run/daemon.lock"  # noqa: S108
    assert places.devices.devices == places.state / "devices"


def test_paths_without_a_root_are_those_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    places = DaemonPlaces()
    paths = [places.config, places.slos, places.journal, places.history, places.api_socket]
    assert [str(each) for each in paths] == [
        "/etc/slo-ctl",
        "/var/lib/slo-ctl/slos.json",
        "/var/lib/slo-ctl/journal.json",
        "/var/lib/slo-ctl/history.db",
        "/run/slo-ctl/api.sock",
    ]
    assert DaemonPlaces(config=Path("/srv/c")).config == Path("/srv/c")


def test_paths_of_a_user_without_a_session(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    places = DaemonPlaces()
    assert places.config == tmp_path / ".config/slo-ctl"
    assert places.run == tmp_path / ".local/state/slo-ctl/run"


def test_paths_of_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user that is not in passwd, without HOME, could not even query the system's daemon."""

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr("os.geteuid", lambda: 12345)
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    assert str(DaemonPlaces().run) == "/nonexistent/.local/state/slo-ctl/run"
    monkeypatch.setattr(Path, "is_dir", lambda path: str(path) == "/run/slo-ctl")
    assert str(DaemonPlaces.in_use().api_socket) == "/run/slo-ctl/api.sock"


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The directory for all files of a non-root user, on a host with a system daemon."""
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr(Path, "is_dir", lambda path: str(path) == "/run/slo-ctl")
    return tmp_path / "slo-ctl"


def test_commands_of_a_user_without_a_daemon_read_the_files_of_the_systems_daemon(user: Path) -> None:
    places = DaemonPlaces.in_use()
    assert str(places.api_socket) == "/run/slo-ctl/api.sock"
    assert (str(places.config), str(places.slos)) == ("/etc/slo-ctl", "/var/lib/slo-ctl/slos.json")
    assert str(places.devices.run) == "/run/slo-ctl/devices"
    assert DaemonPlaces().config == user


@pytest.mark.parametrize("is_running", [True, False])
def test_commands_of_a_user_with_a_configuration_read_it_unless_the_systems_daemon_runs(
    user: Path, monkeypatch: pytest.MonkeyPatch, is_running: bool
) -> None:
    """`plan` and `apply` read the user's configuration, `vm set` and `vm list` that of the system."""
    user.mkdir()
    monkeypatch.setattr("os.access", lambda path, _mode: is_running and str(path) == "/run/slo-ctl/api.sock")
    assert (DaemonPlaces.in_use() == DaemonPlaces()) is not is_running


def test_commands_of_a_user_with_a_daemon_read_its_files(user: Path) -> None:
    user.mkdir()
    (user / "api.sock").touch()
    assert DaemonPlaces.in_use() == DaemonPlaces()


def test_disks_on_emulated_drives_are_looked_for_where_drives_are_served(
    user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (user / "api.sock").parent.mkdir()
    (user / "api.sock").touch()
    asked: list[Path] = []
    monkeypatch.setattr("slo_ctl.observe.streams.read_inventory", lambda *_, run, **__: asked.append(run))
    assert VmHost(None, use_libvirt=False).inventory is None
    assert asked == [user / "devices"]
