"""Recording of epochs in the history, also when it cannot be written and when the clock is set."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from slo_ctl.base.clock import Clock
from slo_ctl.config.settings import HistoryConfig
from slo_ctl.model.setting import Outcome
from slo_ctl.model.status import HostStatus
from slo_ctl.record.history import History
from slo_ctl.record.history_reader import SloChange
from slo_ctl.record.history_schema import HistoryError

log = logging.getLogger("slo_ctl.daemon")

_MAX_SLO_CHANGES = 10_000
_LEAST_JUMP_S = 60.0
"""Smaller jumps of the clock delete next to nothing."""
_DISTRUST_S = 86_400.0


class Recorder:
    """Writes the history. After an error the next epoch tries again."""

    def __init__(self, path: Path, config: HistoryConfig, clock: Clock) -> None:
        self.problem = ""
        """Why the last epoch was not written; empty if it was."""
        self._path = path
        self._config = config
        self._clock = clock
        self._drop_old_from_s = -math.inf
        """Monotonic time from which entries are deleted by age."""
        self._history = self._open_history()
        self._slo_changes: deque[tuple[str, SloChange]] = deque(maxlen=_MAX_SLO_CHANGES)
        """Changes not yet written, with their VMs."""

    def configure(self, config: HistoryConfig) -> None:
        if config != self._config:
            self._config = config
            self._history.close()
            self._history = self._open_history()

    def clock_was_set(self, jump_s: float) -> None:
        """For a day after a jump forward, which may be an error, nothing is deleted for being too old."""
        if jump_s >= _LEAST_JUMP_S:
            self._drop_old_from_s = self._clock.monotonic_s() + _DISTRUST_S
            log.warning("history: entries are not deleted by age for a day, as the clock may be wrong")
        elif jump_s <= -_LEAST_JUMP_S:
            self._drop_old_from_s = -math.inf

    def add(
        self, status: HostStatus, outcomes: Sequence[Outcome], slo_changes: Sequence[tuple[str, SloChange]]
    ) -> None:
        self._slo_changes.extend(slo_changes)
        try:
            drop_old = self._clock.monotonic_s() >= self._drop_old_from_s
            self._history.add(status, outcomes, self._slo_changes, drop_old=drop_old)
        except HistoryError as error:
            if str(error) != self.problem:
                log.warning("%s", error)
            self.problem = str(error)
        else:
            self.problem = ""
            self._slo_changes.clear()

    def close(self) -> None:
        self._history.close()

    def _open_history(self) -> History:
        return History(self._path, self._config.keep_s, self._config.max_bytes)
