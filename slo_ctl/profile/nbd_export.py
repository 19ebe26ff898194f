"""Looking at an NBD export without touching it: its size, whether it can be written, a few of its bytes."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from types import TracebackType
from urllib.parse import parse_qs, unquote, urlsplit

from slo_ctl.base.errors import UserError

SCHEMES = ("nbd", "nbd+unix")
_PORT = 10809
_NBD_TIMEOUT_S = 10.0
# https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md
_MAGIC, _OPTION_MAGIC, _REPLY_MAGIC = b"NBDMAGIC", b"IHAVEOPT", 0x3E889045565A9
_FIXED_NEWSTYLE_NO_ZEROES = 3
_OPT_GO = 7
_REP_ACK, _REP_INFO, _REP_ERROR = 1, 3, 1 << 31
_INFO_EXPORT = 0
_FLAG_READ_ONLY = 1 << 1
_REQUEST_MAGIC, _ANSWER_MAGIC = 0x25609513, 0x67446698
_READ, _DISCONNECT = 0, 2
_MAX_REPLY_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class NbdAddress:
    """Where an export is."""

    uri: str
    export: str
    socket: str | None
    """Path of a Unix socket; None: TCP."""
    host: str
    port: int


def parse_uri(uri: str) -> NbdAddress:
    """Take an NBD URI apart. Raises UserError for what fio's nbd engine could not use either."""
    parts = urlsplit(uri)
    if parts.scheme not in SCHEMES:
        raise UserError(
            f"{uri}: {parts.scheme} is not supported", "write nbd://HOST/EXPORT or nbd+unix://..."
        )
    path = parse_qs(parts.query).get("socket", [""])[0]
    if parts.scheme == "nbd+unix" and not path:
        raise UserError(f"{uri}: it names no socket", "nbd+unix:///EXPORT?socket=/path/of.sock")
    try:
        port = parts.port or _PORT
    except ValueError:
        raise UserError(f"{uri}: its port is not a valid number", "nbd://HOST:PORT/EXPORT") from None
    export = unquote(parts.path.removeprefix("/"))
    return NbdAddress(uri, export, path or None, parts.hostname or "localhost", port)


class NbdExport:
    """One connection that only ever reads. Raises UserError for whatever keeps it from being one."""

    def __init__(self, address: NbdAddress) -> None:
        self._address = address
        self.size_bytes = 0
        self.read_only = False
        try:
            self._socket = _connect(address)
        except OSError as error:
            raise UserError(f"{address.uri}: {error.strerror or error}", "is its server running?") from None
        try:
            self._negotiate()
        except (OSError, struct.error) as error:
            self._socket.close()
            raise UserError(
                f"{address.uri}: no NBD server answers there: {error}", "is the URI right?"
            ) from None
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> NbdExport:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._socket.sendall(struct.pack(">IHHQQI", _REQUEST_MAGIC, 0, _DISCONNECT, 0, 0, 0))
        except OSError:
            return  # It has gone by itself, which is as good.
        finally:
            self._socket.close()

    def read(self, offset_bytes: int, length_bytes: int) -> bytes:
        """Bytes of the export."""
        try:
            request = struct.pack(">IHHQQI", _REQUEST_MAGIC, 0, _READ, 0, offset_bytes, length_bytes)
            self._socket.sendall(request)
            magic, error, _ = struct.unpack(">IIQ", self._receive(16))
            if magic != _ANSWER_MAGIC or error:
                raise OSError(f"reading fails with error {error}")
            return self._receive(length_bytes)
        except OSError as error:
            raise UserError(f"{self._address.uri}: {error}", "see the server's messages") from None

    def _negotiate(self) -> None:
        if self._receive(16) != _MAGIC + _OPTION_MAGIC:
            raise OSError("another protocol")
        self._receive(2)
        self._socket.sendall(struct.pack(">I", _FIXED_NEWSTYLE_NO_ZEROES))
        name = self._address.export.encode()
        wanted = struct.pack(">I", len(name)) + name + struct.pack(">H", 0)
        self._socket.sendall(_OPTION_MAGIC + struct.pack(">II", _OPT_GO, len(wanted)) + wanted)
        while True:
            magic, _, kind, length = struct.unpack(">QIII", self._receive(20))
            if magic != _REPLY_MAGIC or length > _MAX_REPLY_BYTES:
                raise OSError("another protocol")
            data = self._receive(length)
            if kind & _REP_ERROR:
                raise UserError(
                    f"{self._address.uri}: the server refuses export {self._address.export or '(default)'}: "
                    f"{data.decode(errors='replace') or hex(kind)}",
                    "nbdinfo --list shows what it has; TLS is not supported",
                )
            if kind == _REP_INFO and struct.unpack(">H", data[:2])[0] == _INFO_EXPORT:
                self.size_bytes, flags = struct.unpack(">QH", data[2:12])
                self.read_only = bool(flags & _FLAG_READ_ONLY)
            if kind == _REP_ACK:
                return

    def _receive(self, length: int) -> bytes:
        found = bytearray()
        while len(found) < length:
            part = self._socket.recv(length - len(found))
            if not part:
                raise OSError("the server closed the connection")
            found += part
        return bytes(found)


def _connect(address: NbdAddress) -> socket.socket:
    if address.socket is None:
        return socket.create_connection((address.host, address.port), _NBD_TIMEOUT_S)
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        one.settimeout(_NBD_TIMEOUT_S)
        one.connect(address.socket)
    except BaseException:
        one.close()
        raise
    return one
