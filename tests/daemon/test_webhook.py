"""Webhooks for changes of verdicts: sent to real HTTP servers on this host."""

from __future__ import annotations

import json
import logging
import platform
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from test_hooks import until

from slo_ctl.config.settings import HooksConfig
from slo_ctl.daemon.hooks import HookQueue, Hooks, Webhook
from slo_ctl.daemon.status import VerdictChange
from slo_ctl.model.status import Verdict


class Receiver(ThreadingHTTPServer):
    """Answers all requests with `status`, after `go` is set, and records them."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = 204
        self.requests: list[tuple[str, str | None, bytes]] = []
        self.began = threading.Event()
        self.go = threading.Event()
        self.go.set()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?token=secret"

    def handle_error(self, request: object, client_address: object) -> None:
        """Some tests make the client disconnect."""


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.append((self.path, self.headers["Content-Type"], body))
        self.server.began.set()
        self.server.go.wait(30)
        self.send_response(self.server.status)
        if self.server.status == 302:
            self.send_header("Location", "/elsewhere")
        self.end_headers()

    do_GET = do_POST  # noqa: N815 - named by http.server

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.go.set()
        server.shutdown()
        thread.join()


def change(vm: str = "web") -> VerdictChange:
    return VerdictChange(vm, "ssd0", Verdict.OK, Verdict.INSUFFICIENT, "80 of 100 IOPS", 12.5)


@contextmanager
def sending(url: str, limit_s: float = 20.0) -> Iterator[HookQueue]:
    with pytest.MonkeyPatch.context() as patch, closing(HookQueue()) as queue:
        patch.setattr("slo_ctl.daemon.hooks.REQUEST_LIMIT_S", limit_s)
        queue.configure(Webhook(url))
        yield queue


def test_change_is_sent_as_json(receiver: Receiver) -> None:
    with sending(receiver.url) as queue:
        queue.add([change("we\nb")])
        until(lambda: queue.results()["done"] == 1)
    ((path, kind, body),) = receiver.requests
    assert (path, kind) == ("/hook?token=secret", "application/json")
    assert json.loads(body) == {
        "format_version": 1,
        "event": "verdict",
        "host": platform.node(),
        "at": 12.5,
        "vm": r"we\nb",
        "device": "ssd0",
        "verdict": "insufficient",
        "previous": "ok",
        "degraded": True,
        "reason": "80 of 100 IOPS",
    }


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (500, "answered 500 Internal Server Error"),
        (302, "answered 302 Found, and redirects are not followed"),
    ],
)
def test_other_replies_are_failures_and_logged_once_without_the_secret(
    receiver: Receiver, caplog: pytest.LogCaptureFixture, status: int, said: str
) -> None:
    receiver.status = status
    with sending(receiver.url) as queue, caplog.at_level(logging.WARNING):
        queue.add([change("web"), change("db")])
        until(lambda: queue.results()["failed"] == 2)
    assert len(receiver.requests) == 2
    assert caplog.messages == [f"[hooks] webhook: http://127.0.0.1:{receiver.port} {said}"]


def test_server_that_is_down_is_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with sending(f"http://127.0.0.1:{port}") as queue, caplog.at_level(logging.WARNING):
        queue.add([change()])
        until(lambda: queue.results()["failed"] == 1)
    assert caplog.messages == [
        f"[hooks] webhook: http://127.0.0.1:{port} cannot be reached: Connection refused"
    ]


def test_server_that_does_not_speak_http_is_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"220 mail.example.org\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with sending(f"http://127.0.0.1:{port}") as queue, caplog.at_level(logging.WARNING):
            queue.add([change()])
            until(lambda: queue.results()["failed"] == 1)
        thread.join()
    assert "did not answer in HTTP" in caplog.messages[0]


def test_server_that_answers_byte_by_byte_gets_no_more_than_the_limit() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        done = threading.Event()

        def drip() -> None:
            connection, _ = listener.accept()
            with connection:
                while not done.wait(0.05):
                    try:
                        connection.sendall(b"H")
                    except OSError:
                        return

        thread = threading.Thread(target=drip)
        thread.start()
        with sending(f"http://127.0.0.1:{listener.getsockname()[1]}", limit_s=0.5) as queue:
            queue.add([change()])
            until(lambda: queue.results()["killed"] == 1)
        done.set()
        thread.join()


def test_a_lookup_of_its_name_gets_no_more_than_the_limit(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answer, look_up, lookups = threading.Event(), socket.getaddrinfo, 0

    def slow(host: str, *words: Any, **options: Any) -> Any:
        nonlocal lookups
        lookups += 1
        answer.wait(60)
        return look_up("127.0.0.1" if host == "hook.example" else host, *words, **options)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    url = receiver.url.replace("127.0.0.1", "hook.example")
    with sending(url, limit_s=0.2) as queue, caplog.at_level(logging.WARNING):
        for number in (1, 2):
            queue.add([change(f"vm{number}")])
            until(lambda number=number: queue.results()["killed"] == number)  # type: ignore[misc]
        assert lookups == 1, "no thread more for each change"
        answer.set()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("slo_ctl.daemon.hooks.REQUEST_LIMIT_S", 20.0)
            queue.add([change("web")])
            until(lambda: queue.results()["done"] == 1)
    assert "did not answer within 0.2 s" in caplog.messages[0]


def test_the_next_address_is_tried_when_one_does_not_answer(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.2", 0)) as unused:
        closed = unused.getsockname()
    addresses = [
        (socket.AF_INET, socket.SOCK_STREAM, 0, "", address)
        for address in (closed, ("127.0.0.1", receiver.port))
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: addresses)
    with sending(receiver.url.replace("127.0.0.1", "hook.example")) as queue:
        queue.add([change()])
        until(lambda: queue.results()["done"] == 1)


def test_neither_epochs_nor_a_stop_wait_for_the_server(receiver: Receiver) -> None:
    receiver.go.clear()
    hooks = Hooks(HooksConfig(webhook=receiver.url))
    hooks.add([change("web")])
    assert receiver.began.wait(20)
    hooks.add([change("db")])
    assert len(receiver.requests) == 1
    hooks.close()
    assert hooks.results()["webhook", "killed"] == 1
    assert hooks.results()["webhook", "left-out"] == 1
    assert len(receiver.requests) == 1


def test_program_and_webhook_do_not_wait_for_each_other(receiver: Receiver, tmp_path: Path) -> None:
    receiver.go.clear()
    program = tmp_path / "hook"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    with closing(Hooks(HooksConfig((str(program),), receiver.url))) as hooks:
        hooks.add([change("web"), change("db")])
        until(lambda: hooks.results()["program", "done"] == 2)
        assert hooks.results()["webhook", "done"] == 0
        receiver.go.set()
        until(lambda: hooks.results()["webhook", "done"] == 2)
        hooks.configure(HooksConfig())
        hooks.add([change()])
    assert hooks.results()["webhook", "done"] == 2


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate with openssl")
def test_https_server_is_sent_to_only_with_a_valid_certificate(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    words = (
        "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    )
    subprocess.run(
        ["openssl", *words.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    receiver.socket = context.wrap_socket(receiver.socket, server_side=True)
    url = f"https://localhost:{receiver.port}/"
    with sending(url) as queue, caplog.at_level(logging.WARNING):
        queue.add([change()])
        until(lambda: queue.results()["failed"] == 1)
    assert "certificate verify failed" in caplog.messages[0]
    assert receiver.requests == []
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with sending(url) as queue:
        queue.add([change()])
        until(lambda: queue.results()["done"] == 1)
    assert len(receiver.requests) == 1
