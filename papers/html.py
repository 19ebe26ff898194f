"""The results as an HTML page."""

from __future__ import annotations

from papers.outcome import FigureOutcome, PapersResult, TableOutcome
from papers.page import by_paper, number, shown_tables, source_of, summary_line
from slo_ctl.show.charts import Axis, Bar, Bars, Chart, Curve, Curves
from slo_ctl.show.html import render_page


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
        if table.shape == "bars":
            drawn.append(_bars(table))
        elif table.shape in ("lines", "points"):
            drawn.append(_lines(table))
    return drawn


def _bars(table: TableOutcome) -> Bars:
    columns, cells = table.columns(), table.by_place()
    groups = []
    for row in table.rows():
        bars = []
        for index, column in enumerate(columns):
            cell = cells.get((row, column))
            if cell is not None:
                half = cell.half_width
                spread = None if half is None else (cell.mean - half, cell.mean + half)
                bars.append(Bar(column, number(cell, table.digits), [(cell.mean, index)], spread=spread))
        groups.append((row, bars))
    return Bars(table.title, table.unit, groups)


def _lines(table: TableOutcome) -> Curves:
    columns, cells = table.columns(), table.by_place()
    curves = [
        Curve(row, [cell.mean if (cell := cells.get((row, c))) else None for c in columns], index)
        for index, row in enumerate(table.rows())
    ]
    x = [float(column) for column in columns]
    axis = Axis(table.x_label)
    return Curves(table.title, table.unit, x, curves, "plain", axis, dots=table.shape == "points")
