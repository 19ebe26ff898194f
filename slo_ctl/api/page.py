"""The read-only status page, over TCP on loopback addresses only."""

from __future__ import annotations

import logging
import os
import re
import socket
import time
from dataclasses import dataclass
from email.message import Message
from http import HTTPStatus
from importlib.resources import files
from urllib.parse import quote, urlencode

from pydantic import Field

from slo_ctl.api.messages import Query, RefusalError, Reply, Request, refusal
from slo_ctl.api.routes import Api, Controller
from slo_ctl.api.server import OneRequest
from slo_ctl.base.accounts import Peer
from slo_ctl.base.errors import UserError
from slo_ctl.host.bounded_server import MAX_TCP_CONNECTIONS, BoundedServer, TcpListener
from slo_ctl.host.sockets import host_and_port, is_loopback

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}
_FILES = {"/": ("index.html", "text/html; charset=utf-8")} | {
    f"/{name}": (name, _TYPES[name.rpartition(".")[2]])
    for name in (
        *("colours.css", "charts.css", "page.css", "uplot/uPlot.css"),
        *("parts.js", "charts.js", "page.js", "uplot/uPlot.js"),
    )
}
_HISTORY_POINTS = 360
_PORT = re.compile(r":\d{1,5}$")

log = logging.getLogger("slo_ctl.api")


class PageHistoryQuery(Query):
    """Parameters of /history.json."""

    vm: str
    minutes: float = Field(60.0, gt=0, le=7 * 24 * 60)


class Page(TcpListener):
    """Serves the page at the address given to `listen`."""

    def __init__(self, controller: Controller) -> None:
        routes = PageRoutes(Api(controller))
        super().__init__("page", lambda listening: _Server(routes, listening))

    def listen(self, address: str | None) -> None:
        """As `TcpListener.listen`; also raises UserError for an address that is not a loopback one."""
        if address and not is_loopback(host_and_port(address)[0]):
            raise UserError(
                f"[page] listen = {address!r} is not a loopback address", 'such as "127.0.0.1:9465"'
            )
        before = self.address
        super().listen(address)
        if address and address != before:
            log.info("page at http://%s/", address)


def _daemon_user() -> Peer:
    """The user of requests of the page: that of the daemon, as TCP tells nothing about the sender."""
    return Peer(os.geteuid(), frozenset())


@dataclass(frozen=True, slots=True)
class PageRoutes:
    """Answers requests of the page."""

    api: Api

    def answer(self, method: str, target: str, headers: Message) -> Reply:
        """The reply to a request, which may be a refusal."""
        try:
            self._check_origin(headers)
            return self._answer(Request(method, target, b"", _daemon_user()))
        except RefusalError as error:
            return refusal(error.status, error.message, error.hint, error.allow)

    def _answer(self, request: Request) -> Reply:
        path = request.path
        if path not in (*_FILES, "/status.json", "/history.json"):
            raise RefusalError(f"{path}: Not Found", "the page is at /", HTTPStatus.NOT_FOUND)
        if request.method not in ("GET", "HEAD"):
            raise RefusalError(
                f"{request.method} {path}: the page is read-only",
                "change SLOs with `slo-ctl vm set` or the API",
                HTTPStatus.METHOD_NOT_ALLOWED,
                "GET, HEAD",
            )
        if path in _FILES:
            name, content_type = _FILES[path]
            content = files("slo_ctl.show").joinpath("page", *name.split("/")).read_bytes()
            return Reply(HTTPStatus.OK, content_type, content)
        if path == "/status.json":
            return self._api_reply("/v1/status")
        query = request.query(PageHistoryQuery)
        parameters = {"since": time.time() - 60 * query.minutes, "limit": _HISTORY_POINTS}
        return self._api_reply(f"/v1/history/{quote(query.vm, safe='')}?{urlencode(parameters)}")

    def _api_reply(self, target: str) -> Reply:
        return self.api.answer(Request("GET", target, b"", _daemon_user()))

    def _check_origin(self, headers: Message) -> None:
        """Raise RefusalError for a request of another site, or with another host name (DNS rebinding)."""
        hosts = headers.get_all("Host", [])
        if len(hosts) != 1:
            raise RefusalError(
                f"a request has one Host header, this one {len(hosts)}", "send one", HTTPStatus.BAD_REQUEST
            )
        host = _PORT.sub("", hosts[0]).lower().removeprefix("[").removesuffix("]")
        if host != "localhost" and not is_loopback(host):
            raise RefusalError(
                f"Host: {hosts[0]} is not a name of this page",
                "open it as http://127.0.0.1:PORT/ or http://localhost:PORT/",
                HTTPStatus.MISDIRECTED_REQUEST,
            )
        if (
            headers.get("Sec-Fetch-Site") in ("cross-site", "same-site")
            and headers.get("Sec-Fetch-Mode") != "navigate"
        ):
            raise RefusalError(
                "the request comes from another site", "open the page itself", HTTPStatus.FORBIDDEN
            )


class _Server(BoundedServer):
    def __init__(self, routes: PageRoutes, listening: socket.socket) -> None:
        super().__init__(listening, _Connection, MAX_TCP_CONNECTIONS, "page")
        self.routes = routes


class _Connection(OneRequest):
    server: _Server
    extra_headers = HEADERS
    hint = "the page is at /"

    def answer(self) -> None:
        """Answer a request without reading its body."""
        self.send(self.server.routes.answer(self.command, self.path, self.headers))
