"""`slo-ctl trace`: what is in a block trace, and turning one into another."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from slo_ctl.cli import trace_convert, write_cost
from slo_ctl.cli.say import tell_json
from slo_ctl.cli.trace_input import ACTION, ON_ERROR, open_named, told, with_progress

app = typer.Typer(help="Look into block traces and convert them.", rich_markup_mode=None)

write_cost.register_with_traces(app)


@app.command()
def info(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The trace, plain or compressed (gz, xz, zst).")
    ],
    format_: Annotated[str | None, typer.Option("--format", help="Its format. [default: found]")] = None,
    on_error: Annotated[str, ON_ERROR] = "raise",
    action: Annotated[str, ACTION] = "Q",
    json_: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
) -> None:
    """Say what is in a trace: counts, sizes, footprint, order and pace."""
    from slo_ctl.show.trace_info import as_json, as_table
    from traces.summary import Tally

    with told():
        reader = open_named(file, format_, on_error, action)
        if reader.is_text:
            import polars  # noqa: F401 - start-up, not reading: outside the time that is told
        tally = Tally()
        started = time.perf_counter()
        for batch in with_progress(reader, f"reading {file.name}"):
            tally.add(batch)
        summary = tally.summary(reader.volumes)
    wall_s = time.perf_counter() - started
    if json_:
        tell_json(as_json(reader, summary, wall_s))
    else:
        typer.echo("\n".join(as_table(reader, summary, wall_s)))


trace_convert.register_with_traces(app)
