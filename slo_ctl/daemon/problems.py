"""What goes wrong with one device is its own problem: it stops no other device's work."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from slo_ctl.observe.gone import ObserveGone

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("slo_ctl.daemon")


class Problems:
    """Of the devices, in one epoch."""

    def __init__(self) -> None:
        self.of: dict[str, str] = {}
        """By device; none for those that are well."""
        self._traced: set[str] = set()

    def begin(self) -> None:
        """A new epoch."""
        self.of = {}

    def guarded(self, name: str, do: Callable[[], None]) -> None:
        """One device's work: whatever it raises is kept, and logged with its trace once."""
        try:
            do()
        except ObserveGone as gone:
            self.of[name] = gone.reason
        except Exception as error:
            problem = f"unexpected {type(error).__name__}: {error}"
            if problem not in self._traced:
                self._traced.add(problem)
                log.exception("device %s", name)
            self.of[name] = problem
