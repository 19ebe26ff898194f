"""Charts of HTML reports: curves, which uPlot draws from JSON, and bars, which are tables with SVG in them.

Each has its numbers as a table too, which tells the result without JavaScript.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from slo_ctl.base import numbers
from slo_ctl.base.text import printable

COLOURS = 8
"""`--c0` to `--c7` of `page/colours.css`, each distinct from the others on light and on dark."""
_DASHES = 4
_MOST_POINTS = 600
_MOST_VALUES = 3000
"""Of one chart, so that a report of many VMs over a long time stays small."""
_TABLE_COLUMNS = 8

Number = float | None


def plain(value: Number) -> str:
    """Four significant digits."""
    return numbers.UNKNOWN if value is None else f"{float(f'{value:.4g}'):,.15g}"


TEXTS: dict[str, Callable[[Number], str]] = {
    "count": numbers.count,
    "decimal": numbers.decimal,
    "latency": numbers.latency,
    "percent": numbers.percent,
    "plain": plain,
}
"""How numbers are written, in tables and by the functions of the same names in `page/parts.js`."""


@dataclass(frozen=True, slots=True)
class Table:
    """Headings of the columns after the first, and rows: a name and cells."""

    headings: Sequence[str]
    rows: Sequence[tuple[str, Sequence[str]]]


@dataclass(frozen=True, slots=True)
class Curve:
    """A curve in the colour of the VM that comes `index`-th."""

    name: str
    values: Sequence[Number]
    index: int = 0
    dashed: bool = False

    def known(self) -> list[float]:
        """Its values without gaps."""
        return [value for value in self.values if value is not None]

    def drawn(self, values: Sequence[Number]) -> dict[str, Any]:
        """For JavaScript, with values that may be fewer; when colours repeat, dashes differ."""
        return {
            "name": self.name,
            "colour": self.index % COLOURS,
            "dash": self.index // COLOURS % _DASHES or int(self.dashed),
            "values": [_short(value, 4) for value in values],
        }


@dataclass(frozen=True, slots=True)
class Axis:
    """Along what curves are drawn."""

    label: str
    text: str = "plain"
    log: bool = False


@dataclass(frozen=True, slots=True)
class Curves:
    """Curves over one axis of x, or over time where there is none: seconds after `since`."""

    title: str
    caption: str
    x: Sequence[float]
    curves: Sequence[Curve]
    text: str
    """One of TEXTS."""
    axis: Axis | None = None
    since: float = 0.0
    """Seconds since 1970 by the clock of the host, as if that were UTC."""
    x_text: Callable[[float], str] = plain
    owner: str = ""
    """Whose curves they are, for who does not see what is around the chart."""
    group: str = ""
    """Charts of one group have one cursor."""
    top: float | None = None
    dots: bool = False
    shaded: Sequence[tuple[float, float]] = ()
    levels: Sequence[tuple[str, float]] = ()
    """Named horizontal lines."""
    targets: Sequence[tuple[int, float, tuple[float, float]]] = ()
    """Of the VM of an index, from and to which x."""
    marks: Sequence[tuple[float, str]] = ()
    numbers: Table | None = None
    """Instead of values at some x."""

    def ranges(self) -> str:
        """Least and most of each curve, levels and marks, in words."""
        say, parts = TEXTS[self.text], []
        for curve in self.curves:
            low, high = say(min(curve.known(), default=None)), say(max(curve.known(), default=None))
            parts.append(f"{curve.name} {low}" if low == high else f"{curve.name} {low} to {high}")
        parts += [f"{name} {say(value)}" for name, value in self.levels]
        parts += [f"{text} at {self.x_text(at)}" for at, text in self.marks]
        return "; ".join(parts)

    def table(self) -> Table:
        """Least and most of each curve, and values at some x."""
        if self.numbers is not None:
            return self.numbers
        say, last = TEXTS[self.text], len(self.x) - 1
        at = sorted({round(last * step / (_TABLE_COLUMNS - 1)) for step in range(_TABLE_COLUMNS)})
        rows = []
        for curve in self.curves:
            least, most = min(curve.known(), default=None), max(curve.known(), default=None)
            rows.append((curve.name, [say(each) for each in (least, most, *(curve.values[i] for i in at))]))
        rows += [(name, [say(value)] * (2 + len(at))) for name, value in self.levels]
        return Table(["LEAST", "MOST", *(self.x_text(self.x[index]) for index in at)], rows)

    def data(self) -> dict[str, Any]:
        """For `templates/report.js`."""
        most = min(_MOST_POINTS, _MOST_VALUES // (len(self.curves) + 1))
        x, columns = thinned(self.x, [curve.values for curve in self.curves], most)
        return {
            "title": self.title,
            "label": f"{', '.join(filter(None, (self.owner, self.title)))}: {self.ranges()}",
            "group": self.group or None,
            "text": self.text,
            "axis": None
            if self.axis is None
            else {"label": self.axis.label, "text": self.axis.text, "log": self.axis.log},
            "since": self.since,
            "x": [_short(value, 6) for value in x],
            "curves": [curve.drawn(values) for curve, values in zip(self.curves, columns, strict=True)],
            "top": self.top,
            "dots": self.dots,
            "shaded": [list(each) for each in self.shaded],
            "levels": [{"name": name, "value": value} for name, value in self.levels]
            + [
                {"value": value, "colour": index % COLOURS, "span": list(span)}
                for index, value, span in self.targets
            ],
            "marks": [{"at": at, "text": text} for at, text in self.marks],
        }


def key_class(index: int) -> str:
    """The class of the key of that VM's curves in the page."""
    return f"key s{index % COLOURS}{' dashed' if index >= COLOURS else ''}"


def _short(value: Number, digits: int) -> Number:
    if value is None:
        return None
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded == int(rounded) else rounded


def thinned(
    x: Sequence[float], columns: Sequence[Sequence[Number]], most: int
) -> tuple[list[float], list[list[Number]]]:
    """At most about `most` points. Least and most of each column stay, a few points from where they were."""
    if len(x) <= most:
        return list(x), [list(column) for column in columns]
    pairs = max(1, (most - 1) // 2)
    edges = [(len(x) - 1) * step // pairs for step in range(pairs + 1)]
    parts = [range(first, end) for first, end in pairwise(edges) if first < end]
    kept_x = [x[index] for part in parts for index in (part[0], part[len(part) // 2])]
    kept: list[list[Number]] = []
    for column in columns:
        values: list[Number] = []
        for part in parts:
            known = [(value, index) for index in part if (value := column[index]) is not None]
            ends = sorted((min(known), max(known)), key=lambda each: each[1]) if known else []
            values += [value for value, _ in ends] or [None, None]
        kept.append([*values, column[-1]])
    return [*kept_x, x[-1]], kept


@dataclass(frozen=True, slots=True)
class Bar:
    """A row: parts of a bar, which are lengths in colours, and what they come to."""

    name: str
    text: str
    parts: Sequence[tuple[float, int | None]]
    mark: float | None = None
    """What it should be."""
    spread: tuple[float, float] | None = None
    """Interval of confidence."""
    pale: bool = False
    key: str = ""
    """Class of the key beside its name."""

    def top(self) -> float:
        """How far it reaches."""
        return max(sum(length for length, _ in self.parts), self.mark or 0.0, *(self.spread or (0.0,)))

    def rectangles(self, top: float) -> list[tuple[float, float, str]]:
        """Left, width and class of its parts, in per cent of `top`."""
        found, left = [], 0.0
        for length, index in self.parts:
            if length > 0:
                width = 100 * length / top
                found.append(
                    (round(left, 2), round(width, 2), "" if index is None else f"s{index % COLOURS}")
                )
                left += width
        return found


@dataclass(frozen=True, slots=True)
class Bars:
    """Groups of bars of one scale, each with a name or none."""

    title: str
    caption: str
    groups: Sequence[tuple[str, Sequence[Bar]]]
    most: float | None = None
    """The scale, where other charts share it."""

    @property
    def top(self) -> float:
        """Where the scale ends."""
        return self.most or max((bar.top() for _, bars in self.groups for bar in bars), default=0.0) or 1.0


Chart = Curves | Bars


def short_name(name: str, characters: int = 24) -> str:
    """A VM's name, shortened for a legend."""
    shown = printable(name)
    return shown if len(shown) <= characters else shown[: characters - 1] + "\u2026"
