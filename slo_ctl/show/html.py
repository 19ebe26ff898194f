"""HTML reports: pages, and charts in them.

A page is one file with its styles, scripts and data, and a policy that forbids all others. Charts are curves,
which uPlot draws from JSON, and bars, which are tables with SVG in them. Each has a table of its numbers, for
readers without JavaScript.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from slo_ctl.base import numbers
from slo_ctl.base.text import printable

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

# Pages.

_STYLES = ("page/uplot/uPlot.css", "page/colours.css", "page/charts.css", "templates/report.css")
_SCRIPTS = ("page/uplot/uPlot.js", "page/parts.js", "page/charts.js", "templates/report.js")


def render_page(template: str, **values: Any) -> str:
    """Render a template of `show/templates` with `values`; all texts are escaped."""
    styles = [_source(name) for name in _STYLES]
    scripts = [_source(name) for name in _SCRIPTS]
    licence = _source("page/uplot/LICENSE")
    policy = (
        f"default-src 'none'; script-src {_hashes(scripts)}; style-src {_hashes(styles)}; "
        "base-uri 'none'; form-action 'none'"
    )
    page = _environment().get_template(template)
    return page.render(policy=policy, styles=styles, scripts=scripts, uplot_licence=licence, **values)


@cache
def _environment() -> Environment:
    # Only reports need jinja2, and it need not be installed for the tables of the same module.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("slo_ctl.show"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["printable"] = printable
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return environment


@cache
def _source(name: str) -> Markup:
    from markupsafe import Markup

    return Markup(files("slo_ctl.show").joinpath(*name.split("/")).read_text())  # noqa: S704 - our own


def _hashes(sources: list[Markup]) -> str:
    digests = (base64.b64encode(hashlib.sha256(source.encode()).digest()) for source in sources)
    return " ".join(f"'sha256-{digest.decode()}'" for digest in digests)


# Charts.

COLOURS = 8
"""Number of colours, `--c0` to `--c7` of `page/colours.css`, distinct on light and dark backgrounds."""
_DASHES = 4
_MAX_POINTS = 600
_MAX_VALUES = 3000
"""Limits for one chart, so that a report of many VMs over a long time stays small."""
_TABLE_COLUMNS = 8

Number = float | None


def plain(value: Number) -> str:
    """Four significant digits."""
    return numbers.UNKNOWN if value is None else f"{float(f'{value:.4g}'):,.15g}"


NUMBER_FORMATS: dict[str, Callable[[Number], str]] = {
    "count": numbers.count,
    "decimal": numbers.decimal,
    "latency": numbers.latency,
    "percent": numbers.percent,
    "plain": plain,
}
"""Formats of numbers, in tables and by the functions of the same names in `page/parts.js`."""


@dataclass(frozen=True, slots=True)
class Table:
    """Headings of the columns after the first, and rows: a name and cells."""

    headings: Sequence[str]
    rows: Sequence[tuple[str, Sequence[str]]]


@dataclass(frozen=True, slots=True)
class Curve:
    """A curve in the colour of the VM with this index."""

    name: str
    values: Sequence[Number]
    index: int = 0
    dashed: bool = False

    def known_values(self) -> list[float]:
        """The values without gaps."""
        return [value for value in self.values if value is not None]

    def extremes(self) -> tuple[Number, Number]:
        values = self.known_values()
        return min(values, default=None), max(values, default=None)

    def data(self, values: Sequence[Number]) -> dict[str, Any]:
        """The curve for JavaScript, with thinned values; curves of the same colour have different dashes."""
        return {
            "name": self.name,
            "colour": self.index % COLOURS,
            "dash": self.index // COLOURS % _DASHES or int(self.dashed),
            "values": [_short(value, 4) for value in values],
        }


@dataclass(frozen=True, slots=True)
class Axis:
    """The axis of x."""

    label: str
    text: str = "plain"
    log: bool = False


@dataclass(frozen=True, slots=True)
class Curves:
    """Curves over one axis of x; without one, over time: seconds after `since`."""

    title: str
    caption: str
    x: Sequence[float]
    curves: Sequence[Curve]
    text: str
    """Name of the format of the values."""
    axis: Axis | None = None
    since: float = 0.0
    """Seconds since 1970 in the local time of the host, as if it were UTC."""
    x_text: Callable[[float], str] = plain
    owner: str = ""
    """Name of the VM or device, for screen readers."""
    group: str = ""
    """Charts of one group share the cursor."""
    top: float | None = None
    dots: bool = False
    shaded: Sequence[tuple[float, float]] = ()
    levels: Sequence[tuple[str, float]] = ()
    """Named horizontal lines."""
    targets: Sequence[tuple[int, float, tuple[float, float]]] = ()
    """Horizontal lines: index of the VM, value, and the range of x."""
    marks: Sequence[tuple[float, str]] = ()
    numbers: Table | None = None
    """Table that replaces the one with values at some x."""

    def ranges(self) -> str:
        """Smallest and largest value of each curve, levels and marks, in words."""
        format_number, parts = NUMBER_FORMATS[self.text], []
        for curve in self.curves:
            low, high = map(format_number, curve.extremes())
            parts.append(f"{curve.name} {low}" if low == high else f"{curve.name} {low} to {high}")
        parts += [f"{name} {format_number(value)}" for name, value in self.levels]
        parts += [f"{text} at {self.x_text(at)}" for at, text in self.marks]
        return "; ".join(parts)

    def table(self) -> Table:
        """Smallest and largest value of each curve, and values at some x."""
        if self.numbers is not None:
            return self.numbers
        format_number, last = NUMBER_FORMATS[self.text], len(self.x) - 1
        indices = sorted({round(last * step / (_TABLE_COLUMNS - 1)) for step in range(_TABLE_COLUMNS)})
        rows = []
        for curve in self.curves:
            values = (*curve.extremes(), *(curve.values[index] for index in indices))
            rows.append((curve.name, [format_number(value) for value in values]))
        rows += [(name, [format_number(value)] * (2 + len(indices))) for name, value in self.levels]
        return Table(["LEAST", "MOST", *(self.x_text(self.x[index]) for index in indices)], rows)

    def data(self) -> dict[str, Any]:
        """The chart for `templates/report.js`."""
        max_points = min(_MAX_POINTS, _MAX_VALUES // (len(self.curves) + 1))
        x, columns = thinned(self.x, [curve.values for curve in self.curves], max_points)
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
            "curves": [curve.data(values) for curve, values in zip(self.curves, columns, strict=True)],
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
    """CSS class of the key of the curves of the VM with this index."""
    return f"key s{index % COLOURS}{' dashed' if index >= COLOURS else ''}"


def _short(value: Number, digits: int) -> Number:
    if value is None:
        return None
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded == int(rounded) else rounded


def thinned(
    x: Sequence[float], columns: Sequence[Sequence[Number]], max_points: int
) -> tuple[list[float], list[list[Number]]]:
    """At most about `max_points` points.

    The smallest and largest values of each column are kept, shifted by at most a few points.
    """
    if len(x) <= max_points:
        return list(x), [list(column) for column in columns]
    pairs = max(1, (max_points - 1) // 2)
    edges = [(len(x) - 1) * step // pairs for step in range(pairs + 1)]
    parts = [range(first, end) for first, end in pairwise(edges) if first < end]
    thinned_x = [x[index] for part in parts for index in (part[0], part[len(part) // 2])]
    thinned_columns: list[list[Number]] = []
    for column in columns:
        values: list[Number] = []
        for part in parts:
            known = [(value, index) for index in part if (value := column[index]) is not None]
            ends = sorted((min(known), max(known)), key=lambda end: end[1]) if known else []
            values += [value for value, _ in ends] or [None, None]
        thinned_columns.append([*values, column[-1]])
    return [*thinned_x, x[-1]], thinned_columns


@dataclass(frozen=True, slots=True)
class Bar:
    """A row: a bar of parts, each a length and the index of its colour, and a text."""

    name: str
    text: str
    parts: Sequence[tuple[float, int | None]]
    mark: float | None = None
    """Target length."""
    spread: tuple[float, float] | None = None
    """Confidence interval."""
    pale: bool = False
    key: str = ""
    """CSS class of the key beside the name."""

    def top(self) -> float:
        """The largest value of the bar, its mark and its interval."""
        return max(sum(length for length, _ in self.parts), self.mark or 0.0, *(self.spread or (0.0,)))

    def rectangles(self, top: float) -> list[tuple[float, float, str]]:
        """Left and width of each part in per cent of `top`, and its CSS class."""
        rectangles, left = [], 0.0
        for length, index in self.parts:
            if length > 0:
                width = 100 * length / top
                rectangles.append(
                    (round(left, 2), round(width, 2), "" if index is None else f"s{index % COLOURS}")
                )
                left += width
        return rectangles


@dataclass(frozen=True, slots=True)
class Bars:
    """Groups of bars with one scale; names of groups may be empty."""

    title: str
    caption: str
    groups: Sequence[tuple[str, Sequence[Bar]]]
    scale_top: float | None = None
    """End of the scale that several charts share."""

    @property
    def top(self) -> float:
        """End of the scale."""
        tops = (bar.top() for _, bars in self.groups for bar in bars)
        return self.scale_top or max(tops, default=0.0) or 1.0


Chart = Curves | Bars


_NAME_LENGTH = 24


def short_name(name: str) -> str:
    """A VM's name, shortened for a legend."""
    text = printable(name)
    return text if len(text) <= _NAME_LENGTH else text[: _NAME_LENGTH - 1] + "\u2026"
