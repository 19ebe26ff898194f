"""A device over vhost-user with our own client; tests with QEMU are in `guest/`."""

from __future__ import annotations

import array
import os
import random
import signal
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nbd_client import NbdClient
from serving import Server, make_device, served
from vhost_user_client import (
    DISCARD,
    F_EVENT_IDX,
    F_FLUSH,
    FLUSH,
    GET_ID,
    IOERR,
    MEMORY_BYTES,
    READ,
    SECTOR_BYTES,
    SET_MEM_TABLE,
    UNSUPP,
    WRITE,
    WRITE_ZEROES,
    VhostUserClient,
    VhostUserError,
)
from waiting import until

_MIB = 1 << 20
_NEXT, _DEVICE_WRITES, _INDIRECT = 1, 2, 4


@pytest.fixture(scope="module", params=["none", "real"])
def server(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("v")
    make_device(root, "name=d,size=96MiB,op=40%,dies=2", "name=a,size=32MiB", "name=b,size=32MiB", "name=c")
    with served(root, "d", "--latency", request.param, "--vhost-user") as server:
        yield server
        assert server.stop() == 0


def seeded(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311 - the same on every run


def client(server: Server, namespace: str = "a", **options: object) -> VhostUserClient:
    return VhostUserClient(server.run.vhost_user_socket(namespace), **options)  # type: ignore[arg-type]


def test_nbd_and_vhost_user_are_one_device(server: Server) -> None:
    data = seeded(1).randbytes(200 << 10)
    with (
        NbdClient(server.run.export("a"), "a") as nbd,
        client(server, queues=2) as virtio,
        server.control() as control,
    ):
        assert virtio.capacity_bytes == nbd.size == 32 * _MIB
        before = control.statistics()["namespaces"][0]["answered"]
        virtio.write(_MIB, data, queue=1)
        virtio.flush()
        assert nbd.read(_MIB, len(data)) == data
        nbd.write(3 * _MIB, data[:8192])
        assert virtio.read(3 * _MIB, 8192) == data[:8192]
        assert virtio.request(GET_ID, length=20) == b"d-a".ljust(20, b"\0")
        after = control.statistics()["namespaces"]
        writes = [answered["writes"] for answered in (before, after[0]["answered"])]
        assert writes[1]["requests"] == writes[0]["requests"] + 2
        assert writes[1]["bytes"] == writes[0]["bytes"] + len(data) + 8192
        assert after[0]["answered"]["flushes"]["requests"] == before["flushes"]["requests"] + 1


def test_requests_in_flight_are_all_answered(server: Server) -> None:
    with client(server, "b", queues=2) as virtio:
        chosen = seeded(2)
        contents = {at: chosen.randbytes(4096) for at in range(0, 64 * 4096, 4096)}
        for kind in (WRITE, READ):
            offsets = list(contents)
            chosen.shuffle(offsets)
            while offsets:
                begun: dict[int, tuple[int, int]] = {}
                for number in range(min(16, len(offsets))):
                    at, queue = offsets.pop(), number % 2
                    data = contents[at] if kind == WRITE else b""
                    head = virtio.submit(kind, at // SECTOR_BYTES, data, 0 if data else 4096, queue)
                    begun[head * 2 + queue] = (at, queue)
                for at, queue in list(begun.values()):
                    head = virtio.completed(queue)
                    at, _ = begun.pop(head * 2 + queue)
                    length = 4096 if kind == READ else 0
                    status, found = virtio.answer(head, length, 4096 - length, queue)
                    assert status == 0
                    assert kind == WRITE or found == contents[at]


def test_each_of_many_queues_answers_its_own_requests(server: Server) -> None:
    """As many queues as a VM with that many CPUs: one request on each, read back through another queue."""
    numbers = range(40)
    with client(server, "b", queues=len(numbers)) as virtio:
        assert virtio.max_queues >= len(numbers)
        blocks = [seeded(number).randbytes(4096) for number in numbers]
        for kind in (WRITE, READ):
            length = 4096 if kind == READ else 0
            begun: dict[int, tuple[int, int]] = {}
            for number in numbers:
                block = (number + 1) % len(numbers) if length else number
                data = b"" if length else blocks[block]
                begun[number] = virtio.submit(kind, block * 8, data, length, number), block
            for number in reversed(numbers):
                head, block = begun[number]
                assert virtio.completed(number) == head
                status, found = virtio.answer(head, length, 4096 - length, number)
                assert status == 0
                assert found == (blocks[block] if length else b"")


def test_discard_releases_and_zeroes_space(server: Server) -> None:
    with client(server, "b") as virtio, server.control() as control:

        def mapped() -> int:
            return int(control.statistics()["namespaces"][1]["space"]["mapped_pages"])

        (pages,) = struct.unpack("<I", virtio.config(44, 4))
        at = 8 * _MIB // SECTOR_BYTES
        virtio.write(8 * _MIB, b"x" * (128 << 10))
        before = mapped()
        virtio.request(DISCARD, data=struct.pack("<QII", at, 64 << 10 >> 9, 0))
        assert mapped() == before - (64 << 10) // (pages * SECTOR_BYTES)
        two = struct.pack("<QII", at + 128, 8, 0) + struct.pack("<QII", at + 192, 8, 1)
        virtio.request(WRITE_ZEROES, data=two)
        found = virtio.read(8 * _MIB + (64 << 10), 64 << 10)
        assert found == bytes(4096) + b"x" * 28672 + bytes(4096) + b"x" * 28672
        for kind, ranges, status in (
            (DISCARD, struct.pack("<QII", at, 8, 1), UNSUPP),
            (DISCARD, struct.pack("<QII", at, 8, 0) + struct.pack("<QII", 1 << 60, 8, 0), IOERR),
            (WRITE_ZEROES, struct.pack("<QII", at, 8, 2), UNSUPP),
            (WRITE_ZEROES, b"short", IOERR),
        ):
            with pytest.raises(OSError, match=f"status {status}"):
                virtio.request(kind, data=ranges)


def test_new_size_is_announced(server: Server) -> None:
    with client(server, "a") as virtio, server.control() as control:
        control.resize("a", 33 * _MIB)
        virtio.wait_for_change()
        assert virtio.capacity_bytes == 33 * _MIB
        virtio.write(33 * _MIB - 4096, b"y" * 4096)
        control.resize("a", 32 * _MIB, keep_data=False)
        virtio.wait_for_change()
        with pytest.raises(OSError, match="status 1"):
            virtio.read(33 * _MIB - 4096, 4096)


def test_guest_violation_fails_only_that_request_or_queue(server: Server) -> None:
    with client(server, "a", queues=2) as virtio, client(server, "b") as other:
        for kind, sector, data, length, status in (
            (READ, 1 << 62, b"", 512, IOERR),
            (READ, (1 << 64) - 1, b"", 512, IOERR),
            (READ, 0, b"", 500, IOERR),
            (WRITE, 0, b"z" * 513, 0, IOERR),
            (READ, 32 * _MIB // 512 - 1, b"", 1024, IOERR),
            (99, 0, b"", 512, UNSUPP),
        ):
            with pytest.raises(OSError, match=f"status {status}"):
                virtio.request(kind, sector, data, length)
        queue = virtio.queues[0]

        def chain(*descriptors: tuple[int, int, int, int]) -> None:
            """Build a chain from descriptor 0 on; it must be answered whatever it contains."""
            for number, descriptor in enumerate(descriptors):
                virtio.describe(queue, number, *descriptor)
            virtio.offer(queue, 0)
            assert virtio.completed() == 0

        buffer = 4 << 20
        chain((0, 0, 0, 0))
        chain((buffer, 16, _NEXT, 0))
        chain((buffer, 16, _NEXT, 60000))
        chain((1 << 63, 16, _NEXT, 1), (buffer, 1, _DEVICE_WRITES, 0))
        chain(((1 << 64) - 1, 0xFFFF_FFFF, _DEVICE_WRITES, 0))
        chain((buffer, 1, _DEVICE_WRITES | _NEXT, 1), (buffer, 16, _NEXT, 2), (buffer, 1, _DEVICE_WRITES, 0))
        chain((buffer, 24, _INDIRECT, 0))
        chain((buffer, 0, _INDIRECT, 0))
        chain((buffer, 0xFFFF_FFF0, _INDIRECT, 0))
        # An indirect table that refers to itself.
        struct.pack_into("<QIHH", virtio.memory, buffer, buffer, 16, _INDIRECT, 0)
        chain((buffer, 16, _INDIRECT, 0))
        # 4 GiB of data in a VM of 16 MiB.
        struct.pack_into("<IIQ", virtio.memory, buffer, READ, 0, 0)
        chain(
            (buffer, 16, _NEXT, 1),
            (0, 0xFFFF_FFFF, _DEVICE_WRITES | _NEXT, 2),
            (buffer + 16, 1, _DEVICE_WRITES, 0),
        )
        assert virtio.memory[buffer + 16] == IOERR
        assert virtio.read(0, 512) is not None
        # A ring whose index is invalid stops; the other queue and the other VM are not affected.
        struct.pack_into("<H", virtio.memory, queue.avail + 2, queue.next_avail + 1000)
        os.eventfd_write(queue.kick, 1)
        virtio.write(0, b"w" * 512, queue=1)
        assert virtio.read(0, 512, queue=1) == b"w" * 512
        other.write(0, b"o" * 512)
        # It stays stopped until the driver resets it.
        struct.pack_into("<H", virtio.memory, queue.avail + 2, queue.next_avail)
        virtio.start(queue, base=virtio.stop(0))
        assert virtio.read(0, 512) == b"w" * 512


def test_protocol_violation_ends_only_that_client(server: Server) -> None:
    path = server.run.vhost_user_socket("c")
    with client(server, "b") as other:
        chosen = seeded(3)
        for _ in range(50):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as raw:
                raw.connect(str(path))
                kind, length = chosen.randrange(0, 45), chosen.choice((0, 8, 12, 40, 4000, 1 << 31))
                message = struct.pack("<III", kind, 1, length) + chosen.randbytes(min(length, 4000))
                null = os.open("/dev/null", os.O_RDWR)
                rights = [
                    (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [null] * chosen.randrange(1, 9)))
                ]
                raw.sendmsg([message], rights if chosen.random() < 0.5 else [])
                os.close(null)
        with client(server, "c") as virtio:
            # An address outside of memory, and no memory at all.
            short = os.memfd_create("short", os.MFD_ALLOW_SEALING)
            region = struct.pack("<IIQQQQ", 1, 0, 0, MEMORY_BYTES, 0, 0)
            with pytest.raises(VhostUserError):
                virtio._tell(SET_MEM_TABLE, region, [short])
            os.close(short)
        with client(server, "c") as virtio:
            virtio._send(8, struct.pack("<II", 64, 64), [], 0)
            with pytest.raises(VhostUserError, match="closed"):
                virtio.config()
        other.write(0, b"o" * 512)
        assert other.read(0, 512) == b"o" * 512


def test_second_vm_on_a_namespace_is_refused(server: Server) -> None:
    with client(server, "a"), pytest.raises((VhostUserError, OSError)):
        client(server, "a")
    with client(server, "a", features=0) as virtio:
        # Without FLUSH each write is durable; without EVENT_IDX each reply is notified.
        virtio.write(0, b"d" * 4096)
        assert virtio.read(0, 4096) == b"d" * 4096


def reconnected(server: Server, before: VhostUserClient) -> VhostUserClient:
    """Connect again after the server was killed."""
    while before.socket.recv(4096):
        pass
    before.close()
    deadline = time.monotonic() + 60
    while True:
        try:
            return client(server, "d", queues=2, before=before)
        except (VhostUserError, OSError):
            # A connection that the killed server had not accepted.
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_killed_server_completes_requests_in_flight_after_restart(root: Path) -> None:
    """The next server completes the requests in flight; flushed data is there."""

    make_device(root, "name=d,size=64MiB,op=40%,dies=2")
    chosen = seeded(4)
    with served(root, "d", "--latency", "real", "--vhost-user") as server:
        virtio, flushed = client(server, "d", queues=2), {}
        for round_ in range(5):
            data = chosen.randbytes(4096)
            virtio.write(round_ * 4096, data)
            virtio.flush()
            flushed[round_ * 4096] = data
            begun = [
                virtio.submit(WRITE, (_MIB + number * 4096) // SECTOR_BYTES, data, queue=number % 2)
                for number in range(24)
            ]
            first = server.pid()
            os.kill(first, signal.SIGKILL)
            virtio = reconnected(server, virtio)
            for queue in (0, 1):
                found = sorted(virtio.completed(queue) for _ in range(12))
                assert found == sorted(begun[queue::2])
                assert all(virtio.answer(head, sent=4096, queue=queue)[0] == 0 for head in found)
            for number in range(24):
                assert virtio.read(_MIB + number * 4096, 4096) == data
            assert all(virtio.read(at, 4096) == content for at, content in flushed.items())
        virtio.close()
        assert server.stop() == 0


def test_stopped_server_answers_accepted_requests(root: Path) -> None:
    """The remaining requests stay in the ring for the next server."""

    make_device(root, "name=d,size=64MiB,op=40%,dies=2")
    with served(root, "d", "--latency", "real", "--vhost-user") as server, client(server, "d") as virtio:
        begun = [virtio.submit(WRITE, number * 8, b"s" * 4096) for number in range(8)]
        begun.append(virtio.submit(FLUSH))
        assert server.stop() == 0
        assert not any(virtio.in_flight())
    with served(root, "d", "--vhost-user") as server, client(server, "d", before=virtio) as virtio:
        assert sorted(virtio.completed() for _ in begun) == sorted(begun)
        assert virtio.read(7 * 4096, 4096) == b"s" * 4096


def test_limits_hold_over_vhost_user(root: Path) -> None:
    make_device(root, "name=d,size=64MiB,op=40%,dies=2")
    with served(root, "d", "--latency", "real", "--vhost-user") as server, server.control() as control:
        control.set_limit("d", iops=10)
        with client(server, "d", features=F_FLUSH | F_EVENT_IDX) as virtio:
            began = time.monotonic()
            for number in range(20):
                virtio.write(number * 4096, b"l" * 4096)
            # A burst may pass at first.
            assert time.monotonic() - began > 0.5

        def queue() -> dict[str, Any]:
            return dict(control.statistics()["namespaces"][0]["queue"])

        # Replies leave before the modelled end, by the time that they need to reach the client.
        until(lambda: queue()["completed"]["writes"] == 20, "the end of all writes")
        assert queue()["throttled_ns"] > 0
