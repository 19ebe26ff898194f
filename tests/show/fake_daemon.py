"""A daemon's socket with fake answers: real HTTP on a real Unix socket."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    Answer = dict[str, Any] | Callable[[str], dict[str, Any]]


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    answers: dict[str, Any]


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, _Server)
        path = self.path.partition("?")[0]
        found = next((server.answers[each] for each in server.answers if path.startswith(each)), None)
        body = found(self.path) if callable(found) else found
        status = 200 if body is not None else 404
        if body is None:
            body = {"format_version": 1, "error": {"message": f"no {path}", "hint": "see the list"}}
        if "error" in body:
            status = 404
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_POST = do_GET  # noqa: N815 - named by http.server

    def address_string(self) -> str:
        return "unix"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        pass


class FakeDaemon:
    """Listens below `root` as a daemon with --root does; `answers` are by path prefix."""

    def __init__(self, root: Path, answers: dict[str, Answer]) -> None:
        self.socket = root / "run" / "api.sock"
        self.answers = answers
        self._server: _Server | None = None

    def start(self) -> None:
        self.socket.parent.mkdir(exist_ok=True)
        self._server = _Server(str(self.socket), _Handler)
        self._server.answers = self.answers
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
            self.socket.unlink()

    def __enter__(self) -> FakeDaemon:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
