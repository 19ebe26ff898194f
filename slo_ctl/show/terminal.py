"""Consoles, tables and progress on terminals, in files and in pipes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Literal, TextIO, TypeVar

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from slo_ctl.base import numbers
from slo_ctl.base.progress import ProgressSink, Silent
from slo_ctl.base.text import printable

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


_PLAIN_WIDTH = 132
"""Columns of text that is not written to a terminal."""
_PIPE_WIDTH = 1000
"""Columns of tables that are not written to a terminal: nothing is folded or cut."""


def console_for(stream: TextIO) -> Console:
    """A console on `stream` that never interprets markup or emoji in what it prints."""
    return Console(
        file=stream,
        markup=False,
        emoji=False,
        highlight=False,
        width=None if stream.isatty() else _PLAIN_WIDTH,
    )


def can_redraw(stream: TextIO) -> bool:
    """Whether it is a terminal on which text can be redrawn in place: not with TERM=dumb."""
    return stream.isatty() and not Console(file=stream).is_dumb_terminal


def print_line(console: Console, line: str | Text, indent: int = 2, style: str = "") -> None:
    """A line of text. A narrower terminal wraps it at words, and indents continuation lines by `indent`.

    In files and pipes, lines are not wrapped. Control characters of a `str` are escaped.
    """
    if isinstance(line, str):
        line = Text(printable(line), style)
    width = console.width - indent
    if not console.file.isatty() or cell_len(line.plain) <= console.width or width < _MIN_WRAPPED_WIDTH:
        console.print(line, soft_wrap=True)
        return
    first = line.wrap(console, console.width)[0]
    console.print(first, soft_wrap=True)
    after = line.plain[len(first) :]
    start = len(line) - len(after.lstrip())
    for each in line.divide([start])[1].wrap(console, width):
        console.print(Text(" " * indent) + each, soft_wrap=True)


_MIN_WRAPPED_WIDTH = 20
"""Narrower terminals wrap lines themselves."""


def print_facts(console: Console, facts: Mapping[str, str], margin: int = 0) -> None:
    """A line for each name and its value. Continuation lines of long values are aligned."""
    width = max(map(len, facts), default=0)
    for name, fact in facts.items():
        if fact:
            print_line(console, f"{' ' * margin}{name:<{width}}  {fact}", margin + width + 2)


_GAP_WIDTH = 2
_MIN_FOLDED_WIDTH = 16


def empty_table(gap: int = 1) -> Table:
    """A table without lines but the one below its headings, with a gap on the right of each column."""
    return Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, gap, 0, 0))


def print_rows(
    console: Console,
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    left: Collection[str],
    folded: Collection[str] = (),
) -> None:
    """A table, aligned to the right except for columns in `left`; cells of `folded` columns may be folded.

    If it does not fit into a terminal, a list of the known cells of each row below its first cell. Control
    characters are escaped.
    """
    width = width_for_tables(console)
    rows = [tuple(map(printable, row)) for row in rows]
    needed = 0
    table = empty_table()
    for index, heading in enumerate(headings):
        cells = [row[index] for row in rows]
        fold = heading in folded
        widest = max(map(cell_len, (heading, *cells)))
        needed += (min(widest, _MIN_FOLDED_WIDTH) if fold else widest) + _GAP_WIDTH
        justify: Literal["left", "right"] = "left" if heading in left else "right"
        table.add_column(heading, justify=justify, no_wrap=not fold, overflow="fold")
    if width is None or needed - _GAP_WIDTH <= width:
        for row in rows:
            table.add_row(*map(Text, row))
        console.print(table)
        return
    for row in rows:
        facts = {name: cell for name, cell in zip(headings, row, strict=True) if cell != numbers.UNKNOWN}
        print_line(console, facts.pop(headings[0], f"{headings[0]} {numbers.UNKNOWN}"), style="bold")
        print_facts(console, facts, margin=2)


def width_for_tables(console: Console) -> int | None:
    """The width of a terminal; None for files and pipes, on which the console becomes as wide as tables."""
    if console.file.isatty():
        return console.width
    console.width = _PIPE_WIDTH
    return None


NAME_WIDTH = 24
"""Maximum width of the first column; longer names are folded."""

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """A column of a table."""

    heading: str
    cell: Callable[[Row], str | Text]
    drop: int
    """On a narrow terminal, columns with the highest value are dropped first; 0 is never dropped."""
    right: bool = True

    def text(self, row: Row) -> Text:
        """The cell of a row; control characters of a `str` are escaped."""
        cell = self.cell(row)
        return cell if isinstance(cell, Text) else Text(printable(cell))


def fitting(columns: Sequence[Column[Row]], rows: Iterable[Row], width: int | None) -> list[Column[Row]]:
    """The columns that fit in `width`; all for None."""
    fitting_columns = list(columns)
    if width is None:
        return fitting_columns
    rows = list(rows)
    widths = {column.heading: _width(column, rows, first=column is columns[0]) for column in fitting_columns}
    while sum(widths[column.heading] + _GAP_WIDTH for column in fitting_columns) > width + _GAP_WIDTH:
        first = max(fitting_columns, key=lambda column: column.drop)
        if first.drop == 0:
            break
        fitting_columns.remove(first)
    return fitting_columns


def table_of(columns: Sequence[Column[Row]], rows: Sequence[Row], width: int | None) -> Table:
    """The table of `rows`, with the columns that fit."""
    visible = fitting(columns, rows, width)
    table = empty_table()
    for column in visible:
        if column is columns[0]:
            table.add_column(column.heading, max_width=NAME_WIDTH, overflow="fold")
        else:
            table.add_column(column.heading, justify="right" if column.right else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(column.text(row) for column in visible))
    return table


def as_text(table: Table, width: int) -> Text:
    """The rendered table, to be joined with other text."""
    console = Console(width=width, color_system="truecolor", markup=False, highlight=False)
    drawn = console.render_lines(table, pad=False)
    parts = (Text.assemble(*((each.text, each.style or "") for each in line)) for line in drawn)
    return Text("\n").join(parts)


def _width(column: Column[Row], rows: list[Row], first: bool) -> int:
    widest = max((cell_len(column.text(row).plain) for row in rows), default=0)
    return max(min(widest, NAME_WIDTH) if first else widest, cell_len(column.heading))


BARS = "▁▂▃▄▅▆▇█"
_GAP = " "


def sparkline(values: Sequence[float | None], width: int | None = None) -> str:
    """A line of text with a bar for each value, from 0 to the largest; a gap for unknown values.

    With more values than `width`, each bar is the mean of several.
    """
    points = list(values) if width is None else _squeezed(values, width)
    largest = max((value for value in points if value is not None), default=0.0)
    return "".join(_GAP if value is None else _bar(value, largest) for value in points)


def _bar(value: float, largest: float) -> str:
    if largest <= 0:
        return BARS[0]
    return BARS[min(len(BARS) - 1, int(max(0.0, value) / largest * len(BARS)))]


def _squeezed(values: Sequence[float | None], width: int) -> list[float | None]:
    count = len(values)
    if count <= width:
        return list(values)
    groups = (values[i * count // width : (i + 1) * count // width] for i in range(width))
    return [numbers.weighted_mean((value, 1.0) for value in group) for group in groups]


@contextmanager
def progress_on_stderr(quiet: bool = False) -> Iterator[ProgressSink]:
    """The sink that suits stderr: none when quiet, bars where they can be redrawn, else plain lines."""
    if quiet:
        yield Silent()
    elif can_redraw(sys.stderr):
        with _bars(sys.stderr) as progress:
            yield ProgressBars(progress)
    else:
        yield ProgressLines(sys.stderr)


_LINE_INTERVAL_S = 10.0


class ProgressBars:
    """One bar per phase, with the remaining time."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def phase(self, name: str, total: float | None, unit: str) -> ProgressBar:
        """A new bar below the others."""
        task = self._progress.add_task(printable(name), total=total, unit=unit)
        return ProgressBar(self._progress, task)

    def note(self, text: str) -> None:
        """A line above the bars."""
        self._progress.console.print(Text(printable(text)))


class ProgressBar:
    """One phase as a bar."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def advance(self, amount: float) -> None:
        """Fill the bar by `amount` of its unit."""
        self._progress.advance(self._task, amount)

    def done(self) -> None:
        """Fill the bar, also when the phase ends early."""
        task = next(task for task in self._progress.tasks if task.id == self._task)
        self._progress.update(self._task, total=task.completed or 1, completed=task.completed or 1)
        self._progress.stop_task(self._task)


class ProgressLines:
    """Lines at the start and the end of a phase, and every _LINE_INTERVAL_S in between."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock

    def phase(self, name: str, total: float | None, unit: str) -> PhaseLines:
        """Print the start of a phase."""
        return PhaseLines(self._stream, self._clock, printable(name), total, unit)

    def note(self, text: str) -> None:
        print(printable(text), file=self._stream, flush=True)


class PhaseLines:
    """One phase as lines."""

    def __init__(
        self, stream: TextIO, clock: Callable[[], float], name: str, total: float | None, unit: str
    ) -> None:
        self._stream = stream
        self._clock = clock
        self._name = name
        self._total = total
        self._unit = unit
        self._done = 0.0
        self._started = self._printed_at = clock()
        length = f"{total:,.0f} {unit}" if total is not None else unit
        self._print(f"{name}: {length}")

    def advance(self, amount: float) -> None:
        """Count `amount`, and print a line every _LINE_INTERVAL_S."""
        self._done += amount
        now = self._clock()
        if now - self._printed_at < _LINE_INTERVAL_S:
            return
        self._printed_at = now
        if self._total and self._done > 0:
            remaining_s = (now - self._started) * max(self._total - self._done, 0.0) / self._done
            self._print(
                f"{self._name}: {min(self._done / self._total, 1):.0%}, about {remaining_s:.0f} s left"
            )
        else:
            self._print(f"{self._name}: {self._done:,.0f} {self._unit}")

    def done(self) -> None:
        """Print the duration."""
        self._print(f"{self._name}: done in {self._clock() - self._started:.1f} s")

    def _print(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


def _bars(stream: TextIO) -> Progress:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description:<24}", markup=False),
        BarColumn(bar_width=None),
        TextColumn("{task.percentage:>3.0f} %", markup=False),
        TimeElapsedColumn(),
        TextColumn("left", markup=False),
        TimeRemainingColumn(compact=True),
        console=console_for(stream),
        refresh_per_second=4,
    )
