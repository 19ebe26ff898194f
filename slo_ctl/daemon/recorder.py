"""The history of an epoch is written; that it cannot be stops nothing."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from slo_ctl.record.history import History
from slo_ctl.record.history_errors import HistoryError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from slo_ctl.config.settings import HistoryConfig
    from slo_ctl.model import HostStatus, Outcome

log = logging.getLogger("slo_ctl.daemon")


class Recorder:
    """Keeps what the configuration says of the history, and tries again every epoch."""

    def __init__(self, path: Path, keep: HistoryConfig) -> None:
        self.problem = ""
        """Why nothing is written at the moment."""
        self._path = path
        self._keep = keep
        self._history = self._made()

    def configure(self, keep: HistoryConfig) -> None:
        """Keep so much from now on."""
        if keep != self._keep:
            self._keep = keep
            self._history.close()
            self._history = self._made()

    def add(self, status: HostStatus, outcomes: Sequence[Outcome]) -> None:
        """One epoch."""
        try:
            self._history.add(status, outcomes)
        except HistoryError as error:
            if str(error) != self.problem:
                log.warning("%s", error)
            self.problem = str(error)
        else:
            self.problem = ""

    def close(self) -> None:
        """Write what is left."""
        self._history.close()

    def _made(self) -> History:
        return History(self._path, self._keep.keep_s, self._keep.max_bytes)
