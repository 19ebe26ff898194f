"""Progress on stderr: bars on a terminal, a line now and then anywhere else."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from slo_ctl.replay.progress import ProgressSink, Silent
from slo_ctl.show.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TextIO

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
    """One bar per phase, with the time it still needs."""

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
        """Leave the bar full: a phase that ends early has nothing left to do."""
        task = next(task for task in self._progress.tasks if task.id == self._task)
        self._progress.update(self._task, total=task.completed or 1, completed=task.completed or 1)
        self._progress.stop_task(self._task)


class Lines:
    """One line when a phase starts and ends, and one every LINE_EVERY_S in between."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock

    def phase(self, name: str, total: float | None, unit: str) -> Line:
        """Say that the phase starts."""
        return Line(self._stream, self._clock, printable(name), total, unit)

    def note(self, text: str) -> None:
        """Say it."""
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
        self._started = self._told = clock()
        of = f"{total:,.0f} {unit}" if total is not None else unit
        self._say(f"{name}: {of}")

    def advance(self, amount: float) -> None:
        """Count `amount` more, and say so when it is time."""
        self._done += amount
        now = self._clock()
        if now - self._told < LINE_EVERY_S:
            return
        self._told = now
        if self._total and self._done > 0:
            left_s = (now - self._started) * max(self._total - self._done, 0.0) / self._done
            self._say(f"{self._name}: {min(self._done / self._total, 1):.0%}, about {left_s:.0f} s left")
        else:
            self._say(f"{self._name}: {self._done:,.0f} {self._unit}")

    def done(self) -> None:
        """Say how long it took."""
        self._say(f"{self._name}: done in {self._clock() - self._started:.1f} s")

    def _say(self, line: str) -> None:
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
