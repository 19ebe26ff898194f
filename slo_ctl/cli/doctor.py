"""`slo-ctl doctor`: which requirements this host satisfies."""

from __future__ import annotations

import sys

import typer

from slo_ctl.cli.exit_codes import EXIT_CHECK
from slo_ctl.cli.options import CGROUP_ROOT, CONNECT, JSON
from slo_ctl.cli.output import print_json


def command(
    json_: JSON = False,
    connect: CONNECT = None,
    cgroup_root: CGROUP_ROOT = None,
) -> None:
    """Check the requirements of slo-ctl on this host and how to fix what is missing. Changes nothing.

    Not every requirement is needed everywhere: each line says what for. Exit status 0: all satisfied; 3:
    something is missing.

    Examples:
    slo-ctl doctor
    """
    from slo_ctl.host.cgroup import DEFAULT_ROOT
    from slo_ctl.host.libvirt import DEFAULT_URI
    from slo_ctl.host.requirements import Host, check

    checked = check(Host(cgroup_root=cgroup_root or DEFAULT_ROOT, libvirt_uri=connect or DEFAULT_URI))
    if json_:
        from slo_ctl.show.requirements import requirements_json

        print_json(requirements_json(checked))
    else:
        from slo_ctl.show.requirements import requirement_lines
        from slo_ctl.show.terminal import console_for

        console = console_for(sys.stdout)
        for line in requirement_lines(checked):
            console.print(line, soft_wrap=True)
    if not all(each.finding.satisfied for each in checked):
        raise typer.Exit(EXIT_CHECK)
