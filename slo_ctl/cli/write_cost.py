"""`slo-ctl device write-cost` and `slo-ctl trace write-cost`: cost of writes on a log-block FTL."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slo_ctl.base.errors import UserError
from slo_ctl.cli.options import (
    ALLOW_WRITE_HELP,
    JSON,
    ORDERS_SEED,
    PASS_BYTES,
    QUIET,
    ROOT,
    TARGET_UNLESS_EMULATED,
    bytes_of,
    check_one_source,
    check_plot,
    surroundings,
)
from slo_ctl.cli.output import print_json, print_lines, terminable, warn
from slo_ctl.cli.trace_input import on_error_of

if TYPE_CHECKING:
    from slo_ctl.decide.write_unit import WriteCost
    from slo_ctl.profile.write_cost import TimedPass, Times
    from slo_ctl.show.write_cost import Panel

FORMAT_VERSION = 1

_PLOT = Annotated[
    Path | None,
    typer.Option(metavar="FILE.svg|.png", help="Plot response times by request number, with spikes marked."),
]


def device_write_cost(
    target: TARGET_UNLESS_EMULATED = None,
    emulated: Annotated[
        str | None,
        typer.Option(
            metavar="DRIVE", help="Measure an emulated drive instead, as for `device logical-block`."
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
        typer.Option(metavar="TARGET", help=ALLOW_WRITE_HELP),
    ] = None,
    plot: _PLOT = None,
    quiet: QUIET = False,
    root: ROOT = None,
    json_: JSON = False,
) -> None:
    """Fit T(n) = T_merge + n S/B to the response times of sequential and random writes.

    OVERWRITES TARGET, as `device logical-block` does. The result is not stored.

    Examples:
    slo-ctl device write-cost --emulated samsung
    """
    check_plot(plot)
    check_one_source(target, emulated)
    from slo_ctl.profile.write_cost import fit_passes, measure
    from slo_ctl.show.progress import progress_on_stderr

    sizes = sorted({bytes_of("--size", text, "128KiB") for text in size or ("16KiB", "128KiB", "2MiB")})
    span = bytes_of("--bytes", bytes_, "1GiB")
    _check_sizes(sizes, span)
    with terminable(), progress_on_stderr(quiet=quiet) as progress:
        if emulated is not None:
            from slo_ctl.profile.virtual_drive import EmulatedDrive

            passes = measure(EmulatedDrive(emulated, span, seed), sizes, progress)
        else:
            from slo_ctl.profile.write_unit_session import Request, prepare_writes, writable_span

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
    format_: Annotated[
        str | None, typer.Option("--format", help="Format of the trace. [default: detected]")
    ] = None,
    volume: Annotated[str | None, typer.Option(help="Only writes of this volume.")] = None,
    size: Annotated[
        list[str] | None,
        typer.Option(metavar="SIZE", help="A request size. Repeatable. [default: the six most frequent]"),
    ] = None,
    on_error: Annotated[
        str,
        typer.Option("--on-error", metavar="raise|skip", help="Stop at a bad record, or skip and count it."),
    ] = "raise",
    plot: _PLOT = None,
    json_: JSON = False,
) -> None:
    """Fit T(n) = T_merge + n S/B to the response times of a trace's writes.

    Examples:
    slo-ctl trace write-cost trace.csv
    """
    check_plot(plot)
    at_bad_records = on_error_of(on_error)
    from slo_ctl.profile.write_cost import collect, fit_or_refuse, require_responses
    from traces.formats.registry import FORMATS
    from traces.reader import open_trace

    if format_ is not None and format_ not in FORMATS:
        raise UserError(f"--format: {format_} is not known", f"known: {', '.join(FORMATS)}")
    wanted = [bytes_of("--size", text, "4KiB") for text in size or ()]
    reader = open_trace(file, format_, at_bad_records, responses=True)
    require_responses(reader)
    times = collect(reader, volume, wanted)
    for reason, count in sorted(reader.skipped.items()):
        warn(f"skipped {count:,} x {reason}")
    cost = fit_or_refuse(times)
    panels = [_panel("writes", each, times[each], cost) for each in times]
    _deliver(str(file), cost, panels, plot, json_, False)


def _check_sizes(sizes: Sequence[int], span_bytes: int) -> None:
    from slo_ctl.base.quantity import format_bytes_exact
    from slo_ctl.profile.write_cost import MAX_SIZE_REQUESTS, MIN_SIZE_REQUESTS

    for size in sizes:
        if size < 1 or span_bytes % size or not MIN_SIZE_REQUESTS <= span_bytes // size <= MAX_SIZE_REQUESTS:
            raise UserError(
                f"--size: {format_bytes_exact(size)} does not divide {format_bytes_exact(span_bytes)}",
                f"--bytes must be a multiple of --size, {MIN_SIZE_REQUESTS} to {MAX_SIZE_REQUESTS} times",
            )


def _panels(passes: Sequence[TimedPass], cost: WriteCost) -> list[Panel]:
    """Random writes above, sequential ones below, as in the paper."""
    from slo_ctl.model.measurement import Order

    return [
        _panel(f"{order} writes", each.request_bytes, each.response_us, cost)
        for order in (Order.RANDOM, Order.SEQUENTIAL)
        for each in passes
        if each.order is order
    ]


def _panel(what: str, size_bytes: int, response_us: Times, cost: WriteCost) -> Panel:
    from slo_ctl.base.quantity import format_bytes_exact
    from slo_ctl.show.write_cost import Panel

    band = next(each.band for each in cost.sizes if each.request_bytes == size_bytes)
    return Panel(f"{what} of {format_bytes_exact(size_bytes)}", response_us, band)


def _deliver(
    title: str, cost: WriteCost, panels: Sequence[Panel], plot: Path | None, json_: bool, emulated: bool
) -> None:
    from slo_ctl.show.write_cost import cost_json, cost_lines

    if json_:
        plain = {"format_version": FORMAT_VERSION, "source": title, "emulated_in_virtual_time": emulated}
        print_json(plain | cost_json(cost))
    else:
        print_lines(title, *cost_lines(cost))
    if plot is not None:
        from slo_ctl.base.files import writing
        from slo_ctl.show.spike_plot import save_spike_plot

        with writing("--plot", plot):
            save_spike_plot(title, panels, cost, plot)
