"""Keeping on while the daemon is away."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from slo_ctl.api.client import ApiUnreachable
from slo_ctl.errors import UserError
from slo_ctl.show.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable


class Gone:
    """Remembers since when nobody answers. `hint` says, from the reason, what to do about it."""

    def __init__(self, hint: Callable[[str], str]) -> None:
        self._hint = hint
        self._since: float | None = None
        self._reason = ""
        self.is_new = False
        """The last question was the first without an answer."""

    def ask(self, question: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
        """The answer, or None while the daemon is away or not ready yet."""
        try:
            answer = question()
        except (ApiUnreachable, UserError) as error:
            self._reason = str(error)
            self.is_new = self._since is None
            if self._since is None:
                self._since = time.time()
            return None
        self._since, self.is_new = None, False
        return answer

    def line(self) -> str:
        """What to show meanwhile."""
        since = time.strftime("%H:%M:%S", time.localtime(self._since))
        told = f"daemon not reachable since {since}: {self._reason}; {self._hint(self._reason)}"
        return printable(told)
