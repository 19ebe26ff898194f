"""`slo-ctl device write-cost` and `slo-ctl trace write-cost`: what writes cost where blocks are merged."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slo_ctl.cli.device_options import (
    JSON,
    ORDERS_SEED,
    PASS_BYTES,
    QUIET,
    TARGET_UNLESS_EMULATED,
    check_one_source,
)
from slo_ctl.cli.measured import surroundings
from slo_ctl.cli.option_value import bytes_of, check_plot
from slo_ctl.cli.say import remark, tell, tell_json
from slo_ctl.cli.terminable import terminable
from slo_ctl.cli.trace_input import on_error_of
from slo_ctl.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slo_ctl.decide.write_cost import WriteCost
    from slo_ctl.serra.write_cost import TimedPass, Times
    from slo_ctl.show.spike_plot import Panel

FORMAT_VERSION = 1

_PLOT = Annotated[
    Path | None,
    typer.Option(metavar="FILE.svg|.png", help="Draw response times over request numbers, spikes marked."),
]


def register_with_devices(app: typer.Typer) -> None:
    """Add the command to `slo-ctl device`."""
    app.command("write-cost")(device_write_cost)


def register_with_traces(app: typer.Typer) -> None:
    """Add the command to `slo-ctl trace`."""
    app.command("write-cost")(trace_write_cost)


def device_write_cost(
    target: TARGET_UNLESS_EMULATED = None,
    emulated: Annotated[
        str | None,
        typer.Option(
            metavar="DRIVE", help="Instead of TARGET an emulated drive, as for `device logical-block`."
        ),
    ] = None,
    bytes_: PASS_BYTES = "1GiB",
    size: Annotated[
        list[str] | None,
        typer.Option(metavar="SIZE", help="A request size. Repeatable. [default: 16KiB, 128KiB and 2MiB]"),
    ] = None,
    seed: ORDERS_SEED = 1,
    allow_write: Annotated[
        str | None,
        typer.Option(metavar="TARGET", help="Overwrite it, as for `device logical-block`."),
    ] = None,
    plot: _PLOT = None,
    quiet: QUIET = False,
    root: Annotated[
        Path | None, typer.Option("--root", metavar="DIR", help="As for `device create`.")
    ] = None,
    json_: JSON = False,
) -> None:
    """Time every write of sequential and random passes and fit T(n) = T_merge + n S/B to them.

    OVERWRITES TARGET, as `device logical-block` does. Nothing is stored.
    """
    check_plot(plot)
    check_one_source(target, emulated)
    from slo_ctl.serra.write_cost import fit_passes, measure
    from slo_ctl.show.progress import progress_on_stderr

    sizes = sorted({bytes_of("--size", text, "128KiB") for text in size or ("16KiB", "128KiB", "2MiB")})
    span = bytes_of("--bytes", bytes_, "1GiB")
    _check_sizes(sizes, span)
    with terminable(), progress_on_stderr(quiet=quiet) as progress:
        if emulated is not None:
            from slo_ctl.serra.logical_block.emulated import EmulatedDrive

            passes = measure(EmulatedDrive(emulated, span, seed), sizes, progress)
        else:
            from slo_ctl.serra.logical_block.session import Request, prepare_writes, writable_span

            request = Request(
                target=str(target),
                span_bytes=span,
                low_bytes=sizes[0],
                high_bytes=sizes[-1],
                seed=seed,
                allow_write=allow_write,
            )
            with writable_span(request, surroundings(root), progress) as opened:
                prepare_writes(opened, 3 * len(sizes) * span, progress)
                passes = measure(opened.fio, sizes, progress)
    cost = fit_passes(passes)
    title = f"EMULATED: {emulated}" if emulated is not None else str(target)
    _deliver(title, cost, _panels(passes, cost), plot, json_, emulated is not None)


def trace_write_cost(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A trace with response times: msr, systor17, vscsi.")
    ],
    format_: Annotated[str | None, typer.Option("--format", help="Its format. [default: found]")] = None,
    volume: Annotated[str | None, typer.Option(help="Writes of this volume only.")] = None,
    size: Annotated[
        list[str] | None,
        typer.Option(metavar="SIZE", help="A request size. Repeatable. [default: the six most frequent]"),
    ] = None,
    on_error: Annotated[
        str, typer.Option("--on-error", metavar="raise|skip", help="Stop at a bad record, or go on.")
    ] = "raise",
    plot: _PLOT = None,
    json_: JSON = False,
) -> None:
    """Fit T(n) = T_merge + n S/B to the response times of a trace's writes."""
    check_plot(plot)
    at_bad_records = on_error_of(on_error)
    from slo_ctl.serra.traced_writes import collect, require_responses
    from slo_ctl.serra.write_cost import fit_or_refuse
    from traces.formats.registry import FORMATS
    from traces.reader import open_trace

    if format_ is not None and format_ not in FORMATS:
        raise UserError(f"--format: {format_} is unknown", f"known are {', '.join(FORMATS)}")
    wanted = [bytes_of("--size", text, "4KiB") for text in size or ()]
    reader = open_trace(file, format_, at_bad_records, responses=True)
    require_responses(reader)
    times = collect(reader, volume, wanted)
    for reason, count in sorted(reader.skipped.items()):
        remark(f"skipped {count:,} x {reason}")
    cost = fit_or_refuse(times)
    panels = [_panel("writes", each, times[each], cost) for each in times]
    _deliver(str(file), cost, panels, plot, json_, False)


def _check_sizes(sizes: Sequence[int], span_bytes: int) -> None:
    from slo_ctl.quantity import format_bytes_exact
    from slo_ctl.serra.write_cost import LEAST_REQUESTS, MOST_REQUESTS

    for size in sizes:
        if size < 1 or span_bytes % size or not LEAST_REQUESTS <= span_bytes // size <= MOST_REQUESTS:
            raise UserError(
                f"--size: passes of {format_bytes_exact(span_bytes)} cannot be written with requests of "
                f"{format_bytes_exact(size)}",
                f"--bytes has to be {LEAST_REQUESTS} to {MOST_REQUESTS} times --size, without a remainder",
            )


def _panels(passes: Sequence[TimedPass], cost: WriteCost) -> list[Panel]:
    """Random writes above, sequential ones below, as in the paper."""
    from slo_ctl.serra.measurement import Order

    return [
        _panel(f"{order} writes", each.request_bytes, each.response_us, cost)
        for order in (Order.RANDOM, Order.SEQUENTIAL)
        for each in passes
        if each.order is order
    ]


def _panel(what: str, size_bytes: int, response_us: Times, cost: WriteCost) -> Panel:
    from slo_ctl.quantity import format_bytes_exact
    from slo_ctl.show.spike_plot import Panel

    band = next(each.band for each in cost.sizes if each.request_bytes == size_bytes)
    return Panel(f"{what} of {format_bytes_exact(size_bytes)}", response_us, band)


def _deliver(
    title: str, cost: WriteCost, panels: Sequence[Panel], plot: Path | None, json_: bool, emulated: bool
) -> None:
    from slo_ctl.show.write_cost_text import cost_json, cost_lines

    if json_:
        plain = {"format_version": FORMAT_VERSION, "source": title, "emulated_in_virtual_time": emulated}
        tell_json(plain | cost_json(cost))
    else:
        tell(title, *cost_lines(cost))
    if plot is not None:
        from slo_ctl.cli.output_file import writing
        from slo_ctl.show.spike_plot import save_spike_plot

        with writing("--plot", plot):
            save_spike_plot(title, panels, cost, plot)
