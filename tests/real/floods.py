"""Clients that keep eight requests to a namespace outstanding, over any front end.

They run in a separate process, so that the measuring process does not wait for their interpreter lock.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import nbd_client
import vhost_user_client
from nbd_client import REQUEST_MAGIC, NbdClient
from nvme_client import BLOCK_BYTES, NvmeQueue
from own_process import READY_S
from vhost_user_client import SECTOR_BYTES, VhostUserClient

MIB = 1 << 20
GIB = 1 << 30
QUEUE_DEPTH = 8
NBD_KINDS = {
    "read": nbd_client.READ,
    "write": nbd_client.WRITE,
    "discard": nbd_client.TRIM,
    "zeroes": nbd_client.ZERO,
}
_NVME_READ, _NVME_WRITE, _NVME_ZEROES, _NVME_DATASETS = 0x02, 0x01, 0x08, 0x09
_DEALLOCATE = 1 << 2
VHOST_KINDS = {
    "read": vhost_user_client.READ,
    "write": vhost_user_client.WRITE,
    "discard": vhost_user_client.DISCARD,
    "zeroes": vhost_user_client.WRITE_ZEROES,
}
_CHAIN = 128
"""Maximum descriptors of a vhost-user request: header, 126 segments, status."""


def nbd_request(kind: int, offset: int, length: int) -> bytes:
    """A request header whose cookie is the offset."""
    return struct.pack(">IHHQQI", REQUEST_MAGIC, 0, kind, offset, offset, length)


@dataclass(frozen=True)
class Way:
    """The addresses of a namespace on all front ends."""

    namespace: str
    nbd: str
    size: int
    vhost_user: str = ""
    nvme_tcp: str = ""
    nqn: str = ""
    nsid: int = 0


def over_nbd(way: Way, kind: str, total: int, each: int) -> None:
    """Transfer `total` bytes of a namespace over NBD, in requests of `each` bytes."""
    with NbdClient(Path(way.nbd), way.namespace) as client:
        payload = b"y" * each if kind == "write" else b""

        def send() -> None:
            for number in range(total // each):
                ahead.acquire()
                offset = number * each % way.size
                client.socket.sendall(nbd_request(NBD_KINDS[kind], offset, each) + payload)

        ahead = threading.Semaphore(QUEUE_DEPTH)
        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        for _ in range(total // each):
            assert struct.unpack(">IIQ", client._receive(16))[1] == 0
            left = each if kind == "read" else 0
            while left:
                left -= len(client.socket.recv(min(left, MIB)))
            ahead.release()
        sender.join(READY_S)


def over_nvme_tcp(way: Way, kind: str, total: int, each: int) -> None:
    """The same over NVMe/TCP, with one queue per outstanding request."""
    host, _, port = way.nvme_tcp.rpartition(":")
    address, nsid = (host, int(port)), way.nsid

    def run(queue: NvmeQueue, number: int) -> None:
        block, blocks = number * each % way.size // BLOCK_BYTES, each // BLOCK_BYTES
        if kind == "read":
            assert len(queue.read(nsid, block, each)) == each
        elif kind == "write":
            queue.write(nsid, block, b"y" * each)
        elif kind == "zeroes":
            queue.send(_NVME_ZEROES, nsid, struct.pack("<QI", block, blocks - 1), b"")
        else:
            # A range consists of context attributes, length and first block.
            ranges = struct.pack("<IIQ", 0, blocks, block)
            queue.send(_NVME_DATASETS, nsid, struct.pack("<II", 0, _DEALLOCATE), ranges)

    def work(queue: NvmeQueue, first: int) -> None:
        for number in range(first, total // each, QUEUE_DEPTH):
            run(queue, number)

    with ExitStack() as stack:
        admin = stack.enter_context(NvmeQueue(address, way.nqn))
        queues = [
            stack.enter_context(NvmeQueue(address, way.nqn, number, admin.controller))
            for number in range(1, QUEUE_DEPTH + 1)
        ]
        with ThreadPoolExecutor(QUEUE_DEPTH) as pool:
            for done in [pool.submit(work, queue, first) for first, queue in enumerate(queues)]:
                done.result()


def over_vhost_user(way: Way, kind: str, total: int, each: int) -> None:
    """The same over vhost-user. All segments of a request are the same buffer, which has several readers."""
    with VhostUserClient(Path(way.vhost_user), size=_CHAIN * QUEUE_DEPTH) as client:
        free = [number * _CHAIN for number in range(QUEUE_DEPTH)]
        begun = done = 0
        while done < total // each:
            while free and begun < total // each:
                _submit(client, free.pop(), kind, begun * each % way.size, each)
                begun += 1
            head = client.completed()
            at = client.slot(client.queues[0], head)
            assert client.memory[at + vhost_user_client.MAX_SEGMENT_BYTES + 16] == 0, "status"
            free.append(head)
            done += 1


def _submit(client: VhostUserClient, head: int, kind: str, offset: int, length: int) -> None:
    if kind in ("read", "write"):
        client.submit_segments(head, VHOST_KINDS[kind], offset // SECTOR_BYTES, length, writes=kind == "read")
    else:
        ranges = struct.pack("<QII", offset // SECTOR_BYTES, length // SECTOR_BYTES, 0)
        client.submit_segments(head, VHOST_KINDS[kind], 0, len(ranges), ranges)


FLOODS: dict[str, Callable[[Way, str, int, int], None]] = {
    "NBD": over_nbd,
    "NVMe/TCP": over_nvme_tcp,
    "vhost-user": over_vhost_user,
}
"""By front end: the function that transfers the bytes, with eight requests outstanding."""
MOST_BYTES = {
    "NBD": {"read": 32 * MIB, "write": 32 * MIB, "discard": GIB, "zeroes": GIB},
    "NVMe/TCP": {"read": MIB, "write": MIB, "discard": GIB, "zeroes": 32 * MIB},
    "vhost-user": {"read": 126 << 16, "write": 126 << 16, "discard": GIB, "zeroes": GIB},
}
"""Maximum bytes of one request, or a value large enough for these tests."""


def flood(front_end: str, way: Way, kind: str, total: int, each: int) -> None:
    """Run the transfer in another process."""
    what = json.dumps([front_end, asdict(way), kind, total, each])
    subprocess.run([sys.executable, __file__, what], check=True, timeout=10 * READY_S)


if __name__ == "__main__":
    _front_end, _way, *_rest = json.loads(sys.argv[1])
    FLOODS[_front_end](Way(**_way), *_rest)
