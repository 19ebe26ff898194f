"""An HTTP server whose connections are bounded in number and in time."""

from __future__ import annotations

import logging
import socket
import socketserver
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler
from typing import Any

from slo_ctl.base.clock import wait_for

_MAX_CONNECTION_S = 30.0
"""Longest duration of a connection."""
IDLE_S = 5.0
"""Longest time without data, for the handlers of requests."""
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
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        # Already closed by its thread.
        return
