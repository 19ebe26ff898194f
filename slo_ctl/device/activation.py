"""Sockets that whoever started us has opened already: systemd's socket activation, sd_listen_fds(3)."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from slo_ctl.errors import UserError

_FIRST_FD = 3
_VARIABLES = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")


def handed_sockets() -> dict[Path, socket.socket]:
    """Listening Unix sockets by the path they are bound to, none without activation; taken once.

    Raises UserError for one that is no listening Unix socket with a path.
    """
    given = {name: os.environ.pop(name, "") for name in _VARIABLES}
    # Somebody between us and systemd has kept its variables: they are not meant for us.
    if given["LISTEN_PID"] != str(os.getpid()) or not given["LISTEN_FDS"].isdecimal():
        return {}
    found: dict[Path, socket.socket] = {}
    names = given["LISTEN_FDNAMES"].split(":")
    for number in range(int(given["LISTEN_FDS"])):
        descriptor = _FIRST_FD + number
        name = names[number] if number < len(names) and names[number] else f"number {number + 1}"
        path, opened = _adopt(descriptor, name)
        found[path] = opened
    return found


def _adopt(descriptor: int, name: str) -> tuple[Path, socket.socket]:
    try:
        os.set_inheritable(descriptor, False)
        opened = socket.socket(fileno=descriptor)
    except OSError as error:
        raise UserError(f"socket {name} of the activation: {error.strerror}", "see LISTEN_FDS") from None
    bound = opened.getsockname() if opened.family == socket.AF_UNIX else ""
    listening = opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if not listening or opened.type != socket.SOCK_STREAM or not isinstance(bound, str) or not bound:
        opened.detach()
        raise UserError(
            f"socket {name} of the activation is no listening Unix socket with a path",
            "give ListenStream= the path of one of the device's sockets; `slo-ctl device show` has them",
        )
    # systemd would not wait in accept(); who gets the socket does.
    opened.setblocking(True)
    return Path(bound), opened
