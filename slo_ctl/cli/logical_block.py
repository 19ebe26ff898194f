"""`slo-ctl device logical-block`: from which request size on it does not matter where a drive is written."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slo_ctl.cli.device_options import (
    JSON,
    ORDERS_SEED,
    PASS_BYTES,
    QUEUE_DEPTH,
    QUIET,
    TARGET_UNLESS_EMULATED,
    check_one_source,
)
from slo_ctl.cli.exit_codes import EXIT_INTERRUPTED
from slo_ctl.cli.measured import kept, surroundings
from slo_ctl.cli.option_value import bytes_of, check_plot, share_of
from slo_ctl.cli.say import tell, tell_json
from slo_ctl.cli.terminable import terminable
from slo_ctl.errors import UserError

if TYPE_CHECKING:
    from slo_ctl.serra.identity import Surroundings
    from slo_ctl.serra.logical_block.record import (
        FoundLogicalBlock,
        LogicalBlockRecord,
        LogicalBlockStore,
    )
    from slo_ctl.serra.logical_block.rule import Rule


def register(app: typer.Typer) -> None:
    """Add the command to `slo-ctl device`."""
    app.command("logical-block")(logical_block)


def logical_block(
    target: TARGET_UNLESS_EMULATED = None,
    emulated: Annotated[
        str | None,
        typer.Option(
            metavar="DRIVE",
            help="Instead of TARGET an emulated drive in virtual time: sandisk, samsung or mtron (drives of "
            "the paper), or KEY=VALUE,... as for `slo-ctl replay --device`.",
        ),
    ] = None,
    bytes_: PASS_BYTES = "1GiB",
    sizes: Annotated[
        str, typer.Option(metavar="LOW-HIGH", help="Request sizes: LOW, doubled until HIGH at the most.")
    ] = "8KiB-32MiB",
    tolerance: Annotated[
        str,
        typer.Option(metavar="SHARE", help="Sequential writes may be faster by this and count as equal."),
    ] = "10%",
    confidence: Annotated[
        str, typer.Option(metavar="SHARE", help="With which random writes are called equal or slower.")
    ] = "95%",
    repetitions: Annotated[
        int, typer.Option(min=2, max=100, help="Of each size, at the most; at the least there are 2.")
    ] = 8,
    queue_depth: QUEUE_DEPTH = 1,
    seed: ORDERS_SEED = 1,
    allow_write: Annotated[
        str | None,
        typer.Option(
            metavar="TARGET",
            help="Overwrite an existing file, device or export, named exactly as TARGET; refused when there "
            "is anything on it.",
        ),
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Replace the stored search.")] = False,
    show: Annotated[
        bool, typer.Option("--show", help="Measure nothing: show the stored search, its age and validity.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.svg|.png", help="Draw both throughputs by size.")
    ] = None,
    quiet: QUIET = False,
    root: Annotated[
        Path | None,
        typer.Option(
            "--root", metavar="DIR", help="Keep searches below DIR. [default: as for `device create`]"
        ),
    ] = None,
    json_: JSON = False,
) -> None:
    """Find a drive's logical block: the smallest writes that are as fast at random as in sequence.

    The same bytes are written in sequence and at random, without overlap, with requests of doubled size,
    until both are equally fast. OVERWRITES TARGET: a directory gets a file of ours, removed in the end;
    anything else has to be named by --allow-write. What was found is kept; it comes with advice for volumes,
    images and file systems.
    """
    check_plot(plot)
    check_one_source(target, emulated)
    from slo_ctl.serra.logical_block.record import LogicalBlockStore
    from slo_ctl.serra.logical_block.session import Request, find_on_emulated, find_on_target

    if emulated is not None:
        for option, given in (("--show", show), ("--allow-write", allow_write), ("--fresh", fresh)):
            if given:
                raise UserError(f"{option} has no meaning with --emulated", "nothing is kept of it")
        if queue_depth > 1:
            raise UserError("--queue-depth has no meaning with --emulated", "one request at a time is made")
    else:
        around, store = surroundings(root), LogicalBlockStore(kept(root))
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


def tell_stored(target: str, root: Path | None) -> None:
    """A line about what is stored of a target's logical block, if anything is."""
    from slo_ctl.serra.logical_block.record import LogicalBlockStore
    from slo_ctl.serra.logical_block.report import told
    from slo_ctl.serra.session import look

    found = LogicalBlockStore(kept(root)).find(look(target, surroundings(root)))
    if found is not None:
        told_of = told(found.profile, found.profile.finding())[0]
        tell(f"{told_of}{f'; {found.stale}' if found.stale else ''}")


def _sizes(text: str) -> tuple[int, int]:
    low, dash, high = text.partition("-")
    if not dash:
        raise UserError(f"--sizes: {text or 'nothing'} is no range", "write LOW-HIGH, such as 8KiB-32MiB")
    return bytes_of("--sizes", low, "8KiB-32MiB"), bytes_of("--sizes", high, "8KiB-32MiB")


def _rule(tolerance: str, confidence: str, repetitions: int) -> Rule:
    from slo_ctl.serra.logical_block.rule import Rule

    share = share_of("--tolerance", tolerance, "10%")
    if share <= 0:
        raise UserError(f"--tolerance: {tolerance} can never be reached", "such as 10%")
    sure = share_of("--confidence", confidence, "95%")
    if not 0.5 < sure < 1:
        raise UserError(f"--confidence: {confidence} is not between 50% and 100%", "such as 95%")
    return Rule(tolerance=share, confidence=sure, max_repetitions=repetitions)


def _require(target: str, around: Surroundings, store: LogicalBlockStore) -> FoundLogicalBlock:
    from slo_ctl.serra.session import look

    found = store.find(look(target, around))
    if found is None:
        raise UserError(
            f"no logical block of {target} is stored", f"`slo-ctl device logical-block {target}` finds one"
        )
    return found


def _deliver(
    record: LogicalBlockRecord,
    emulated: bool,
    found: FoundLogicalBlock | None,
    plot: Path | None,
    json_: bool,
) -> None:
    from slo_ctl.serra.logical_block.report import print_report, report_json

    if json_:
        tell_json(report_json(record, emulated, found))
    else:
        from slo_ctl.show.console import console_for

        print_report(console_for(sys.stdout), record, emulated, found)
    if plot is not None:
        from slo_ctl.cli.output_file import writing
        from slo_ctl.serra.logical_block.plot import save_plot

        with writing("--plot", plot):
            save_plot(record, emulated, plot)
