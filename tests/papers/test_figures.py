"""Every figure of the papers, small and with few seeds: its rules hold, or differ for the reason given."""

from __future__ import annotations

import pytest

from papers.figure import FIGURE_KEY, Cell, Figure, Judged, Panel, Results, Rule, Trial, gathered
from papers.outcome import Agreement, judge, run_figures
from papers.registry import FIGURES, PAPERS
from slo_ctl.base.progress import Silent

IN_REAL_TIME = "fast15:1"
"""Run by tests/real/test_block_layer_figure.py."""
RUN = [key for key, figure in FIGURES.items() if figure.run is not None and key != IN_REAL_TIME]


@pytest.mark.parametrize("key", RUN)
def test_quick_run(key: str) -> None:
    result = run_figures([FIGURES[key]], quick=True, seed=1, jobs=1, progress=Silent())
    figure = result.figures[0]
    if figure.agreement is Agreement.NOT_RUN:
        pytest.skip(figure.note)
    wrong = [rule for rule in figure.rules if rule.agreement is Agreement.DIFFERS]
    assert not wrong, "\n".join(f"{rule.rule}: {rule.ours} {rule.reason}" for rule in wrong)


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


def test_trials_of_one_seed_are_alike() -> None:
    run = FIGURES["fast15:table1"].run
    assert run is not None
    assert run(Trial(3, quick=True)) == run(Trial(3, quick=True))
    assert run(Trial(3, quick=True)) != run(Trial(4, quick=True))
