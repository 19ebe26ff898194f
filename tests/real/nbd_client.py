"""A small NBD client: it writes, reads and flushes, and can violate the protocol."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

MAGIC, OPTION_MAGIC = b"NBDMAGIC", b"IHAVEOPT"
OPT_EXPORT_NAME, OPT_GO = 1, 7
REPLY_ACK, REPLY_INFO, ERROR_BIT = 1, 3, 1 << 31
REQUEST_MAGIC, SIMPLE_REPLY_MAGIC = 0x25609513, 0x67446698
READ, WRITE, DISCONNECT, FLUSH, TRIM, ZERO = 0, 1, 2, 3, 4, 6
FUA = 1 << 0


class NbdError(Exception):
    """The server answered with an error; `code` is its errno."""

    def __init__(self, code: int) -> None:
        super().__init__(f"error {code}")
        self.code = code


class NbdClient:
    """One connection, one request at a time."""

    def __init__(self, path: Path, export: str, timeout_s: float = 120) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(timeout_s)
        self.socket.connect(str(path))
        self.export = export
        self.size = 0
        self._handle = 0
        try:
            self._negotiate(export.encode())
        except BaseException:
            self.socket.close()
            raise

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> NbdClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _negotiate(self, export: bytes) -> None:
        assert self._receive(16) == MAGIC + OPTION_MAGIC
        self._receive(2)
        # Fixed newstyle, no zeroes.
        self.socket.sendall(struct.pack(">I", 3))
        wanted = struct.pack(">I", len(export)) + export + struct.pack(">H", 0)
        self.socket.sendall(OPTION_MAGIC + struct.pack(">II", OPT_GO, len(wanted)) + wanted)
        while True:
            _, _, kind, length = struct.unpack(">QIII", self._receive(20))
            data = self._receive(length)
            if kind & ERROR_BIT:
                raise NbdError(kind & ~ERROR_BIT)
            if kind == REPLY_INFO and struct.unpack(">H", data[:2])[0] == 0:
                self.size = struct.unpack(">Q", data[2:10])[0]
            if kind == REPLY_ACK:
                return

    def read(self, offset: int, length: int, flags: int = 0) -> bytes:
        return self._request(READ, offset, length, flags=flags)

    def write(self, offset: int, data: bytes, flags: int = 0) -> None:
        self._request(WRITE, offset, len(data), data, flags)

    def flush(self) -> None:
        self._request(FLUSH, 0, 0)

    def trim(self, offset: int, length: int) -> None:
        self._request(TRIM, offset, length)

    def zero(self, offset: int, length: int, flags: int = 0) -> None:
        self._request(ZERO, offset, length, flags=flags)

    def _request(self, kind: int, offset: int, length: int, data: bytes = b"", flags: int = 0) -> bytes:
        self._handle += 1
        head = struct.pack(">IHHQQI", REQUEST_MAGIC, flags, kind, self._handle, offset, length)
        self.socket.sendall(head + data)
        magic, error, handle = struct.unpack(">IIQ", self._receive(16))
        assert (magic, handle) == (SIMPLE_REPLY_MAGIC, self._handle)
        if error:
            raise NbdError(error)
        return self._receive(length) if kind == READ else b""

    def _receive(self, length: int) -> bytes:
        parts = bytearray()
        while len(parts) < length:
            part = self.socket.recv(length - len(parts))
            if not part:
                raise ConnectionError("the server closed the connection")
            parts += part
        return bytes(parts)
