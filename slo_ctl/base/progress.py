"""Interface through which a long run reports its progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Protocol


class Phase(Protocol):
    """A phase of work in progress."""

    def advance(self, amount: float) -> None:
        """`amount` more of the phase's unit is done (not the running total)."""

    def done(self) -> None:
        """The phase is over, whether or not its total was reached."""


class ProgressSink(Protocol):
    """Receives the phases of a run, one after the other, and notes for the user."""

    def phase(self, name: str, total: float | None, unit: str) -> Phase:
        """Start a phase of `total` units (None: unknown) such as "page writes"."""

    def note(self, text: str) -> None:
        """Show a note once, such as why a phase ended early."""


@contextmanager
def drive_writes_on(sink: ProgressSink, name: str) -> Iterator[Callable[[float], None]]:
    """A phase of unknown length, to be called with the drive writes so far."""
    phase, written = sink.phase(name, None, "drive writes"), 0.0

    def advance(now: float) -> None:
        nonlocal written
        phase.advance(now - written)
        written = now

    yield advance
    phase.done()


_SHORT_S = 1.0


class LatePhase:
    """A phase that is shown only when it has taken more than a second, such as of reading a file."""

    def __init__(self, sink: ProgressSink, name: str, total: float | None, unit: str) -> None:
        self._start = partial(sink.phase, name, total, unit)
        self._started_at = time.monotonic()
        self._phase: Phase | None = None
        self._hidden = 0.0

    def advance(self, amount: float) -> None:
        if self._phase is not None:
            self._phase.advance(amount)
            return
        self._hidden += amount
        if time.monotonic() - self._started_at > _SHORT_S:
            self._phase = self._start()
            self._phase.advance(self._hidden)

    def done(self) -> None:
        if self._phase is not None:
            self._phase.done()


class Silent:
    """A sink and a phase that discard everything."""

    def phase(self, name: str, total: float | None, unit: str) -> Silent:
        del name, total, unit
        return self

    def advance(self, amount: float) -> None:
        """Do nothing."""

    def done(self) -> None:
        """Do nothing."""

    def note(self, text: str) -> None:
        """Do nothing."""
