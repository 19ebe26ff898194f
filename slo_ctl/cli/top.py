"""`slo-ctl top`: live full-screen status."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from slo_ctl.base.errors import UserError
from slo_ctl.cli.api_access import client, start_hint
from slo_ctl.cli.options import ROOT

REQUEST_TIMEOUT_S = 5.0


def command(
    interval: Annotated[
        float, typer.Option(min=0.1, max=3600, metavar="SECONDS", help="Time between updates.")
    ] = 1.0,
    root: ROOT = None,
) -> None:
    """Watch all VMs full-screen, sorted and filtered by key, with the reason for each verdict.

    Continues across restarts of the daemon. Changes nothing.

    Examples:
    slo-ctl top
    slo-ctl top --interval 5
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UserError("slo-ctl top needs a terminal", "use slo-ctl status --watch instead")
    from slo_ctl.show.status import DaemonOutage
    from slo_ctl.show.top import TopApp

    daemon = client(root, REQUEST_TIMEOUT_S)
    TopApp(
        lambda: daemon.get("/v1/status"), DaemonOutage(lambda reason: start_hint(root, reason)), interval
    ).run()
