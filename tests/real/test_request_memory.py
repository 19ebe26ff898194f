"""Request data takes bounded memory for any number of clients, and other clients do not wait for it."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from floods import MIB, nbd_request
from nbd_client import READ, WRITE, NbdClient
from nvme_client import BLOCK_BYTES, NvmeQueue
from serving import MemoryPeak, Server, make_device, served
from vhost_user_client import VhostUserClient
from waiting import until

LARGEST = 32 * MIB
FLOODED = [f"n{number}" for number in range(12)]
HEAP_BYTES = 64 * MIB
"""The C library aligns heaps of threads to this."""
BOUND_BYTES = 256 * MIB + len(FLOODED) * 8 * MIB + 64 * MIB
"""Buffers of all exports together, of each export and its connections, and of allocator and threads."""


def send_until_cut(client: NbdClient, data: bytes) -> None:
    with suppress(OSError):
        client.socket.sendall(data)


@contextmanager
def holding(server: Server, namespace: str) -> Iterator[None]:
    """A client that reads no reply, and another that does not send the last byte of each write."""
    with ExitStack() as stack:
        clients = [stack.enter_context(NbdClient(server.run.export(namespace), namespace)) for _ in range(5)]
        clients[0].socket.sendall(nbd_request(READ, 0, LARGEST) * 8)
        writers = [
            threading.Thread(
                target=send_until_cut, args=(each, nbd_request(WRITE, 0, LARGEST) + bytes(LARGEST - 1))
            )
            for each in clients[1:]
        ]
        for writer in writers:
            writer.start()
        try:
            yield
        finally:
            for each in clients:
                each.socket.shutdown(socket.SHUT_RDWR)
            for writer in writers:
                writer.join()


def goes_on(server: Server) -> None:
    """A namespace without such clients is served on every front end."""
    data = os.urandom(MIB) * (LARGEST // MIB)
    with NbdClient(server.run.export("b"), "b") as client:
        client.write(0, data)
        assert client.read(0, LARGEST) == data
        assert client.read(4096, 4096) == data[4096:8192]
    with VhostUserClient(server.run.vhost_user_socket("b")) as guest:
        assert guest.read(0, 128 << 10) == data[: 128 << 10]
        guest.write(0, data[: 128 << 10])
    address, nqn = server.nvme_tcp()
    nsid = {each["name"]: each["nsid"] for each in server.statistics()["namespaces"]}["b"]
    with NvmeQueue(address, nqn) as admin, NvmeQueue(address, nqn, 1, admin.controller) as queue:
        queue.write(nsid, 8, data[:MIB])
        assert queue.read(nsid, 8, MIB) == data[:MIB]
        assert struct.unpack_from("<Q", admin.identify(0, nsid))[0] == 64 * MIB // BLOCK_BYTES


def test_exports_that_flood_at_once_take_bounded_memory_and_do_not_starve_a_neighbour(root: Path) -> None:
    namespaces = [f"name={name},size=64MiB" for name in [*FLOODED, "b"]]
    make_device(root, "name=d,size=1GiB,op=20%,dies=2", *namespaces)
    with served(root, "d", "--nvme-tcp", "127.0.0.1:0", "--vhost-user") as server:
        goes_on(server)
        start = server.resident_bytes()
        with MemoryPeak(server) as peak:
            with ExitStack() as stack:
                for name in FLOODED:
                    stack.enter_context(holding(server, name))
                until(lambda: peak.most_bytes - start > 180 * MIB, "memory use during the flood")
                for _ in range(3):
                    goes_on(server)
            goes_on(server)
        assert peak.most_bytes - start < BOUND_BYTES
        until(lambda: server.resident_bytes() - start < 64 * MIB, "memory is restored")
        assert server.stop() == 0


def test_threads_share_two_heaps(root: Path) -> None:
    """One heap for each of many threads, eight for each CPU, grew for hours."""
    make_device(root, "name=d,size=64MiB,op=20%,dies=2", "name=b")
    with served(root, "d", "--latency", "real") as server:
        with ExitStack() as stack:
            for _ in range(8):
                client = stack.enter_context(NbdClient(server.run.export("b"), "b"))
                client.write(0, bytes(MIB))
                client.read(0, MIB)
        maps = Path(f"/proc/{server.run.pid_file.read_text().strip()}/maps").read_text()
    heaps = [line for line in maps.splitlines() if int(line.partition("-")[0], 16) % HEAP_BYTES == 0]
    assert len(heaps) <= 1, "besides the main heap"
