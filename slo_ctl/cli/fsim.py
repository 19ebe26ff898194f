"""`slo-ctl fsim`: elapsed time of file-system allocators on drives with a log-block FTL."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slo_ctl.base.errors import UserError
from slo_ctl.base.keyvalue import did_you_mean, split_pairs
from slo_ctl.base.text import counted
from slo_ctl.cli.options import (
    JOBS,
    JSON,
    ON_ERROR,
    QUIET,
    REPORT,
    SAVE_JSON,
    on_error_of,
    processes,
    trace_errors,
)
from slo_ctl.cli.output import Outputs, command_progress, deliver

if TYPE_CHECKING:
    from fsim.workloads import TraceSource

_DEFAULT_WORKLOAD = "cvfs-large"
_DEFAULT_DRIVE = "sandisk"
_DEFAULT_UTILISATION = "10..90"
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_STEP_PERCENT = 10
_MAX_PERCENT = 95
_MAX_SEEDS = 100


def command(
    allocators: Annotated[
        str,
        typer.Argument(
            metavar="ALLOCATOR,...",
            help="ext, reiser, reiser-dirid, greedy-space, greedy-local; the last two also as NAME-reiser, "
            "with the metadata placement of reiser.",
        ),
    ],
    workload: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Postmark configuration: cvfs-large or fsl. [default: cvfs-large]"),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Replay a block trace as file operations instead of Postmark."),
    ] = None,
    drive: Annotated[
        str | None,
        typer.Option(metavar="NAME,...", help="Drives: sandisk, samsung, mtron. [default: sandisk]"),
    ] = None,
    device: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE,...", help="Override properties of the drives: size=, block=, ..."),
    ] = None,
    utilisation: Annotated[
        str, typer.Option(metavar="PERCENT,...", help="File-system utilisation: 10,50,90 or 10..90.")
    ] = _DEFAULT_UTILISATION,
    trim: Annotated[bool, typer.Option("--trim/--no-trim", help="Send TRIM for freed blocks.")] = False,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="The first seed.")] = 1,
    seeds: Annotated[
        int,
        typer.Option(metavar="N", min=1, max=_MAX_SEEDS, help="Number of seeds, for confidence intervals."),
    ] = 1,
    jobs: JOBS = None,
    on_error: ON_ERROR = "raise",
    report: REPORT = None,
    json: JSON = False,
    save_json: SAVE_JSON = None,
    quiet: QUIET = False,
) -> None:
    """Compare file-system allocators on drives with a log-block FTL. Elapsed times are simulated.

    Examples:
    slo-ctl fsim ext,reiser,greedy-local --report allocation.html
    slo-ctl fsim ext,greedy-local --workload fsl --drive sandisk,mtron --trim
    slo-ctl fsim ext,greedy-space --trace fin.spc.zst --utilisation 10,50,80
    """
    from fsim.allocators import ALLOCATORS
    from fsim.experiment import Sweep, compare, preset
    from fsim.report import print_allocation, render_allocation
    from fsim.workloads import SETTINGS
    from lab.paper_drives import PAPER_DRIVES

    outputs = Outputs(json=json, save_json=save_json, report=report, quiet=quiet)
    outputs.check({"the trace": trace})
    if trace is not None and workload is not None:
        raise UserError("--trace and --workload exclude each other", "give one of them")
    properties: dict[str, str] = {}
    for pairs in device or []:
        properties |= split_pairs("--device", pairs)
    if trace is None and (workload or _DEFAULT_WORKLOAD) not in SETTINGS:
        raise UserError(
            f"--workload: {workload} is not known", f"known: {', '.join(SETTINGS)}; or --trace FILE"
        )
    source = None if trace is None else _trace_source(trace, on_error)
    drives = _names("--drive", drive or _DEFAULT_DRIVE, PAPER_DRIVES)
    sweep = Sweep(
        allocators=_names("ALLOCATOR", allocators, ALLOCATORS),
        drives={name: preset(name, properties) for name in drives},
        workload=workload or _DEFAULT_WORKLOAD if trace is None else trace.name,
        trace=source,
        utilisations=_utilisations(utilisation),
        trim=trim,
        seeds=tuple(range(seed, seed + seeds)),
    )
    command_line = ["slo-ctl", "fsim", allocators]
    for option, value, default in (
        ("--workload", workload, None),
        ("--trace", trace, None),
        ("--drive", drive, None),
        ("--utilisation", utilisation, _DEFAULT_UTILISATION),
        ("--seed", seed, 1),
        ("--seeds", seeds, 1),
        ("--on-error", on_error, "raise"),
    ):
        if value not in (None, default):
            command_line += [option, str(value)]
    for pairs in device or []:
        command_line += ["--device", pairs]
    if trim:
        command_line.append("--trim")
    with trace_errors(), command_progress(quiet=quiet) as progress:
        result = compare(sweep, shlex.join(command_line), progress, processes(jobs))
    deliver(result, outputs, render_allocation, print_allocation)


def _trace_source(path: Path, on_error: str) -> TraceSource:
    """The trace, read once so that its errors are reported before anything runs."""
    from fsim.workloads import TraceSource, open_source, steps_of
    from traces.errors import TraceError

    source = TraceSource(path.resolve(), skip_bad_records=on_error_of(on_error) == "skip")
    try:
        reader = open_source(source)
        steps = sum(1 for _ in steps_of(reader))
    except TraceError as error:
        convert = f"convert it: slo-ctl trace convert {shlex.quote(str(path))} trace.csv --from FORMAT"
        raise UserError(error.message, error.hint.replace("name it: --format FORMAT", convert)) from None
    if not steps:
        raise UserError(f"--trace: {path} has no writes", "use a trace with writes: only they allocate space")
    notes = [*reader.notes]
    if reader.bad_records:
        notes.append(f"{counted(reader.bad_records, 'bad record')} of the trace skipped")
    return replace(source, notes=tuple(notes))


def _names(option: str, text: str, known: Iterable[str]) -> tuple[str, ...]:
    """The names in a list, each once. Raises UserError for one that is not in `known`."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in known:
            raise UserError(f"{option}: {name or 'an empty name'} is not known", did_you_mean(name, known))
    return names


def _utilisations(text: str) -> tuple[float, ...]:
    """`10..90` in steps of ten, or percentages separated by commas."""
    hint = f"10..90, or percentages from 0 to {_MAX_PERCENT} such as 10,50,90"
    range_ = _RANGE.fullmatch(text)
    try:
        if range_:
            low, high = int(range_[1]), int(range_[2])
            # 5..99 is refused although its last step would be 95.
            percents = [] if high > _MAX_PERCENT else list(range(low, high + 1, _STEP_PERCENT))
        else:
            percents = [int(part.strip().removesuffix("%")) for part in text.split(",")]
    except ValueError:
        raise UserError(
            f"--utilisation: {text or 'an empty value'} is not a list of percentages", hint
        ) from None
    if not percents or any(not 0 <= each <= _MAX_PERCENT for each in percents):
        raise UserError(f"--utilisation: {text} is out of range", hint)
    return tuple(each / 100 for each in dict.fromkeys(percents))
