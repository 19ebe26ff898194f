"""What is said when something that was observed is not there at the moment."""

from __future__ import annotations


class ObserveGone(Exception):  # noqa: N818 - a state, not a mistake
    """A device cannot be observed now; `reason` is one sentence. It is picked up again when it is back."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
