"""Host requirements on a terminal and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from slo_ctl.base.text import printable

if TYPE_CHECKING:
    from slo_ctl.host.requirements import Checked

FORMAT_VERSION = 1


def requirement_lines(checked: Sequence[Checked]) -> Iterator[Text]:
    """A line for each requirement, one with the fix of each that is missing, and a summary."""
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


def requirements_json(checked: Sequence[Checked]) -> dict[str, Any]:
    """The same, as data."""
    return {
        "format_version": FORMAT_VERSION,
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
