"""`slo-ctl device profile`: what a device is good at."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slo_ctl.cli.device_options import JSON, QUEUE_DEPTH, QUIET, TARGET
from slo_ctl.cli.exit_codes import EXIT_INTERRUPTED
from slo_ctl.cli.logical_block import tell_stored
from slo_ctl.cli.measured import kept, surroundings
from slo_ctl.cli.option_value import bytes_of, check_plot, share_of, time_s_of
from slo_ctl.cli.profile_run import for_each_target, profile_by_mpi, profile_here
from slo_ctl.cli.say import remark, tell_json
from slo_ctl.cli.terminable import terminable
from slo_ctl.errors import UserError

if TYPE_CHECKING:
    from slo_ctl.serra.identity import Surroundings
    from slo_ctl.serra.line import Fit
    from slo_ctl.serra.profile import Profile
    from slo_ctl.serra.session import Outcome, Request
    from slo_ctl.serra.stopping import StoppingRule
    from slo_ctl.serra.store import Found, ProfileStore

_ROOT = Annotated[
    Path | None,
    typer.Option("--root", metavar="DIR", help="Keep profiles below DIR. [default: as for `device create`]"),
]


def register(app: typer.Typer) -> None:
    """Add the command to `slo-ctl device`."""
    app.command()(profile)


def profile(
    target: TARGET,
    interval: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LOW-HIGH/GAP",
            help="Request sizes with one line through their times. Repeatable. "
            "[default: 8KiB-64KiB/8KiB and 64KiB-4MiB/32KiB]",
        ),
    ] = None,
    points: Annotated[
        int, typer.Option(min=2, max=1000, help="Sizes measured of each interval; the extremes always are.")
    ] = 3,
    repetitions: Annotated[int, typer.Option(min=1, max=100_000, help="Of each size, at the most.")] = 20,
    min_repetitions: Annotated[int, typer.Option(min=1, max=100_000, help="Of each size, at the least.")] = 3,
    precision: Annotated[
        str,
        typer.Option(metavar="SHARE", help="Enough once every ratio is known to this, with 90 % confidence."),
    ] = "5%",
    file_size: Annotated[
        str, typer.Option(metavar="SIZE", help="How much of the target is used, from its beginning.")
    ] = "256MiB",
    test_time: Annotated[
        str,
        typer.Option(metavar="TIME", help="The longest one test may take; 0s: the whole file, each time."),
    ] = "1s",
    budget: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Measure for this long; the same again refines what is there."),
    ] = None,
    queue_depth: QUEUE_DEPTH = 1,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Of the sizes and offsets drawn.")] = 1,
    fit: Annotated[
        str, typer.Option(metavar="theil-sen|least-squares", help="How lines are found.")
    ] = "theil-sen",
    allow_write: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TARGET",
            help="Overwrite an existing file, device or export, named exactly as TARGET; refused when there "
            "is anything on it. Once for each target.",
        ),
    ] = None,
    node: Annotated[
        list[str] | None,
        typer.Option(
            "--node",
            metavar="TARGET",
            help="Another target with a device of the same kind, measured at the same time. Repeatable.",
        ),
    ] = None,
    mpi: Annotated[
        bool,
        typer.Option(
            "--mpi", help="Every rank of this MPI job measures its own TARGET: mpirun --enable-recovery ..."
        ),
    ] = False,
    precondition: Annotated[
        bool, typer.Option("--precondition", help="Write until an SSD is in its steady state first.")
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Replace the stored profile.")] = False,
    show: Annotated[
        bool, typer.Option("--show", help="Measure nothing: show the stored profile, its age and validity.")
    ] = False,
    every_size: Annotated[bool, typer.Option("--every-size", help="List estimated sizes, too.")] = False,
    agios: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write AGIOS's access_times.func.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.svg|.png", help="Draw curves and ratios.")
    ] = None,
    quiet: QUIET = False,
    root: _ROOT = None,
    json_: JSON = False,
) -> None:
    """Measure how much faster a device is in sequence than at random, for every request size (SeRRa).

    A few sizes are measured by fio with direct I/O, lines give the others. What was measured is kept, and the
    same command again refines it. A directory gets a file of ours, removed in the end; anything else is only
    read, unless --allow-write names it.
    """
    from slo_ctl.serra.store import ProfileStore

    _check_outputs(agios, plot)
    method = _fit(fit)
    around, store = surroundings(root), ProfileStore(kept(root))
    if show:
        found = _require(target, around, store)
        _deliver(found.profile, method, found, every_size, agios, plot, json_)
        if not json_:
            tell_stored(target, root)
        return
    request = _request(
        target,
        interval or [],
        points,
        _rule(min_repetitions, repetitions, precision),
        (file_size, test_time, budget),
        queue_depth,
        seed,
        (precondition, fresh),
    )
    requests = for_each_target(request, node or [], allow_write or [])
    if mpi and node:
        raise UserError("--mpi and --node exclude each other", "ranks all measure what they know as TARGET")
    from slo_ctl.show.progress import progress_on_stderr

    def tell_outcome(outcome: Outcome) -> None:
        _tell_who_was_left_out(outcome.profile, quiet)
        _deliver(outcome.profile, method, None, every_size, agios, plot, json_)

    with terminable(), progress_on_stderr(quiet=quiet) as progress:
        if mpi:
            interrupted = profile_by_mpi(requests[0], around, store, progress, tell_outcome)
        else:
            outcome = profile_here(requests, around, store, progress)
    if not mpi:
        tell_outcome(outcome)
        interrupted = outcome.interrupted
    if interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)


def _request(
    target: str,
    interval: list[str],
    points: int,
    rule: StoppingRule,
    sizes: tuple[str, str, str | None],
    queue_depth: int,
    seed: int,
    consent: tuple[bool, bool],
) -> Request:
    from slo_ctl.serra.points import DEFAULT_INTERVALS, parse_interval
    from slo_ctl.serra.session import Request

    file_size, test_time, budget = sizes
    precondition, fresh = consent
    test_s = time_s_of("--test-time", test_time)
    budget_s = time_s_of("--budget", budget) if budget is not None else None
    if budget_s == 0:
        raise UserError("--budget: no time is too short", "such as 60s")
    return Request(
        target=target,
        intervals=tuple(map(parse_interval, interval)) or DEFAULT_INTERVALS,
        points=points,
        rule=rule,
        file_bytes=bytes_of("--file-size", file_size),
        test_s=test_s or None,
        budget_s=budget_s,
        queue_depth=queue_depth,
        seed=seed,
        precondition=precondition,
        fresh=fresh,
    )


def _tell_who_was_left_out(profile: Profile, quiet: bool) -> None:
    """On stderr, where progress has not said so."""
    for each in profile.nodes if quiet else ():
        if each.left_out:
            remark(f"slo-ctl: {each.name} was left out: {each.left_out}")


def _rule(least: int, most: int, precision: str) -> StoppingRule:
    from slo_ctl.serra.stopping import StoppingRule

    if most < least:
        least = most
    share = share_of("--precision", precision, "5%")
    if share <= 0:
        raise UserError(f"--precision: {precision} can never be reached", "such as 5%")
    return StoppingRule(share, least, most)


def _fit(text: str) -> Fit:
    from slo_ctl.serra.line import Fit

    try:
        return Fit(text)
    except ValueError:
        raise UserError(f"--fit: {text} is not known", "write theil-sen or least-squares") from None


def _require(target: str, around: Surroundings, store: ProfileStore) -> Found:
    from slo_ctl.serra.session import look

    found = store.find(look(target, around))
    if found is None:
        raise UserError(f"there is no profile of {target}", f"`slo-ctl device profile {target}` makes one")
    return found


def _check_outputs(agios: Path | None, plot: Path | None) -> None:
    from slo_ctl.cli.output_file import check_writable

    if agios is not None:
        check_writable("--agios", agios)
    check_plot(plot)


def _deliver(
    profile: Profile,
    method: Fit,
    found: Found | None,
    every_size: bool,
    agios: Path | None,
    plot: Path | None,
    json_: bool,
) -> None:
    from slo_ctl.serra.report import print_report, report_json

    analysis = profile.analysis(method)
    if json_:
        tell_json(report_json(profile, analysis, found))
    else:
        from slo_ctl.show.console import console_for

        print_report(console_for(sys.stdout), profile, analysis, found, every_size)
    if agios is not None:
        from slo_ctl.cli.output_file import write_whole
        from slo_ctl.serra.agios import to_agios

        write_whole("--agios", agios, to_agios(analysis, profile.intervals))
    if plot is not None:
        from slo_ctl.cli.output_file import writing
        from slo_ctl.serra.plot import save_plot

        with writing("--plot", plot):
            save_plot(profile, analysis, plot)
