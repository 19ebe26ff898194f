"""How a long run reports its progress, without knowing who shows it."""

from __future__ import annotations

from typing import Protocol


class Phase(Protocol):
    """A phase of work in progress."""

    def advance(self, amount: float) -> None:
        """`amount` more of the phase's unit is done (not the running total)."""

    def done(self) -> None:
        """The phase is over, whether or not its total was reached."""


class ProgressSink(Protocol):
    """Where a run reports its phases, one after the other, and anything worth saying."""

    def phase(self, name: str, total: float | None, unit: str) -> Phase:
        """Start a phase of `total` (None: not known) `unit`s, such as "page writes"."""

    def note(self, text: str) -> None:
        """Say something once, such as why a phase ended early."""


class Silent:
    """A sink that discards everything, and its phases."""

    def phase(self, name: str, total: float | None, unit: str) -> Silent:
        """Itself."""
        del name, total, unit
        return self

    def advance(self, amount: float) -> None:
        """Do nothing."""

    def done(self) -> None:
        """Do nothing."""

    def note(self, text: str) -> None:
        """Do nothing."""
