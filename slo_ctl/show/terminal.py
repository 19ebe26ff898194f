"""Consoles and tables for terminals, files and pipes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TextIO, TypeVar

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

PLAIN_WIDTH = 132
"""Columns of text that is not written to a terminal."""
PIPE_WIDTH = 1000
"""Columns of tables that are not written to a terminal: nothing is folded or cut."""


def console_for(stream: TextIO) -> Console:
    """A console on `stream` that never interprets markup or emoji in what it prints."""
    return Console(
        file=stream,
        markup=False,
        emoji=False,
        highlight=False,
        width=None if stream.isatty() else PLAIN_WIDTH,
    )


NAME_WIDTH = 24
"""Maximum width of the first column; longer names are folded."""
_BETWEEN = 2

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """A column, and how soon it is dropped on a narrow terminal."""

    heading: str
    cell: Callable[[Row], str | Text]
    drop: int
    """The column with the highest value is dropped first; 0 is never dropped."""
    right: bool = True


def fitting(columns: Sequence[Column[Row]], rows: Iterable[Row], width: int | None) -> list[Column[Row]]:
    """The columns that fit in `width`; all for None."""
    fitting_columns = list(columns)
    if width is None:
        return fitting_columns
    rows = list(rows)
    widths = {column.heading: _width(column, rows, first=column is columns[0]) for column in fitting_columns}
    while sum(widths[column.heading] + _BETWEEN for column in fitting_columns) > width + _BETWEEN:
        first = max(fitting_columns, key=lambda column: column.drop)
        if first.drop == 0:
            break
        fitting_columns.remove(first)
    return fitting_columns


def table_of(columns: Sequence[Column[Row]], rows: Sequence[Row], width: int | None) -> Table:
    """The table of `rows`, with the columns that fit."""
    visible = fitting(columns, rows, width)
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for column in visible:
        if column is columns[0]:
            table.add_column(column.heading, max_width=NAME_WIDTH, overflow="fold")
        else:
            table.add_column(column.heading, justify="right" if column.right else "left", no_wrap=True)
    for row in rows:
        cells = (column.cell(row) for column in visible)
        table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in cells))
    return table


def _width(column: Column[Row], rows: list[Row], first: bool) -> int:
    widest = max((cell_len(str(column.cell(row))) for row in rows), default=0)
    return max(min(widest, NAME_WIDTH) if first else widest, cell_len(column.heading))
