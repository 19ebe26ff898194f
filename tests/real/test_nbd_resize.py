"""`slo-ctl device resize`, `add` and `remove`, served and not: data is lost only with explicit permission."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from floods import GIB, nbd_request
from nbd_client import ZERO, NbdClient
from serving import IN_MEMORY, make_device, served
from vhost_user_client import VhostUserClient
from waiting import until

from slo_ctl.base.quantity import parse_bytes
from slo_ctl.cli import app
from slo_ctl.drives.places import places
from slo_ctl.drives.store import DeviceStore
from slo_ctl.host.sockets import is_listening

MIB = 1 << 20


@pytest.fixture(params=["page", "fast,cluster=2"])
def made(root: Path, request: pytest.FixtureRequest) -> Path:
    spec = f"name=d,size=64MiB,op=40%,dies=2,mapping={request.param}"
    make_device(root, spec, "name=a,size=32MiB", "name=b")
    with served(root, "d") as server, NbdClient(server.run.export("a"), "a") as client:
        client.write(20 * MIB, b"kept" * 1024)
        client.flush()
    return root


def resize(root: Path, place: str, size: str, *words: str) -> int:
    return app.run(["device", "resize", place, size, "--root", str(root), *words])


def sizes(root: Path) -> tuple[int, bytes]:
    with served(root, "d") as server, NbdClient(server.run.export("a"), "a") as client:
        with server.control() as control:
            assert control.hello()["placement"] == "as it was left"
        return client.size, client.read(20 * MIB, 4096) if client.size > 20 * MIB else b""


def change_and_refuse(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert resize(root, "d/a", "36MiB") == 0
    capsys.readouterr()
    assert resize(root, "d/a", "1GiB") == 2
    output, hint = capsys.readouterr().err.splitlines()[-2:]
    most = parse_bytes(output.split("at most ")[1].split(":")[0])
    assert "over-provisioning blocks" in output
    assert "smaller" in hint
    assert resize(root, "d/a", str(most)) == 0
    assert resize(root, "d/a", str(most + 4096)) == 2
    capsys.readouterr()
    assert resize(root, "d/a", "16MiB") == 2
    output, hint = capsys.readouterr().err.splitlines()[-2:]
    assert "--lose-data" in hint
    least = parse_bytes(output.split("can be made ")[1].split(",")[0])
    assert output.endswith(", not 16MiB")
    assert least == 20 * MIB + 4096
    assert resize(root, "d/a", str(least)) == 0


def test_namespace_of_an_offline_device_is_resized(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change_and_refuse(made, capsys)
    assert sizes(made) == (20 * MIB + 4096, b"kept" * 1024)
    assert resize(made, "d/a", "16MiB", "--lose-data") == 0
    assert sizes(made) == (16 * MIB, b"")
    assert resize(made, "d/a", "24MiB") == 0
    assert sizes(made) == (24 * MIB, bytes(4096))


@pytest.mark.parametrize("root", [None, IN_MEMORY], indirect=True)
def test_namespace_of_a_served_device_is_resized(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with served(made, "d") as server:
        with NbdClient(server.run.export("a"), "a") as before:
            change_and_refuse(made, capsys)
            assert before.read(20 * MIB, 4096) == b"kept" * 1024
        capsys.readouterr()
        assert resize(made, "d/a", "16MiB", "--lose-data") == 0
        assert "reconnect" in capsys.readouterr().out
    assert sizes(made) == (16 * MIB, b"")


def device(root: Path, *words: str) -> int:
    return app.run(["device", *words, "--root", str(root)])


def namespaces(root: Path) -> list[tuple[str, int]]:
    record = DeviceStore(places(root)).load("d")
    return [(each.name, each.size_bytes // MIB) for each in record.namespace]


def test_namespaces_are_added_and_removed(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = "name=d,size=64MiB,op=40%,dies=2,unallocated=32MiB"
    make_device(root, spec, "name=a,size=16MiB", "name=b,size=16MiB")
    assert device(root, "add", "d", "--namespace", "name=c,size=16MiB,weight=3") == 0
    with served(root, "d") as server:
        with NbdClient(server.run.export("c"), "c") as client:
            client.write(MIB, b"kept" * 1024)
            client.flush()
        assert device(root, "remove", "d/a", "--yes") == 0
        assert device(root, "add", "d", "--namespace", "name=b") == 2
        assert "device d already has a namespace b" in capsys.readouterr().err
        assert device(root, "add", "d", "--namespace", "name=a,size=40MiB") == 2
        assert "32 MiB of 64 MiB is unallocated" in capsys.readouterr().err
        # All unallocated space.
        assert device(root, "add", "d", "--namespace", "name=a") == 0
        assert "added d/a: 32MiB" in capsys.readouterr().out
        with server.control() as control:
            found = {each["name"]: each["space"] for each in control.statistics()["namespaces"]}
        # OPS in proportion to size.
        assert found["a"]["ops_blocks"] == pytest.approx(2 * found["c"]["ops_blocks"], abs=2)
        server.kill()
    # In order of NSID: the NSID of the first `a` is not reused.
    assert namespaces(root) == [("b", 16), ("c", 16), ("a", 32)]
    assert device(root, "remove", "d/b", "--yes") == 0
    assert device(root, "remove", "d/b", "--yes") == 2
    assert namespaces(root) == [("c", 16), ("a", 32)]
    with served(root, "d") as server, NbdClient(server.run.export("c"), "c") as client:
        assert client.read(MIB, 4096) == b"kept" * 1024
    assert {path.name for path in (root / "devices/d").glob("*.img")} == {"a.img", "c.img"}


def test_a_removed_namespace_does_not_wait_for_what_its_client_has_asked_for(root: Path) -> None:
    make_device(root, "name=d,size=8GiB,op=10%,dies=8", "name=a,size=6GiB", "name=b")
    with served(root, "d") as server, ExitStack() as opened, server.control() as control:

        def of_a() -> dict[str, Any]:
            found: dict[str, Any] = control.statistics()["namespaces"][0]
            return found

        for _ in range(8):
            client = opened.enter_context(NbdClient(server.run.export("a"), "a"))
            client.socket.sendall(nbd_request(ZERO, 0, 4 * GIB - 4096) * 64)
        until(lambda: of_a()["answered"]["zeroes"]["requests"], "zeroes are written")
        # Within the client's timeout for a reply.
        control.command("delete_namespace", namespace="a")
        assert [n["name"] for n in control.statistics()["namespaces"]] == ["b"]


def test_namespaces_added_while_served_have_sockets_at_once(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_device(root, "name=d,size=64MiB,op=40%,dies=2,unallocated=32MiB", "name=a")
    with served(root, "d", "--vhost-user") as server:
        export, vhost_user = server.run.export("b"), server.run.vhost_user_socket("b")
        assert device(root, "add", "d", "--namespace", "name=b,size=16MiB") == 0
        output = capsys.readouterr().out
        assert f"NBD: {server.uri('b')}" in output
        assert f"vhost-user: {vhost_user}" in output
        assert (export.stat().st_mode & 0o777, vhost_user.stat().st_mode & 0o777) == (0o660, 0o660)
        with NbdClient(export, "b") as client, VhostUserClient(vhost_user) as virtio:
            client.write(MIB, b"kept" * 1024)
            client.flush()
            assert virtio.read(MIB, 4096) == b"kept" * 1024
        # The sockets outlive the server: clients wait until it has been restarted.
        os.kill(server.pid(), signal.SIGKILL)
        with NbdClient(export, "b") as client, VhostUserClient(vhost_user) as virtio:
            assert client.read(MIB, 4096) == virtio.read(MIB, 4096) == b"kept" * 1024
        assert device(root, "remove", "d/b", "--yes") == 0
        until(lambda: not (export.exists() or vhost_user.exists()), "the sockets are removed")
        # A new namespace with the same name.
        assert device(root, "add", "d", "--namespace", "name=b,size=8MiB") == 0
        # The command itself waits for 5 s only, which a busy machine may exceed.
        until(lambda: is_listening(export) and is_listening(vhost_user), "the sockets are there")
        with NbdClient(export, "b") as client, VhostUserClient(vhost_user) as virtio:
            assert client.size == virtio.capacity_bytes == 8 * MIB
            assert virtio.read(MIB, 4096) == bytes(4096)
        assert server.stop() == 0
    assert not export.exists()
    assert not vhost_user.exists()
