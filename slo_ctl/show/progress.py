"""Progress on stderr: bars on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from slo_ctl.base.progress import ProgressSink, Silent
from slo_ctl.base.text import printable

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

LINE_EVERY_S = 10.0


@contextmanager
def progress_on_stderr(quiet: bool = False) -> Iterator[ProgressSink]:
    """The sink that suits stderr: none when quiet, bars on a terminal, else plain lines."""
    if quiet:
        yield Silent()
    elif sys.stderr.isatty():
        with _bars(sys.stderr) as progress:
            yield Bars(progress)
    else:
        yield Lines(sys.stderr)


class Bars:
    """One bar per phase, with the remaining time."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def phase(self, name: str, total: float | None, unit: str) -> Bar:
        """A new bar below the others."""
        task = self._progress.add_task(printable(name), total=total, unit=unit)
        return Bar(self._progress, task)

    def note(self, text: str) -> None:
        """A line above the bars."""
        from rich.text import Text

        self._progress.console.print(Text(printable(text)))


class Bar:
    """One phase as a bar."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def advance(self, amount: float) -> None:
        """Fill the bar by `amount` of its unit."""
        self._progress.advance(self._task, amount)

    def done(self) -> None:
        """Fill the bar, also of a phase that ends early."""
        task = next(task for task in self._progress.tasks if task.id == self._task)
        self._progress.update(self._task, total=task.completed or 1, completed=task.completed or 1)
        self._progress.stop_task(self._task)


class Lines:
    """One line when a phase starts and ends, and one every LINE_EVERY_S in between."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock

    def phase(self, name: str, total: float | None, unit: str) -> Line:
        """Print the start of a phase."""
        return Line(self._stream, self._clock, printable(name), total, unit)

    def note(self, text: str) -> None:
        """Print a line."""
        print(printable(text), file=self._stream, flush=True)


class Line:
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
        of = f"{total:,.0f} {unit}" if total is not None else unit
        self._print(f"{name}: {of}")

    def advance(self, amount: float) -> None:
        """Count `amount`, and print a line every LINE_EVERY_S."""
        self._done += amount
        now = self._clock()
        if now - self._printed_at < LINE_EVERY_S:
            return
        self._printed_at = now
        if self._total and self._done > 0:
            left_s = (now - self._started) * max(self._total - self._done, 0.0) / self._done
            self._print(f"{self._name}: {min(self._done / self._total, 1):.0%}, about {left_s:.0f} s left")
        else:
            self._print(f"{self._name}: {self._done:,.0f} {self._unit}")

    def done(self) -> None:
        """Print the duration."""
        self._print(f"{self._name}: done in {self._clock() - self._started:.1f} s")

    def _print(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


def _bars(stream: TextIO) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description:<24}", markup=False),
        BarColumn(bar_width=None),
        TextColumn("{task.percentage:>3.0f} %", markup=False),
        TimeElapsedColumn(),
        TextColumn("left", markup=False),
        TimeRemainingColumn(compact=True),
        console=Console(file=stream, markup=False, emoji=False, highlight=False),
        refresh_per_second=4,
    )
