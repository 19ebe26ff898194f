"""`slo-ctl device serve` under systemd, which it notifies."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from serving import READY_S, make_device, served


def test_ready_is_notified_once_clients_can_connect(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_device(root, "name=d,preset=fast15,size=64MiB,op=50%")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(root / "notify"))
        listener.settimeout(READY_S)
        monkeypatch.setenv("NOTIFY_SOCKET", str(root / "notify"))
        with served(root, "d") as server:
            assert listener.recv(4096) == b"READY=1"
            assert server.run.export(server.name).is_socket()
        assert listener.recv(4096) == b"STOPPING=1"
