"""`slo-ctl sweep`: which drive, how much OP, how many VMs of a kind."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slo_ctl.base.errors import UserError, require_package
from slo_ctl.base.files import check_writable, writing
from slo_ctl.cli.completion import complete_policy
from slo_ctl.cli.exit_status import EXIT_FAILURE, EXIT_INTERRUPTED
from slo_ctl.cli.options import JOBS, JSON, QUIET, check_plot
from slo_ctl.cli.output import print_columns, print_json, print_lines, terminable

if TYPE_CHECKING:
    from slo_ctl.replay.scenario_text import ScenarioText
    from slo_ctl.replay.sweep import Capacity, SweepResult

_MOST_POINTS = 100_000
_MOST_NAMED = 10


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
    from slo_ctl.decide.policies import policy_entry
    from slo_ctl.replay.sweep import Point, capacities, scenario_text, sweep
    from slo_ctl.show.terminal import progress_on_stderr

    bases = _read(scenarios)
    policies = _words("--policy", policy)
    for name in policies:
        try:
            policy_entry(name)
        except ValueError as error:
            raise UserError(f"--policy: {name} is not known", str(error)) from None
    if out.suffix == ".parquet":
        require_package("polars")
    elif out.suffix != ".csv":
        raise UserError(f"--out: {out} does not end in .csv or .parquet", "such as web.parquet")
    check_writable("--out", out)
    if dask is not None:
        require_package("distributed")
    check_plot(plot)
    points = [
        Point(*values)
        for values in product(
            bases,
            drive or [""],
            _words("--op", op) if op else [""],
            policies,
            _counts(vms),
            range(1, seeds + 1),
        )
    ]
    if len(points) > _MOST_POINTS:
        raise UserError(f"{len(points):,} replays are too many", f"at most {_MOST_POINTS:,}")
    for point in points:
        scenario_text(bases[point.scenario], point)
    with terminable(), progress_on_stderr(quiet=quiet) as progress:
        swept = sweep(bases, points, out, jobs or os.cpu_count() or 1, progress, dask=dask)
    found = capacities(swept.rows)
    if plot is not None:
        from slo_ctl.show.file_plots import save_sweep

        with writing("--plot", plot):
            save_sweep(found, plot)
    if json:
        print_json(
            {
                "label": "emulated",
                "complete": not swept.missing,
                "answers": [asdict(each) for each in found],
                "rows": [asdict(row) for row in swept.rows],
                "missing": [asdict(point) | {"reason": why} for point, why in swept.missing.items()],
            }
        )
    else:
        print_columns(_rows(found))
        print_lines(*_best(found))
        print_lines(f"{len(swept.rows)} of {len(points)} replays in {out}, EMULATED drives")
        print_lines(*_missing(swept))
    if swept.missing:
        raise typer.Exit(EXIT_INTERRUPTED if swept.interrupted else EXIT_FAILURE)


def _read(paths: list[Path]) -> dict[str, ScenarioText]:
    """Scenarios by the names of their files, each checked."""
    from slo_ctl.replay.scenario_build import check_on_any_drive
    from slo_ctl.replay.scenario_text import read_toml

    found: dict[str, ScenarioText] = {}
    for path in paths:
        if path.stem in found:
            raise UserError(f"{path}: there are two scenarios {path.stem}", "rename one file")
        text = read_toml(path)
        if not text.vms:
            raise UserError(f"{path}: no VM", "add a [[vm]] table")
        check_on_any_drive(text)
        found[path.stem] = text
    return found


def _words(option: str, text: str) -> list[str]:
    words = list(dict.fromkeys(word.strip() for word in text.split(",")))
    if not all(words):
        raise UserError(
            f"{option}: {text or 'an empty value'} has an empty part", "separate values with commas"
        )
    return words


def _counts(text: str) -> list[int]:
    low, dots, high = text.partition("..")
    try:
        found = list(range(int(low), int(high) + 1)) if dots else [int(word) for word in text.split(",")]
    except ValueError:
        found = []
    if not found or any(not 1 <= count <= 1000 for count in found):
        raise UserError(f"--vms: {text or 'an empty value'} is not a list of counts", "write 1,2,4 or 1..8")
    return sorted(set(found))


def _rows(found: list[Capacity]) -> list[tuple[str, ...]]:
    return [
        ("SCENARIO", "DRIVE", "OP", "POLICY", "VMS", "PAGES/S", "WAF", "WORST P99", "LIMITED AT"),
        *(
            (
                each.scenario,
                each.drive or "scenario's",
                each.op or "scenario's",
                each.policy,
                f"{each.most_vms}{' or more' if each.may_be_more else ''}",
                f"{each.pages_s:,.0f}",
                f"{each.waf:.2f}",
                f"{each.worst_p99_ms:.1f} ms",
                each.limit,
            )
            for each in found
        ),
    ]


def _missing(swept: SweepResult) -> Iterator[str]:
    """Which replays there are not, and how to get them."""
    lost = list(swept.missing.items())
    for point, why in lost[:_MOST_NAMED]:
        words = [point.scenario, point.drive, point.op and f"op={point.op}", point.policy]
        words += [f"{point.vms} x its VMs", f"seed {point.seed}"]
        yield f"missing: {', '.join(word for word in words if word)}: {why}"
    if len(lost) > _MOST_NAMED:
        yield f"missing: {len(lost) - _MOST_NAMED:,} more (--json lists all)"
    if lost:
        yield "the same command runs what is missing"


def _best(found: list[Capacity]) -> list[str]:
    """The most VMs of each scenario, and on which drives."""
    return [
        f"{scenario}: {_most_vms([each for each in found if each.scenario == scenario])}"
        for scenario in dict.fromkeys(each.scenario for each in found)
    ]


def _most_vms(found: list[Capacity]) -> str:
    most = max((each.most_vms for each in found), default=0)
    if most == 0:
        return "no drive supports a single copy of the VMs"
    best = [each for each in found if each.most_vms == most]
    named = "; ".join(
        f"{each.drive or 'the drive'} op={each.op or 'as given'} {each.policy}" for each in best
    )
    return f"most VMs: {most}, on {named}"
