"""HTTP servers whose connections are bounded in number and in time; their addresses in the configuration."""

from __future__ import annotations

import errno
import logging
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from typing import Any

from slo_ctl.base.clock import wait_for
from slo_ctl.base.errors import UserError
from slo_ctl.host.sockets import host_and_port

_MAX_CONNECTION_S = 30.0
"""Longest duration of a connection."""
IDLE_S = 5.0
"""Longest time without data, for the handlers of requests."""
MAX_TCP_CONNECTIONS = 32
_POLL_S = 0.25
_STOP_TIMEOUT_S = 1.0
_STOP_POLL_S = 0.01

log = logging.getLogger("slo_ctl.api")


class BoundedServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """HTTP server on an open listening socket, with a thread for each connection."""

    daemon_threads = True
    # Of the socket that TCPServer makes, and that the open one replaces. The unit may forbid sockets of IP.
    address_family = socket.AF_UNIX

    def __init__(
        self,
        listening: socket.socket,
        connection: type[BaseHTTPRequestHandler],
        max_connections: int,
        name: str,
    ) -> None:
        """`max_connections`: of all users; `name`: name of the thread, also in the log."""
        super().__init__(("", 0), connection, bind_and_activate=False)
        self.socket.close()
        # accept() must not block when the client has already closed the connection.
        listening.setblocking(False)
        self.socket = listening
        self._max_connections = max_connections
        self._open: dict[socket.socket, tuple[float, int]] = {}
        """Start times (monotonic) and users of open connections."""
        self._thread = threading.Thread(target=self.serve_forever, args=(_POLL_S,), name=name, daemon=True)

    def start(self) -> None:
        """Serve in a thread."""
        self._thread.start()

    def stop(self) -> None:
        """Complete requests in progress, and close the socket."""
        self.shutdown()
        self.server_close()
        wait_for(lambda: not self._open, _STOP_TIMEOUT_S, _STOP_POLL_S)
        for connection in list(self._open):
            _disconnect(connection)

    def get_request(self) -> tuple[Any, Any]:
        """Accept a connection. Without free files it waits, as the connection does, too."""
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                time.sleep(_POLL_S)
            raise

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Refuse connections above the maximum, and above half of it of one user, who could block others."""
        user = self.user_of(request)
        of_user = sum(other == user for _, other in list(self._open.values()))
        if len(self._open) >= self._max_connections or of_user >= self._max_connections // 2:
            return False
        self._open[request] = time.monotonic(), user
        return super().verify_request(request, client_address)

    def user_of(self, request: Any) -> int:
        """The user at the other end; over TCP none is known, and each connection counts as another's."""
        return id(request)

    def service_actions(self) -> None:
        """Disconnect clients whose connections last too long."""
        oldest_s = time.monotonic() - _MAX_CONNECTION_S
        for connection, (started_s, _) in list(self._open.items()):
            if started_s < oldest_s:
                _disconnect(connection)

    def shutdown_request(self, request: Any) -> None:
        self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log unexpected errors, but not clients that disconnect."""
        del request, client_address
        if not isinstance(sys.exception(), OSError):
            log.exception("unexpected error in a connection to the %s", self._thread.name)


def _disconnect(connection: socket.socket) -> None:
    with suppress(OSError):  # already closed by its thread
        connection.shutdown(socket.SHUT_RDWR)


class TcpListener:
    """Serves at the TCP address that a section of the configuration has as `listen`, which may change."""

    def __init__(self, section: str, make_server: Callable[[socket.socket], BoundedServer]) -> None:
        """`make_server`: the server on an open listening socket."""
        self._section = section
        self._make_server = make_server
        self._server: BoundedServer | None = None
        self.address = ""
        """`HOST:PORT`; empty while there is no server."""

    def listen(self, address: str | None) -> None:
        """Serve at `HOST:PORT` from now on; None: nowhere.

        Raises UserError, and then keeps serving at the earlier address, if that is still free.
        """
        before = self.address
        if (address or "") == before:
            return
        # First, because the new address may have the same port.
        self.close()
        if address:
            try:
                self._start(address)
            except (OSError, UnicodeError) as error:  # UnicodeError: a part of the name is too long or empty
                if before:
                    # Another program may have taken it meanwhile; the next `listen` tries again.
                    with suppress(OSError):
                        self._start(before)
                reason = getattr(error, "strerror", None) or error
                raise UserError(
                    f"[{self._section}] listen = {address!r}: {reason}", "choose another address or port"
                ) from None

    def _start(self, address: str) -> None:
        self._server = self._make_server(_listening_socket(*host_and_port(address)))
        self._server.start()
        self.address = address

    def close(self) -> None:
        """Stop serving."""
        if self._server is not None:
            self._server.stop()
        self._server, self.address = None, ""


def listen_together(addresses: Sequence[tuple[TcpListener, str | None]]) -> None:
    """Serve at these addresses from now on, which listeners may exchange; None: nowhere.

    Raises UserError, and then all keep their earlier addresses, as far as these are still free.
    """
    before = [(listener, listener.address) for listener, _ in addresses]
    wanted = {address for _, address in addresses}
    try:
        for listener, address in addresses:
            if listener.address in wanted and listener.address != address:
                listener.close()
        for listener, address in addresses:
            listener.listen(address)
    except UserError:
        moved = [(listener, address) for listener, address in before if listener.address != address]
        for listener, _ in moved:
            listener.close()
        for listener, address in moved:
            with suppress(UserError):  # another program has taken it meanwhile
                listener.listen(address)
        raise


def _listening_socket(host: str, port: int) -> socket.socket:
    """Raises OSError."""
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(MAX_TCP_CONNECTIONS)
    except OSError:
        listening.close()
        raise
    return listening
