"""A small vhost-user client with a virtio-blk driver, which can also violate the protocol."""

from __future__ import annotations

import array
import fcntl
import mmap
import os
import select
import socket
import struct
from dataclasses import dataclass, field
from pathlib import Path

# Messages of the vhost-user protocol.
GET_FEATURES, SET_FEATURES, SET_OWNER, SET_MEM_TABLE = 1, 2, 3, 5
SET_VRING_NUM, SET_VRING_ADDR, SET_VRING_BASE, GET_VRING_BASE = 8, 9, 10, 11
SET_VRING_KICK, SET_VRING_CALL = 12, 13
GET_PROTOCOL_FEATURES, SET_PROTOCOL_FEATURES, GET_QUEUE_NUM, SET_VRING_ENABLE = 15, 16, 17, 18
SET_BACKEND_REQ_FD, GET_CONFIG, GET_INFLIGHT_FD, SET_INFLIGHT_FD = 21, 24, 31, 32
CONFIG_CHANGE = 2
_VERSION, _NEED_REPLY = 1, 1 << 3

# Requests of virtio-blk, their status, features.
READ, WRITE, FLUSH, GET_ID, DISCARD, WRITE_ZEROES = 0, 1, 4, 8, 11, 13
OK, IOERR, UNSUPP = 0, 1, 2
F_FLUSH, F_EVENT_IDX, F_PROTOCOL, F_VERSION_1 = 1 << 9, 1 << 29, 1 << 30, 1 << 32
SECTOR_BYTES = 512
MAX_SEGMENT_BYTES = 64 << 10

_NEXT, _DEVICE_WRITES, _INDIRECT = 1, 2, 4
MEMORY_BYTES = 16 << 20
_CLIENT_BASE = 0x7F00_0000_0000
"""User address that the client declares for its memory; guest addresses begin at 0."""
_RING_BYTES = 64 << 10
_SLOT_BYTES = 256 << 10
"""Header, ranges, data and status of one request."""


class VhostUserError(Exception):
    """The server refused a message, or closed the connection."""


@dataclass
class Queue:
    """A split virtqueue in the first memory region of the client."""

    index: int
    size: int
    base: int
    kick: int
    call: int
    free: list[int] = field(default_factory=list)
    next_avail: int = 0
    next_used: int = 0

    def __post_init__(self) -> None:
        # Each request uses two or three adjacent descriptors.
        self.free = list(range(0, self.size - 2, 3))

    @property
    def avail(self) -> int:
        return self.base + 16 * self.size

    @property
    def used(self) -> int:
        return self.base + 32 * self.size


class _Descriptors:
    """File descriptors of the memory and queues of a guest, open as long as a connection uses them."""

    def __init__(self) -> None:
        self._open: list[int] = []

    def own(self, descriptor: int) -> int:
        self._open.append(descriptor)
        return descriptor

    def __del__(self) -> None:
        for descriptor in self._open:
            os.close(descriptor)


class VhostUserClient:
    """One connection. Memory and requests in flight pass to the next one after a restart of the server."""

    def __init__(
        self,
        path: Path,
        *,
        queues: int = 1,
        size: int = 64,
        features: int = F_FLUSH | F_EVENT_IDX,
        before: VhostUserClient | None = None,
        timeout_s: float = 60,
    ) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(timeout_s)
        self.socket.connect(str(path))
        self.features = features | F_PROTOCOL | F_VERSION_1
        offered = self._ask(GET_FEATURES)
        assert offered & self.features == self.features
        self.protocol_features = self._ask(GET_PROTOCOL_FEATURES)
        self._tell(SET_PROTOCOL_FEATURES, struct.pack("<Q", self.protocol_features))
        self.max_queues = self._ask(GET_QUEUE_NUM)
        self._tell(SET_OWNER)
        own, theirs = socket.socketpair()
        self.messages = own
        self._tell(SET_BACKEND_REQ_FD, descriptors=[theirs.fileno()])
        theirs.close()
        self._tell(SET_FEATURES, struct.pack("<Q", self.features))
        self._descriptors: _Descriptors = before._descriptors if before else _Descriptors()
        if before is None:
            self.memory_fd = self._descriptors.own(os.memfd_create("guest", os.MFD_ALLOW_SEALING))
            os.ftruncate(self.memory_fd, MEMORY_BYTES)
            fcntl.fcntl(self.memory_fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
            self.memory = mmap.mmap(self.memory_fd, MEMORY_BYTES)
            self.in_flight_fd, self._in_flight = self._get_in_flight(queues, size)
            self.queues = [self._queue(index, size) for index in range(queues)]
        else:
            self.memory_fd, self.memory = before.memory_fd, before.memory
            self.in_flight_fd, self._in_flight = before.in_flight_fd, before._in_flight
            self.queues = before.queues
        self._indices = memoryview(self.memory).cast("H")
        self._tell(SET_INFLIGHT_FD, self._in_flight, [self.in_flight_fd])
        region = struct.pack("<IIQQQQ", 1, 0, 0, MEMORY_BYTES, _CLIENT_BASE, 0)
        self._tell(SET_MEM_TABLE, region, [self.memory_fd])
        for queue in self.queues:
            self.start(queue)

    def __enter__(self) -> VhostUserClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; memory is kept."""
        self.socket.close()
        self.messages.close()

    # Messages.

    def _send(self, request: int, payload: bytes, descriptors: list[int], flags: int) -> None:
        message = struct.pack("<III", request, _VERSION | flags, len(payload)) + payload
        rights = (
            [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        )
        try:
            self.socket.sendmsg([message], rights)
        except (BrokenPipeError, ConnectionResetError):
            raise VhostUserError("the server has closed the connection") from None

    def _receive(self, request: int) -> tuple[bytes, list[int]]:
        try:
            head, descriptors, _, _ = socket.recv_fds(self.socket, 12, 8)
        except ConnectionResetError:
            head = b""
        if len(head) < 12:
            raise VhostUserError("the server has closed the connection")
        answered, _, length = struct.unpack("<III", head)
        assert answered == request
        payload = b""
        while len(payload) < length:
            payload += self.socket.recv(length - len(payload))
        return payload, descriptors

    def _ask(self, request: int) -> int:
        self._send(request, b"", [], 0)
        (value,) = struct.unpack("<Q", self._receive(request)[0])
        return int(value)

    def _tell(self, request: int, payload: bytes = b"", descriptors: list[int] | None = None) -> None:
        self._send(request, payload, descriptors or [], _NEED_REPLY)
        (failed,) = struct.unpack("<Q", self._receive(request)[0])
        if failed:
            raise VhostUserError(f"message {request} was refused")

    def config(self, offset: int = 0, size: int = 60) -> bytes:
        """Part of the configuration; empty if the server refuses."""
        self._send(GET_CONFIG, struct.pack("<III", offset, size, 0) + bytes(size), [], 0)
        return self._receive(GET_CONFIG)[0][12:]

    @property
    def capacity_bytes(self) -> int:
        (sectors,) = struct.unpack("<Q", self.config(0, 8))
        return int(sectors) * SECTOR_BYTES

    def wait_for_change(self, timeout_s: float = 60) -> None:
        """Wait until the server reports a change of the configuration."""
        self.messages.settimeout(timeout_s)
        assert struct.unpack("<III", self.messages.recv(12)) == (CONFIG_CHANGE, _VERSION, 0)

    def _get_in_flight(self, queues: int, size: int) -> tuple[int, bytes]:
        self._send(GET_INFLIGHT_FD, struct.pack("<QQHH4x", 0, 0, queues, size), [], 0)
        payload, (descriptor,) = self._receive(GET_INFLIGHT_FD)
        return self._descriptors.own(descriptor), payload

    def in_flight(self, queue: int = 0) -> list[bool]:
        """By descriptor, what the server has recorded as in flight."""
        size = self.queues[queue].size
        stride = int(struct.unpack("<QQHH4x", self._in_flight)[0] // len(self.queues))
        noted = os.pread(self.in_flight_fd, stride, queue * stride)[16 : 16 + 16 * size : 16]
        return [bool(each) for each in noted]

    # Queues.

    def _queue(self, index: int, size: int) -> Queue:
        base = index * _RING_BYTES
        kick, call = (self._descriptors.own(os.eventfd(0, os.EFD_NONBLOCK)) for _ in range(2))
        return Queue(index, size, base, kick, call)

    def start(self, queue: Queue, *, base: int | None = None) -> None:
        """Hand a queue over to the server."""
        index = queue.index
        self._tell(SET_VRING_NUM, struct.pack("<II", index, queue.size))
        used = self._load(queue.used + 2)
        self._tell(SET_VRING_BASE, struct.pack("<II", index, used if base is None else base))
        places = (queue.base, queue.used, queue.avail, 0)
        addresses = [_CLIENT_BASE + place for place in places]
        self._tell(SET_VRING_ADDR, struct.pack("<IIQQQQ", index, 0, *addresses))
        self._tell(SET_VRING_CALL, struct.pack("<Q", index), [queue.call])
        self._tell(SET_VRING_KICK, struct.pack("<Q", index), [queue.kick])
        self._tell(SET_VRING_ENABLE, struct.pack("<II", index, 1))

    def stop(self, index: int) -> int:
        """Stop a queue; returns the next index of its available ring."""
        self._send(GET_VRING_BASE, struct.pack("<II", index, 0), [], 0)
        stopped, base = struct.unpack("<II", self._receive(GET_VRING_BASE)[0])
        assert stopped == index
        return int(base)

    # Written in one step, as a guest does: `struct.pack_into` writes zeros first, which the server may read.

    def _load(self, at: int) -> int:
        return self._indices[at // 2]

    def _store(self, at: int, value: int) -> None:
        self._indices[at // 2] = value & 0xFFFF

    def describe(
        self, queue: Queue, number: int, address: int, length: int, flags: int = 0, after: int = 0
    ) -> None:
        """Write a descriptor."""
        struct.pack_into("<QIHH", self.memory, queue.base + 16 * number, address, length, flags, after)

    def offer(self, queue: Queue, head: int, *, kick: bool = True) -> None:
        """Put a chain of descriptors into the available ring."""
        self._store(queue.avail + 4 + 2 * (queue.next_avail % queue.size), head)
        queue.next_avail = (queue.next_avail + 1) & 0xFFFF
        self._store(queue.avail + 2, queue.next_avail)
        if kick:
            os.eventfd_write(queue.kick, 1)

    def slot(self, queue: Queue, head: int) -> int:
        """Offset of the buffers of a request."""
        return (4 << 20) + (queue.index * (queue.size // 3) + head // 3) % 44 * _SLOT_BYTES

    def submit(
        self,
        kind: int,
        sector: int = 0,
        data: bytes = b"",
        length: int = 0,
        queue: int = 0,
        *,
        kick: bool = True,
    ) -> int:
        """Submit a request and return its number. `data` is for the device, which writes `length` bytes."""
        ring = self.queues[queue]
        head = ring.free.pop(0)
        at = self.slot(ring, head)
        count = len(data) or length
        struct.pack_into("<IIQ", self.memory, at, kind, 0, sector)
        self.memory[at + 16 : at + 16 + len(data)] = data
        self.memory[at + 16 + count] = 0xFF
        last = head + 1 + bool(count)
        self.describe(ring, head, at, 16, _NEXT, head + 1)
        if count:
            flags = _NEXT | (0 if data else _DEVICE_WRITES)
            self.describe(ring, head + 1, at + 16, count, flags, last)
        self.describe(ring, last, at + 16 + count, 1, _DEVICE_WRITES)
        self.offer(ring, head, kick=kick)
        return head

    def submit_segments(
        self, head: int, kind: int, sector: int, length: int, data: bytes = b"", *, writes: bool = False
    ) -> None:
        """Submit a large request with `head` and the descriptors after it, on the first queue.

        All segments are the same buffer, followed by the status. `writes`: the device writes the buffer.
        """
        ring = self.queues[0]
        at = self.slot(ring, head)
        struct.pack_into("<IIQ", self.memory, at, kind, 0, sector)
        self.memory[at + 16 : at + 16 + len(data)] = data
        status = at + 16 + MAX_SEGMENT_BYTES
        self.memory[status] = 0xFF
        self.describe(ring, head, at, 16, _NEXT, head + 1)
        number = head + 1
        for begin in range(0, length, MAX_SEGMENT_BYTES):
            segment = min(MAX_SEGMENT_BYTES, length - begin)
            flags = _NEXT | (_DEVICE_WRITES if writes else 0)
            self.describe(ring, number, at + 16, segment, flags, number + 1)
            number += 1
        self.describe(ring, number, status, 1, _DEVICE_WRITES)
        self.offer(ring, head)

    def completed(self, queue: int = 0, timeout_s: float = 60) -> int:
        """Wait for the next request to be answered; returns its number."""
        ring = self.queues[queue]
        while ring.next_used == self._load(ring.used + 2):
            # Request a notification for the next one.
            self._store(ring.avail + 4 + 2 * ring.size, ring.next_used)
            if ring.next_used != self._load(ring.used + 2):
                break
            ready, _, _ = select.select([ring.call, self.socket.fileno()], [], [], timeout_s)
            if not ready:
                raise TimeoutError("no answer")
            if self.socket.fileno() in ready and not self.socket.recv(1, socket.MSG_PEEK):
                raise VhostUserError("the server has closed the connection")
            if ring.call in ready:
                os.eventfd_read(ring.call)
        head, _ = struct.unpack_from("<II", self.memory, ring.used + 4 + 8 * (ring.next_used % ring.size))
        ring.next_used = (ring.next_used + 1) & 0xFFFF
        return int(head)

    def answer(self, head: int, length: int = 0, sent: int = 0, queue: int = 0) -> tuple[int, bytes]:
        """Status and data of an answered request, which is then forgotten."""
        ring = self.queues[queue]
        at = self.slot(ring, head) + 16
        ring.free.append(head)
        return self.memory[at + (sent or length)], self.memory[at : at + length]

    def request(
        self, kind: int, sector: int = 0, data: bytes = b"", length: int = 0, queue: int = 0
    ) -> bytes:
        """Run a request. Raises OSError with its status if that is not OK."""
        head = self.submit(kind, sector, data, length, queue)
        assert self.completed(queue) == head
        status, found = self.answer(head, length, len(data), queue)
        if status != OK:
            raise OSError(status, f"request {kind} failed with status {status}")
        return found

    def read(self, offset: int, length: int, queue: int = 0) -> bytes:
        return self.request(READ, offset // SECTOR_BYTES, length=length, queue=queue)

    def write(self, offset: int, data: bytes, queue: int = 0) -> None:
        self.request(WRITE, offset // SECTOR_BYTES, data, queue=queue)

    def flush(self) -> None:
        self.request(FLUSH)
