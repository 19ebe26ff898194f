"""`slo-ctl paper`: figures and tables of the papers, reproduced and judged."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slo_ctl.base.errors import UserError
from slo_ctl.base.files import check_writable, write_whole
from slo_ctl.base.keyvalue import did_you_mean
from slo_ctl.cli.exit_status import EXIT_FAILURE
from slo_ctl.cli.options import JOBS, JSON, QUIET, SAVE_JSON, processes, trace_errors
from slo_ctl.cli.output import Outputs, command_progress, deliver, print_json, print_lines

if TYPE_CHECKING:
    from papers.figure import Figure


def command(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...",
            help="Figures (fast15:8), a paper (fast15) or all. Without a name they are listed.",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Run small drives and few seeds, as CI does.")
    ] = False,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="The first seed.")] = 1,
    jobs: JOBS = None,
    earlier: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="FILE.json", help="Take all other figures from a file written by --save-json."
        ),
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option(metavar="FILE.md", help="Write the page of the documentation.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write an HTML page with plots.")
    ] = None,
    json: JSON = False,
    save_json: SAVE_JSON = None,
    quiet: QUIET = False,
) -> None:
    """Reproduce figures and tables of the papers, and check them against stated rules.

    Exit status 1 where a figure differs without an explanation.

    Examples:
    slo-ctl paper
    slo-ctl paper fast15:8
    slo-ctl paper all --quick --report papers.html
    """
    from papers.markdown import markdown as markdown_page
    from papers.outcome import merged, read_result, run_figures
    from papers.page import html, text

    outputs = Outputs(json=json, save_json=save_json, report=report, quiet=quiet)
    outputs.check()
    if markdown is not None:
        check_writable(
            "--markdown",
            markdown,
            {"the file of --save-json": save_json, "the file of --report": report},
        )
    chosen = _chosen_figures(names or [])
    if not chosen and earlier is None:
        files = (("--save-json", save_json), ("--report", report), ("--markdown", markdown))
        for option, file in files:
            if file is not None:
                command = f"slo-ctl paper all {option} {shlex.quote(str(file))}"
                raise UserError(f"{option}: no figure is named", f"such as: {command}")
        _list(json=json)
        return
    earlier_result = None if earlier is None else read_result(earlier)
    with trace_errors(), command_progress(quiet=quiet) as progress:
        result = run_figures(chosen, quick=quick, seed=seed, jobs=processes(jobs), progress=progress)
    if earlier_result is not None:
        result = merged(earlier_result, result)
    if markdown is not None:
        write_whole("--markdown", markdown, markdown_page(result))
    deliver(result, outputs, html, lambda _, shown: print_lines(*text(shown)))
    if result.unexplained:
        raise typer.Exit(EXIT_FAILURE)


def _chosen_figures(names: list[str]) -> list[Figure]:
    """The figures of those names, in the order of the papers. Raises UserError."""
    from papers.outcome import FIGURES, PAPERS

    keys: set[str] = set()
    for name in names:
        matching = {key for key in FIGURES if name in ("all", key, key.partition(":")[0])}
        if not matching:
            known = [*FIGURES] if ":" in name else [*PAPERS, "all"]
            raise UserError(
                f"{'figure' if ':' in name else 'paper'} {name} not found", did_you_mean(name, known)
            )
        keys |= matching
    return [figure for key, figure in FIGURES.items() if key in keys]


def _list(*, json: bool) -> None:
    from papers.outcome import FIGURES
    from papers.page import listing

    if json:
        print_json(
            {
                "figures": [
                    {
                        "key": figure.key,
                        "title": figure.title,
                        "shows": figure.shows,
                        "labels": list(figure.labels),
                    }
                    for figure in FIGURES.values()
                ]
            }
        )
        return
    print_lines(*listing([(figure.key, figure.title, figure.labels) for figure in FIGURES.values()]))
