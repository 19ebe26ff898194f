"""`slo-ctl sweep`: which drive, how much OP, how many VMs of a kind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slo_ctl.base import numbers
from slo_ctl.base.errors import UserError, require_package
from slo_ctl.base.files import check_writable, writing
from slo_ctl.base.keyvalue import did_you_mean, split_pairs
from slo_ctl.cli.completion import complete_policy
from slo_ctl.cli.exit_status import EXIT_FAILURE, EXIT_INTERRUPTED
from slo_ctl.cli.options import JOBS, JSON, QUIET, check_plot, processes, trace_errors
from slo_ctl.cli.output import command_progress, print_json, print_lines, stdout_console, warn_notes

if TYPE_CHECKING:
    from slo_ctl.replay.scenario_text import ScenarioText
    from slo_ctl.replay.sweep import Capacity, SweepRows

_MAX_POINTS = 100_000
_MAX_LISTED = 10


def command(
    scenarios: Annotated[
        list[Path], typer.Argument(metavar="SCENARIO.toml...", help="VMs, their SLOs and the drive.")
    ],
    out: Annotated[
        Path,
        typer.Option(
            metavar="FILE.csv|FILE.parquet",
            help="Results, a row for each replay; an existing file is continued.",
        ),
    ],
    drive: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE,...", help="A drive: keys of `replay --device`. Repeatable."),
    ] = None,
    op: Annotated[
        str,
        typer.Option(metavar="PERCENT,...", help="Over-provisioning: 7%,15%,28%. [default: the scenario's]"),
    ] = "",
    policy: Annotated[
        str, typer.Option(metavar="NAME,...", help="OPS policies.", autocompletion=complete_policy)
    ] = "proportional",
    vms: Annotated[
        str, typer.Option(metavar="N,...", help="Copies of the scenario's VMs: 1,2,4 or 1..8.")
    ] = "1",
    seeds: Annotated[
        int, typer.Option(metavar="N", min=1, max=10_000, help="Number of seeds, starting with 1.")
    ] = 1,
    jobs: JOBS = None,
    dask: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="Run on the workers of this Dask scheduler: tcp://10.0.0.1:8786."
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="Plot VMs by OP for each drive and policy.")
    ] = None,
    json: JSON = False,
    quiet: QUIET = False,
) -> None:
    """Replay scenarios on many drives, and show how many of their VMs each supports. All drives are EMULATED.

    A drive supports a number of VMs if each meets its min= and p99= with every seed. Unused capacity is OPS.
    Exit status 1 where replays are missing because their workers died.

    Examples:
    slo-ctl sweep web.toml --op 7%,15%,28% --vms 1..8 --out web.csv
    slo-ctl sweep web.toml --drive preset=tlc --drive preset=qlc --vms 1..4 --out web.csv --plot web.svg
    slo-ctl sweep web.toml db.toml --policy proportional,min_waf --vms 1..8 --out kinds.csv
    slo-ctl sweep web.toml --dask tcp://10.0.0.1:8786 --seeds 9 --out web.csv
    """
    from slo_ctl.replay.scenario_build import policy_named
    from slo_ctl.replay.sweep import SweepPoint, capacities, notes_about, scenario_at, sweep

    bases = _read_scenarios(scenarios)
    policies = _values("--policy", policy)
    for name in policies:
        policy_named("--policy", name)
    if out.suffix == ".parquet":
        require_package("polars")
    elif out.suffix != ".csv":
        raise UserError(f"--out: {out} does not end in .csv or .parquet", "such as web.parquet")
    check_writable("--out", out)
    _check_one_op(drive or [], op)
    if dask is not None:
        require_package("distributed")
    check_plot(plot)
    points = [
        SweepPoint(*values)
        for values in product(
            bases,
            drive or [""],
            _values("--op", op) if op else [""],
            policies,
            _counts(vms),
            range(1, seeds + 1),
        )
    ]
    if len(points) > _MAX_POINTS:
        raise UserError(f"{len(points):,} replays are too many", f"at most {_MAX_POINTS:,}")
    for point in points:
        scenario_at(bases[point.scenario], point)
    warn_notes(note for base in bases.values() for note in notes_about(base, policies, seeds))
    with trace_errors("format="), command_progress(quiet=quiet) as progress:
        swept = sweep(bases, points, out, processes(jobs), progress, dask=dask)
    results = capacities(swept.rows, swept.missing)
    if plot is not None:
        from slo_ctl.show.file_plots import save_sweep

        with writing("--plot", plot):
            save_sweep(results, plot)
    if json:
        print_json(
            {
                "label": "emulated",
                "complete": not swept.missing,
                "answers": [asdict(capacity) for capacity in results],
                "rows": [asdict(row) for row in swept.rows],
                "missing": [asdict(point) | {"reason": reason} for point, reason in swept.missing.items()],
            }
        )
    else:
        if results:
            _print_capacities(results)
        print_lines(*_summary_lines(results))
        print_lines(f"{len(swept.rows)} of {len(points)} replays in {out}, EMULATED drives")
        print_lines(*_missing_lines(swept))
    if swept.missing:
        raise typer.Exit(EXIT_INTERRUPTED if swept.interrupted else EXIT_FAILURE)


def _read_scenarios(paths: list[Path]) -> dict[str, ScenarioText]:
    """Scenarios by the names of their files. Raises UserError for one that is not valid."""
    from slo_ctl.replay.scenario_build import check_on_any_drive
    from slo_ctl.replay.scenario_text import read_toml

    scenarios: dict[str, ScenarioText] = {}
    for path in paths:
        if path.stem in scenarios:
            raise UserError(f"{path}: there are two scenarios {path.stem}", "rename one file")
        text = read_toml(path)
        if not text.vms:
            raise UserError(f"{path}: no VM", "add a [[vm]] table")
        check_on_any_drive(text)
        names = {str(vm.get("name")) for _, vm in text.vms}
        for where, event in text.events:
            if (name := str(event.get("vm", ""))) not in names:
                problem = f"VM {name} not found" if name else "no VM is named"
                raise UserError(f"{where}: {problem}", did_you_mean(name, names))
        scenarios[path.stem] = text
    return scenarios


def _check_one_op(drives: list[str], op: str) -> None:
    """Refuse --op beside a drive with op=, which it would replace."""
    for keys in drives if op else ():
        if "op" in split_pairs("--drive", keys):
            raise UserError(f"--drive {keys} and --op are two values of op", "leave one of them out")


def _values(option: str, text: str) -> list[str]:
    values = list(dict.fromkeys(value.strip() for value in text.split(",")))
    if not all(values):
        raise UserError(
            f"{option}: {text or 'an empty value'} has an empty part", "separate values with commas"
        )
    return values


def _counts(text: str) -> list[int]:
    low, dots, high = text.partition("..")
    try:
        counts = list(range(int(low), int(high) + 1)) if dots else [int(value) for value in text.split(",")]
    except ValueError:
        counts = []
    if not counts or any(not 1 <= count <= 1000 for count in counts):
        raise UserError(f"--vms: {text or 'an empty value'} is not a list of counts", "write 1,2,4 or 1..8")
    return sorted(set(counts))


def _print_capacities(results: list[Capacity]) -> None:
    from slo_ctl.show.terminal import print_rows

    headings = ("SCENARIO", "DRIVE", "OP", "POLICY", "VMS", "PAGES/S", "WAF", "WORST P99", "LIMITED AT")
    rows = [
        (
            result.scenario,
            result.drive or "scenario's",
            result.op or "scenario's",
            result.policy,
            _most_text(result),
            numbers.count(result.pages_s),
            numbers.decimal(result.waf),
            numbers.UNKNOWN if result.worst_p99_ms is None else f"{result.worst_p99_ms:.1f} ms",
            result.limit,
        )
        for result in results
    ]
    texts = ("SCENARIO", "DRIVE", "OP", "POLICY", "LIMITED AT")
    print_rows(stdout_console(), headings, rows, left=texts, folded=("DRIVE", "LIMITED AT"))


def _most_text(result: Capacity) -> str:
    if result.most_vms == 0 and result.least_tried_vms > 1:
        return f"fewer than {result.least_tried_vms}"
    return f"{result.most_vms}{' or more' if result.may_be_more else ''}"


def _missing_lines(swept: SweepRows) -> Iterator[str]:
    """Missing replays, and how to run them."""
    missing = list(swept.missing.items())
    for point, reason in missing[:_MAX_LISTED]:
        parts = [point.scenario, point.drive, point.op and f"op={point.op}", point.policy]
        parts += [f"{point.vms} x its VMs", f"seed {point.seed}"]
        yield f"missing: {', '.join(part for part in parts if part)}: {reason}"
    if len(missing) > _MAX_LISTED:
        yield f"missing: {len(missing) - _MAX_LISTED:,} more (--json lists all)"
    if missing:
        yield "the same command runs what is missing"


def _summary_lines(results: list[Capacity]) -> list[str]:
    """The most VMs of each scenario, and on which drives."""
    return [
        f"{scenario}: {_summary([result for result in results if result.scenario == scenario])}"
        for scenario in dict.fromkeys(result.scenario for result in results)
    ]


def _summary(results: list[Capacity]) -> str:
    most = max((result.most_vms for result in results), default=0)
    unknown = any(result.may_be_more and result.limit for result in results)
    if most == 0 and unknown:
        return "not known, as replays are missing"
    if most == 0:
        least = min((result.least_tried_vms for result in results), default=1)
        if least == 1:
            return "no drive supports a single copy of the VMs"
        return f"no drive supports {least} copies of the VMs, and fewer were not tried"
    best = [result for result in results if result.most_vms == most]
    named = "; ".join(
        " ".join(
            [
                result.drive or "the scenario's drive",
                *([f"op={result.op}"] if result.op else []),
                f"with {result.policy}",
            ]
        )
        for result in best
    )
    if unknown:
        return f"most VMs so far, as replays are missing: {most}, on {named}"
    more = " or more" if any(result.may_be_more for result in best) else ""
    return f"most VMs: {most}{more}, on {named}"
