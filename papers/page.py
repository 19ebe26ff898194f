"""The results as text and as an HTML page; `markdown` renders them as docs/papers.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from papers.figure import Grid, Shape
from papers.outcome import BEYOND, PAPERS, Agreement, CellOutcome, FigureOutcome, PapersResult, TableOutcome
from slo_ctl.base.numbers import UNKNOWN
from slo_ctl.base.text import counted
from slo_ctl.show.html import Axis, Bar, Bars, Chart, Curve, Curves, render_page

MOST_COLUMNS = 9
"""Most columns of a table in the documentation; wider ones are only plotted on the page."""


def number(cell: CellOutcome | None, digits: int) -> str:
    """A mean with half its interval, if the interval is visible at this precision."""
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
    """Key, title and figures of each paper that has figures."""
    for key, title in PAPERS.items():
        figures = [figure for figure in result.figures if figure.key.partition(":")[0] == key]
        if figures:
            yield key, title, figures


def summary_line(result: PapersResult) -> str:
    """How many figures agree, as a sentence."""
    found = [figure.agreement for figure in result.figures]
    parts = [f"{found.count(each)} {each.value}" for each in Agreement if each in found]
    total = "1 figure or table" if len(found) == 1 else f"{len(found)} figures and tables"
    return f"{total}: {', '.join(parts)}"


def source_of(figure: FigureOutcome) -> str:
    """Source of the judged statements."""
    return "Claim" if figure.key.partition(":")[0] == BEYOND else "Paper"


def text(result: PapersResult) -> Iterator[str]:
    """The results as text for a terminal."""
    for figure in result.figures:
        yield f"{figure.key}  {figure.title}: {figure.agreement.value}"
        seeds = counted(len(figure.seeds), "seed")
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
            for table, columns, rows in shown_tables(figure):
                yield from _text_table(titled(table), columns, rows)
        yield ""
    yield summary_line(result)


def titled(table: TableOutcome) -> str:
    """Title of a table with its unit."""
    return f"{table.title}, {table.unit}" if table.unit else table.title


Rows = list[tuple[str, list[str]]]
"""Names of rows, and their cells."""


def shown_tables(figure: FigureOutcome) -> Iterator[tuple[TableOutcome, list[str], Rows]]:
    """Tables that are not too wide, with their columns, and their rows as texts."""
    for table in figure.tables:
        grid = table.grid()
        if len(grid.columns) <= MOST_COLUMNS:
            rows = [
                (row, [number(grid.cells.get((row, column)), table.digits) for column in grid.columns])
                for row in grid.rows
            ]
            yield table, grid.columns, rows


def _text_table(title: str, columns: list[str], rows: Rows) -> Iterator[str]:
    yield f"  {title}"
    lines = [["", *columns], *([name, *cells] for name, cells in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for first, *rest in lines:
        numbers = "  ".join(value.rjust(width) for value, width in zip(rest, widths[1:], strict=True))
        yield f"    {first.ljust(widths[0])}  {numbers}".rstrip()


def listing(keys: Sequence[tuple[str, str, Sequence[str]]]) -> Iterator[str]:
    """`slo-ctl paper` without a name: key, title and labels by paper."""
    paper = ""
    width = max(len(key) for key, _, _ in keys)
    for key, title, labels in keys:
        if key.partition(":")[0] != paper:
            paper = key.partition(":")[0]
            yield PAPERS[paper]
        yield f"  {key.ljust(width)}  {title} ({', '.join(labels)})"


def html(result: PapersResult) -> str:
    """A page with all results; all texts are escaped."""
    papers = [
        (title, [(figure, _charts(figure), list(shown_tables(figure))) for figure in figures])
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


def _charts(figure: FigureOutcome) -> list[Chart]:
    drawn: list[Chart] = []
    for table in figure.tables:
        if table.shape is Shape.BARS:
            drawn.append(_bars(table.grid()))
        elif table.shape is not Shape.TABLE:
            drawn.append(_lines(table.grid()))
    return drawn


def _bars(table: Grid[CellOutcome]) -> Bars:
    groups = []
    for row in table.rows:
        bars = []
        for index, column in enumerate(table.columns):
            cell = table.cells.get((row, column))
            if cell is not None:
                half = cell.half_width
                spread = None if half is None else (cell.mean - half, cell.mean + half)
                bars.append(Bar(column, number(cell, table.digits), [(cell.mean, index)], spread=spread))
        groups.append((row, bars))
    return Bars(table.title, table.unit, groups)


def _lines(table: Grid[CellOutcome]) -> Curves:
    columns, cells = table.columns, table.cells
    curves = [
        Curve(row, [cell.mean if (cell := cells.get((row, c))) else None for c in columns], index)
        for index, row in enumerate(table.rows)
    ]
    x = [float(column) for column in columns]
    axis = Axis(table.x_label)
    return Curves(table.title, table.unit, x, curves, "plain", axis, dots=table.shape is Shape.POINTS)
