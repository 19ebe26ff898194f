"""`slo-ctl doctor`: which requirements this host satisfies."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import typer

from slo_ctl.base.text import printable
from slo_ctl.cli import EXIT_CHECK
from slo_ctl.cli.options import CGROUP_ROOT, CONNECT, JSON
from slo_ctl.cli.output import print_json

if TYPE_CHECKING:
    from rich.text import Text

    from slo_ctl.host.requirements import Checked


def command(
    json_: JSON = False,
    connect: CONNECT = None,
    cgroup_root: CGROUP_ROOT = None,
) -> None:
    """Check which requirements of slo-ctl this host meets, and how to fix the others. Changes nothing.

    Not every host needs all: each line says what its requirement is for. Exit status 0: all satisfied; 3:
    something is missing.

    Examples:
    slo-ctl doctor
    """
    from slo_ctl.host.cgroup import DEFAULT_ROOT
    from slo_ctl.host.libvirt import DEFAULT_URI
    from slo_ctl.host.requirements import Host, check

    checked = check(Host(cgroup_root=cgroup_root or DEFAULT_ROOT, libvirt_uri=connect or DEFAULT_URI))
    if json_:
        print_json(_json(checked))
    else:
        from slo_ctl.show.terminal import console_for

        console = console_for(sys.stdout)
        for line in _lines(checked):
            console.print(line, soft_wrap=True)
    if not all(each.finding.satisfied for each in checked):
        raise typer.Exit(EXIT_CHECK)


def _lines(checked: Sequence[Checked]) -> Iterator[Text]:
    """A line for each requirement, one with the fix of each that is missing, and a summary."""
    from rich.text import Text

    width = max((len(each.requirement.name) for each in checked), default=0)
    for each in checked:
        name, finding = f"{each.requirement.name:<{width}}", each.finding
        if finding.satisfied:
            yield Text.assemble(("satisfied", "green"), f"  {name}  {printable(finding.reason)}")
            continue
        needed_for = each.requirement.needed_for
        yield Text.assemble(
            ("missing  ", "bold red"), f"  {name}  {printable(finding.reason)}; needed for: {needed_for}"
        )
        yield Text(f"{'':<9}  {'':<{width}}  fix: {printable(finding.fix)}")
    missing = sum(not each.finding.satisfied for each in checked)
    yield Text(f"{len(checked) - missing} of {len(checked)} requirements satisfied")


def _json(checked: Sequence[Checked]) -> dict[str, Any]:
    return {
        "format_version": 1,
        "satisfied": all(each.finding.satisfied for each in checked),
        "requirements": [
            {
                "name": each.requirement.name,
                "needed_for": each.requirement.needed_for,
                "satisfied": each.finding.satisfied,
                "reason": each.finding.reason,
                "fix": each.finding.fix or None,
            }
            for each in checked
        ],
    }
