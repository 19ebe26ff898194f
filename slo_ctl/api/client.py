"""Client of the daemon's API."""

from __future__ import annotations

import http.client
import json
import socket
from pathlib import Path
from typing import Any

from slo_ctl.base.errors import DeniedError, ReplyFormatError, SilentError, UnreachableError, UserError
from slo_ctl.model.status_json import FORMAT_VERSION

MAX_REPLY_BYTES = 64 << 20
_TIMEOUT_S = 10.0


class ApiClient:
    """Sends requests, each over a new connection.

    Methods raise UnreachableError when no daemon answers, and another UserError when it refuses.
    """

    def __init__(self, socket_path: Path, timeout_s: float = _TIMEOUT_S) -> None:
        self.socket_path = socket_path
        self._timeout_s = timeout_s

    def get(self, path: str) -> dict[str, Any]:
        """Read a resource, such as `/v1/status`."""
        return self._request("GET", path)

    def put(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return self._request("PUT", path, body)

    def patch(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return self._request("PATCH", path, body)

    def delete(self, path: str) -> dict[str, Any]:
        return self._request("DELETE", path)

    def post(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        return self._request("POST", path, body)

    def _request(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        connection = _UnixConnection(self.socket_path, self._timeout_s)
        data = None if body is None else json.dumps(body).encode()
        headers = {"Accept": "application/json"} | ({"Content-Type": "application/json"} if data else {})
        try:
            connection.connect()
        except (TimeoutError, BlockingIOError):
            # A full queue of connections is reported at once.
            raise SilentError(f"{self.socket_path}: too many connections at a time") from None
        except OSError as error:
            kind = DeniedError if isinstance(error, PermissionError) else UnreachableError
            raise kind(f"{self.socket_path}: {error.strerror or error}") from None
        try:
            connection.request(method, path, data, headers)
            reply = connection.getresponse()
            text = reply.read(MAX_REPLY_BYTES + 1)
        except TimeoutError:
            raise SilentError(f"{self.socket_path}: no answer for {self._timeout_s:g} s") from None
        except OSError:
            reason = "the connection was closed; too many at a time, or the daemon is stopping"
            raise SilentError(f"{self.socket_path}: {reason}") from None
        except http.client.HTTPException as error:
            raise UnreachableError(f"{self.socket_path}: no HTTP reply: {error!r}") from None
        finally:
            connection.close()
        return _parse_reply(reply.status, text, f"{method} {path}")


def _parse_reply(status: int, text: bytes, request: str) -> dict[str, Any]:
    try:
        body = json.loads(text) if len(text) <= MAX_REPLY_BYTES else None
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise ReplyFormatError(f"{request}: status {status} without a JSON object")
    if status >= http.client.BAD_REQUEST:
        error = body.get("error")
        if not isinstance(error, dict):
            error = {}
        raise UserError(str(error.get("message") or f"{request}: {status}"), str(error.get("hint") or ""))
    if body.get("format_version") != FORMAT_VERSION:
        raise ReplyFormatError(f"format_version {body.get('format_version')}, not {FORMAT_VERSION}")
    return body


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket instead of a host."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))
