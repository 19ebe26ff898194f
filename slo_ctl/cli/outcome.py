"""Run a scenario and hand over what came out: table, JSON, report."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol, TypeVar

import typer

from slo_ctl.cli.exit_codes import EXIT_INTERRUPTED
from slo_ctl.cli.output_file import check_writable, write_whole
from slo_ctl.show.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from slo_ctl.replay.result import Result
    from slo_ctl.replay.scenario import Scenario

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object in place of the tables.")]
SaveJsonOption = Annotated[
    Path | None, typer.Option(metavar="FILE.json", help="Write the same JSON to a file.")
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where the result goes."""

    json: bool = False
    """One JSON object on stdout in place of the tables."""
    save_json: Path | None = None
    report: Path | None = None
    quiet: bool = False
    """No progress."""

    def check(self) -> None:
        """Raise UserError when a file could not be written."""
        for option, path in (("--save-json", self.save_json), ("--report", self.report)):
            if path is not None:
                check_writable(option, path)


def run_scenario(scenario: Scenario, outputs: Outputs) -> Result:
    """Run it with progress on stderr. An interrupted run comes back incomplete."""
    from slo_ctl.replay.engine import run
    from slo_ctl.show.progress import progress_on_stderr

    outputs.check()
    with progress_on_stderr(quiet=outputs.quiet) as progress:
        return run(scenario, progress)


class Outcome(Protocol):
    """What a run gives."""

    @property
    def complete(self) -> bool:
        """It was not interrupted."""
        ...

    def to_json(self) -> str:
        """One JSON object."""
        ...


_Outcome = TypeVar("_Outcome", bound=Outcome)


def deliver(
    result: _Outcome,
    outputs: Outputs,
    render: Callable[[_Outcome], str],
    show: Callable[[Console, _Outcome], None],
) -> None:
    """Write the files that were asked for, then print; raises typer.Exit(130) after an interrupted run.

    `render` makes the report, `show` prints the tables.
    """
    if outputs.save_json is not None:
        write_whole("--save-json", outputs.save_json, result.to_json() + "\n")
    if outputs.report is not None:
        write_whole("--report", outputs.report, render(result))
    if outputs.json:
        sys.stdout.write(result.to_json() + "\n")
    else:
        from slo_ctl.show.console import console_for

        show(console_for(sys.stdout), result)
        if outputs.report is not None:
            sys.stdout.write(f"report: {printable(str(outputs.report))}\n")
    sys.stdout.flush()
    if not result.complete:
        raise typer.Exit(EXIT_INTERRUPTED)


def deliver_replay(result: Result, outputs: Outputs) -> None:
    """Of a scenario."""
    from slo_ctl.show.report import render_report
    from slo_ctl.show.table import print_result

    deliver(result, outputs, render_report, print_result)
