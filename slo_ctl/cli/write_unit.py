"""`slo-ctl device logical-block`: the optimal write size of a drive, which NVMe calls NPWG or NOWS."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slo_ctl.base.errors import UserError
from slo_ctl.cli.exit_codes import EXIT_INTERRUPTED
from slo_ctl.cli.options import (
    ALLOW_WRITE_HELP,
    JSON,
    ORDERS_SEED,
    PASS_BYTES,
    QUEUE_DEPTH,
    QUIET,
    ROOT,
    TARGET_UNLESS_EMULATED,
    bytes_of,
    check_one_source,
    check_plot,
    profiles_folder,
    share_of,
    surroundings,
)
from slo_ctl.cli.output import print_json, print_lines, terminable

if TYPE_CHECKING:
    from slo_ctl.profile.identity import Surroundings
    from slo_ctl.profile.write_unit import FoundLogicalBlock, LogicalBlockRecord, LogicalBlockStore, Rule


def logical_block(
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
        str,
        typer.Option(metavar="SHARE", help="Difference in throughput that counts as equal."),
    ] = "10%",
    confidence: Annotated[
        str,
        typer.Option(metavar="SHARE", help="Confidence of the comparison of random and sequential writes."),
    ] = "95%",
    repetitions: Annotated[
        int, typer.Option(min=2, max=100, help="Maximum repetitions per size; the minimum is 2.")
    ] = 8,
    queue_depth: QUEUE_DEPTH = 1,
    seed: ORDERS_SEED = 1,
    allow_write: Annotated[
        str | None,
        typer.Option(
            metavar="TARGET",
            help=ALLOW_WRITE_HELP,
        ),
    ] = None,
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
    slo-ctl device logical-block /srv/vms
    """
    check_plot(plot)
    check_one_source(target, emulated)
    from slo_ctl.profile.write_unit import LogicalBlockStore
    from slo_ctl.profile.write_unit_session import Request, find_on_emulated, find_on_target

    if emulated is not None:
        for option, given in (("--show", show), ("--allow-write", allow_write), ("--fresh", fresh)):
            if given:
                raise UserError(
                    f"{option} and --emulated exclude each other", "nothing is stored for an emulated drive"
                )
        if queue_depth > 1:
            raise UserError("--queue-depth and --emulated exclude each other", "use queue depth 1")
    else:
        around, store = surroundings(root), LogicalBlockStore(profiles_folder(root))
        if show:
            found = _require(str(target), around, store)
            _deliver(found.profile, False, found, plot, json_)
            return
    low, high = _sizes(sizes)
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
    from slo_ctl.show.progress import progress_on_stderr

    with terminable(), progress_on_stderr(quiet=quiet) as progress:
        if emulated is not None:
            result = find_on_emulated(request, progress)
        else:
            result = find_on_target(request, around, store, progress)
    _deliver(result.record, emulated is not None, None, plot, json_)
    if result.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)


def print_stored(target: str, root: Path | None) -> None:
    """A line about the stored optimal write size of a target, if any."""
    from slo_ctl.profile.session import identify_target
    from slo_ctl.profile.write_unit import LogicalBlockStore
    from slo_ctl.show.write_unit import finding_lines

    found = LogicalBlockStore(profiles_folder(root)).find(identify_target(target, surroundings(root)))
    if found is not None:
        line = finding_lines(found.profile, found.profile.finding())[0]
        print_lines(f"{line}{f'; {found.stale}' if found.stale else ''}")


def _sizes(text: str) -> tuple[int, int]:
    low, dash, high = text.partition("-")
    if not dash:
        raise UserError(f"--sizes: {text or 'an empty value'} is not a range", "LOW-HIGH, such as 8KiB-32MiB")
    return bytes_of("--sizes", low, "8KiB-32MiB"), bytes_of("--sizes", high, "8KiB-32MiB")


def _rule(tolerance: str, confidence: str, repetitions: int) -> Rule:
    from slo_ctl.profile.write_unit import Rule

    share = share_of("--tolerance", tolerance, "10%")
    if share <= 0:
        raise UserError(f"--tolerance: {tolerance} must be more than 0", "such as 10%")
    level = share_of("--confidence", confidence, "95%")
    if not 0.5 < level < 1:
        raise UserError(f"--confidence: {confidence} is not between 50% and 100%", "such as 95%")
    return Rule(tolerance=share, confidence=level, max_repetitions=repetitions)


def _require(target: str, around: Surroundings, store: LogicalBlockStore) -> FoundLogicalBlock:
    from slo_ctl.profile.session import identify_target

    found = store.find(identify_target(target, around))
    if found is None:
        raise UserError(
            f"there is no stored result for {target}",
            f"measure it with: slo-ctl device logical-block {target}",
        )
    return found


def _deliver(
    record: LogicalBlockRecord,
    emulated: bool,
    found: FoundLogicalBlock | None,
    plot: Path | None,
    json_: bool,
) -> None:
    from slo_ctl.show.write_unit import print_report, report_json

    if json_:
        print_json(report_json(record, emulated, found))
    else:
        from slo_ctl.show.terminal import console_for

        print_report(console_for(sys.stdout), record, emulated, found)
    if plot is not None:
        from slo_ctl.base.files import writing
        from slo_ctl.show.write_unit_plot import save_plot

        with writing("--plot", plot):
            save_plot(record, emulated, plot)
