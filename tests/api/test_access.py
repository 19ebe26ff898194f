"""`[access]`: permissions of users and groups at the daemon's socket. Real users, from peer credentials."""

from __future__ import annotations

import grp
import json
import logging
import os
import pwd
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from test_api_server import FakeController

from slo_ctl.api.client import ApiClient
from slo_ctl.api.server import MAX_CONNECTIONS, ApiServer
from slo_ctl.base.accounts import Peer, is_entry, peer_of, why_unknown
from slo_ctl.config.settings import AccessConfig, Right
from slo_ctl.host.bounded_server import IDLE_S
from slo_ctl.model.slo import SloUpdate
from slo_ctl.model.status import VmSlo

NOBODY = pwd.getpwnam("nobody")
DAEMON = grp.getgrnam("daemon")
READ, SET_SLOS, MANAGE = ("GET", "/v1/vms"), ("PUT", "/v1/vms/web/1/slo"), ("POST", "/v1/reload")


def allowed(peer: Peer, **lists: tuple[str, ...]) -> set[str]:
    access = AccessConfig({Right(key): entries for key, entries in lists.items()})
    return {right.value for right in Right if access.allows(right, peer, own_uid=4242)}


def test_everyone_who_can_connect_may_do_everything_by_default() -> None:
    assert allowed(Peer(NOBODY.pw_uid, frozenset())) == {"read", "set_slos", "manage"}


def test_each_list_restricts_its_own_right() -> None:
    nobody = Peer(NOBODY.pw_uid, frozenset({DAEMON.gr_gid}))
    assert allowed(nobody, read=("root",)) == {"set_slos", "manage"}
    assert allowed(nobody, set_slos=("nobody",), manage=()) == {"read", "set_slos"}
    assert allowed(nobody, set_slos=("@daemon",)) == {"read", "set_slos", "manage"}
    assert allowed(nobody, set_slos=("@mail", str(NOBODY.pw_uid))) == {"read", "set_slos", "manage"}


def test_set_slos_also_restricts_manage_by_default() -> None:
    nobody = Peer(NOBODY.pw_uid, frozenset())
    assert allowed(nobody, set_slos=("root",)) == {"read"}
    assert allowed(nobody, set_slos=("root",), manage=("*",)) == {"read", "manage"}


def test_root_and_the_user_of_the_daemon_may_do_everything() -> None:
    closed: dict[str, tuple[str, ...]] = {right.value: () for right in Right}
    assert allowed(Peer(0, frozenset()), **closed) == {"read", "set_slos", "manage"}
    assert allowed(Peer(4242, frozenset()), **closed) == {"read", "set_slos", "manage"}
    assert allowed(Peer(4243, frozenset()), **closed) == set()


def test_a_user_is_not_taken_for_a_group_of_the_same_name() -> None:
    member = Peer(NOBODY.pw_uid, frozenset({DAEMON.gr_gid}))
    assert allowed(member, read=("daemon",), set_slos=(), manage=()) == set()
    user = Peer(pwd.getpwnam("daemon").pw_uid, frozenset())
    assert allowed(user, read=("@daemon",), set_slos=(), manage=()) == set()


def test_unknown_names_allow_nobody() -> None:
    assert why_unknown("nobody-at-all") == "is not a user of this host"
    assert why_unknown("@nobody-at-all") == "is not a group of this host"
    assert [why_unknown(entry) for entry in ("root", "@daemon", "*", "4243")] == [""] * 4
    assert allowed(Peer(4243, frozenset()), read=("nobody-at-all", "@none"), set_slos=()) == set()
    assert [is_entry(text) for text in ("a.b-c$", "@x", "*", "", "@", "a b", "@*", "-a")] == (
        [True, True, True, False, False, False, False, False]
    )


def test_peer_has_its_user_and_groups() -> None:
    client, server = socket.socketpair()
    with client, server:
        assert peer_of(client) == Peer(os.geteuid(), frozenset({os.getegid(), *os.getgroups()}))


# Requests of another user over the socket.

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="becomes other users")


@contextmanager
def user(name: pwd.struct_passwd, *groups: int) -> Iterator[None]:
    before = os.getgroups()
    os.setgroups(groups)
    os.setegid(name.pw_gid)
    os.seteuid(name.pw_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(before)


class NobodyClient:
    """Sends requests as `nobody`, a member of the socket's group `daemon`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def request(self, method: str, target: str) -> tuple[int, dict[str, Any]]:
        body = b'{"fields": {"weight": 3}}' if method == "PUT" else b""
        head = f"{method} {target} HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(60)
            with user(NOBODY, DAEMON.gr_gid):
                connection.connect(str(self.path))
            connection.sendall(head + body)
            with connection.makefile("rb") as stream:
                reply = stream.read()
        return int(reply.split()[1]), json.loads(reply.partition(b"\r\n\r\n")[2])


class RecordingController(FakeController):
    """Records the users that change SLOs."""

    def __init__(self) -> None:
        super().__init__()
        self.users: list[str] = []

    def change_slos(
        self,
        vms: Sequence[str],
        change: SloUpdate,
        *,
        user: str = "",
        force: bool = False,
        dry_run: bool = False,
    ) -> tuple[VmSlo, ...]:
        del change, force, dry_run
        self.users.append(user)
        return tuple(self.slo(vm) for vm in vms)


@pytest.fixture
def host() -> RecordingController:
    return RecordingController()


@pytest.fixture
def client(host: RecordingController) -> Iterator[NobodyClient]:
    with tempfile.TemporaryDirectory(prefix="slo-") as folder:
        Path(folder).chmod(0o755)
        path = Path(folder) / "api.sock"
        server = ApiServer(host, path, DAEMON.gr_name)
        try:
            yield NobodyClient(path)
        finally:
            server.close()


@as_root
def test_requests_are_allowed_as_configured(host: RecordingController, client: NobodyClient) -> None:
    assert [client.request(*request)[0] for request in (READ, SET_SLOS, MANAGE)] == [HTTPStatus.OK] * 3
    assert host.users == ["nobody"]
    host.allowed = AccessConfig({Right.SET_SLOS: ("root",)}, {Right.SET_SLOS: "slo-ctl.toml:3"})
    statuses = [client.request(*request)[0] for request in (READ, SET_SLOS, MANAGE)]
    assert statuses == [HTTPStatus.OK, HTTPStatus.FORBIDDEN, HTTPStatus.FORBIDDEN]
    host.allowed = AccessConfig({Right.SET_SLOS: ("@daemon",)}, {Right.SET_SLOS: "slo-ctl.toml:3"})
    assert [client.request(*request)[0] for request in (READ, SET_SLOS, MANAGE)] == [HTTPStatus.OK] * 3
    assert host.users == ["nobody"] * 2


@as_root
def test_refusal_names_user_right_and_fix(
    host: RecordingController, client: NobodyClient, caplog: pytest.LogCaptureFixture
) -> None:
    host.allowed = AccessConfig({Right.SET_SLOS: ("alice", "@ops")}, {Right.SET_SLOS: "slo-ctl.toml:3"})
    with caplog.at_level(logging.WARNING):
        _, body = client.request(*SET_SLOS)
    assert body["error"] == {
        "message": "user nobody may not set SLOs ([access] set_slos, slo-ctl.toml:3)",
        "hint": 'to allow it, write set_slos = ["alice", "@ops", "nobody"] in [access] of slo-ctl.toml; '
        "then, as root: slo-ctl config reload",
    }
    assert caplog.messages == [
        "refused: nobody may not set SLOs ([access] set_slos, slo-ctl.toml:3): PUT /v1/vms/web/1/slo"
    ]
    assert host.users == []
    _, body = client.request(*MANAGE)
    assert body["error"]["hint"].startswith('to allow it, write manage = ["alice", "@ops", "nobody"] in')


@as_root
def test_connections_of_one_user_do_not_keep_others_out(client: NobodyClient) -> None:
    idle = [socket.socket(socket.AF_UNIX) for _ in range(MAX_CONNECTIONS)]
    with user(NOBODY, DAEMON.gr_gid):
        for connection in idle:
            connection.connect(str(client.path))
    began = time.monotonic()
    assert ApiClient(client.path).get("/v1/health")
    assert time.monotonic() - began < IDLE_S, "answered only after idle connections had timed out"
    for connection in idle:
        connection.close()
