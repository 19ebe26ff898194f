"""Notifications to systemd, on a real socket."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from slo_ctl.daemon import service


def test_names_of_vms_in_any_script_do_not_keep_the_watchdog_unfed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        service.notifier()("WATCHDOG=1\nSTATUS=веб-1 \udcff")
        assert systemd.recv(4096) == rb"WATCHDOG=1" + b"\n" + rb"STATUS=\u0432\u0435\u0431-1 \udcff"
