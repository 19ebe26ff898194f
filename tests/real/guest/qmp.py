"""QEMU's control socket (QMP): one command, one reply."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

_ANSWER_S = 20.0


class QmpError(Exception):
    """QEMU did not run a command; the message is the reason."""


def qmp(path: Path, command: str, **arguments: Any) -> Any:
    """Run a QMP command and return its reply. Raises QmpError, also if QEMU has stopped."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_ANSWER_S)
            connection.connect(str(path))
            with connection.makefile("rw", encoding="utf-8") as stream:
                stream.readline()  # the greeting
                _ask(stream, "qmp_capabilities", {})
                return _ask(stream, command, arguments)
    except (OSError, ValueError) as error:
        raise QmpError(f"{command}: {error}") from error


def _ask(stream: Any, command: str, arguments: dict[str, Any]) -> Any:
    stream.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
    stream.flush()
    for line in stream:
        answer = json.loads(line)
        if "return" in answer:
            return answer["return"]
        if "error" in answer:
            raise QmpError(f"{command}: {answer['error'].get('desc')}")
        # otherwise an event
    raise QmpError(f"{command}: QEMU ended before it answered")
