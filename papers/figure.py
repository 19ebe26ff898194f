"""A figure of a paper as an experiment, with the rules that judge its result."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean
from typing import Generic, TypeVar

from slo_ctl.decide.profile_fit import half_width

CONFIDENCE = 0.95


class Shape(StrEnum):
    """How a panel is plotted."""

    BARS = "bars"
    """A group of bars for each row, a bar for each column."""
    LINES = "lines"
    """A line for each row; the columns are numbers on the x axis."""
    POINTS = "points"
    """Like LINES, without lines between the points."""
    TABLE = "table"
    """Not plotted."""


Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Grid(Generic[Value]):
    """Numbers by row and column, and how they are shown."""

    title: str
    unit: str
    cells: Mapping[tuple[str, str], Value]
    shape: Shape = Shape.BARS
    digits: int = 3
    """Significant digits shown."""
    x_label: str = ""
    """Label of the columns, if they are numbers."""

    @property
    def rows(self) -> list[str]:
        """Names of rows, in the order of the experiment."""
        return list(dict.fromkeys(row for row, _ in self.cells))

    @property
    def columns(self) -> list[str]:
        """Names of columns, in the order of the experiment; numbers in ascending order."""
        found = list(dict.fromkeys(column for _, column in self.cells))
        return sorted(found, key=float) if self.shape in (Shape.LINES, Shape.POINTS) else found


@dataclass(frozen=True, slots=True)
class Cell:
    """One number over all seeds."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean over the seeds."""
        return fmean(self.values)

    @property
    def half_width(self) -> float | None:
        """Half the 95 % confidence interval of the mean by Student's t; None with one seed."""
        return half_width(self.values, CONFIDENCE) if len(self.values) > 1 else None


class Panel(Grid[float]):
    """Result of one trial."""

    __slots__ = ()


class Results:
    """All panels of a figure over all seeds, by title."""

    def __init__(self, tables: Iterable[Grid[Cell]]) -> None:
        self.tables = {table.title: table for table in tables}

    def cell(self, panel: str, row: str, column: str) -> Cell:
        """One number. Raises KeyError if the experiment did not measure it."""
        return self.tables[panel].cells[row, column]

    def mean(self, panel: str, row: str, column: str) -> float:
        return self.cell(panel, row, column).mean

    def paired(self, panel: str, row: str, column: str, than: str) -> Cell:
        """`column` divided by `than`, for each seed."""
        mine, other = self.cell(panel, row, column).values, self.cell(panel, row, than).values
        return Cell(tuple(a / b if b else math.inf for a, b in zip(mine, other, strict=True)))


def gathered(trials: Sequence[Sequence[Panel]]) -> Results:
    """The panels of all seeds, each with the numbers of every seed; numbers missing with some seed are
    omitted.
    """
    tables = []
    for panels in zip(*trials, strict=True):
        first = panels[0]
        keys = [key for key in first.cells if all(key in panel.cells for panel in panels)]
        cells = {key: Cell(tuple(panel.cells[key] for panel in panels)) for key in keys}
        tables.append(Grid(first.title, first.unit, cells, first.shape, first.digits, first.x_label))
    return Results(tables)


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of an experiment."""

    seed: int
    quick: bool
    """Small and short, for CI; the same rules must hold."""


class NotPossibleError(Exception):
    """The experiment needs something that this machine lacks; the message says what."""


@dataclass(frozen=True, slots=True)
class Judged:
    """Verdict of a rule on a result."""

    ours: str
    agrees: bool


NOT_IN_QUICK = Judged("not in a quick run", True)
"""Verdict of a rule about something that only the full run measures."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One statement of the paper, and the rule for agreement with it."""

    paper: str
    """The statement of the paper, with its numbers if it has any."""
    rule: str
    """The condition for agreement, in words; checked by `judge`."""
    judge: Callable[[Results], Judged]
    differs: str = ""
    """Why our result does not agree, and how that is demonstrated; empty if it agrees. A reason that is no
    longer needed is an error too.
    """


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure, table, equation or algorithm of a paper, or a claim beyond it."""

    key: str
    """`fast15:8`."""
    title: str
    shows: str
    """Content of the paper's figure."""
    ours: str
    """Replacements for its devices and workloads in our experiment."""
    labels: tuple[str, ...]
    """Parts that are not real: emulated, synthetic, modelled."""
    run: Callable[[Trial], list[Panel]] | None
    """None if the paper describes its set-up and nothing can be measured."""
    rules: tuple[Rule, ...] = ()
    seeds: int = 5
    quick_seeds: int = 2


# Rules common to many figures.


def close(paper: str, where: tuple[str, str, str], expected: float, tolerance: float) -> Rule:
    """The mean is within `tolerance` (relative) of the paper's number."""

    def judge(results: Results) -> Judged:
        mean = results.mean(*where)
        return Judged(f"{mean:.3g}", abs(mean / expected - 1) <= tolerance)

    return Rule(paper, f"{where[2]}, {where[1]}: within {tolerance:.0%} of {expected:g}", judge)


def all_close(paper: str, panel: str, expected: Mapping[tuple[str, str], float], tolerance: float) -> Rule:
    """The mean of each of these cells is within `tolerance` (relative) of the paper's number."""

    def judge(results: Results) -> Judged:
        means = {place: results.mean(panel, *place) for place in expected}
        worst = max(abs(means[place] / value - 1) for place, value in expected.items())
        return Judged(", ".join(f"{mean:.4g}" for mean in means.values()), worst <= tolerance)

    return Rule(paper, f"each within {tolerance:.0%}" if tolerance else "each equal", judge)


def between(paper: str, where: tuple[str, str, str], low: float, high: float) -> Rule:
    """The mean lies in a range."""

    def judge(results: Results) -> Judged:
        mean = results.mean(*where)
        return Judged(f"{mean:.3g}", low <= mean <= high)

    return Rule(paper, f"{where[2]}, {where[1]}: from {low:g} to {high:g}", judge)


def lower_in(
    paper: str,
    panel: str,
    column: str,
    than: str,
    rows: Sequence[str],
    differs: str = "",
    *,
    at_most: float = 1.0,
) -> Rule:
    """In each row `column` is less than `at_most` times `than`, with every seed."""

    def judge(results: Results) -> Judged:
        ratios = {row: results.paired(panel, row, column, than) for row in rows}
        holds = all(max(cell.values) < at_most for cell in ratios.values())
        return Judged(", ".join(f"{row} {cell.mean:.3g}" for row, cell in ratios.items()), holds)

    limit = "" if at_most == 1 else f"{at_most:g} times "
    rule = f"{panel}: {column} below {limit}{than} in each row, with every seed"
    return Rule(paper, rule, judge, differs)


def interval(cell: Cell) -> tuple[float, float]:
    """The 95 % confidence interval of the mean; unbounded with one seed."""
    half = math.inf if cell.half_width is None else cell.half_width
    return cell.mean - half, cell.mean + half


def interval_within(
    paper: str,
    where: tuple[str, str, str],
    *,
    than: str = "",
    above: float = -math.inf,
    below: float = math.inf,
) -> Rule:
    """The 95 % interval of a mean, or of `column` divided by `than` per seed, lies between two bounds."""
    panel, row, column = where

    def judge(results: Results) -> Judged:
        cell = results.paired(panel, row, column, than) if than else results.cell(panel, row, column)
        low, high = interval(cell)
        return Judged(f"{cell.mean:.3g} ({low:.3g} to {high:.3g})", above < low and high < below)

    what = f"{panel}, {row}: {column}{f' / {than}' if than else ''}"
    bounds = [f"above {above:g}"] if above > -math.inf else []
    bounds += [f"below {below:g}"] if below < math.inf else []
    return Rule(paper, f"{what}: 95 % interval {' and '.join(bounds)}", judge)


def proportional(
    paper: str,
    panel: str,
    row: str,
    weights: Mapping[str, float],
    tolerance: float,
    differs: str = "",
) -> Rule:
    """The columns of `row`, named after VMs, are in the ratio of their weights."""

    def judge(results: Results) -> Judged:
        means = {vm: results.mean(panel, row, vm) for vm in weights}
        total, total_weight = sum(means.values()), sum(weights.values())
        worst = max(abs(means[vm] / total / (weight / total_weight) - 1) for vm, weight in weights.items())
        least = min(weights, key=lambda vm: weights[vm])
        ratios = " : ".join(f"{mean / means[least]:.2f}" for mean in means.values())
        return Judged(f"{ratios}, worst share {worst:.1%} off", worst <= tolerance)

    wanted = " : ".join(f"{weight:g}" for weight in weights.values())
    return Rule(paper, f"{panel}, {row}: {wanted}, each share within {tolerance:.0%}", judge, differs)
