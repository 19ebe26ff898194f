"""Every figure of the papers, small and with few seeds: its rules hold, or differ for the stated reason."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from papers.fast15.real_traces import TRACES, TRACES_VARIABLE
from papers.figure import (
    NOT_IN_QUICK,
    Cell,
    Figure,
    Judged,
    Panel,
    Results,
    Rule,
    Trial,
    gathered,
    interval,
    interval_within,
)
from papers.outcome import BEYOND, FIGURES, PAPERS, Agreement, judge, run_figures
from slo_ctl.base.progress import Silent

FIGURE_KEY = re.compile(r"[a-z0-9-]+:[a-z0-9]+(-[a-z0-9]+)*")
"""PAPER:FIGURE, as on the command line."""
IN_REAL_TIME = {"fast15:1", "serra:real-drive"}
"""Run by tests/real/test_figures_in_real_time.py."""
WITH_TRACES = ("fast15:3-real-traces", "fast15:4-real-traces")
_TOGETHER = (
    ("fast15:4a", "fast15:4b"),
    ("fast15:5b", "fast15:7"),
    ("fast15:eq1", "fast15:eq2"),
    ("greedy-space:1", "greedy-space:model"),
    ("greedy-space:3", "greedy-space:4"),
    tuple(
        key
        for key, figure in FIGURES.items()
        if key.startswith(("serra:", "parallel-serra:"))
        and figure.run is not None
        and key not in IN_REAL_TIME
    ),
)
"""Figures from the same measurements, which one process computes once."""
RUN = [
    *_TOGETHER,
    *(
        (key,)
        for key, figure in FIGURES.items()
        if figure.run is not None
        and key not in {*IN_REAL_TIME, *WITH_TRACES}
        and not any(key in keys for keys in _TOGETHER)
    ),
]


@pytest.mark.parametrize("keys", RUN, ids=" ".join)
def test_quick_run(keys: tuple[str, ...]) -> None:
    check_quick_run(keys)


def test_quick_run_with_real_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    default = Path(__file__).resolve().parents[3] / "shared" / "traces"
    folder = Path(os.environ.get(TRACES_VARIABLE, default))
    missing = [name for name in TRACES.values() if not (folder / name).exists()]
    if missing:
        pytest.skip(
            f"no real traces {', '.join(missing)}: set {TRACES_VARIABLE} to the directory that holds them"
        )
    monkeypatch.setenv(TRACES_VARIABLE, str(folder))
    check_quick_run(WITH_TRACES)


def test_figure_whose_traces_are_missing_is_not_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(TRACES_VARIABLE, str(tmp_path))
    figures = [FIGURES[key] for key in WITH_TRACES]
    for figure in run_figures(figures, quick=True, seed=1, jobs=1, progress=Silent()).figures:
        assert figure.agreement is Agreement.NOT_RUN
        assert TRACES_VARIABLE in figure.note
        assert all(name in figure.note for name in TRACES.values())


def check_quick_run(keys: Sequence[str]) -> None:
    figures = [FIGURES[key] for key in keys]
    for figure in run_figures(figures, quick=True, seed=1, jobs=1, progress=Silent()).figures:
        assert any(rule.agreement is not Agreement.NOT_RUN for rule in figure.rules), figure.note
        wrong = [rule for rule in figure.rules if rule.agreement is Agreement.DIFFERS]
        assert not wrong, "\n".join(f"{rule.rule}: {rule.ours} {rule.reason}" for rule in wrong)


def test_figures_of_one_experiment_run_it_once() -> None:
    runs: list[Trial] = []

    def experiment(trial: Trial) -> list[Panel]:
        runs.append(trial)
        return [Panel("p", "", {("r", "c"): float(trial.seed)})]

    first = replace(figure_with(), run=experiment, quick_seeds=2)
    second = replace(first, key="fast15:00", quick_seeds=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("papers.outcome.FIGURES", {each.key: each for each in (first, second)})
        found = run_figures([first, second], quick=True, seed=1, jobs=1, progress=Silent()).figures
    assert [trial.seed for trial in runs] == [1, 2, 3]
    assert [each.tables[0].cells[0].mean for each in found] == [1.5, 2.0]


def test_every_figure_has_its_papers_key_and_rules() -> None:
    for key, figure in FIGURES.items():
        assert key == figure.key
        assert FIGURE_KEY.fullmatch(key)
        assert key.partition(":")[0] in PAPERS
        assert figure.labels
        assert bool(figure.rules) == (figure.run is not None)


def results_of(*trials: float) -> Results:
    return gathered([[Panel("p", "", {("r", "c"): value})] for value in trials])


def figure_with(*rules: Rule) -> Figure:
    return Figure("fast15:0", "", "", "", ("synthetic",), lambda _trial: [], rules)


def test_a_cell_has_the_interval_of_its_seeds() -> None:
    cell = results_of(1.0, 2.0, 3.0).cell("p", "r", "c")
    assert cell == Cell((1.0, 2.0, 3.0))
    assert cell.mean == 2.0
    # t(0.975, 2) = 4.303, standard deviation 1.
    assert cell.half_width == pytest.approx(4.303 / 3**0.5, rel=1e-3)
    assert results_of(1.0).cell("p", "r", "c").half_width is None


@pytest.mark.parametrize(
    ("holds", "reason", "expected"),
    [
        (True, "", Agreement.AGREES),
        (False, "", Agreement.DIFFERS),
        (False, "because", Agreement.EXPLAINED),
        (True, "because", Agreement.DIFFERS),
    ],
)
def test_a_reason_is_needed_exactly_where_a_rule_does_not_hold(
    holds: bool, reason: str, expected: Agreement
) -> None:
    rule = Rule("", "", lambda _results: Judged("", holds), reason)
    assert [each.agreement for each in judge(figure_with(rule), results_of(1.0))] == [expected]


def test_what_a_quick_run_leaves_out_counts_as_not_run() -> None:
    rules = Rule("", "", lambda _results: NOT_IN_QUICK), Rule("", "", lambda _results: Judged("1", True))
    found = judge(figure_with(*rules), results_of(1.0))
    assert [each.agreement for each in found] == [Agreement.NOT_RUN, Agreement.AGREES]
    for some, agreement in ((rules, Agreement.AGREES), (rules[:1], Agreement.NOT_RUN)):
        figure = replace(figure_with(*some), run=lambda _trial: [Panel("p", "", {("r", "c"): 1.0})])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("papers.outcome.FIGURES", {figure.key: figure})
            (run,) = run_figures([figure], quick=True, seed=1, jobs=1, progress=Silent()).figures
        assert run.agreement is agreement


def test_trials_of_one_seed_are_alike() -> None:
    run = FIGURES["fast15:table1"].run
    assert run is not None
    assert run(Trial(3, quick=True)) == run(Trial(3, quick=True))
    assert run(Trial(3, quick=True)) != run(Trial(4, quick=True))


def test_a_number_that_a_seed_did_not_measure_is_left_out() -> None:
    panels = [Panel("p", "", {("r", "a"): 1.0, ("r", "b"): 2.0}), Panel("p", "", {("r", "b"): 4.0})]
    for trials in (panels, panels[::-1]):
        table = gathered([[panel] for panel in trials]).tables["p"]
        assert {key: cell.mean for key, cell in table.cells.items()} == {("r", "b"): 3.0}


@pytest.mark.parametrize(
    ("values", "above", "below", "agrees"),
    [
        ((1.0, 2.0, 3.0), -0.5, 4.5, True),
        ((1.0, 2.0, 3.0), -0.4, 5.0, False),
        ((1.0, 2.0, 3.0), -1.0, 4.4, False),
        # One seed has no spread.
        ((2.0,), 0.0, 4.0, False),
    ],
)
def test_the_whole_interval_has_to_lie_within_the_bounds(
    values: tuple[float, ...], above: float, below: float, agrees: bool
) -> None:
    rule = interval_within("", ("p", "r", "c"), above=above, below=below)
    assert rule.judge(results_of(*values)).agrees is agrees


def test_the_interval_of_a_ratio_is_taken_seed_by_seed() -> None:
    trials = [[Panel("p", "", {("r", "a"): 2.0 * n, ("r", "b"): 1.0 * n})] for n in (1, 10, 100)]
    found = gathered(trials)
    assert interval(found.paired("p", "r", "a", "b")) == (2.0, 2.0)
    assert interval_within("", ("p", "r", "a"), than="b", above=1.9, below=2.1).judge(found).agrees


def test_claims_beyond_the_papers_have_an_interval() -> None:
    own = [figure for figure in FIGURES.values() if figure.key.partition(":")[0] == BEYOND]
    assert own
    for figure in own:
        # Two seeds have one degree of freedom: t is 12.7.
        assert min(figure.seeds, figure.quick_seeds) >= 3, figure.key
