"""`slo-ctl doctor`: which requirements this host satisfies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import typer

from slo_ctl.base.text import printable
from slo_ctl.cli.exit_status import EXIT_CHECK
from slo_ctl.cli.options import CGROUP_ROOT, CONNECT, JSON, ROOT, check_root
from slo_ctl.cli.output import print_json, stdout_console
from slo_ctl.daemon.files import DaemonPlaces

if TYPE_CHECKING:
    from rich.text import Text

    from slo_ctl.host.requirements import Checked


_FIX = "     fix: "


def command(
    json_: JSON = False, connect: CONNECT = None, cgroup_root: CGROUP_ROOT = None, root: ROOT = None
) -> None:
    """Check which requirements of slo-ctl this host meets, and how to fix the others. Changes nothing.

    Not every host needs all: each line says what its requirement is for. With --root, libvirt and the cgroup
    hierarchy are those of the configuration there. Exit status 0: everything is there that each host needs,
    while what is optional may be missing; 3: something needed is missing.

    Examples:
    slo-ctl doctor
    """
    from slo_ctl.host.cgroup import DEFAULT_ROOT
    from slo_ctl.host.libvirt import DEFAULT_URI
    from slo_ctl.host.requirements import Host, check

    tree, uri = DEFAULT_ROOT, DEFAULT_URI
    if root is not None:
        from slo_ctl.config.load import load

        check_root(root)
        config = load(DaemonPlaces(root).config)
        tree, uri = config.cgroup.root, config.libvirt.uri or DEFAULT_URI
    checked = check(Host(cgroup_root=cgroup_root or tree, libvirt_uri=connect or uri))
    if json_:
        print_json(_json(checked))
    else:
        from slo_ctl.show.terminal import print_line

        console = stdout_console()
        for line in _lines(checked):
            # Without line breaks of our own, so that a fix can be copied and pasted.
            if line.plain.startswith(_FIX):
                console.print(line, soft_wrap=True)
            else:
                print_line(console, line, len(_FIX))
    if not _is_sufficient(checked):
        raise typer.Exit(EXIT_CHECK)


def _is_sufficient(checked: Sequence[Checked]) -> bool:
    """Whether all requirements that are not optional are satisfied."""
    return all(check.finding.satisfied or check.requirement.optional for check in checked)


def _lines(checked: Sequence[Checked]) -> Iterator[Text]:
    """A line for each requirement, one with the fix of each that is missing, and a summary."""
    from rich.text import Text

    width = max((len(check.requirement.name) for check in checked), default=0)
    for check in checked:
        name, finding = f"{check.requirement.name:<{width}}", check.finding
        if finding.satisfied:
            yield Text.assemble(("satisfied", "green"), f"  {name}  {printable(finding.reason)}")
            continue
        requirement = check.requirement
        purpose = f"{'optional, for' if requirement.optional else 'needed for'}: {requirement.needed_for}"
        yield Text.assemble(
            ("missing  ", "yellow" if requirement.optional else "bold red"),
            f"  {name}  {printable(finding.reason)}; {purpose}",
        )
        yield Text(f"{_FIX}{printable(finding.fix)}")
    missing = [check.requirement for check in checked if not check.finding.satisfied]
    text = f"{len(checked) - len(missing)} of {len(checked)} requirements satisfied"
    if missing and all(requirement.optional for requirement in missing):
        text += "; what is missing is optional"
    yield Text(text)


def _json(checked: Sequence[Checked]) -> dict[str, Any]:
    return {
        "satisfied": _is_sufficient(checked),
        "requirements": [
            {
                "name": check.requirement.name,
                "needed_for": check.requirement.needed_for,
                "optional": check.requirement.optional,
                "satisfied": check.finding.satisfied,
                "reason": check.finding.reason,
                "fix": check.finding.fix or None,
            }
            for check in checked
        ],
    }
