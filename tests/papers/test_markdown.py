"""docs/papers.md: judgement of each statement, abridged repetitions, agreement with docs/papers.json."""

from __future__ import annotations

from pathlib import Path

import pytest

from papers.figure import Shape
from papers.markdown import markdown
from papers.outcome import (
    FIGURES,
    Agreement,
    CellOutcome,
    FigureOutcome,
    PapersResult,
    RuleOutcome,
    TableOutcome,
    merged,
    read_result,
)
from papers.page import html, number

DOCS = Path(__file__).resolve().parents[2] / "docs"
QUICK = "Results marked quick"


def rule(paper: str = "it is so", ours: str = "1", reason: str = "") -> RuleOutcome:
    agreement = Agreement.EXPLAINED if reason else Agreement.AGREES
    return RuleOutcome(paper=paper, rule=f"is it {ours}?", ours=ours, agreement=agreement, reason=reason)


def outcome(
    key: str,
    agreement: Agreement = Agreement.AGREES,
    *rules: RuleOutcome,
    flags: str = "",
    tables: tuple[TableOutcome, ...] = (),
) -> FigureOutcome:
    figure = FIGURES[key]
    return FigureOutcome(
        key=key,
        title=figure.title,
        shows=figure.shows,
        ours=figure.ours,
        labels=list(figure.labels),
        command=f"slo-ctl paper {key}{flags}",
        agreement=agreement,
        seeds=[1, 2, 3],
        rules=list(rules or (rule(),)),
        tables=list(tables),
    )


def result(*figures: FigureOutcome) -> PapersResult:
    return PapersResult(machine="2 CPUs", quick=False, figures=list(figures))


@pytest.mark.parametrize(("key", "source"), [("beyond:p99", "Claim"), ("fast15:8", "Paper")])
def test_a_page_shows_whose_statement_is_judged(key: str, source: str) -> None:
    found = result(outcome(key))
    assert f"**{source}.** " in markdown(found)
    assert f"<b>{source}.</b>" in html(found)


def test_quick_runs_are_explained_where_there_are_any() -> None:
    full = outcome("fast15:8")
    assert QUICK not in markdown(result(full))
    page = markdown(result(full, outcome("fast15:9", flags=" --quick")))
    assert QUICK in page
    assert page.count(", quick)") == 1


def test_rules_about_one_statement_are_together_and_a_reason_is_shown_once() -> None:
    rules = (
        rule("it is so", "1"),
        rule("it is round", "2", "as it rolls"),
        rule("(demonstrates the reason)", "3"),
        rule("it is so", "4", "as it rolls"),
    )
    page = markdown(result(outcome("fast15:8", Agreement.EXPLAINED, *rules)))
    lines = page[page.index("- It is so.") :].splitlines()
    assert lines[:6] == [
        "- It is so.",
        "  - *is it 1?*: **1**.",
        "  - *is it 4?*: **4** (differs, explained).",
        "    as it rolls",
        "- It is round. *is it 2?*: **2** (differs, explained).",
        "- (demonstrates the reason). *is it 3?*: **3**.",
    ]


def test_what_two_figures_share_is_written_once() -> None:
    cells = [CellOutcome(row="r", column="c", mean=17.3)]
    table = TableOutcome(title="a table", unit="", shape=Shape.TABLE, digits=3, cells=cells)
    page = markdown(result(*(outcome(key, tables=(table,)) for key in ("fast15:eq1", "fast15:eq2"))))
    assert page.count("| a table | c |") == 1
    assert page.count(FIGURES["fast15:eq1"].ours) == 1
    anchor = "#fast15eq1-equation-1-iops--1--t_gc--t_prg--t_xfer"
    assert f"**Here.** As [fast15:eq1]({anchor})." in page
    assert f"Numbers: [fast15:eq1]({anchor})" in page


def test_newer_results_replace_earlier_ones_in_the_order_of_the_papers() -> None:
    earlier = result(outcome("fast15:9"), outcome("beyond:p99", Agreement.DIFFERS))
    newer = result(outcome("fast15:9", Agreement.EXPLAINED, rule(ours="42")), outcome("fast15:8"))
    found = merged(earlier, newer)
    assert [figure.key for figure in found.figures] == ["fast15:8", "fast15:9", "beyond:p99"]
    assert found.figures[1] == newer.figures[0]
    assert "3 figures and tables: 1 agrees, 1 differs, explained, 1 differs; 2 CPUs." in markdown(found)
    assert "1 figure or table: 1 differs; " in markdown(result(outcome("fast15:9", Agreement.DIFFERS)))


def test_a_figure_that_could_not_be_run_keeps_its_earlier_result() -> None:
    earlier = result(outcome("fast15:8"))
    not_run = outcome("fast15:8", Agreement.NOT_RUN)
    assert merged(earlier, result(not_run)).figures == earlier.figures
    assert merged(result(), result(not_run)).figures == [not_run]


def test_an_earlier_result_is_described_as_its_record_is_now() -> None:
    earlier = outcome("fast15:8").model_copy(update={"ours": "on another drive"})
    (figure,) = merged(result(earlier), result()).figures
    assert figure.ours == FIGURES["fast15:8"].ours


def test_page_of_the_documentation_shows_the_last_results_of_every_figure() -> None:
    recorded = read_result(DOCS / "papers.json")
    assert [figure.key for figure in recorded.figures] == [*FIGURES]
    nothing_new = PapersResult(machine=recorded.machine, quick=False, figures=[])
    assert (DOCS / "papers.md").read_text(encoding="utf-8") == markdown(merged(recorded, nothing_new))


def test_recorded_rules_are_those_of_the_record() -> None:
    for figure in read_result(DOCS / "papers.json").figures:
        recorded = [(each.paper, each.rule) for each in figure.rules]
        assert recorded == [(each.paper, each.rule) for each in FIGURES[figure.key].rules], figure.key


@pytest.mark.parametrize(
    ("mean", "half_width", "shown"), [(0.0, 0.0, "0"), (17.3, 1.43, "17.3 ± 1.4"), (250.0, 0.5, "250")]
)
def test_a_number_has_its_interval_where_that_shows(mean: float, half_width: float, shown: str) -> None:
    assert number(CellOutcome(row="r", column="c", mean=mean, half_width=half_width), 3) == shown
