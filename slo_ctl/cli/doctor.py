"""`slo-ctl doctor`: what this host has of what slo-ctl can use."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from slo_ctl.cli.exit_codes import EXIT_CHECK
from slo_ctl.cli.say import tell_json

_CGROUP_ROOT = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Where cgroups are mounted. [default: /sys/fs/cgroup]")
]


def command(
    json_: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False,
    connect: Annotated[
        str | None, typer.Option(metavar="URI", help="The libvirt to reach. [default: qemu:///system]")
    ] = None,
    cgroup_root: _CGROUP_ROOT = None,
) -> None:
    """Check what slo-ctl needs of this host, and say how to mend what is missing. Changes nothing.

    Exit status 0: everything is there; 3: something is missing; what it is needed for says
    whether that matters to you.
    """
    from slo_ctl.observe.cgroup import DEFAULT_ROOT
    from slo_ctl.observe.libvirt_domains import DEFAULT_URI
    from slo_ctl.observe.requirements import Host, check

    checked = check(Host(cgroup_root=cgroup_root or DEFAULT_ROOT, libvirt_uri=connect or DEFAULT_URI))
    if json_:
        from slo_ctl.show.requirements import requirements_json

        tell_json(requirements_json(checked))
    else:
        from slo_ctl.show.console import console_for
        from slo_ctl.show.requirements import requirement_lines

        console = console_for(sys.stdout)
        for line in requirement_lines(checked):
            console.print(line, soft_wrap=True)
    if not all(each.finding.satisfied for each in checked):
        raise typer.Exit(EXIT_CHECK)
