"""The results as an HTML page and as text; `markdown` has docs/papers.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from matplotlib.ticker import FuncFormatter

from papers.outcome import Agreement, CellOutcome, FigureOutcome, PapersResult, TableOutcome
from papers.registry import BEYOND, PAPERS
from slo_ctl.base.numbers import UNKNOWN
from slo_ctl.show.plot_parts import (
    Plot,
    bar,
    headroom,
    inline_svg,
    legend_of_vms,
    legend_place,
    name_bars,
    plot_figure,
    tick,
    vm_colour,
    vm_dashes,
)
from slo_ctl.show.report import render_page

MOST_COLUMNS = 9
"""Of a table that is shown in the documentation; wider ones are plots of the page only."""


def number(cell: CellOutcome | None, digits: int) -> str:
    """A mean with half its interval, where there is one that shows."""
    if cell is None:
        return UNKNOWN
    text = _plain(cell.mean, digits)
    if cell.half_width is None or cell.half_width <= 10 ** -(digits - 1) * abs(cell.mean):
        return text
    return f"{text} ± {_plain(cell.half_width, 2)}"


def _plain(value: float, digits: int) -> str:
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    text = f"{value:.{digits}g}"
    return f"{value:.{digits + 2}f}".rstrip("0").rstrip(".") if "e" in text else text


def by_paper(result: PapersResult) -> Iterator[tuple[str, str, list[FigureOutcome]]]:
    """Key, title and figures of each paper that has any."""
    for key, title in PAPERS.items():
        figures = [figure for figure in result.figures if figure.key.partition(":")[0] == key]
        if figures:
            yield key, title, figures


def summary_line(result: PapersResult) -> str:
    """How many agree."""
    return summary_of([figure.agreement for figure in result.figures])


def summary_of(found: Sequence[Agreement]) -> str:
    """How many figures agree."""
    parts = [f"{found.count(each)} {each.value}" for each in Agreement if each in found]
    return f"{len(found)} figures and tables: {', '.join(parts)}"


def source_of(figure: FigureOutcome) -> str:
    """Who says what is judged."""
    return "Claim" if figure.key.partition(":")[0] == BEYOND else "Paper"


# Text.


def text(result: PapersResult) -> Iterator[str]:
    """For a terminal."""
    for figure in result.figures:
        yield f"{figure.key}  {figure.title}: {figure.agreement.value}"
        seeds = f"{len(figure.seeds)} seed{'s' if len(figure.seeds) != 1 else ''}"
        yield f"  {', '.join(figure.labels)}; {seeds}, {figure.cpu_s:.1f} s of CPU"
        if figure.note:
            yield f"  not run: {figure.note}"
        for rule in figure.rules:
            yield f"  {rule.agreement.value}: {rule.paper}"
            yield f"      rule  {rule.rule}"
            yield f"      ours  {rule.ours}"
        for reason in dict.fromkeys(rule.reason for rule in figure.rules if rule.reason):
            yield f"  why it differs: {reason}"
        if len(result.figures) == 1:
            for table in figure.tables:
                yield from _text_table(table)
        yield ""
    yield summary_line(result)


def _text_table(table: TableOutcome) -> Iterator[str]:
    columns, cells = table.columns(), table.by_place()
    if len(columns) > MOST_COLUMNS:
        return
    unit = f", {table.unit}" if table.unit else ""
    rows = [["", *columns]] + [
        [row, *(number(cells.get((row, column)), table.digits) for column in columns)] for row in table.rows()
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    yield f"  {table.title}{unit}"
    for first, *rest in rows:
        numbers = "  ".join(value.rjust(width) for value, width in zip(rest, widths[1:], strict=True))
        yield f"    {first.ljust(widths[0])}  {numbers}".rstrip()


# HTML.


def html(result: PapersResult) -> str:
    """A page with everything; all texts are escaped."""
    papers = [
        (title, [(figure, [plot for plot in _plots(figure) if plot], _tables(figure)) for figure in figures])
        for _, title, figures in by_paper(result)
    ]
    return render_page(
        "papers.html.j2",
        title="The papers, figure by figure",
        result=result,
        source_of=source_of,
        papers=papers,
        summary=summary_line(result),
    )


def _tables(figure: FigureOutcome) -> list[tuple[TableOutcome, list[str], list[tuple[str, list[str]]]]]:
    found = []
    for table in figure.tables:
        columns, cells = table.columns(), table.by_place()
        if len(columns) <= MOST_COLUMNS:
            rows = [
                (row, [number(cells.get((row, column)), table.digits) for column in columns])
                for row in table.rows()
            ]
            found.append((table, columns, rows))
    return found


def _plots(figure: FigureOutcome) -> list[Plot]:
    drawn = []
    for index, table in enumerate(figure.tables):
        key = f"{figure.key.replace(':', '-')}-{index}"
        if table.shape == "bars":
            drawn.append(_bars(table, key))
        elif table.shape in ("lines", "points"):
            drawn.append(_lines(table, key))
    return drawn


def _bars(table: TableOutcome, key: str) -> Plot:
    rows, columns, cells = table.rows(), table.columns(), table.by_place()
    with plot_figure() as (figure, axes):
        width = 0.82 / len(columns)
        for group, row in enumerate(rows):
            for index, column in enumerate(columns):
                cell = cells.get((row, column))
                if cell is None:
                    continue
                x = group - 0.41 + width * (index + 0.5)
                bar(axes, x, cell.mean, width, index)
                if cell.half_width is not None:
                    axes.errorbar(x, cell.mean, yerr=cell.half_width, color="#010101", linewidth=0.8)
        name_bars(axes, rows)
        axes.set_ylabel(table.unit)
        headroom(axes)
        legend_of_vms(axes, columns)
        svg = inline_svg(figure, key)
    return Plot(key, table.title, "", svg)


def _lines(table: TableOutcome, key: str) -> Plot:
    rows, cells = table.rows(), table.by_place()
    with plot_figure() as (figure, axes):
        handles = []
        for index, row in enumerate(rows):
            points = [(float(c), cells[row, c]) for c in table.columns() if (row, c) in cells]
            style: dict[str, Any] = (
                {"linestyle": vm_dashes(index), "marker": "", "linewidth": 1.4}
                if table.shape == "lines"
                else {"linestyle": "none", "marker": ".", "markersize": 3.5}
            )
            (line,) = axes.plot(
                [x for x, _ in points],
                [cell.mean for _, cell in points],
                color=vm_colour(index).stand_in,
                **style,
            )
            handles.append(line)
        axes.xaxis.set_major_formatter(FuncFormatter(tick))
        axes.set_xlabel(table.x_label)
        axes.set_ylabel(table.unit)
        axes.set_ylim(bottom=0)
        axes.legend(handles, rows, **legend_place(axes, rows))
        svg = inline_svg(figure, key)
    return Plot(key, table.title, "", svg)


def listing(keys: Sequence[tuple[str, str, Sequence[str]]]) -> Iterator[str]:
    """`slo-ctl paper` without a name: key, title and labels by paper."""
    paper = ""
    width = max(len(key) for key, _, _ in keys)
    for key, title, labels in keys:
        if key.partition(":")[0] != paper:
            paper = key.partition(":")[0]
            yield PAPERS[paper]
        yield f"  {key.ljust(width)}  {title} ({', '.join(labels)})"
