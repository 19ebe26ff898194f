"""The address of `[hooks] webhook`, to which each change of a verdict is sent by HTTP POST."""

from __future__ import annotations

import http.client
import json
import platform
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

from slo_ctl.base.text import printable
from slo_ctl.base.version import tool_version
from slo_ctl.daemon.hook_queue import DONE, FAILED, KILLED
from slo_ctl.daemon.status import VerdictChange

LIMIT_S = 5.0
"""Time limit for a request."""
FORMAT_VERSION = 1

_POLL_S = 0.05
_SUCCESS, _REDIRECT = 2, 3
"""First digits of statuses."""


class Webhook:
    """A hook that sends changes by HTTP or HTTPS, without redirects and proxies."""

    def __init__(self, url: str, limit_s: float = LIMIT_S) -> None:
        """`url`: a valid URL."""
        parts = urlsplit(url)
        tls = parts.scheme == "https"
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if tls else 80)
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._tls = ssl.create_default_context() if tls else None
        self._limit_s = limit_s
        # Without the path, which may contain a secret.
        self.name = f"webhook: {parts.scheme}://{parts.netloc}"

    def run(self, change: VerdictChange, end_s: Callable[[], float]) -> tuple[str, str]:
        """Send a change, and wait for the status of the reply."""
        limit_s = time.monotonic() + self._limit_s

        def deadline_s() -> float:
            return min(limit_s, end_s())

        connection = _Connection(self._host, self._port, self._limit_s, self._tls)
        try:
            with _shutdown_at(connection, deadline_s):
                problem = self._post(connection, payload(change))
        finally:
            connection.close()
        if problem and time.monotonic() >= deadline_s():
            return KILLED, f"did not answer within {self._limit_s:g} s, or the daemon stopped"
        return (FAILED, problem) if problem else (DONE, "")

    def _post(self, connection: _Connection, body: bytes) -> str:
        """Send a request. Returns why it failed, or an empty text."""
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"slo-ctl/{tool_version()}",
            "Connection": "close",
        }
        try:
            connection.request("POST", self._target, body, headers)
            status = connection.getresponse().status
        except OSError as error:
            return f"cannot be reached: {error.strerror or error}"
        except (http.client.HTTPException, UnicodeError) as error:
            return f"did not answer in HTTP: {type(error).__name__}"
        kind = status // 100
        if kind == _SUCCESS:
            return ""
        answered = f"answered {status} {http.client.responses.get(status, '')}".rstrip()
        return f"{answered}, and redirects are not followed" if kind == _REDIRECT else answered


def payload(change: VerdictChange) -> bytes:
    """The body of the request."""
    return json.dumps(
        {
            "format_version": FORMAT_VERSION,
            "event": "verdict",
            "host": platform.node(),
            "at": change.at,
            "vm": printable(change.vm),
            "device": printable(change.device),
            "verdict": change.verdict.value,
            "previous": change.previous.value if change.previous else None,
            "degraded": change.is_degraded,
            "reason": printable(change.reason),
        }
    ).encode()


class _Connection(http.client.HTTPConnection):
    """A connection that sets `sock` before the TLS handshake, so that the handshake can be interrupted."""

    def __init__(self, host: str, port: int, timeout_s: float, tls: ssl.SSLContext | None) -> None:
        super().__init__(host, port, timeout=timeout_s)
        self._tls = tls

    def connect(self) -> None:
        """Connect, and with TLS verify the server."""
        self.sock = socket.create_connection((self.host, self.port), self.timeout)
        if self._tls is not None:
            secured = self._tls.wrap_socket(
                self.sock, server_hostname=self.host, do_handshake_on_connect=False
            )
            self.sock = secured
            secured.do_handshake()


@contextmanager
def _shutdown_at(connection: _Connection, deadline_s: Callable[[], float]) -> Iterator[None]:
    """Shut the connection down at `deadline_s()`, because its own timeout applies to each read separately."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_POLL_S):
            opened = connection.sock
            if opened is not None and time.monotonic() >= deadline_s():
                with suppress(OSError):
                    opened.shutdown(socket.SHUT_RDWR)

    watcher = threading.Thread(target=watch, name="webhook-limit", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
