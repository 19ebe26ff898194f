"""The page over real TCP: its resources, access to it, and its content security policy."""

from __future__ import annotations

import http.client
import json
import re
import socket
from collections.abc import Iterator
from importlib.resources import files

import pytest
from test_api_server import STATUS, FakeController

from slo_ctl.api.page import HEADERS, Page
from slo_ctl.base.errors import UserError
from slo_ctl.model.status import Verdict

SOURCES = {
    each.name: each.read_text() for each in (files("slo_ctl.show") / "page").iterdir() if each.is_file()
}
"""Our own files; uPlot is below `uplot/`, as released."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def controller() -> FakeController:
    return FakeController()


@pytest.fixture(scope="module")
def port(controller: FakeController) -> Iterator[int]:
    page, port = Page(controller), free_port()
    page.listen(f"127.0.0.1:{port}")
    yield port
    page.close()


def ask(
    port: int, target: str, method: str = "GET", **headers: str
) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(
        method, target, headers={name.replace("_", "-"): text for name, text in headers.items()}
    )
    reply = connection.getresponse()
    body = reply.read()
    connection.close()
    return reply, body


@pytest.mark.parametrize(
    ("target", "kind", "part"),
    [
        ("/", "text/html; charset=utf-8", b'<script src="page.js" defer>'),
        ("/page.css", "text/css; charset=utf-8", b".share"),
        ("/colours.css", "text/css; charset=utf-8", b"prefers-color-scheme: dark"),
        ("/charts.css", "text/css; charset=utf-8", b".chart"),
        ("/parts.js", "text/javascript; charset=utf-8", b"const known"),
        ("/page.js", "text/javascript; charset=utf-8", b"status.json"),
        ("/charts.js", "text/javascript; charset=utf-8", b"new uPlot"),
        ("/uplot/uPlot.js", "text/javascript; charset=utf-8", b"uPlot"),
        ("/uplot/uPlot.css", "text/css; charset=utf-8", b".u-over"),
        ("/status.json", "application/json", b'"web/1"'),
        ("/history.json?vm=web/1&minutes=60", "application/json", b'"points"'),
    ],
)
def test_page_serves_each_resource(port: int, target: str, kind: str, part: bytes) -> None:
    reply, body = ask(port, target)
    assert (reply.status, reply.headers["Content-Type"]) == (200, kind)
    assert part in body
    assert {name: reply.headers[name] for name in HEADERS} == HEADERS
    assert "Access-Control-Allow-Origin" not in reply.headers
    head, nothing = ask(port, target, "HEAD")
    assert (head.status, nothing) == (200, b"")
    assert int(head.headers["Content-Length"]) > 0


def test_history_covers_the_requested_minutes(port: int) -> None:
    _, body = ask(port, "/history.json?vm=web/1&minutes=60")
    history = json.loads(body)
    assert history["vm"] == "web/1"
    assert STATUS.at < history["since"]  # the history uses the real clock


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_page_refuses_writes(port: int, method: str) -> None:
    reply, body = ask(port, "/status.json", method)
    assert (reply.status, reply.headers["Allow"]) == (405, "GET, HEAD")
    assert "read-only" in json.loads(body)["error"]["message"]


@pytest.mark.parametrize(
    "target", ["/v1/status", "/v1/reload", "/metrics", "/page.py", "/../page.py", "//evil/", "/page/"]
)
def test_unknown_path_is_404(port: int, target: str) -> None:
    assert ask(port, target)[0].status == 404


def test_a_target_that_is_no_url_is_refused(port: int, caplog: pytest.LogCaptureFixture) -> None:
    """The connection was closed without a reply, and each time the log got a traceback."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(b"GET http://[/ HTTP/1.1\r\nHost: localhost\r\n\r\n")
        reply = client.makefile("rb").read()
    assert reply.startswith(b"HTTP/1.1 400 ")
    assert b"http://[/: is not the target of a request" in reply
    assert caplog.records == []


@pytest.mark.parametrize(
    ("query", "status"),
    [("", 422), ("vm=web/1&minutes=0", 422), ("vm=web/1&minutes=nan", 422), ("vm=broken", 503)],
)
def test_history_of_unknown_vm_is_404(port: int, query: str, status: int) -> None:
    reply, body = ask(port, f"/history.json?{query}")
    assert (reply.status, set(json.loads(body)["error"])) == (status, {"message", "hint"})


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1:9465", "127.9.9.9", "[::1]:9465"])
def test_loopback_host_headers_are_accepted(port: int, host: str) -> None:
    assert ask(port, "/status.json", Host=host)[0].status == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:9465", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", ""],
)
def test_dns_rebinding_is_refused(port: int, host: str) -> None:
    reply, body = ask(port, "/status.json", Host=host)
    assert reply.status == 421
    assert b"web/1" not in body


@pytest.mark.parametrize("hosts", [(), ("localhost", "localhost"), ("localhost", "attacker.example")])
def test_request_needs_exactly_one_host(port: int, hosts: tuple[str, ...]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.putrequest("GET", "/status.json", skip_host=True)
    for host in hosts:
        connection.putheader("Host", host)
    connection.endheaders()
    reply = connection.getresponse()
    assert reply.status == 400
    assert "one Host header" in json.loads(reply.read())["error"]["message"]
    connection.close()


def test_cross_site_link_is_allowed_but_not_data(port: int) -> None:
    def status(target: str, mode: str) -> int:
        return ask(port, target, Sec_Fetch_Site="cross-site", Sec_Fetch_Mode=mode)[0].status

    assert status("/", "navigate") == 200
    assert status("/status.json", "no-cors") == 403
    assert ask(port, "/status.json", Sec_Fetch_Site="same-origin")[0].status == 200


def test_page_answers_before_the_first_epoch(port: int, controller: FakeController) -> None:
    controller.latest = None
    try:
        reply, body = ask(port, "/status.json")
    finally:
        controller.latest = STATUS
    assert reply.status == 503
    assert "first epoch" in json.loads(body)["error"]["message"]


def test_page_keeps_its_address_if_the_new_one_fails(controller: FakeController) -> None:
    page, first, second = Page(controller), free_port(), free_port()
    page.listen(None)
    page.listen(f"127.0.0.1:{first}")
    page.listen(f"127.0.0.1:{first}")
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(UserError, match="Address already in use"),
    ):
        page.listen(f"127.0.0.1:{taken.getsockname()[1]}")
    assert ask(first, "/")[0].status == 200
    page.listen(f"127.0.0.1:{second}")
    assert ask(second, "/")[0].status == 200
    with pytest.raises(ConnectionRefusedError):
        ask(first, "/")
    page.listen(None)
    with pytest.raises(ConnectionRefusedError):
        ask(second, "/")


@pytest.mark.parametrize("address", ["0.0.0.0:9465", "[::]:9465", "192.0.2.1:9465", "localhost:9465"])
def test_page_listens_on_loopback_only(controller: FakeController, address: str) -> None:
    with pytest.raises(UserError, match="not a loopback address"):
        Page(controller).listen(address)


def test_names_of_vms_cannot_become_markup() -> None:
    """The same holds for all other strings that the script inserts."""
    ways = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|setHTML|srcdoc|Parser"
    )
    scripts = "".join(source for name, source in SOURCES.items() if name.endswith(".js"))
    assert re.findall(ways, scripts) == []
    assert scripts.count("textContent = text") == 1
    library = (files("slo_ctl.show") / "page" / "uplot" / "uPlot.js").read_text()
    assert re.findall(ways, library) == []


def test_page_obeys_its_content_security_policy() -> None:
    html = SOURCES["index.html"]
    assert re.findall(r"\son\w+=|style=|<style|javascript:", html) == []
    assert set(re.findall(r'(?:src|href)="([^"]*)"', html)) == {
        "uplot/uPlot.css",
        "uplot/uPlot.js",
        "colours.css",
        "charts.css",
        "page.css",
        "parts.js",
        "charts.js",
        "page.js",
        "data:,",
    }
    assert re.findall(r"<script(?! src=)", html) == []
    styles = "".join(source for name, source in SOURCES.items() if name.endswith(".css"))
    assert re.findall(r"url\(|@import", styles) == []
    assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)", "".join(SOURCES.values())) == []


def test_every_verdict_has_its_colour() -> None:
    assert set(re.findall(r"\[data-verdict=([\w-]+)\]", SOURCES["colours.css"])) == {
        each.value for each in Verdict
    }
