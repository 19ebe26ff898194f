"""`slo-ctl device serve` under systemd: it uses sockets that its parent opened, and notifies systemd."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from nbd_client import NbdClient
from serving import READY_S, make_device, served

from slo_ctl.drives.control import ControlClient
from slo_ctl.drives.places import RunPlaces, places

# LISTEN_PID must be the PID of the server, so this process sets it and then becomes the server.
ACTIVATE = """
import fcntl, os, sys
sources = [int(word) for word in sys.argv[1].split(",")]
high = [fcntl.fcntl(source, fcntl.F_DUPFD_CLOEXEC, 100) for source in sources]
for number, source in enumerate(high):
    os.dup2(source, 3 + number, inheritable=True)
os.environ.update(LISTEN_FDS=str(len(sources)), LISTEN_PID=str(os.getpid()), LISTEN_FDNAMES=sys.argv[2])
os.execv(sys.executable, [sys.executable, "-m", "slo_ctl.cli", "device", "serve", *sys.argv[3:]])
"""


@contextmanager
def activated(root: Path, paths: list[Path]) -> Iterator[tuple[subprocess.Popen[str], list[socket.socket]]]:
    opened = []
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listening.bind(str(path))
        listening.listen()
        listening.setblocking(False)
        opened.append(listening)
    descriptors = [each.fileno() for each in opened]
    words = (",".join(map(str, descriptors)), ":".join(path.stem for path in paths))
    process = subprocess.Popen(
        [sys.executable, "-c", ACTIVATE, *words, "d", "--root", str(root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        pass_fds=descriptors,
    )
    try:
        yield process, opened
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=READY_S)
        for each in opened:
            each.close()


def run_places(root: Path) -> RunPlaces:
    make_device(root, "name=d,size=64MiB,op=30%,dies=2", "name=a,size=32MiB", "name=b")
    return places(root).run_of("d")


def test_activated_sockets_are_used_and_kept(root: Path) -> None:
    run = run_places(root)
    # The server itself creates the socket of b and the common socket.
    with activated(root, [run.control, run.export("a")]) as (process, opened):
        # A client that connects before the server is up waits for it.
        with NbdClient(run.export("a"), "a") as client:
            client.write(0, b"by activation")
            assert client.read(0, 13) == b"by activation"
        assert process.stdout is not None
        while process.stdout.readline().strip() != "ready":
            assert process.poll() is None
        with NbdClient(run.export("b"), "b") as client, ControlClient(run.control) as control:
            assert client.read(0, 4) == bytes(4)
            assert control.hello()["namespaces"] == ["a", "b"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(READY_S) == 0
        assert run.export("a").is_socket()
        assert run.control.is_socket()
        assert not run.export("b").exists()
        assert all(each.fileno() >= 0 for each in opened)


def test_unrelated_activated_socket_is_refused(root: Path) -> None:
    run = run_places(root)
    with activated(root, [run.export("c")]) as (process, _):
        _, errors = process.communicate(timeout=READY_S)
        assert process.returncode == 2
        assert "not a socket of this device" in errors


def test_variables_meant_for_another_process_are_left_alone(root: Path) -> None:
    run_places(root)
    environment = os.environ | {"LISTEN_FDS": "1", "LISTEN_PID": "1"}
    command = [sys.executable, "-m", "slo_ctl.cli", "device", "serve", "d", "--root", str(root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        while process.stdout.readline().strip() != "ready":
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(READY_S) == 0


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
