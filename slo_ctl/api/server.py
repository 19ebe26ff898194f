"""The API on a Unix socket, and what it shares with the page: HTTP with bounded numbers of connections."""

from __future__ import annotations

import logging
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, ClassVar

from slo_ctl.api.routes import DESCRIPTION, Api, Controller, RefusalError, Reply, Request, refusal
from slo_ctl.host.peer import peer_of
from slo_ctl.host.sockets import listen, make_socket_folder, own_group_id

_MAX_CONNECTION_S = 30.0
"""A connection lasts no longer: clients ask and go."""
_IDLE_S = 5.0
_POLL_S = 0.25
_STOP_TIMEOUT_S = 1.0

log = logging.getLogger("slo_ctl.api")


class BoundedServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """On a socket of any family that listens already; a thread for each connection."""

    daemon_threads = True

    def __init__(
        self, listening: socket.socket, connection: type[OneRequest], max_connections: int, name: str
    ) -> None:
        """`name`: of the thread, and in the log."""
        super().__init__(("", 0), connection, bind_and_activate=False)
        self.socket.close()
        # A connection that its client has given up must not leave accept() waiting for the next one.
        listening.setblocking(False)
        self.socket = listening
        self._max_connections = max_connections
        self._began_s: dict[socket.socket, float] = {}
        """When each connection that is open was made."""
        self._thread = threading.Thread(target=self.serve_forever, args=(_POLL_S,), name=name, daemon=True)

    def start(self) -> None:
        """Answer from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Answer what is under way, and close the socket."""
        self.shutdown()
        self.server_close()
        deadline_s = time.monotonic() + _STOP_TIMEOUT_S
        while self._began_s and time.monotonic() < deadline_s:
            time.sleep(0.01)
        for connection in list(self._began_s):
            _disconnect(connection)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Close connections above the maximum."""
        if len(self._began_s) >= self._max_connections:
            return False
        self._began_s[request] = time.monotonic()
        return super().verify_request(request, client_address)

    def service_actions(self) -> None:
        """End connections that last too long; their threads see the end of the stream."""
        oldest_s = time.monotonic() - _MAX_CONNECTION_S
        for connection, began_s in list(self._began_s.items()):
            if began_s < oldest_s:
                _disconnect(connection)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection, whichever side ended it."""
        self._began_s.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log what is unexpected; that a client disconnects is not."""
        del request, client_address
        if not isinstance(sys.exception(), OSError):
            log.exception("a connection to the %s", self._thread.name)


def _disconnect(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        # Its thread has closed it already.
        return


class OneRequest(BaseHTTPRequestHandler):
    """A connection: one request and its reply."""

    protocol_version = "HTTP/1.1"
    default_request_version = "HTTP/1.0"  # with 0.9 a refusal would have no status line
    timeout = _IDLE_S
    headers_of_all: ClassVar[Mapping[str, str]] = {}
    """Of every reply."""
    allow: ClassVar[str] = ""
    """The methods there are, where all paths have the same."""
    hint: ClassVar[str] = ""
    """Of errors that http.server itself finds."""

    def answer(self) -> None:
        """Answer the request, whatever its method."""
        raise NotImplementedError

    def send(self, reply: Reply) -> None:
        """Send the only reply; without its body where the method is HEAD."""
        self.close_connection = True
        self.send_response(reply.status)
        for name, value in self.headers_of_all.items():
            self.send_header(name, value)
        if reply.status == HTTPStatus.METHOD_NOT_ALLOWED and self.allow:
            self.send_header("Allow", self.allow)
        self.send_header("Content-Type", reply.content_type)
        self.send_header("Content-Length", str(len(reply.body)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(reply.body)

    def do_GET(self) -> None:
        """Any method: the routes know which there are."""
        self.answer()

    do_PUT = do_POST = do_DELETE = do_PATCH = do_OPTIONS = do_HEAD = do_GET  # noqa: N815 - named by http.server

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Errors of http.server itself, in our format."""
        del explain
        self.send(refusal(code, message or HTTPStatus(code).phrase, self.hint))

    def handle(self) -> None:
        """No second request on one connection."""
        self.handle_one_request()

    def log_message(self, *_: Any) -> None:
        """Requests of clients are not logged."""

    def version_string(self) -> str:
        """Server name, without Python's version."""
        return "slo-ctl"


# The API.

_MODE = 0o660
MAX_CONNECTIONS = 128
"""More are closed at once, so that files are left for the daemon's own work."""
_MAX_BODY_BYTES = 1 << 20
_MAX_DISCARDED_BYTES = 16 << 20


class ApiServer:
    """Serves from construction to `close`."""

    def __init__(self, controller: Controller, path: Path, group: str) -> None:
        """Listen at `path`, for the owner and `group` where there is one.

        Raises UserError when another process listens there, or the address cannot be used.
        """
        make_socket_folder(path.parent)
        self._path = path
        self._server = _Server(Api(controller), listen(path, _MODE, own_group_id(group)))
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
        self.send(self.server.api.answer(Request(self.command, self.path, body, peer_of(self.connection))))

    def _body_bytes(self) -> int:
        """Length of the body. Raises RefusalError."""
        if "Transfer-Encoding" in self.headers:
            raise self._refusal(
                HTTPStatus.LENGTH_REQUIRED, "send the body in one piece, with a Content-Length"
            )
        text = self.headers.get("Content-Length", "0")
        if not (text.isascii() and text.isdigit()):
            raise self._refusal(HTTPStatus.BAD_REQUEST, "send the length of the body in bytes")
        if len(text) > len(str(_MAX_BODY_BYTES)) or int(text) > _MAX_BODY_BYTES:
            hint = f"no request needs more than {_MAX_BODY_BYTES} bytes"
            raise self._refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, hint)
        return int(text)

    def _discard(self) -> None:
        """Read the body that was refused: closing before it is read would reset the connection."""
        self.connection.shutdown(socket.SHUT_WR)
        left = _MAX_DISCARDED_BYTES
        while left > 0 and (more := self.rfile.read1(min(left, _MAX_BODY_BYTES))):
            left -= len(more)

    def _refusal(self, status: HTTPStatus, hint: str) -> RefusalError:
        return RefusalError(f"{self.command} {self.path}: {status.phrase}", hint, status)
