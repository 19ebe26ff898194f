"""Refinement of a profile of SeRRa in idle time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from papers.figure import (
    NOT_IN_QUICK,
    Cell,
    Figure,
    Judged,
    Panel,
    Results,
    Rule,
    Trial,
    interval,
)
from papers.serra.profiles import complete, make_device
from slo_ctl.base.progress import Silent
from slo_ctl.decide.profile_fit import Fit, RatioSummary, analyse
from slo_ctl.decide.request_sizes import DEFAULT_INTERVALS, draw_points
from slo_ctl.model.measurement import ACCESSES, Direction, Measurement
from slo_ctl.profile.sweep import StoppingRule, SweepPlan
from slo_ctl.profile.sweep import run as profile

_ROTATING = ("HDD", "RAID-0")
_ERROR_PERCENT = 5.0
_POINTS, _TEST_S = 3, 1.0
"""Defaults of `slo-ctl device profile`."""
_PERIODS = (2, 4, 8, 16)
_PERIOD_S = 30.0
_FILE_MB = 200
_ONE_SESSION = "one session as long"


def _profiled(
    device: str, seed: int, budget_s: float, before: Sequence[Measurement], sizes: Sequence[int]
) -> list[Measurement]:
    """One session of `slo-ctl device profile --budget`, with its own file."""
    rule = StoppingRule(precision=0.0, max_repetitions=1_000_000)
    plan = SweepPlan(sizes, ACCESSES, rule, _TEST_S, budget_s)
    benchmark = make_device(device, _FILE_MB)(seed, True)
    return profile(plan, benchmark, before, Silent(), lambda _all: None).measurements


def _summaries(measurements: Sequence[Measurement]) -> Iterator[RatioSummary]:
    analysis = analyse(DEFAULT_INTERVALS, measurements, Fit.THEIL_SEN)
    for direction in Direction:
        summary = analysis.summary(direction)
        if summary is None or summary.half_width is None:
            raise ValueError(f"too few {direction.value}s were measured")
        yield summary


def idle_time(trial: Trial) -> list[Panel]:
    """Error and confidence of the ratios after a number of short sessions, and after one of the same total
    length.
    """
    errors, widths = {}, {}
    periods = _PERIODS[:-1] if trial.quick else _PERIODS
    for device in _ROTATING[:1] if trial.quick else _ROTATING:
        whole = complete(device, _FILE_MB, 1)
        sizes = draw_points(DEFAULT_INTERVALS, _POINTS, trial.seed)
        found: list[Measurement] = []
        columns = {}
        for number in range(1, periods[-1] + 1):
            found = _profiled(device, 100 * trial.seed + number, _PERIOD_S, found, sizes)
            if number in periods:
                columns[f"{number} sessions"] = found
        columns[_ONE_SESSION] = _profiled(device, 100 * trial.seed, _PERIOD_S * periods[-1], (), sizes)
        for column, measurements in columns.items():
            for summary in _summaries(measurements):
                row = f"{device}, {summary.direction.value}"
                errors[row, column] = 100 * whole.median_error(summary)
                widths[row, column] = 100 * (summary.half_width or 0.0)
    return [
        Panel("Median error of the ratios", "%", errors),
        Panel("Half width of their 90 % interval", "%", widths),
    ]


def _last(results: Results) -> str:
    """The column of the last session."""
    return results.tables["Median error of the ratios"].columns[-2]


def _refined(row: str) -> tuple[Rule, ...]:
    def left_out(results: Results) -> Judged | None:
        there = row in results.tables["Median error of the ratios"].rows
        return None if there else NOT_IN_QUICK

    def narrower(results: Results) -> Judged:
        if left := left_out(results):
            return left
        cell = results.paired("Half width of their 90 % interval", row, _last(results), "2 sessions")
        low, high = interval(cell)
        return Judged(f"{cell.mean:.2f} ({low:.2f} to {high:.2f})", high < 1)

    def exact(results: Results) -> Judged:
        if left := left_out(results):
            return left
        cell = results.cell("Median error of the ratios", row, _last(results))
        low, high = interval(cell)
        return Judged(f"{cell.mean:.1f} % ({low:.1f} to {high:.1f})", high <= _ERROR_PERCENT)

    def no_loss(results: Results) -> Judged:
        if left := left_out(results):
            return left
        table = "Median error of the ratios"
        pairs = zip(
            results.cell(table, row, _last(results)).values,
            results.cell(table, row, _ONE_SESSION).values,
            strict=True,
        )
        cell = Cell(tuple(mine - other for mine, other in pairs))
        low, high = interval(cell)
        return Judged(f"{cell.mean:+.2f} points ({low:+.2f} to {high:+.2f})", high < 1)

    return (
        Rule(
            "each session narrows the confidence interval",
            f"{row}: half width after the last session / after 2, 95 % interval below 1",
            narrower,
        ),
        Rule(
            f"the error is at most {_ERROR_PERCENT:g} %",
            f"{row}: 95 % interval of the median error after the last session",
            exact,
        ),
        Rule(
            "interruptions cost no precision",
            f"{row}: error above that of one session as long, 95 % interval below a point",
            no_loss,
        ),
    )


IDLE_TIME = Figure(
    "beyond:idle",
    "A profile refined in idle time",
    "Sessions of 30 s, each with a file of its own, refine one profile: its confidence intervals become "
    "narrower with each, the median error of the ratios is at most 5 % in the end, and no more than a point "
    "above that of one session as long as all of them.",
    "`slo-ctl device profile --budget 30s`, 2 to 16 times, on the modelled disk and on RAID-0 of two disks, "
    "files of 200 MB, against the complete profile. A quick run does so 8 times on the disk. No other load: "
    "what a busy host does to a profile is not in the model.",
    ("modelled disks", "virtual time"),
    idle_time,
    tuple(
        rule
        for device in _ROTATING
        for direction in Direction
        for rule in _refined(f"{device}, {direction.value}")
    ),
    # Five leave intervals wider than the point that they are to show.
    seeds=10,
    quick_seeds=10,
)
