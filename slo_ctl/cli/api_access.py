"""Asking the daemon from the command line: which socket, and what to say when nobody answers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slo_ctl.cli.exit_codes import EXIT_FAILURE, EXIT_UNREACHABLE
from slo_ctl.cli.say import remark
from slo_ctl.errors import UserError

if TYPE_CHECKING:
    from slo_ctl.api.client import ApiClient

SYSTEM_SOCKET = Path("/run/slo-ctl/api.sock")

RootOption = Annotated[
    Path | None,
    typer.Option(
        "--root", metavar="DIR", help="The daemon that was started with --root DIR, for trying out."
    ),
]


def client(root: Path | None, timeout_s: float | None = None) -> ApiClient:
    """Of the daemon below `root`, else of the user's own daemon if there is one, else of the system's."""
    from slo_ctl.api.client import ApiClient
    from slo_ctl.daemon.places import DaemonPlaces

    socket = DaemonPlaces(root).api_socket
    if root is None and os.geteuid() != 0 and not socket.exists():
        socket = SYSTEM_SOCKET
    return ApiClient(socket) if timeout_s is None else ApiClient(socket, timeout_s)


def ask(root: Path | None, path: str) -> dict[str, Any]:
    """The daemon's reply. Without a daemon this says how to start one and raises typer.Exit(4)."""
    from slo_ctl.api.client import ApiUnreachable

    try:
        return client(root).get(path)
    except ApiUnreachable as error:
        tell_unreachable(str(error), root)
        raise typer.Exit(EXIT_UNREACHABLE) from None
    except UserError as error:
        # Nothing that was typed is at fault: a daemon that is not ready yet, or of another release.
        remark(f"slo-ctl: {error.message}")
        remark(f"hint: {error.hint}")
        raise typer.Exit(EXIT_FAILURE) from None


def tell_unreachable(reason: str, root: Path | None) -> None:
    """On stderr: nobody answers, and what to do."""
    remark(f"slo-ctl: the daemon is not reachable: {reason}")
    remark(f"hint: {how_to_start(root, reason)}")


def how_to_start(root: Path | None, reason: str = "") -> str:
    """What to do when nobody answers."""
    if os.strerror(13) in reason:
        return "be root, or in the group that [api] group names (slo-ctl)"
    if root is not None:
        return f"start it: slo-ctl daemon --root {root}"
    return "start it: systemctl start slo-ctld, or slo-ctl daemon in a terminal"
