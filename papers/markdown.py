"""docs/papers.md: written by a run of all figures, or in part by a run of some."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from papers.figure import FIGURE_KEY
from papers.outcome import Agreement, FigureOutcome, PapersResult, TableOutcome
from papers.page import MOST_COLUMNS, number, source_of, summary_of
from papers.registry import FIGURES, PAPERS

_INTRODUCTION = """\
Every figure and table of the four papers that slo-ctl is built on, and claims beyond them: what is shown,
what stands in for the devices here, and whether we agree, by rules that are part of each figure's record and
not of a run. `slo-ctl paper` lists them, `slo-ctl paper fast15:8` runs one, `slo-ctl paper all --report
papers.html` draws them; the tests run each as `--quick` does. Labels say what is emulated, synthetic or
modelled; only serra:real-drive measures a real drive.

*agrees*: every rule holds. *differs, explained*: a rule does not hold, and an experiment of the same figure
shows why. *differs*: no experiment does. ± is half the 95 % confidence interval over seeds.
""".splitlines()
_QUICK = "Runs whose command has `--quick` are small and have few seeds."
_ROW = re.compile(rf"\| \[(?P<key>{FIGURE_KEY.pattern})\]\(#.*\) \| .* \| (?P<agreement>.*) \|")
_HEADING = re.compile(rf"### (?P<key>{FIGURE_KEY.pattern}): ")


@dataclass(frozen=True, slots=True)
class _Section:
    """Section of the page on one figure."""

    agreement: Agreement
    row: str
    """Its row in the table of its paper."""
    lines: tuple[str, ...]


def markdown(result: PapersResult, earlier: str = "") -> str:
    """Text of the page; figures that `result` lacks, or could not run, are taken from `earlier`, the present
    page.
    """
    before = sections_of(earlier)
    sections = before | {
        figure.key: _section_of(figure)
        for figure in result.figures
        if figure.agreement is not Agreement.NOT_RUN or figure.key not in before
    }
    keys = [key for key in FIGURES if key in sections]
    lines = [
        "# The papers, figure by figure",
        "",
        *_INTRODUCTION,
        "",
        f"This page is written by `slo-ctl paper all --markdown docs/papers.md`; {result.machine}.",
        "A run of some figures (`slo-ctl paper fast15:8 --markdown docs/papers.md`) replaces theirs.",
    ]
    if any("--quick`:" in line for key in keys for line in sections[key].lines):
        lines.append(_QUICK)
    lines += [f"{summary_of([sections[key].agreement for key in keys])}.", ""]
    for paper, title in PAPERS.items():
        own = [sections[key] for key in keys if key.partition(":")[0] == paper]
        if own:
            lines += [f"## {title}", "", "| | figure | agreement |", "|---|---|---|"]
            lines += [section.row for section in own]
            lines.append("")
            for section in own:
                lines += section.lines
    return "\n".join(lines).rstrip() + "\n"


def sections_of(page: str) -> dict[str, _Section]:
    """Sections of a page by key of the figure; empty for another text."""
    rows, texts = {}, {}
    text: list[str] = []
    for line in page.splitlines():
        if row := _ROW.fullmatch(line):
            rows[row["key"]] = row
        elif heading := _HEADING.match(line):
            text = texts[heading["key"]] = [line]
        elif line.startswith("## "):
            text = []
        else:
            text.append(line)
    return {
        key: _Section(Agreement(row["agreement"]), row[0], (*"\n".join(texts[key]).rstrip().split("\n"), ""))
        for key, row in rows.items()
        if key in texts
    }


def _section_of(figure: FigureOutcome) -> _Section:
    row = f"| [{figure.key}](#{_anchor(figure)}) | {_cell(figure.title)} | {figure.agreement.value} |"
    return _Section(figure.agreement, row, tuple(_section(figure)))


def _anchor(figure: FigureOutcome) -> str:
    text = _heading(figure).lower()
    return "".join(c for c in text if c.isalnum() or c in " -_").replace(" ", "-")


def _heading(figure: FigureOutcome) -> str:
    return f"{figure.key}: {figure.title}"


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


def _section(figure: FigureOutcome) -> Iterator[str]:
    labels = ", ".join(figure.labels)
    source = source_of(figure)
    yield from (f"### {_heading(figure)}", "", f"**{source}.** {figure.shows}", "")
    yield from (f"**Here** ({labels}). {figure.ours}", "")
    if figure.note:
        yield from (f"Not run: {figure.note}", "")
    if not figure.seeds:
        return
    seeds = f"{len(figure.seeds)} seed{'s' if len(figure.seeds) != 1 else ''}"
    yield from (f"`{figure.command}`: {seeds}, {figure.cpu_s:.0f} s of CPU. **{figure.agreement.value}**", "")
    if figure.rules:
        yield from (f"| {source.lower()} | rule | ours | |", "|---|---|---|---|")
        for rule in figure.rules:
            texts = map(_cell, (rule.paper, rule.rule, rule.ours, rule.agreement.value))
            yield "| " + " | ".join(texts) + " |"
        yield ""
    for reason in dict.fromkeys(rule.reason for rule in figure.rules if rule.reason):
        yield from (f"**Why it differs.** {reason}", "")
    for table in figure.tables:
        if len(table.columns()) <= MOST_COLUMNS:
            yield from _table(table)


def _table(table: TableOutcome) -> Iterator[str]:
    unit = f", {table.unit}" if table.unit else ""
    columns, cells = table.columns(), table.by_place()
    yield "| " + " | ".join([_cell(f"{table.title}{unit}"), *map(_cell, columns)]) + " |"
    yield "|---|" + "---|" * len(columns)
    for row in table.rows():
        numbers = [number(cells.get((row, column)), table.digits) for column in columns]
        yield "| " + " | ".join([_cell(row), *numbers]) + " |"
    yield ""
