"""A minimal NVMe/TCP host without digests."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

HOST = "nqn.2014-08.org.nvmexpress:uuid:5e1f1c1c-4a1e-4b5a-9c57-0f6d3a2b1c0d"
BLOCK_BYTES = 512
FORCE_UNIT_ACCESS = 1 << 30
_QUEUE_ENTRIES = 64
_READ, _WRITE, _IDENTIFY, _FABRICS = 0x02, 0x01, 0x06, 0x7F
_SET, _CONNECT = 0, 1
_ENABLE = 6 << 16 | 4 << 20 | 1


class NvmeQueue:
    """A queue of a controller: the Admin Queue (0) creates the controller, I/O queues refer to it."""

    def __init__(self, address: tuple[str, int], nqn: str, number: int = 0, controller: int = 0xFFFF) -> None:
        self._socket = socket.create_connection(address, timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self._socket.makefile("rb")
        self._next = 0
        self._socket.sendall(struct.pack("<BBBBIHBBI112x", 0, 0, 128, 0, 128, 0, 0, 0, 0))
        kind, _, _ = self._receive()
        assert kind == 1
        data = struct.pack("<16sH238x256s256s256x", b"h" * 16, controller, nqn.encode(), HOST.encode())
        words = struct.pack("<HHHHI", 0, number, _QUEUE_ENTRIES - 1, 0, 0)
        self.controller = self._run(_FABRICS, _CONNECT, words, in_capsule=data)[0]
        if number == 0:
            self._run(_FABRICS, _SET, struct.pack("<IIQ", 0, 0x14, _ENABLE))

    def __enter__(self) -> NvmeQueue:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up."""
        self._stream.close()
        self._socket.close()

    def identify(self, structure: int, namespace: int) -> bytes:
        """A data structure."""
        return self._run(_IDENTIFY, namespace, struct.pack("<I", structure), expected=4096)[1]

    def admin(self, opcode: int, namespace: int, words: bytes, length: int) -> bytes:
        """Run another admin command; `words` are command dwords from 10 on, `length` is that of the reply."""
        return self._run(opcode, namespace, words, expected=length)[1]

    def read(self, namespace: int, block: int, length: int, flags: int = 0) -> bytes:
        """Read `length` bytes, a multiple of the block size."""
        return self._run(_READ, namespace, _blocks(block, length, flags), expected=length)[1]

    def write(self, namespace: int, block: int, data: bytes, flags: int = 0) -> None:
        """Write; the server requests the data (R2T)."""
        self._run(_WRITE, namespace, _blocks(block, len(data), flags), asked_for=data)

    def begin_write(self, namespace: int, block: int, data: bytes) -> int:
        """Send a write with its data and return its command number without waiting for the completion."""
        descriptor = struct.pack("<QI3xB", 0, len(data), 0x01)
        self._send(_WRITE, namespace, _blocks(block, len(data)), descriptor, data)
        return self._next

    def completed(self) -> int:
        """Wait for the next completion, which must be successful; returns its command number."""
        kind, head, _ = self._receive()
        assert kind == 5, kind
        number, status = struct.unpack_from("<12xHH", head, 8)
        assert status >> 1 == 0, hex(status >> 1)
        return int(number)

    def send(self, opcode: int, namespace: int, words: bytes, data: bytes) -> None:
        """Send any other I/O command, with its data if there is any."""
        self._run(opcode, namespace, words, asked_for=data)

    def submit_write(self, namespace: int, block: int, length: int) -> None:
        """Send a write without its data."""
        self._send(_WRITE, namespace, _blocks(block, length), struct.pack("<QI3xB", 0, length, 0x5A), b"")
        assert self._receive()[0] == 9

    def _run(
        self,
        opcode: int,
        namespace: int,
        words: bytes,
        *,
        in_capsule: bytes = b"",
        asked_for: bytes = b"",
        expected: int = 0,
    ) -> tuple[int, bytes]:
        """Result and data of a command. Raises OSError with the status of a failed command."""
        length, kind = (len(in_capsule), 0x01) if in_capsule else (len(asked_for) or expected, 0x5A)
        self._send(opcode, namespace, words, struct.pack("<QI3xB", 0, length, kind), in_capsule)
        found = bytearray()
        while True:
            kind, head, data = self._receive()
            if kind == 7:
                found += data
            elif kind == 9:
                identifier, tag, offset, wanted = struct.unpack_from("<HHII", head, 8)
                for at in range(offset, offset + wanted, 1 << 17):
                    part = asked_for[at : min(at + (1 << 17), offset + wanted)]
                    last = 4 if at + len(part) == offset + wanted else 0
                    header = struct.pack("<BBBBI", 6, last, 24, 24, 24 + len(part))
                    self._socket.sendall(
                        header + struct.pack("<HHII4x", identifier, tag, at, len(part)) + part
                    )
            else:
                assert kind == 5, kind
                result, status = struct.unpack_from("<Q6xH", head, 8)
                if status >> 1:
                    raise OSError(f"NVMe status {status >> 1 & 0x7FF:#x}")
                return result, bytes(found)

    def _send(self, opcode: int, namespace: int, words: bytes, descriptor: bytes, data: bytes) -> None:
        self._next = (self._next + 1) & 0xFFFF
        entry = (
            struct.pack("<BBHI16x", opcode, 0x40, self._next, namespace) + descriptor + words.ljust(24, b"\0")
        )
        header = struct.pack("<BBBBI", 4, 0, 72, 72 if data else 0, 72 + len(data))
        self._socket.sendall(header + entry + data)

    def _receive(self) -> tuple[int, bytes, bytes]:
        """Type, header and data of a PDU. Raises EOFError at the end of the connection."""
        common = self._stream.read(8)
        if len(common) < 8:
            raise EOFError
        kind, _, header, data_at, length = struct.unpack("<BBBBI", common)
        rest = self._stream.read(length - 8)
        pdu = common + rest
        return kind, pdu[:header], pdu[data_at:] if data_at else b""


@contextmanager
def io_queue(address: tuple[str, int], nqn: str) -> Iterator[NvmeQueue]:
    """An I/O queue of a new controller."""
    with NvmeQueue(address, nqn) as admin, NvmeQueue(address, nqn, 1, admin.controller) as queue:
        yield queue


def _blocks(block: int, length: int, flags: int = 0) -> bytes:
    """Command dwords 10 to 12."""
    return struct.pack("<QI", block, length // BLOCK_BYTES - 1 | flags)
