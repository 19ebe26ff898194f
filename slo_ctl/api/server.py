"""The API's server: a thread of its own, on a Unix socket made beforehand."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from slo_ctl.api.app import make_app
from slo_ctl.errors import UserError
from slo_ctl.unix_socket import group_id, listen

if TYPE_CHECKING:
    import asyncio
    from pathlib import Path

    from slo_ctl.api.controller import Controller

MODE = 0o660
MAX_CONNECTIONS = 128
"""More are hung up on, so that files are left for the daemon's own work."""
MAX_CONNECTION_S = 30.0
"""A connection lasts no longer: clients ask and go."""
_MAX_HEADER_BYTES = 16 << 10
_START_PATIENCE_S = 10.0
_STOP_PATIENCE_S = 5.0


class _Bounded(H11Protocol):
    """A connection that cannot be held open for ever, of which there are not too many."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
            return
        self._end = self.loop.call_later(MAX_CONNECTION_S, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the deadline."""
        if end := getattr(self, "_end", None):
            end.cancel()
        super().connection_lost(exc)


class ApiServer:
    """Serves from construction to `close`."""

    def __init__(self, controller: Controller, path: Path, group: str) -> None:
        """Listen at `path`, for the owner and `group` where there is one.

        Raises UserError when somebody else listens there, or nobody can.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        except OSError as error:
            raise UserError(
                f"cannot create {path.parent}: {error.strerror}", "see --root, or run as root"
            ) from None
        self._path = path
        self._socket = listen(path, MODE, group_id(group))
        self._identity = path.stat().st_ino
        # What strangers send is no news for the log; unexpected errors are.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        config = uvicorn.Config(
            make_app(controller),
            http=_Bounded,
            ws="none",
            lifespan="off",
            loop="asyncio",
            log_config=None,
            access_log=False,
            server_header=False,
            h11_max_incomplete_event_size=_MAX_HEADER_BYTES,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="api", daemon=True
        )
        self._thread.start()
        deadline = time.monotonic() + _START_PATIENCE_S
        while not self._server.started and self._thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.005)

    def close(self) -> None:
        """Answer what is under way, and remove the socket."""
        self._server.should_exit = True
        self._thread.join(_STOP_PATIENCE_S)
        self._socket.close()
        if self._path.exists() and self._path.stat().st_ino == self._identity:
            self._path.unlink(missing_ok=True)
