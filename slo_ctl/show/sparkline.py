"""A curve in one line of text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

BARS = "▁▂▃▄▅▆▇█"
GAP = " "


def sparkline(values: Sequence[float | None], width: int | None = None) -> str:
    """A bar for each value, from 0 to the largest; a gap where nothing is known.

    With more values than `width`, each bar is the mean of several.
    """
    shown = list(values) if width is None else _squeezed(values, width)
    largest = max((value for value in shown if value is not None), default=0.0)
    return "".join(GAP if value is None else _bar(value, largest) for value in shown)


def _bar(value: float, largest: float) -> str:
    if largest <= 0:
        return BARS[0]
    return BARS[min(len(BARS) - 1, int(max(0.0, value) / largest * len(BARS)))]


def _squeezed(values: Sequence[float | None], width: int) -> list[float | None]:
    count = len(values)
    if count <= width:
        return list(values)
    groups = (values[i * count // width : (i + 1) * count // width] for i in range(width))
    return [_mean(group) for group in groups]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
