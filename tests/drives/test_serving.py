"""Serving a device: its sockets, where NVMe hosts may connect, and the reaction to SIGTERM."""

from __future__ import annotations

import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from slo_ctl.base.errors import UserError
from slo_ctl.drives.listening import NvmeTcp, plan_nvme_tcp
from slo_ctl.host.sockets import is_listening, listen

_HOST = "nqn.2026-11.org.example:a"


@pytest.mark.parametrize(
    ("endpoint", "address", "port"),
    [
        ("127.0.0.1:4421", "127.0.0.1", 4421),
        ("127.0.0.1", "127.0.0.1", 4420),
        ("[::1]:0", "::1", 0),
        ("[::1]", "::1", 4420),
        ("::1", "::1", 4420),
    ],
)
def test_endpoints_are_parsed(endpoint: str, address: str, port: int) -> None:
    discovery = 8009 if port else None
    assert plan_nvme_tcp(endpoint, []) == NvmeTcp(address, port, discovery_port=discovery)


@pytest.mark.parametrize(
    ("endpoint", "text", "port"),
    [
        ("127.0.0.1:4420", "8010", 8010),
        ("127.0.0.1:4420", "none", None),
        ("127.0.0.1:8009", None, None),
        ("127.0.0.1:0", "0", 0),
    ],
)
def test_discovery_port_is_parsed(endpoint: str, text: str | None, port: int | None) -> None:
    assert plan_nvme_tcp(endpoint, [], (), text).discovery_port == port


@pytest.mark.parametrize("text", ["here", "65536", "-1", ""])
def test_invalid_discovery_port_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=f"--nvme-discovery: {text} is not a port"):
        plan_nvme_tcp("127.0.0.1", [], (), text)


@pytest.mark.parametrize(
    ("endpoint", "hosts", "message"),
    [
        ("localhost:4420", (), "localhost:4420 is not an address"),
        ("127.0.0.1:http", (), "http is not a port"),
        ("127.0.0.1:65536", (), "65536 is not a port"),
        ("0.0.0.0:4420", (), "but none is allowed"),
        ("192.0.2.1:4420", ("host1",), "host1 is not an NQN"),
        ("127.0.0.1:4420", (f"nqn.{'x' * 220}",), "is not an NQN"),
    ],
)
def test_bad_endpoints_are_refused(endpoint: str, hosts: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        plan_nvme_tcp(endpoint, hosts)


def test_hosts_open_an_address_to_other_machines() -> None:
    assert plan_nvme_tcp("0.0.0.0:4420", [_HOST]) == NvmeTcp("0.0.0.0", 4420, (_HOST,), (), 8009)  # noqa: S104


_ROUNDS = 300
"""With an Event in the handler one in fifty hung."""
_TIMEOUT_S = 300
_PROGRAM = f"""
import os, signal, threading
from slo_ctl.base.termination import stop_requests

for _ in range({_ROUNDS}):
    with stop_requests() as request:
        sender = threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGTERM))
        sender.start()
        while not request.made:
            request.wait(0.00001)
        sender.join()
"""


def test_a_signal_that_interrupts_the_wait_for_it_does_not_hang_the_server() -> None:
    subprocess.run([sys.executable, "-c", _PROGRAM], check=True, timeout=_TIMEOUT_S)


def test_a_socket_is_reported_once_it_has_its_mode_and_accepts_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`device add` printed a socket while its group could not write to it yet."""
    path = tmp_path / "b"
    seen: list[tuple[bool, int]] = []

    def note(opened: socket.socket, backlog: int) -> None:
        seen.append((is_listening(path), stat.S_IMODE(path.stat().st_mode)))
        start_listening(opened, backlog)

    start_listening = socket.socket.listen
    monkeypatch.setattr(socket.socket, "listen", note)
    assert not is_listening(path)
    with listen(path, 0o660, None), socket.socket(socket.AF_UNIX) as client:
        assert seen == [(False, 0o200)]
        assert is_listening(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        client.connect(str(path))
