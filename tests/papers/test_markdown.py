"""docs/papers.md: whose statement is judged, and what a run of some figures keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from papers.html import html
from papers.markdown import markdown, sections_of
from papers.outcome import Agreement, CellOutcome, FigureOutcome, PapersResult, RuleOutcome
from papers.page import number
from papers.registry import FIGURES

DOCS = Path(__file__).resolve().parents[2] / "docs" / "papers.md"
QUICK = "Runs whose command has `--quick`"


def outcome(
    key: str, agreement: Agreement = Agreement.AGREES, ours: str = "1", flags: str = ""
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
        rules=[RuleOutcome(paper="it is so", rule="it is", ours=ours, agreement=agreement)],
    )


def result(*figures: FigureOutcome) -> PapersResult:
    return PapersResult(machine="2 CPUs", quick=False, figures=list(figures))


@pytest.mark.parametrize(("key", "source"), [("beyond:p99", "Claim"), ("fast15:8", "Paper")])
def test_a_page_says_whose_statement_is_judged(key: str, source: str) -> None:
    found = result(outcome(key))
    assert f"**{source}.** " in markdown(found)
    assert f"| {source.lower()} | rule |" in markdown(found)
    assert f"<b>{source}.</b>" in html(found)


def test_quick_runs_are_explained_where_there_are_any() -> None:
    full = markdown(result(outcome("fast15:8")))
    assert QUICK not in full
    assert QUICK in markdown(result(outcome("fast15:9", flags=" --quick")), full)


def test_run_of_some_figures_keeps_the_others() -> None:
    first = markdown(
        result(outcome("fast15:8"), outcome("fast15:9"), outcome("beyond:p99", Agreement.DIFFERS))
    )
    assert "3 figures and tables: 2 agrees, 1 differs." in first
    changed = outcome("fast15:9", Agreement.EXPLAINED, "42")
    then = markdown(result(changed), first)
    assert then == markdown(
        result(outcome("fast15:8"), changed, outcome("beyond:p99", Agreement.DIFFERS)), "another text"
    )
    assert "3 figures and tables: 1 agrees, 1 differs, explained, 1 differs." in then


def test_a_figure_that_could_not_be_run_keeps_what_the_page_has() -> None:
    first = markdown(result(outcome("fast15:8")))
    not_run = outcome("fast15:8", Agreement.NOT_RUN)
    assert markdown(result(not_run), first) == first
    assert "1 figures and tables: 1 not run." in markdown(result(not_run))


def test_page_of_the_documentation_has_every_figure_once() -> None:
    page = DOCS.read_text(encoding="utf-8")
    assert [*sections_of(page)] == [*FIGURES]
    machine = next(line for line in page.splitlines() if line.startswith("This page")).partition("; ")[2]
    nothing_new = PapersResult(machine=machine.rstrip("."), quick=False, figures=[])
    assert markdown(nothing_new, page) == page


@pytest.mark.parametrize(
    ("mean", "half_width", "shown"), [(0.0, 0.0, "0"), (17.3, 1.43, "17.3 ± 1.4"), (250.0, 0.5, "250")]
)
def test_a_number_has_its_interval_where_that_shows(mean: float, half_width: float, shown: str) -> None:
    assert number(CellOutcome(row="r", column="c", mean=mean, half_width=half_width), 3) == shown
