"""Requests of bounded size."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY_BYTES = 64 << 10


class BodyLimit:
    """Passes requests on whose body is small, and answers the others itself."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Collect the body first: it is small, or it is refused."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = b""
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return
            body += message.get("body", b"")
            if len(body) > MAX_BODY_BYTES:
                await _refuse(send)
                return
            if not message.get("more_body", False):
                break
        whole: Message = {"type": "http.request", "body": body, "more_body": False}
        given = False

        async def replay() -> Message:
            nonlocal given
            if given:
                return await receive()
            given = True
            return whole

        await self._app(scope, replay, send)


async def _refuse(send: Send) -> None:
    error = {
        "message": f"more than {MAX_BODY_BYTES} bytes in one request",
        "hint": "no request needs as much",
    }
    text = json.dumps({"format_version": 1, "error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send(
        {
            "type": "http.response.start",
            "status": int(HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
            "headers": [*headers, (b"content-length", str(len(text)).encode())],
        }
    )
    await send({"type": "http.response.body", "body": text})
