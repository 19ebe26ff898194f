"""Sentences that are told once, though they hold for many epochs."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_KEPT = 5


class Reasons:
    """What was decided of late, and which of it is new."""

    def __init__(self, kept: int = _KEPT) -> None:
        self._lately: deque[str] = deque(maxlen=kept)
        self._holding: frozenset[str] = frozenset()
        self.ended: list[str] = []
        """Those of the epoch before that no longer hold."""

    def add(self, sentences: Iterable[str]) -> list[str]:
        """Those of one epoch; returns the ones that are new, neither holding already nor told lately."""
        now = list(dict.fromkeys(sentences))
        begun = [sentence for sentence in now if sentence not in self._holding]
        new = [sentence for sentence in begun if sentence not in self._lately]
        self.ended = sorted(self._holding - set(now))
        self._holding = frozenset(now)
        for sentence in begun:
            if sentence in self._lately:
                self._lately.remove(sentence)
            self._lately.append(sentence)
        return new

    @property
    def lately(self) -> tuple[str, ...]:
        """The last few, oldest first."""
        return tuple(self._lately)
