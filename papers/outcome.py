"""Runs figures, judges them, and returns the result as JSON."""

from __future__ import annotations

import json
import os
import platform
import shlex
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from papers import beyond, fast15, greedy_space, parallel_serra, serra
from papers.figure import (
    NOT_IN_QUICK,
    Figure,
    Grid,
    NotPossibleError,
    Panel,
    Results,
    Shape,
    Trial,
    gathered,
)
from slo_ctl import tool_version
from slo_ctl.base.errors import UserError
from slo_ctl.base.json_store import StrictModel
from slo_ctl.base.progress import ProgressSink
from slo_ctl.base.workers import on_processes

# All figures by key, in the order of the papers.

BEYOND = "beyond"
"""Key of the claims that are not from a paper."""
PAPERS = {
    "fast15": "Kim, Lee, Noh: Towards SLO Complying SSDs Through OPS Isolation (FAST '15)",
    "greedy-space": "Hyun et al.: A Performance Model and File System Space Allocation Scheme for SSDs",
    "serra": "Zanon Boito et al.: Towards fast profiling of storage devices (SeRRa, SAC '15)",
    "parallel-serra": "Rodrigues Machado et al.: Parallel Storage Devices Profiling with SeRRa",
    BEYOND: "Beyond the papers: what slo-ctl adds",
}
"""Papers by the first part of a figure's key."""

FIGURES: dict[str, Figure] = {
    figure.key: figure
    for figure in (
        *fast15.FIGURES,
        *greedy_space.FIGURES,
        *serra.FIGURES,
        *parallel_serra.FIGURES,
        *beyond.FIGURES,
    )
}


# Results.

FORMAT_VERSION: Literal[1] = 1


class Agreement(StrEnum):
    """Agreement of a rule; for a figure, the worst of its rules."""

    AGREES = "agrees"
    EXPLAINED = "differs, explained"
    DIFFERS = "differs"
    """Differs without a demonstrated reason, or with a reason that is no longer needed."""
    DESCRIBED = "described"
    """Nothing to measure: the paper's set-up."""
    NOT_RUN = "not run"


class RuleOutcome(StrictModel):
    """One statement of the paper, our result, and whether they agree."""

    paper: str
    rule: str
    ours: str
    agreement: Agreement
    reason: str = ""


class CellOutcome(StrictModel):
    """One number over the seeds."""

    row: str
    column: str
    mean: float
    half_width: float | None = None
    """Half the 95 % confidence interval; null with one seed."""


class TableOutcome(StrictModel):
    """One panel over the seeds."""

    title: str
    unit: str
    shape: Shape
    digits: int
    x_label: str = ""
    cells: list[CellOutcome]

    def grid(self) -> Grid[CellOutcome]:
        """The cells by row and column."""
        cells = {(cell.row, cell.column): cell for cell in self.cells}
        return Grid(self.title, self.unit, cells, self.shape, self.digits, self.x_label)


class FigureOutcome(StrictModel):
    """Result of one figure."""

    key: str
    title: str
    shows: str
    ours: str
    labels: list[str]
    command: str
    agreement: Agreement
    seeds: list[int] = Field(default_factory=list)
    cpu_s: float = 0.0
    """CPU time of all trials."""
    rules: list[RuleOutcome] = Field(default_factory=list)
    tables: list[TableOutcome] = Field(default_factory=list)
    note: str = ""
    """Why it was not run."""


class PapersResult(StrictModel):
    """Result of a run of `slo-ctl paper`."""

    format_version: Literal[1] = FORMAT_VERSION
    kind: Literal["papers"] = "papers"
    tool_version: str = Field(default_factory=tool_version)
    machine: str
    quick: bool
    figures: list[FigureOutcome]
    complete: bool = True

    def to_json(self) -> str:
        """The one object that `--json` prints: strict JSON, a line for each figure."""
        head = _dumped(self.model_dump(mode="json", exclude={"figures"}))
        figures = ",\n".join(_dumped(figure.model_dump(mode="json")) for figure in self.figures)
        return f'{head[:-1]}, "figures": [\n{figures}\n]}}'

    @property
    def unexplained(self) -> list[str]:
        """Figures that differ without a reason."""
        return [figure.key for figure in self.figures if figure.agreement is Agreement.DIFFERS]


def _dumped(value: object) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False)


def read_result(path: Path) -> PapersResult:
    """Read a result saved with `--save-json`. Raises UserError."""
    try:
        return PapersResult.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UserError(f"--from: {path}: {error.strerror}", "name a file that --save-json wrote") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise UserError(
            f"--from: {path}: {where}: {first['msg']}", "name a file that --save-json of this version wrote"
        ) from None


def run_figures(
    figures: Sequence[Figure], *, quick: bool, seed: int, jobs: int, progress: ProgressSink
) -> PapersResult:
    """Run every trial of every figure on `jobs` processes, and judge.

    Trials that figures share are run once. Ctrl-C ends it with the figures that were complete by then.
    """
    trials = {figure.key: _trials(figure, quick=quick, seed=seed) for figure in figures}
    sharing: dict[tuple[_Experiment, Trial], list[str]] = {}
    for figure in figures:
        for trial in trials[figure.key]:
            if figure.run is not None:
                sharing.setdefault((figure.run, trial), []).append(figure.key)
    work = [(keys[0], trial) for (_, trial), keys in sharing.items()]
    found: dict[str, list[_Measured]] = {figure.key: [] for figure in figures}
    phase = progress.phase("papers", len(work), "runs")
    complete = True
    try:
        with closing(on_processes(_measure, work, min(jobs, len(work)))) as results:
            for keys, measured in zip(sharing.values(), results, strict=True):
                for key in keys:
                    found[key].append(measured)
                phase.advance(1)
    except KeyboardInterrupt:
        complete = False
    phase.done()
    return PapersResult(
        machine=_machine(),
        quick=quick,
        complete=complete,
        figures=[
            _outcome(figure, [trial.seed for trial in trials[figure.key]], found[figure.key], quick=quick)
            for figure in figures
        ],
    )


_Experiment = Callable[[Trial], list[Panel]]
_Measured = tuple[list[Panel] | None, float, str]
"""Panels, or None with the reason; CPU seconds in between."""


def _trials(figure: Figure, *, quick: bool, seed: int) -> list[Trial]:
    if figure.run is None:
        return []
    count = figure.quick_seeds if quick else figure.seeds
    return [Trial(seed + number, quick) for number in range(count)]


def _measure(item: tuple[str, Trial]) -> _Measured:
    key, trial = item
    experiment = FIGURES[key].run
    if experiment is None:
        return None, 0.0, "nothing to run"
    began = time.process_time()
    try:
        panels = experiment(trial)
    except NotPossibleError as error:
        return None, time.process_time() - began, str(error)
    return panels, time.process_time() - began, ""


def _outcome(
    figure: Figure, seeds: list[int], measured: Sequence[_Measured], *, quick: bool
) -> FigureOutcome:
    panels = [each for each, _, _ in measured if each is not None]
    whole = len(panels) == len(seeds) > 0
    results = gathered(panels) if whole else Results(())
    rules = judge(figure, results) if whole else []
    return FigureOutcome(
        key=figure.key,
        title=figure.title,
        shows=figure.shows,
        ours=figure.ours,
        labels=list(figure.labels),
        command=shlex.join(["slo-ctl", "paper", figure.key, *(["--quick"] if quick else [])]),
        agreement=_agreement(figure, rules, whole=whole),
        seeds=seeds,
        cpu_s=round(sum(cpu_s for _, cpu_s, _ in measured), 2),
        rules=rules,
        tables=_tables(results),
        note=next((note for _, _, note in measured if note), "" if whole or not seeds else "interrupted"),
    )


def judge(figure: Figure, results: Results) -> list[RuleOutcome]:
    """Verdicts of each rule of the figure."""
    outcomes = []
    for rule in figure.rules:
        judged = rule.judge(results)
        agreement, reason = Agreement.AGREES, ""
        if judged is NOT_IN_QUICK:
            agreement = Agreement.NOT_RUN
        elif not judged.agrees:
            agreement = Agreement.EXPLAINED if rule.differs else Agreement.DIFFERS
            reason = rule.differs
        elif rule.differs:
            agreement, reason = Agreement.DIFFERS, "agrees, and a reason for differing is given: remove it"
        outcomes.append(
            RuleOutcome(
                paper=rule.paper, rule=rule.rule, ours=judged.ours, agreement=agreement, reason=reason
            )
        )
    return outcomes


def _agreement(figure: Figure, rules: Sequence[RuleOutcome], *, whole: bool) -> Agreement:
    if figure.run is None:
        return Agreement.DESCRIBED
    if not whole:
        return Agreement.NOT_RUN
    found = {rule.agreement for rule in rules}
    if found == {Agreement.NOT_RUN}:
        return Agreement.NOT_RUN
    return next(
        (each for each in (Agreement.DIFFERS, Agreement.EXPLAINED) if each in found), Agreement.AGREES
    )


def _tables(results: Results) -> list[TableOutcome]:
    return [
        TableOutcome(
            title=table.title,
            unit=table.unit,
            shape=table.shape,
            digits=table.digits,
            x_label=table.x_label,
            cells=[
                CellOutcome(
                    row=row,
                    column=column,
                    mean=_rounded(cell.mean),
                    half_width=None if cell.half_width is None else _rounded(cell.half_width),
                )
                for (row, column), cell in table.cells.items()
            ],
        )
        for table in results.tables.values()
    ]


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


def merged(earlier: PapersResult, newer: PapersResult) -> PapersResult:
    """The figures of both in the order of the papers, the newer result unless it could not be run.

    Texts on the paper and the set-up are those of the present records.
    """
    found = {figure.key: figure for figure in earlier.figures}
    found |= {
        figure.key: figure
        for figure in newer.figures
        if figure.agreement is not Agreement.NOT_RUN or figure.key not in found
    }
    return newer.model_copy(
        update={
            "figures": [_described_now(found[key]) for key in FIGURES if key in found],
            "quick": earlier.quick or newer.quick,
            "complete": earlier.complete and newer.complete,
        }
    )


def _described_now(outcome: FigureOutcome) -> FigureOutcome:
    figure = FIGURES[outcome.key]
    now = {"title": figure.title, "shows": figure.shows, "ours": figure.ours, "labels": list(figure.labels)}
    return outcome.model_copy(update=now)


def _machine() -> str:
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return f"{os.cpu_count()} CPUs, {model}"
