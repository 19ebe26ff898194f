"""`slo-ctl top`: the status, live and full-screen."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from slo_ctl.cli.api_access import RootOption, client, how_to_start
from slo_ctl.errors import UserError

ASK_TIMEOUT_S = 5.0


def command(
    interval: Annotated[
        float, typer.Option(min=0.1, max=3600, metavar="SECONDS", help="How often the daemon is asked.")
    ] = 1.0,
    root: RootOption = None,
) -> None:
    """Watch all VMs full-screen: sort and filter by key, and see why a VM gets what it gets.

    Goes on through restarts of the daemon. Changes nothing.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UserError("slo-ctl top needs a terminal", "use: slo-ctl status --watch")
    from slo_ctl.show.gone import Gone
    from slo_ctl.show.top import TopApp

    daemon = client(root, ASK_TIMEOUT_S)
    TopApp(lambda: daemon.get("/v1/status"), Gone(lambda reason: how_to_start(root, reason)), interval).run()
