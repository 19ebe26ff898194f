"""A thread that follows a service or a program until it is closed."""

from __future__ import annotations

import threading
from collections.abc import Callable


class WatchThread:
    """Base of classes with such a thread."""

    def __init__(self, name: str, close_timeout_s: float | None = None) -> None:
        """`close_timeout_s`: time after which `close` abandons a thread that waits for a hanging service."""
        self._changed = threading.Condition()
        """Guards what other threads change, and ends a pause."""
        self._stopping = False
        self._close_timeout_s = close_timeout_s
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread, unless it was started before."""
        if self._thread.ident is None:
            self._thread.start()

    def close(self) -> None:
        """Stop the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(self._close_timeout_s)

    def _run(self) -> None:
        """Follow until `_stopping`."""
        raise NotImplementedError

    def _pause(self, seconds: float | None, until: Callable[[], object] = lambda: False) -> None:
        """Wait for this time (None: without a limit), for `until`, or for `close`."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or until(), seconds)
