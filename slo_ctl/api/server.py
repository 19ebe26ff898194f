"""The API's server: HTTP on a Unix socket, a thread for each of a bounded number of connections."""

from __future__ import annotations

import pwd
import socket
import struct
from http import HTTPStatus
from pathlib import Path

from slo_ctl.api.bounded import BoundedServer, OneRequest
from slo_ctl.api.controller import Controller, RefusalError
from slo_ctl.api.routes import DESCRIPTION, Api, Request, refusal
from slo_ctl.host.sockets import group_id, listen, make_socket_folder

MODE = 0o660
MAX_CONNECTIONS = 128
"""More are closed at once, so that files are left for the daemon's own work."""
MAX_BODY_BYTES = 1 << 20
_MAX_DISCARDED_BYTES = 16 << 20
_CREDENTIALS = struct.Struct("=iII")


class ApiServer:
    """Serves from construction to `close`."""

    def __init__(self, controller: Controller, path: Path, group: str) -> None:
        """Listen at `path`, for the owner and `group` where there is one.

        Raises UserError when another process listens there, or the address cannot be used.
        """
        make_socket_folder(path.parent)
        self._path = path
        self._server = _Server(Api(controller), listen(path, MODE, group_id(group)))
        self._identity = path.stat().st_ino
        self._server.start()

    def close(self) -> None:
        """Answer what is under way, and remove the socket."""
        self._server.stop()
        if self._path.exists() and self._path.stat().st_ino == self._identity:
            self._path.unlink(missing_ok=True)


class _Server(BoundedServer):
    def __init__(self, api: Api, listening: socket.socket) -> None:
        super().__init__(listening, _Connection, MAX_CONNECTIONS, "API")
        self.api = api


class _Connection(OneRequest):
    server: _Server
    hint = f"see {DESCRIPTION}"

    def answer(self) -> None:
        """Only this server takes bodies."""
        try:
            body = self.rfile.read(self._body_bytes())
        except RefusalError as error:
            self.send(refusal(error.status, error.message, error.hint))
            self._discard()
            return
        self.send(self.server.api.answer(Request(self.command, self.path, body, self._user())))

    def _body_bytes(self) -> int:
        """Length of the body. Raises RefusalError."""
        if "Transfer-Encoding" in self.headers:
            raise self._refusal(
                HTTPStatus.LENGTH_REQUIRED, "send the body in one piece, with a Content-Length"
            )
        text = self.headers.get("Content-Length", "0")
        if not (text.isascii() and text.isdigit()):
            raise self._refusal(HTTPStatus.BAD_REQUEST, "send the length of the body in bytes")
        if len(text) > len(str(MAX_BODY_BYTES)) or int(text) > MAX_BODY_BYTES:
            hint = f"no request needs more than {MAX_BODY_BYTES} bytes"
            raise self._refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, hint)
        return int(text)

    def _discard(self) -> None:
        """Read the body that was refused: closing before it is read would reset the connection."""
        self.connection.shutdown(socket.SHUT_WR)
        left = _MAX_DISCARDED_BYTES
        while left > 0 and (more := self.rfile.read1(min(left, MAX_BODY_BYTES))):
            left -= len(more)

    def _refusal(self, status: HTTPStatus, hint: str) -> RefusalError:
        return RefusalError(f"{self.command} {self.path}: {status.phrase}", hint, status)

    def _user(self) -> str:
        """User of the client, from SO_PEERCRED."""
        found = self.connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _, uid, _ = _CREDENTIALS.unpack(found)
        try:
            return pwd.getpwuid(uid).pw_name
        except KeyError:
            return f"uid {uid}"
