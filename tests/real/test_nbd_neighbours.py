"""An NBD client that dies, violates the protocol or opens many connections does not slow down the others."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from floods import Way, over_nbd
from floods import nbd_request as request
from nbd_client import READ, TRIM, WRITE, NbdClient
from serving import READY_S, MemoryPeak, Server, make_device, require, served
from waiting import until

MIB = 1 << 20
GIB = 1 << 30
SIZE = 2 * GIB


@pytest.fixture(scope="module", params=["none", "real"])
def large_drive(request: pytest.FixtureRequest) -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="slo-") as folder:
        root = Path(folder)
        make_device(root, "name=d,size=4GiB,op=10%,dies=8", f"name=a,size={SIZE}", "name=b,size=256MiB")
        with served(root, "d", "--latency", request.param) as server:
            yield server
            assert server.stop() == 0


@pytest.fixture
def server(large_drive: Server) -> Iterator[Server]:
    """The server must work as before when the test is over."""
    first = large_drive.pid()
    yield large_drive
    assert large_drive.pid() == first, large_drive.log()
    with NbdClient(large_drive.run.export("b"), "b") as other:
        other.read(0, 4096)
        large_drive.statistics()


def test_client_that_dies_with_replies_outstanding_affects_no_other(server: Server) -> None:
    with NbdClient(server.run.export("a"), "a") as client:
        client.write(0, b"x" * 16 * MIB)
    for round_ in range(20):
        with NbdClient(server.run.export("a"), "a") as client:
            for number in range(32):
                client.socket.sendall(request(READ, number * (256 << 10), 256 << 10))
            client._receive(16 + round_ * 1000)


@pytest.mark.parametrize("harm", ["oversized", "half", "noise"])
def test_client_that_sends_garbage_with_replies_outstanding_affects_no_other(
    server: Server, harm: str
) -> None:
    for _ in range(3):
        with NbdClient(server.run.export("a"), "a") as client:
            for number in range(32):
                client.socket.sendall(request(READ, number * (256 << 10), 256 << 10))
            if harm == "oversized":
                client.socket.sendall(request(WRITE, 0, 1 << 31))
            elif harm == "half":
                client.socket.sendall(request(WRITE, 0, MIB) + b"x" * 1000)
                client.socket.shutdown(socket.SHUT_WR)
            else:
                client.socket.sendall(b"\xff" * 28)
            client._receive(16)
            time.sleep(0.1)


def test_requests_of_one_connection_run_in_parallel(server: Server) -> None:
    with NbdClient(server.run.export("a"), "a") as client:
        client.socket.sendall(request(TRIM, 0, SIZE) + request(READ, 4096, 4096))
        assert struct.unpack(">IIQ", client._receive(16))[1:] == (0, 4096)
        client._receive(4096)
        assert struct.unpack(">IIQ", client._receive(16))[1:] == (0, 0)


def test_largest_requests_use_bounded_memory_and_release_it(server: Server) -> None:
    start = server.resident_bytes()
    way = Way("a", str(server.run.export("a")), SIZE)
    with MemoryPeak(server) as peak:
        for kind in ("write", "read"):
            over_nbd(way, kind, 512 * MIB, 32 * MIB)
    assert peak.most_bytes - start < 400 * MIB
    until(lambda: server.resident_bytes() - start < 100 * MIB, "memory is restored")


def admitted(server: Server) -> bool:
    try:
        NbdClient(server.run.export("a"), "a").close()
    except (ConnectionError, BlockingIOError):  # BlockingIOError: the backlog of the socket is full as well
        return False
    return True


def is_another(server: Server, before: int) -> bool:
    return server.run.pid_file.exists() and server.run.pid_file.read_text().strip() not in ("", str(before))


def test_connections_of_one_client_do_not_lock_out_others(server: Server) -> None:
    crowd: list[socket.socket] = []
    logged = len(server.log())
    try:
        for _ in range(400):
            crowd.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            crowd[-1].connect(str(server.run.export("a")))
        assert not admitted(server)
    finally:
        for each in crowd:
            each.close()
    until(lambda: admitted(server), "connections are restored")
    assert len(server.log()) - logged < 10_000


def test_connections_to_one_namespace_do_not_lock_out_another(server: Server) -> None:
    code = (
        "import socket, sys, time\n"
        "crowd = [socket.socket(socket.AF_UNIX) for _ in range(300)]\n"
        "for each in crowd: each.connect(sys.argv[1])\n"
        "print('there', flush=True); time.sleep(600)"
    )
    command = ["python3", "-c", code, str(server.run.export("a"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as crowd:
        assert crowd.stdout is not None
        assert crowd.stdout.readline() == "there\n"
        with NbdClient(server.run.export("b"), "b") as other:
            other.read(0, 4096)
        crowd.kill()


def holds(image: Path, begins: bytes) -> bool:
    with image.open("rb") as file:
        return file.read(len(begins)) == begins


def test_killed_server_is_restarted_for_clients_that_reconnect(root: Path) -> None:
    require("qemu-io")
    make_device(root, "name=d,size=64MiB,op=20%,dies=2")
    with served(root, "d") as server:
        image = (
            f"driver=nbd,server.type=unix,server.path={server.run.export('d')},export=d,reconnect-delay=60"
        )
        with subprocess.Popen(
            ["qemu-io", "--image-opts", image],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as guest:
            assert guest.stdin is not None
            guest.stdin.write("write -P 7 0 64k\nflush\nread -P 7 0 64k\n")
            guest.stdin.flush()
            until(lambda: holds(root / "devices/d/d.img", b"\x07" * 4), "the guest writes")
            for _ in range(2):
                before = server.pid()
                os.kill(before, signal.SIGKILL)
                until(partial(is_another, server, before), "the server is restarted")
                guest.stdin.write("read -P 7 0 64k\nwrite -P 7 64k 64k\nflush\n")
                guest.stdin.flush()
            output, _ = guest.communicate("read -P 7 0 128k\n", timeout=READY_S)
        assert "rror" not in output
        assert "failed" not in output
        until(lambda: "restarting it" in server.log(), "a line about it")
        assert server.stop() == 0
