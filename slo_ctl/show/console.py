"""Where everything for people is printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from typing import TextIO

PLAIN_WIDTH = 132
"""Columns when the output is no terminal: wide enough for what people read."""
PIPE_WIDTH = 1000
"""Columns of tables then: nothing is folded or cut."""


def console_for(stream: TextIO) -> Console:
    """A console on `stream` that never interprets markup or emoji in what it prints."""
    return Console(
        file=stream,
        markup=False,
        emoji=False,
        highlight=False,
        width=None if stream.isatty() else PLAIN_WIDTH,
    )
