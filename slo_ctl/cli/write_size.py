"""`slo-ctl device write-size` and `write-cost`: optimal write size, and how long writes take."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slo_ctl.base.errors import UserError
from slo_ctl.base.files import writing
from slo_ctl.base.keyvalue import did_you_mean
from slo_ctl.base.quantity import format_bytes_exact
from slo_ctl.cli.exit_status import EXIT_INTERRUPTED
from slo_ctl.cli.options import (
    ALLOW_WRITE_HELP,
    JSON,
    ON_ERROR,
    ORDERS_SEED,
    PASS_BYTES,
    QUEUE_DEPTH,
    QUIET,
    ROOT,
    TARGET_UNLESS_EMULATED,
    TRACE_FORMAT,
    bytes_of,
    check_one_source,
    check_plot,
    identity_sources,
    on_error_of,
    profiles_folder,
    share_of,
    trace_errors,
)
from slo_ctl.cli.output import command_progress, print_json, print_lines, stdout_console, warn, warn_notes

if TYPE_CHECKING:
    from lab.report import Panel
    from lab.write_cost import TimedPass, Times, WriteCost
    from lab.write_size import FoundWriteSize, Rule, WriteSizeRecord


def write_size(
    target: TARGET_UNLESS_EMULATED = None,
    emulated: Annotated[
        str | None,
        typer.Option(
            metavar="DRIVE",
            help="Measure an emulated drive in virtual time: sandisk, samsung, mtron (from the paper), or "
            "KEY=VALUE,... as for `slo-ctl replay --device`.",
        ),
    ] = None,
    bytes_: PASS_BYTES = "1GiB",
    sizes: Annotated[
        str, typer.Option(metavar="LOW-HIGH", help="Request sizes: LOW, doubled up to HIGH.")
    ] = "8KiB-32MiB",
    tolerance: Annotated[
        str, typer.Option(metavar="SHARE", help="Difference in throughput that counts as equal.")
    ] = "10%",
    confidence: Annotated[
        str,
        typer.Option(metavar="SHARE", help="Confidence of the comparison of random and sequential writes."),
    ] = "95%",
    repetitions: Annotated[
        int, typer.Option(metavar="N", min=2, max=100, help="Maximum repetitions per size; the minimum is 2.")
    ] = 8,
    queue_depth: QUEUE_DEPTH = 1,
    seed: ORDERS_SEED = 1,
    allow_write: Annotated[str | None, typer.Option(metavar="TARGET", help=ALLOW_WRITE_HELP)] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Discard the stored result and measure again.")
    ] = False,
    show: Annotated[
        bool, typer.Option("--show", help="Only show the stored result, its age and validity.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.svg|.png", help="Plot both throughputs by request size.")
    ] = None,
    quiet: QUIET = False,
    root: ROOT = None,
    json_: JSON = False,
) -> None:
    """Find the optimal write size of a drive: the smallest random writes as fast as sequential ones.

    The same region is written sequentially and randomly, without overlap, with requests of doubled size until
    both are equally fast. OVERWRITES TARGET: in a directory a temporary file is used; any other target has to
    be named by --allow-write. The result is stored, with recommended settings for volumes and file systems.

    Examples:
    slo-ctl device write-size /srv/vms
    """
    check_plot(plot)
    check_one_source(target, emulated)
    _check_emulated(emulated)
    from lab.write_size import WriteSizeStore
    from lab.write_size_session import Request, find_on_emulated, find_on_target
    from slo_ctl.profile.session import stored_record

    if emulated is not None:
        for option, is_set in (("--show", show), ("--allow-write", allow_write), ("--fresh", fresh)):
            if is_set:
                raise UserError(
                    f"{option} and --emulated exclude each other", "results of emulated drives are not stored"
                )
        if queue_depth > 1:
            raise UserError("--queue-depth and --emulated exclude each other", "use queue depth 1")
    else:
        sources, store = identity_sources(root), WriteSizeStore(profiles_folder(root))
        if show:
            found = stored_record(store, str(target), sources, "no stored result for", "write-size")
            _print_finding(found.record, False, found, plot, json_)
            return
        store.check_writable()
    low, high = _size_range(sizes)
    request = Request(
        target=emulated if emulated is not None else str(target),
        span_bytes=bytes_of("--bytes", bytes_, "1GiB"),
        low_bytes=low,
        high_bytes=high,
        rule=_rule(tolerance, confidence, repetitions),
        queue_depth=queue_depth,
        seed=seed,
        allow_write=allow_write,
        fresh=fresh,
    )
    with command_progress(quiet=quiet) as progress:
        if emulated is not None:
            result = find_on_emulated(request, progress)
        else:
            result = find_on_target(request, sources, store, progress)
    _print_finding(result.record, emulated is not None, None, plot, json_)
    if result.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)


def _check_emulated(drive: str | None) -> None:
    """Raise UserError for a value of --emulated that is neither a drive of the paper nor KEY=VALUE,..."""
    from lab.paper_drives import PAPER_DRIVES

    if drive is not None and drive not in PAPER_DRIVES and "=" not in drive:
        hint = did_you_mean(
            drive, PAPER_DRIVES, f"known: {', '.join(sorted(PAPER_DRIVES))}; or KEY=VALUE,..."
        )
        raise UserError(f"--emulated: {drive or 'an empty value'} is not known", hint)


def print_stored(target: str, root: Path | None) -> None:
    """A line about the stored optimal write size of a target, if any."""
    from lab.report import finding_lines
    from lab.write_size import WriteSizeStore
    from slo_ctl.profile.session import identify_target

    found = WriteSizeStore(profiles_folder(root)).find(identify_target(target, identity_sources(root)))
    if found is not None:
        line = finding_lines(found.record, found.record.finding())[0]
        print_lines(f"{line}{f'; {found.stale}' if found.stale else ''}")


def _size_range(text: str) -> tuple[int, int]:
    low, dash, high = text.partition("-")
    if not dash:
        raise UserError(f"--sizes: {text or 'an empty value'} is not a range", "LOW-HIGH, such as 8KiB-32MiB")
    return bytes_of("--sizes", low, "8KiB-32MiB"), bytes_of("--sizes", high, "8KiB-32MiB")


def _rule(tolerance: str, confidence: str, repetitions: int) -> Rule:
    from lab.write_size import Rule

    share = share_of("--tolerance", tolerance, "10%")
    if not 0 < share <= 1:
        raise UserError(f"--tolerance: {tolerance} is not between 0% and 100%", "such as 10%")
    level = share_of("--confidence", confidence, "95%")
    if not 0.5 < level < 1:
        raise UserError(f"--confidence: {confidence} is not between 50% and 100%", "such as 95%")
    return Rule(tolerance=share, confidence=level, max_repetitions=repetitions)


def _print_finding(
    record: WriteSizeRecord, emulated: bool, found: FoundWriteSize | None, plot: Path | None, json_: bool
) -> None:
    from lab.report import print_write_size, write_size_json

    if json_:
        print_json(write_size_json(record, emulated, found))
    else:
        print_write_size(stdout_console(), record, emulated, found)
    if plot is not None:
        from lab.plots import save_write_size

        with writing("--plot", plot):
            save_write_size(record, emulated, plot)


_PLOT = Annotated[
    Path | None,
    typer.Option(metavar="FILE.svg|.png", help="Plot response times by request number, with spikes marked."),
]


def device_write_cost(
    target: TARGET_UNLESS_EMULATED = None,
    emulated: Annotated[
        str | None,
        typer.Option(metavar="DRIVE", help="Measure an emulated drive instead, as for `device write-size`."),
    ] = None,
    bytes_: PASS_BYTES = "1GiB",
    size: Annotated[
        list[str] | None,
        typer.Option(metavar="SIZE", help="A request size. Repeatable. [default: 16KiB, 128KiB and 2MiB]"),
    ] = None,
    seed: ORDERS_SEED = 1,
    allow_write: Annotated[str | None, typer.Option(metavar="TARGET", help=ALLOW_WRITE_HELP)] = None,
    plot: _PLOT = None,
    quiet: QUIET = False,
    root: ROOT = None,
    json_: JSON = False,
) -> None:
    """Fit T(n) = T_merge + n S/B to the response times of sequential and random writes.

    OVERWRITES TARGET, as `device write-size` does. The result is not stored.

    Examples:
    slo-ctl device write-cost --emulated samsung
    """
    check_plot(plot)
    check_one_source(target, emulated)
    _check_emulated(emulated)
    from lab.write_cost import fit_passes, measure

    sizes = sorted({bytes_of("--size", text, "128KiB") for text in size or ("16KiB", "128KiB", "2MiB")})
    span = bytes_of("--bytes", bytes_, "1GiB")
    _check_sizes(sizes, span)
    with command_progress(quiet=quiet) as progress:
        if emulated is not None:
            from lab.write_size_session import EmulatedDrive

            passes = measure(EmulatedDrive(emulated, span, seed), sizes, progress)
        else:
            from lab.write_size_session import Request, prepare_writes, writable_span

            request = Request(
                target=str(target),
                span_bytes=span,
                low_bytes=sizes[0],
                high_bytes=sizes[-1],
                seed=seed,
                allow_write=allow_write,
            )
            with writable_span(request, identity_sources(root), progress) as opened:
                prepare_writes(opened, 3 * len(sizes) * span, progress)
                passes = measure(opened.fio, sizes, progress)
    cost = fit_passes(passes)
    title = f"EMULATED: {emulated}" if emulated is not None else str(target)
    _print_cost(title, cost, _panels(passes, cost), plot, json_, emulated is not None)


def trace_write_cost(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A trace with response times: msr, systor17, vscsi.")
    ],
    format_: TRACE_FORMAT = None,
    volume: Annotated[str | None, typer.Option(metavar="NAME", help="Only writes of this volume.")] = None,
    size: Annotated[
        list[str] | None,
        typer.Option(metavar="SIZE", help="A request size. Repeatable. [default: the six most frequent]"),
    ] = None,
    on_error: ON_ERROR = "raise",
    plot: _PLOT = None,
    json_: JSON = False,
) -> None:
    """Fit T(n) = T_merge + n S/B to the response times of a trace's writes.

    Examples:
    slo-ctl trace write-cost trace.csv
    """
    check_plot(plot)
    at_bad_records = on_error_of(on_error)
    from lab.write_cost import collect, fit_or_refuse, require_responses
    from traces.formats.registry import FORMATS
    from traces.reader import open_trace

    if format_ is not None and format_ not in FORMATS:
        raise UserError(f"--format: {format_} is not known", f"known: {', '.join(FORMATS)}")
    sizes = [bytes_of("--size", text, "4KiB") for text in size or ()]
    with trace_errors():
        reader = open_trace(file, format_, at_bad_records, responses=True)
        require_responses(reader)
        times = collect(reader, volume, sizes)
    warn_notes(reader.notes)
    for reason, count in sorted(reader.skipped.items()):
        warn(f"skipped {count:,} x {reason}")
    cost = fit_or_refuse(times)
    panels = [_panel("writes", size_bytes, times[size_bytes], cost) for size_bytes in times]
    _print_cost(str(file), cost, panels, plot, json_, False)


def _check_sizes(sizes: Sequence[int], span_bytes: int) -> None:
    from lab.write_cost import MAX_SIZE_REQUESTS, MIN_SIZE_REQUESTS

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
        _panel(f"{order} writes", timed_pass.request_bytes, timed_pass.response_us, cost)
        for order in (Order.RANDOM, Order.SEQUENTIAL)
        for timed_pass in passes
        if timed_pass.order is order
    ]


def _panel(title: str, size_bytes: int, response_us: Times, cost: WriteCost) -> Panel:
    from lab.report import Panel

    band = next(each.band for each in cost.sizes if each.request_bytes == size_bytes)
    return Panel(f"{title} of {format_bytes_exact(size_bytes)}", response_us, band)


def _print_cost(
    title: str, cost: WriteCost, panels: Sequence[Panel], plot: Path | None, json_: bool, emulated: bool
) -> None:
    from lab.report import cost_json, cost_lines

    if json_:
        plain = {"source": title, "emulated_in_virtual_time": emulated}
        print_json(plain | cost_json(cost))
    else:
        print_lines(title, *cost_lines(cost))
    if plot is not None:
        from lab.plots import save_write_cost

        with writing("--plot", plot):
            save_write_cost(title, panels, cost, plot)
