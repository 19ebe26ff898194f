"""The server of emulated drives: its program, and a client of its control socket (JSON lines, version 1)."""

from __future__ import annotations

import json
import os
import socket
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic_core import from_json

import ftl_emul
from slo_ctl.base.errors import UserError

SERVER_VARIABLE = "SLO_CTL_SERVER"
SERVER_FILE = "ftl-serve"


def find_server() -> Path:
    """Path of the server program. Raises UserError if it was not built."""
    named = os.environ.get(SERVER_VARIABLE)
    if named:
        if not Path(named).is_file():
            raise UserError(
                f"{SERVER_VARIABLE}: file {named} not found",
                f"set it to the path of {SERVER_FILE}, or unset it",
            )
        return Path(named).absolute()
    for folder in _folders():
        if (folder / SERVER_FILE).is_file():
            return folder / SERVER_FILE
    raise UserError(
        f"the server {SERVER_FILE} is not built",
        f"in a source tree run `make setup` or `cargo build --release -p ftl-serve`; "
        f"elsewhere set {SERVER_VARIABLE} to its path",
    )


def _folders() -> list[Path]:
    package = Path(ftl_emul.__file__).parent
    return [package, package.parent / "target" / "release", Path(sysconfig.get_path("platlib")) / "slo_ctl"]


# The control socket.

VERSION = 1
MAX_REPLY_BYTES = 16 << 20
DEFAULT_TIMEOUT_S = 10.0
_PART_BYTES = 1 << 15


class ControlError(Exception):
    """A command failed; `code` is the server's, `unreachable`, `malformed` or `late`.

    After `late`, a timeout, the server may still execute the command.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class NotSentError(ControlError):
    """The server had closed the connection before the command was sent, as it does after a silent minute."""

    def __init__(self, reason: object) -> None:
        super().__init__("unreachable", f"the server does not answer: {reason}")


class ControlClient:
    """One connection. Methods raise ControlError when the server cannot be reached or refuses."""

    def __init__(self, path: Path, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout_s)
        self._pending = b""
        try:
            self._socket.connect(str(path))
        except OSError as error:
            self._socket.close()
            reason = f"the server does not answer: {path}: {error.strerror or error}"
            raise ControlError("unreachable", reason) from None

    def __enter__(self) -> ControlClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def hello(self) -> dict[str, Any]:
        """Name of the served device, and version of the server."""
        return self.command("hello")

    def statistics(self) -> dict[str, Any]:
        """Counters and space of every namespace."""
        return self.command("stats")

    def brief_statistics(self) -> dict[str, Any]:
        """The part of `statistics` that is needed in every epoch."""
        return self.command("stats", brief=True)

    def settings(self) -> dict[str, Any]:
        """Weight and limits of every namespace, and the scheduler, named as in `statistics`."""
        return self.command("settings")

    def move_ops(self, source: str | None, target: str | None, blocks: int) -> None:
        """Move OPS blocks between namespaces; None: the spare blocks of the device."""
        self.command("move", **{"from": source, "to": target, "blocks": blocks})

    def cancel_moves(self) -> None:
        """Cancel the blocks that were not moved yet."""
        self.command("cancel_moves")

    def set_move_budget(self, share: float) -> None:
        """Bound the share of device time that moves take while requests are outstanding."""
        self.command("set_move_budget", share=share)

    def set_weight(self, namespace: str, weight: float) -> None:
        self.command("set_weight", namespace=namespace, weight=weight)

    def set_scheduler(self, scheduler: str) -> None:
        """Set the scheduler that divides device time: `wfq`, `fifo` or `rr`."""
        self.command("set_scheduler", scheduler=scheduler)

    def set_limit(self, namespace: str, iops: float | None = None, bytes_s: float | None = None) -> None:
        """Set both limits of a namespace; None: no limit."""
        self.command("set_limit", namespace=namespace, iops=iops, bytes_s=bytes_s)

    def resize(self, namespace: str, size_bytes: int, *, keep_data: bool = False) -> None:
        """Change the size of a namespace; with `keep_data`, refuse a size that would lose data."""
        self.command("resize", namespace=namespace, size_bytes=size_bytes, keep_data=keep_data)

    def command(self, op: str, **fields: object) -> dict[str, Any]:
        """Send a command and return its reply."""
        line = json.dumps({"v": VERSION, "op": op, **fields}).encode() + b"\n"
        try:
            self._send(line)
            # A quarter faster than json's for the statistics of many namespaces.
            reply = from_json(self._line())
        except TimeoutError:
            waited = f"{self._socket.gettimeout():g} s"
            raise ControlError("late", f"the server has not answered for {waited}") from None
        except OSError as error:
            raise ControlError("unreachable", f"the server does not answer: {error}") from None
        except ValueError as error:
            raise ControlError("malformed", f"malformed reply: {error}") from None
        if not isinstance(reply, dict):
            raise ControlError("malformed", "malformed reply: not a JSON object")
        if not reply.get("ok"):
            reason = reply.get("error") or {}
            raise ControlError(str(reason.get("code")), str(reason.get("message")))
        return reply

    def _send(self, line: bytes) -> None:
        try:
            self._socket.sendall(line)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise NotSentError(error) from None

    def _line(self) -> bytes:
        line, ended, rest = bytearray(), b"", self._pending
        while not ended:
            part, ended, rest = rest.partition(b"\n")
            line += part
            if len(line) > MAX_REPLY_BYTES:
                raise ConnectionError("the reply is too long")
            if not ended and not (rest := self._socket.recv(_PART_BYTES)):
                raise ConnectionError("the server closed the connection")
        self._pending = rest
        return bytes(line)


Connect = Callable[[Path, float], ControlClient]
"""Opens a connection to a control socket with a timeout in seconds for each reply."""
