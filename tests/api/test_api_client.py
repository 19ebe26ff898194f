"""The client against servers that answer, refuse, or talk nonsense."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slo_ctl.api.client import ApiClient
from slo_ctl.base.errors import UnreachableError, UserError


@contextmanager
def answering(reply: bytes) -> Iterator[ApiClient]:
    with tempfile.TemporaryDirectory(prefix="slo-") as folder, socket.socket(socket.AF_UNIX) as listener:
        path = Path(folder) / "api.sock"
        listener.bind(str(path))
        listener.listen(1)

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(reply)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):  # the rest of the request: closing before it would reset
                    pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield ApiClient(path, timeout_s=5)
        thread.join(5)


def http(status: str, body: bytes) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def test_answers_and_refusals() -> None:
    with answering(http("200 OK", b'{"format_version": 1, "vms": []}')) as client:
        assert client.get("/v1/vms") == {"format_version": 1, "vms": []}
    refusal = b'{"format_version": 1, "error": {"message": "there is no VM web", "hint": "see `vm list`"}}'
    with answering(http("404 Not Found", refusal)) as client, pytest.raises(UserError) as error:
        client.put("/v1/vms/web/slo", {"weight": 3})
    assert (error.value.message, error.value.hint) == ("there is no VM web", "see `vm list`")


@pytest.mark.parametrize("body", [b"", b"[1]", b"<html>", b'{"error": "text"}', b'{"error": null}'])
def test_a_refusal_that_is_not_ours(body: bytes) -> None:
    with answering(http("500 Oops", body)) as client, pytest.raises(UserError, match="500"):
        client.get("/v1/status")


def test_other_format_version_is_refused() -> None:
    with (
        answering(http("200 OK", b'{"format_version": 2}')) as client,
        pytest.raises(UserError, match="format_version 2, not 1"),
    ):
        client.get("/v1/status")


def test_unreachable_daemon_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match="No such file"):
        ApiClient(tmp_path / "none.sock").get("/v1/status")
    with answering(b"\x00garbage\r\n") as client, pytest.raises(UnreachableError, match="no HTTP"):
        client.get("/v1/status")
