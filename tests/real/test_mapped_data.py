"""Data on tmpfs, which the server maps: resident memory, and what other programs see of the data."""

from __future__ import annotations

from pathlib import Path

import pytest
from nbd_client import NbdClient
from serving import IN_MEMORY, Server, make_device, served
from vhost_user_client import VhostUserClient
from waiting import until

from slo_ctl.cli import app

MIB = 1 << 20
SIZE = 32 * MIB
in_memory = pytest.mark.parametrize("root", [IN_MEMORY], indirect=True)


def image(root: Path, namespace: str) -> Path:
    return root / "devices" / "d" / f"{namespace}.img"


def is_mapped(server: Server, namespace: str) -> bool:
    maps = Path(f"/proc/{server.pid()}/maps").read_text().splitlines()
    return any(line.endswith(f"/{namespace}.img") for line in maps)


@in_memory
def test_all_of_a_namespace_is_in_memory_while_it_exists(root: Path) -> None:
    make_device(root, "name=d,size=96MiB,op=40%,unallocated=32MiB", "name=a,size=32MiB", "name=b,size=16MiB")
    with served(root, "d", "--vhost-user") as server:
        with NbdClient(server.run.export("a"), "a") as nbd:
            assert is_mapped(server, "a")
            assert image(root, "a").stat().st_blocks * 512 == SIZE
            nbd.write(MIB, b"over NBD" * 1024)
            with VhostUserClient(server.run.vhost_user_socket("a")) as virtio:
                assert virtio.read(MIB, 8192) == b"over NBD" * 1024
                virtio.write(SIZE - 4096, b"virtio" * 682 + b"....")
            nbd.trim(MIB, 4096)
            nbd.zero(SIZE - 8192, 6144)
            with image(root, "a").open("rb") as file:
                found = file.read()
            assert found[MIB : MIB + 8192] == bytes(4096) + b"over NBD" * 512
            assert found[SIZE - 4096 :] == bytes(2048) + (b"virtio" * 682 + b"....")[2048:]
            assert image(root, "a").stat().st_blocks * 512 == SIZE
        assert app.run(["device", "add", "d", "--root", str(root), "--namespace", "name=c,size=16MiB"]) == 0
        assert is_mapped(server, "c")
        assert app.run(["device", "remove", "d/b", "--root", str(root), "--yes"]) == 0
        until(lambda: not is_mapped(server, "b"), "the mapping of b is gone")


@in_memory
def test_a_file_without_enough_memory_is_served_by_system_calls(root: Path) -> None:
    make_device(root, "name=d,size=64MiB,op=40%", "name=a,size=32MiB")
    # The file may be larger than the namespace by any amount.
    with image(root, "a").open("r+b") as file:
        file.truncate(1 << 45)
    with served(root, "d") as server, NbdClient(server.run.export("a"), "a") as client:
        assert not is_mapped(server, "a")
        assert server.log().count("by system calls") == 1
        client.write(0, b"kept" * 1024)
        assert client.read(0, 8192) == b"kept" * 1024 + bytes(4096)
        assert image(root, "a").stat().st_blocks * 512 == 4096


@pytest.mark.parametrize("root", ["/var/tmp"], indirect=True)  # noqa: S108 - mkdtemp creates a directory in it
def test_a_file_on_disk_is_not_mapped(root: Path) -> None:
    make_device(root, "name=d,size=64MiB,op=40%", "name=a,size=32MiB")
    with served(root, "d") as server:
        assert not is_mapped(server, "a")
        assert image(root, "a").stat().st_blocks == 0
