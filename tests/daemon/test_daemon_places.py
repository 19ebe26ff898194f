"""Where the daemon's files are."""

from __future__ import annotations

from pathlib import Path

import pytest

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
        "/var/lib/slo-ctl/promises.json",
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
