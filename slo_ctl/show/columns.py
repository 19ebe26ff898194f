"""Columns that know how readily they go when the terminal is narrow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

NAME_WIDTH = 24
"""Of the first column: names are folded beyond."""
_BETWEEN = 2

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """One column: what it says of a row, and when it goes."""

    heading: str
    cell: Callable[[Row], str | Text]
    drop: int
    """The highest goes first; 0 stays."""
    right: bool = True


def fitting(columns: Sequence[Column[Row]], rows: Iterable[Row], width: int | None) -> list[Column[Row]]:
    """Those of the columns that `width` has room for; all for None."""
    kept = list(columns)
    if width is None:
        return kept
    rows = list(rows)
    widths = {column.heading: _width(column, rows, first=column is columns[0]) for column in kept}
    while sum(widths[column.heading] + _BETWEEN for column in kept) > width + _BETWEEN:
        least = max(kept, key=lambda column: column.drop)
        if least.drop == 0:
            break
        kept.remove(least)
    return kept


def table_of(columns: Sequence[Column[Row]], rows: Sequence[Row], width: int | None) -> Table:
    """The table of `rows`, with the columns that fit."""
    kept = fitting(columns, rows, width)
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for column in kept:
        if column is columns[0]:
            table.add_column(column.heading, max_width=NAME_WIDTH, overflow="fold")
        else:
            table.add_column(column.heading, justify="right" if column.right else "left", no_wrap=True)
    for row in rows:
        cells = (column.cell(row) for column in kept)
        table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in cells))
    return table


def _width(column: Column[Row], rows: list[Row], first: bool) -> int:
    widest = max((cell_len(str(column.cell(row))) for row in rows), default=0)
    return max(min(widest, NAME_WIDTH) if first else widest, cell_len(column.heading))
