"""`slo-ctl device profile`: sequential and random access times of a device by request size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slo_ctl.base.errors import UserError
from slo_ctl.base.files import check_writable, write_whole, writing
from slo_ctl.base.progress import ProgressSink
from slo_ctl.cli.exit_status import EXIT_INTERRUPTED
from slo_ctl.cli.options import (
    ALLOW_WRITE_HELP,
    JSON,
    LABORATORY,
    QUEUE_DEPTH,
    QUIET,
    ROOT,
    TARGET,
    bytes_of,
    check_plot,
    identity_sources,
    profiles_folder,
    share_of,
    time_s_of,
)
from slo_ctl.cli.output import command_progress, print_json, stdout_console, warn
from slo_ctl.cli.write_size import print_stored

if TYPE_CHECKING:
    from slo_ctl.decide.profile_fit import Fit
    from slo_ctl.profile.identity import IdentitySources
    from slo_ctl.profile.session import ProfileRequest
    from slo_ctl.profile.store import Found, Measured, Profile, ProfileStore

_MIN_REPETITIONS = 3


def _requests_of_targets(
    request: ProfileRequest, other_targets: list[str], writable: list[str]
) -> list[ProfileRequest]:
    """The request, and the same for every other target; a target may be written if it is in `writable`.

    Raises UserError for a target given twice, and for one in `writable` that is not a target.
    """
    targets = [request.target, *other_targets]
    if len(set(targets)) < len(targets):
        raise UserError("--node: a target is given twice", "each has to be a different device")
    unknown = [name for name in writable if name not in targets]
    if unknown:
        raise UserError(
            f"--allow-write: {unknown[0]} is not a target; targets are {', '.join(targets)}",
            "it must match TARGET exactly",
        )
    return [
        replace(request, target=target, allow_write=target if target in writable else None)
        for target in targets
    ]


def _profile_locally(
    requests: list[ProfileRequest], sources: IdentitySources, store: ProfileStore, progress: ProgressSink
) -> Measured[Profile]:
    """Measure by this process: one target, or all of `requests` at the same time. Raises UserError."""
    if len(requests) == 1:
        from slo_ctl.profile.session import profile_target

        return profile_target(requests[0], sources, store, progress)
    from lab.parallel.coordinator import profile_with_nodes
    from lab.parallel.nodes import LocalNodes

    with LocalNodes(requests, sources) as nodes:
        return profile_with_nodes(requests[0], store, progress, nodes)


def _profile_by_mpi(
    request: ProfileRequest,
    sources: IdentitySources,
    store: ProfileStore,
    progress: ProgressSink,
    print_outcome: Callable[[Measured[Profile]], None],
) -> bool:
    """Measure with all ranks; rank 0 prints the result. Returns whether it was interrupted.

    The result is printed before MPI ends: mpirun kills its ranks a second after Ctrl-C.
    """
    from lab.parallel.coordinator import profile_with_nodes
    from lab.parallel.nodes import MpiNodes, World, serve_rank

    world = World()
    if world.rank:
        serve_rank(world, request, sources)
        return False
    if not world.survives:
        progress.note("if a rank dies, mpirun ends the others, unless it has --enable-recovery")
    with MpiNodes(world, request, sources) as nodes:
        outcome = profile_with_nodes(request, store, progress, nodes)
        print_outcome(outcome)
    return outcome.interrupted


def profile(
    target: TARGET,
    interval: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LOW-HIGH/GAP",
            help="Request sizes that share one linear fit. Repeatable. "
            "[default: 8KiB-64KiB/8KiB and 64KiB-4MiB/32KiB]",
        ),
    ] = None,
    points: Annotated[
        int,
        typer.Option(metavar="N", min=2, max=1000, help="Sizes measured per interval, including both ends."),
    ] = 3,
    repetitions: Annotated[
        int, typer.Option(metavar="N", min=1, max=100_000, help="Maximum repetitions per size.")
    ] = 20,
    min_repetitions: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=100_000,
            help="Minimum repetitions per size. [default: 3, or --repetitions if that is less]",
        ),
    ] = None,
    precision: Annotated[
        str,
        typer.Option(
            metavar="SHARE", help="Stop when every ratio is known to this precision with 90 % confidence."
        ),
    ] = "5%",
    file_size: Annotated[
        str, typer.Option(metavar="SIZE", help="Size of the region used, from the start of TARGET.")
    ] = "256MiB",
    test_time: Annotated[
        str, typer.Option(metavar="TIME", help="Maximum duration of one test; 0s: always the whole region.")
    ] = "1s",
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Total measurement time; running the command again refines the profile."
        ),
    ] = None,
    queue_depth: QUEUE_DEPTH = 1,
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, max=2**31 - 1, help="Seed of the sampled sizes and offsets.")
    ] = 1,
    fit: Annotated[
        str, typer.Option(metavar="theil-sen|least-squares", help="Method of the linear fit.")
    ] = "theil-sen",
    allow_write: Annotated[
        list[str] | None,
        typer.Option(metavar="TARGET", help=f"{ALLOW_WRITE_HELP} Repeat it for each target."),
    ] = None,
    node: Annotated[
        list[str] | None,
        typer.Option(
            "--node",
            metavar="TARGET",
            help="Another device of the same model, measured in parallel. Repeatable.",
            rich_help_panel=LABORATORY,
        ),
    ] = None,
    mpi: Annotated[
        bool,
        typer.Option(
            "--mpi",
            help="Let every rank of this MPI job measure its own TARGET: mpirun --enable-recovery ...",
            rich_help_panel=LABORATORY,
        ),
    ] = False,
    precondition: Annotated[
        bool, typer.Option("--precondition", help="First write until the SSD is in its steady state.")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Discard the stored profile and measure again.")
    ] = False,
    show: Annotated[
        bool, typer.Option("--show", help="Only show the stored profile, its age and validity.")
    ] = False,
    every_size: Annotated[bool, typer.Option("--every-size", help="Also list estimated sizes.")] = False,
    agios: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write access_times.func for AGIOS.", rich_help_panel=LABORATORY),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.svg|.png", help="Plot curves and ratios.")
    ] = None,
    quiet: QUIET = False,
    root: ROOT = None,
    json_: JSON = False,
) -> None:
    """Measure sequential and random access times of a device for every request size (SeRRa).

    A few sizes are measured by fio with direct I/O; linear fits estimate the others. The profile is stored,
    and running the command again refines it. In a directory a temporary file is used; any other target is
    only read, unless --allow-write names it.

    Examples:
    slo-ctl device profile /srv/vms --budget 60s
    slo-ctl device profile /dev/nvme0n1 --show
    """
    from slo_ctl.decide.profile_fit import Fit
    from slo_ctl.decide.request_sizes import DEFAULT_INTERVALS, parse_interval
    from slo_ctl.profile.session import ProfileRequest, stored_record
    from slo_ctl.profile.store import ProfileStore
    from slo_ctl.profile.sweep import StoppingRule

    if agios is not None:
        check_writable("--agios", agios)
    check_plot(plot)
    if fit not in set(Fit):
        raise UserError(f"--fit: {fit} is not known", f"known: {', '.join(Fit)}")
    method = Fit(fit)
    sources, store = identity_sources(root), ProfileStore(profiles_folder(root))
    if show:
        measuring = (
            ("--fresh", fresh),
            ("--precondition", precondition),
            ("--allow-write", allow_write),
            ("--budget", budget),
        )
        _refuse_with_show([option for option, given in measuring if given])
        found = stored_record(store, target, sources, "no profile of", "profile")
        _deliver(found.record, method, found, every_size, agios, plot, json_)
        if not json_:
            print_stored(target, root)
        return
    share = share_of("--precision", precision, "5%")
    if not 0 < share <= 1:
        raise UserError(f"--precision: {precision} is not between 0% and 100%", "such as 5%")
    test_s = time_s_of("--test-time", test_time)
    budget_s = time_s_of("--budget", budget) if budget is not None else None
    if budget_s == 0:
        raise UserError("--budget: must be more than 0", "such as 60s")
    request = ProfileRequest(
        target=target,
        intervals=tuple(map(parse_interval, interval or ())) or DEFAULT_INTERVALS,
        points=points,
        rule=StoppingRule(share, _least_repetitions(min_repetitions, repetitions), repetitions),
        file_bytes=bytes_of("--file-size", file_size),
        test_s=test_s or None,
        budget_s=budget_s,
        queue_depth=queue_depth,
        seed=seed,
        precondition=precondition,
        fresh=fresh,
    )
    requests = _requests_of_targets(request, node or [], allow_write or [])
    if mpi and node:
        raise UserError("--mpi and --node exclude each other", "every rank measures its own TARGET")
    store.check_writable()

    def print_outcome(outcome: Measured[Profile]) -> None:
        _warn_excluded_nodes(outcome.record, quiet)
        _deliver(outcome.record, method, None, every_size, agios, plot, json_)

    with command_progress(quiet=quiet) as progress:
        if mpi:
            interrupted = _profile_by_mpi(requests[0], sources, store, progress, print_outcome)
        else:
            outcome = _profile_locally(requests, sources, store, progress)
    if not mpi:
        print_outcome(outcome)
        interrupted = outcome.interrupted
    if interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)


def _refuse_with_show(options: Sequence[str]) -> None:
    for option in options:
        raise UserError(f"--show and {option} exclude each other", "--show only shows what is stored")


def _least_repetitions(given: int | None, most: int) -> int:
    """The minimum, by default 3. Raises UserError if it is above the maximum."""
    if given is not None and given > most:
        raise UserError(
            f"--min-repetitions: {given} is more than --repetitions {most}", "raise --repetitions"
        )
    return min(_MIN_REPETITIONS, most) if given is None else given


def _warn_excluded_nodes(profile: Profile, quiet: bool) -> None:
    """Report excluded nodes on stderr, as progress does when it is shown."""
    for node in profile.nodes if quiet else ():
        if node.left_out:
            warn(f"slo-ctl: {node.name} is excluded: {node.left_out}")


def _deliver(
    profile: Profile,
    method: Fit,
    found: Found | None,
    every_size: bool,
    agios: Path | None,
    plot: Path | None,
    json_: bool,
) -> None:
    from slo_ctl.show.measurements import print_profile, profile_json

    analysis = profile.analysis(method)
    if json_:
        print_json(profile_json(profile, analysis, found))
    else:
        print_profile(stdout_console(), profile, analysis, found, every_size)
    if agios is not None:
        from lab.report import to_agios

        write_whole("--agios", agios, to_agios(analysis, profile.intervals))
    if plot is not None:
        from slo_ctl.show.file_plots import save_profile

        with writing("--plot", plot):
            save_profile(profile, analysis, plot)
