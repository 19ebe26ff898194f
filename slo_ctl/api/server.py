"""The API on a Unix socket, and the handler of HTTP requests that it shares with the page."""

from __future__ import annotations

import logging
import os
import select
import socket
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, ClassVar

from slo_ctl.api.messages import DESCRIPTION_PATH, RefusalError, Reply, Request, refusal
from slo_ctl.api.routes import Api, Controller
from slo_ctl.base.accounts import ids_of_peer, peer_of
from slo_ctl.base.errors import UserError
from slo_ctl.host.bounded_server import IDLE_S, BoundedServer
from slo_ctl.host.sockets import listen, make_socket_folder, own_group_id

log = logging.getLogger("slo_ctl.api")


class OneRequest(BaseHTTPRequestHandler):
    """A connection for one request and its reply."""

    protocol_version = "HTTP/1.1"
    default_request_version = "HTTP/1.0"  # in HTTP 0.9 an error would have no status line
    timeout = IDLE_S
    extra_headers: ClassVar[Mapping[str, str]] = {}
    """Headers of every reply."""
    hint: ClassVar[str] = ""
    """Hint for errors that http.server detects."""

    def answer(self) -> None:
        """Answer the request, whatever its method."""
        raise NotImplementedError

    def send(self, reply: Reply) -> None:
        """Send the reply, for HEAD without its body."""
        self.close_connection = True
        self.send_response(reply.status)
        for name, value in self.extra_headers.items():
            self.send_header(name, value)
        if reply.allow:
            self.send_header("Allow", reply.allow)
        self.send_header("Content-Type", reply.content_type)
        self.send_header("Content-Length", str(len(reply.body)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(reply.body)

    def do_GET(self) -> None:
        """Answer requests of any method: the routes check it."""
        self.answer()

    do_PUT = do_POST = do_DELETE = do_PATCH = do_OPTIONS = do_HEAD = do_GET  # noqa: N815 - named by http.server

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send errors of http.server in the format of the API."""
        del explain
        self.send(refusal(code, message or HTTPStatus(code).phrase, self.hint))

    def handle(self) -> None:
        """Handle only one request per connection."""
        self.handle_one_request()

    def log_message(self, *_: Any) -> None:
        """Do not log requests."""

    def version_string(self) -> str:
        """Server name, without Python's version."""
        return "slo-ctl"


# The API.

_MODE = 0o660
MAX_CONNECTIONS = 128
"""Limit that leaves file descriptors for the daemon's own work."""
_MAX_BODY_BYTES = 1 << 20
_WITHOUT_EFFECT = ("GET", "HEAD", "OPTIONS")
_MAX_DISCARDED_BYTES = 16 << 20


class ApiServer:
    """Serves the API from construction to `close`."""

    def __init__(self, controller: Controller, path: Path, group: str) -> None:
        """Listen at `path`, for the owner and `group` if it exists.

        Raises UserError when another process listens there, or the path cannot be used.
        """
        self._controller = controller
        self._path = path
        self._group = group
        self._server = self._listen()

    def _listen(self) -> _Server:
        make_socket_folder(self._path.parent)
        server = _Server(Api(self._controller), listen(self._path, _MODE, own_group_id(self._group)))
        self._inode = self._path.stat().st_ino
        server.start()
        return server

    def use_group(self, group: str) -> None:
        """Let another group connect, as if it had been that of the start. Raises OSError; then none may."""
        if group == self._group:
            return
        self._group = group
        number = own_group_id(group)
        with suppress(FileNotFoundError):  # `restore` creates it, for this group
            os.chown(self._path, -1, os.getegid())
            if number is not None:
                os.chown(self._path, -1, number)

    def restore(self) -> bool:
        """Listen again if the socket was removed; False if there was nothing to do, or it failed."""
        if self._path.exists():
            return False
        try:
            server = self._listen()
        except (OSError, UserError):
            return False
        self._server.stop()
        self._server = server
        return True

    def close(self) -> None:
        """Complete requests in progress, and remove the socket."""
        self._server.stop()
        # What is left in a directory that is read-only by now is taken for stale by the next daemon.
        with suppress(OSError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()


class _Server(BoundedServer):
    def __init__(self, api: Api, listening: socket.socket) -> None:
        super().__init__(listening, _Connection, MAX_CONNECTIONS, "API")
        self.api = api

    def user_of(self, request: Any) -> int:
        """The client's user."""
        return ids_of_peer(request)[0]


class _Connection(OneRequest):
    server: _Server
    hint = f"see {DESCRIPTION_PATH}"

    def answer(self) -> None:
        """Answer a request with its body."""
        try:
            body = self.rfile.read(self._body_bytes())
        except RefusalError as error:
            self.send(refusal(error.status, error.message, error.hint))
            self._discard()
            return
        if self.command not in _WITHOUT_EFFECT and self._is_gone():
            # It may have done otherwise by now what it asked for, or the opposite.
            return
        self.send(self.server.api.answer(Request(self.command, self.path, body, peer_of(self.connection))))

    def _is_gone(self) -> bool:
        """Whether the client has closed the connection, not only its own half of it."""
        poll = select.poll()
        poll.register(self.connection, 0)
        return bool(poll.poll(0))

    def _body_bytes(self) -> int:
        """Length of the body. Raises RefusalError."""
        if "Transfer-Encoding" in self.headers:
            raise self._error(HTTPStatus.LENGTH_REQUIRED, "send the body in one piece, with a Content-Length")
        text = self.headers.get("Content-Length", "0")
        if not (text.isascii() and text.isdigit()):
            raise self._error(HTTPStatus.BAD_REQUEST, "send the length of the body in bytes")
        if len(text) > len(str(_MAX_BODY_BYTES)) or int(text) > _MAX_BODY_BYTES:
            hint = f"no request needs more than {_MAX_BODY_BYTES} bytes"
            raise self._error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, hint)
        return int(text)

    def _discard(self) -> None:
        """Read a refused body, because closing the connection before would reset it."""
        self.connection.shutdown(socket.SHUT_WR)
        remaining_bytes = _MAX_DISCARDED_BYTES
        while remaining_bytes > 0 and (part := self.rfile.read1(min(remaining_bytes, _MAX_BODY_BYTES))):
            remaining_bytes -= len(part)

    def _error(self, status: HTTPStatus, hint: str) -> RefusalError:
        return RefusalError(f"{self.command} {self.path}: {status.phrase}", hint, status)
