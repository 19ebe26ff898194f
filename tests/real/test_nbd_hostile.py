"""Malicious clients get errors, other clients keep their data, and the server stays up."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nbd_client import OPT_GO, OPTION_MAGIC, READ, REQUEST_MAGIC, WRITE, ZERO, NbdClient, NbdError
from serving import READY_S, Server, make_device, served
from waiting import until

from slo_ctl.drives.control import ControlClient, ControlError

SIZE = 32 << 20


@pytest.fixture(params=["none", "real"])
def server(root: Path, request: pytest.FixtureRequest) -> Iterator[Server]:
    make_device(root, "name=d,size=64MiB,op=40%,dies=2", "name=a,size=32MiB", "name=b")
    with served(root, "d", "--latency", request.param) as server:
        with NbdClient(server.run.export("b"), "b") as other:
            other.write(0, b"b" * 4096)
        yield server
        assert server.process.poll() is None
        with NbdClient(server.run.export("b"), "b") as other:
            assert other.read(0, 8192) == b"b" * 4096 + bytes(4096)
        server.statistics()
        assert server.stop() == 0


def test_requests_beyond_the_end_are_refused(server: Server) -> None:
    with NbdClient(server.run.export("a"), "a") as client:
        for offset, length in (
            (SIZE, 1),
            (SIZE - 1, 2),
            (1 << 62, 4096),
            ((1 << 64) - 1, 4096),
            ((1 << 64) - 4096, 4096),
        ):
            for attempt in (client.read, client.trim, client.zero):
                with pytest.raises(NbdError):
                    attempt(offset, length)
        with pytest.raises(NbdError):
            client.write(SIZE - 1, b"xy")
        assert client.read(SIZE - 1, 1) == b"\0"


@pytest.mark.parametrize("seed", range(3))
def test_noise_ends_only_its_own_connection(server: Server, seed: int) -> None:
    generator = random.Random(seed)  # noqa: S311 - no secret
    for _ in range(15):
        with NbdClient(server.run.export("a"), "a") as client:
            kind = generator.choice([READ, WRITE, ZERO, 9, 0xFFFF])
            offset, length = generator.getrandbits(64), generator.getrandbits(32)
            head = struct.pack(">IHHQQI", REQUEST_MAGIC, generator.getrandbits(16), kind, 1, offset, length)
            client.socket.sendall(head + generator.randbytes(generator.randrange(100)))
    for _ in range(15):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as raw:
            raw.connect(str(server.run.export("a")))
            option = OPTION_MAGIC + struct.pack(
                ">II", generator.choice([OPT_GO, 1, 99]), generator.getrandbits(20)
            )
            raw.sendall(struct.pack(">I", 3) + option + generator.randbytes(generator.randrange(200)))


def test_aborted_write_does_not_affect_others(server: Server) -> None:
    for length in (4096, 1 << 20):
        with NbdClient(server.run.export("a"), "a") as client:
            client.socket.sendall(struct.pack(">IHHQQI", REQUEST_MAGIC, 0, WRITE, 1, 0, length) + b"x" * 100)
    with NbdClient(server.run.export("a"), "a") as client:
        assert client.read(0, 4096) == bytes(4096)


HOSTILE_LINES = [
    b"",
    b"{}",
    b"[]",
    b"null",
    b"\x00\xff\xfe",
    b'{"v":1}',
    b'{"v":1,"op":null}',
    b'{"v":99,"op":"stats"}',
    b'{"v":1,"op":"stats","op":"stats"}',
    b'{"v":1,"op":"move","from":"a","to":"../b","blocks":1}',
    b'{"v":1,"op":"move","from":"a","to":"b","blocks":18446744073709551615}',
    b'{"v":1,"op":"move","from":null,"to":null,"blocks":99999999}',
    b'{"v":1,"op":"set_scheduler","scheduler":"cfq"}',
    b'{"v":1,"op":"set_scheduler","scheduler":7}',
    b'{"v":1,"op":"set_weight","namespace":"a","weight":0}',
    b'{"v":1,"op":"set_weight","namespace":"a","weight":-1}',
    b'{"v":1,"op":"set_weight","namespace":"a","weight":1e999}',
    b'{"v":1,"op":"set_limit","namespace":"a","iops":-3}',
    b'{"v":1,"op":"set_limit","namespace":"a","bytes_s":0}',
    b'{"v":1,"op":"resize","namespace":"a","size_bytes":0}',
    b'{"v":1,"op":"resize","namespace":"a","size_bytes":4095}',
    b'{"v":1,"op":"resize","namespace":"a","size_bytes":18446744073709547520}',
    b'{"v":1,"op":"resize","namespace":"a","size_bytes":1099511627776}',
    b'{"v":1,"op":"read","namespace":"b","offset":0,"length":4096}',
    b"[" * 10000 + b"]" * 10000,
]


def test_hostile_commands_get_errors(server: Server) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as raw:
        raw.settimeout(READY_S)
        raw.connect(str(server.run.control))
        replies = raw.makefile("rb")
        for line in HOSTILE_LINES:
            raw.sendall(line + b"\n")
            if not line:
                continue
            reply = json.loads(replies.readline())
            assert reply["v"] == 1
            if line != b'{"v":1,"op":"stats","op":"stats"}':
                assert reply["ok"] is False, line
                assert reply["error"]["code"] in ("malformed", "version", "refused"), reply
    with NbdClient(server.run.export("a"), "a") as client:
        assert client.size == SIZE


def test_endless_lines_and_noise_on_the_control_socket_are_refused(server: Server) -> None:
    generator = random.Random(3)  # noqa: S311 - no secret
    for _ in range(10):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as raw:
            raw.settimeout(READY_S)
            raw.connect(str(server.run.control))
            raw.sendall(generator.randbytes(generator.randrange(2000)))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as raw:
        raw.settimeout(READY_S)
        raw.connect(str(server.run.control))
        with contextlib.suppress(BrokenPipeError):  # the server may have closed the connection
            raw.sendall(b"x" * (1 << 20))
        assert b"too_long" in raw.recv(4096)


def crowd(server: Server, clients: list[ControlClient]) -> None:
    for _ in range(64):
        clients.append(ControlClient(server.run.control, timeout_s=READY_S))
        clients[-1].hello()


def answers(server: Server) -> bool:
    try:
        with server.control() as control:
            control.hello()
    except ControlError:
        return False
    return True


def test_connections_above_the_limit_are_refused_until_some_close(server: Server) -> None:
    clients: list[ControlClient] = []
    with pytest.raises(ControlError) as refused:
        crowd(server, clients)
    assert refused.value.code in ("busy", "unreachable", "late")
    for client in clients:
        client.close()
    until(lambda: answers(server), "a connection is restored")


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_other_users_who_may_connect_may_only_read(root: Path) -> None:
    make_device(root, "name=d,size=32MiB,dies=2")
    root.chmod(0o755)
    with served(root, "d", "--latency", "real") as server:
        server.run.control.chmod(0o666)

        def as_another_user(**command: object) -> dict[str, Any]:
            line = json.dumps({"v": 1, **command}) + "\n"
            client = (
                "import socket; s = socket.socket(socket.AF_UNIX); "
                f"s.connect({str(server.run.control)!r}); s.send({line.encode()!r}); "
                "print(s.makefile().readline())"
            )
            words = ["/usr/bin/python3", "-c", client]
            reply: dict[str, Any] = json.loads(subprocess.check_output(words, user=65534, timeout=READY_S))
            return reply

        assert all(as_another_user(op=op)["ok"] for op in ("hello", "stats", "settings"))
        for command in (
            {"op": "delete_namespace", "namespace": "d"},
            {"op": "resize", "namespace": "d", "size_bytes": 4096},
            {"op": "set_limit", "namespace": "d", "iops": 1},
            {"op": "checkpoint"},
            {"op": "recording_start"},
        ):
            assert "only root and the owner" in as_another_user(**command)["error"]["message"]


@pytest.mark.skipif(os.geteuid() != 0, reason="a user serves VMs of their own")
@pytest.mark.parametrize("umask", ["000", "077"])
def test_all_users_may_enter_the_folders_of_sockets_and_none_change_them(root: Path, umask: str) -> None:
    make_device(root, "name=d,size=32MiB,dies=2")
    before = ("sh", "-c", f'umask {umask}; exec "$0" "$@"')
    with served(root, "d", "--vhost-user", before=before) as server:
        run = server.run
        folders = (run.folder.parent, run.folder, run.exports, run.vhost_user)
        assert [oct(folder.stat().st_mode & 0o777) for folder in folders] == ["0o755"] * 4
        assert not run.pid_file.stat().st_mode & 0o002
