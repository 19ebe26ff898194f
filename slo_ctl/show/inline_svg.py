"""One plot as an SVG element to put into HTML, in colours that follow the page's theme."""

from __future__ import annotations

import io
import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from slo_ctl.show.palette import GRID, INK, MUTED, themed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.axes import Axes

WIDTH_IN = 4.1
HEIGHT_IN = 2.65

_STYLE: Any = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8.5,
    "text.color": INK.stand_in,
    "text.parse_math": False,
    "axes.edgecolor": MUTED.stand_in,
    "axes.labelcolor": MUTED.stand_in,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.linewidth": 0.8,
    "grid.color": GRID.stand_in,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED.stand_in,
    "ytick.color": MUTED.stand_in,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "legend.handlelength": 1.4,
    "hatch.linewidth": 0.7,
    "figure.facecolor": "none",
}


@dataclass(frozen=True, slots=True)
class Plot:
    """One picture and what to know about it."""

    key: str
    title: str
    caption: str
    svg: str


@contextmanager
def plot_figure() -> Iterator[tuple[Figure, Axes]]:
    """A figure with one pair of axes, in the report's style."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
        axes.yaxis.set_major_formatter(FuncFormatter(tick))
        yield figure, axes


def tick(value: float, _position: int | None = None) -> str:
    """A number on an axis."""
    if abs(value) >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1e3:g}k" if abs(value) >= 1e4 else f"{value:g}"


def inline_svg(figure: Figure, key: str) -> str:
    """The figure as an SVG element to put into HTML: no prologue, no metadata, ids that `key` keeps apart."""
    out = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": key}):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    svg = out.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    return themed(svg)
