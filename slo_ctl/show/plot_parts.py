"""Parts of plots of VMs: colours, SVG, bars, labels and legends."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from slo_ctl.base.text import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Plots are drawn with stand-in colours, and `themed` turns those into CSS variables, so one SVG suits both
# pages. Hues follow Okabe and Ito's set, which colour-blind people can distinguish; beyond six VMs
# the hues repeat with another dash pattern.


@dataclass(frozen=True, slots=True)
class Colour:
    """One role: the stand-in that a plot draws with, and what it means on a light and on a dark page."""

    name: str
    stand_in: str
    light: str
    dark: str


_INK = Colour("ink", "#010101", "#1b1f24", "#e6e8eb")
MUTED = Colour("muted", "#010102", "#5a636e", "#a0a8b2")
GRID = Colour("grid", "#010103", "#e3e6ea", "#343a42")
SURFACE = Colour("surface", "#010104", "#ffffff", "#1b1f25")

_VMS = (
    Colour("vm-0", "#010201", "#0072b2", "#56b4e9"),
    Colour("vm-1", "#010202", "#d55e00", "#f08a4b"),
    Colour("vm-2", "#010203", "#009e73", "#3cc9a0"),
    Colour("vm-3", "#010204", "#b0528c", "#e08fc0"),
    Colour("vm-4", "#010205", "#b58900", "#f0d060"),
    Colour("vm-5", "#010206", "#555b66", "#c2c8d0"),
)
_DASHES = ("solid", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 2, 1, 2)))
ROLES = (_INK, MUTED, GRID, SURFACE, *_VMS)

_BY_STAND_IN = {colour.stand_in: colour.name for colour in ROLES}
_STYLE = re.compile(r'style="[^"]*"')
_HEX = re.compile(r"#[0-9a-f]{6}")


def vm_colour(index: int) -> Colour:
    """The colour of the VM that comes `index`-th in the scenario."""
    return _VMS[index % len(_VMS)]


def vm_dashes(index: int) -> str | tuple[float, tuple[float, ...]]:
    """The line style of that VM."""
    return _DASHES[index // len(_VMS) % len(_DASHES)]


def themed(svg: str) -> str:
    """`svg` with the stand-in colours of its style attributes as CSS variables."""

    def variable(match: re.Match[str]) -> str:
        name = _BY_STAND_IN.get(match[0])
        return f"var(--{name})" if name else match[0]

    return _STYLE.sub(lambda style: _HEX.sub(variable, style[0]), svg)


FILE_STYLE: Any = {
    "font.size": 8.5,
    "text.parse_math": False,
    "text.color": _INK.light,
    "axes.labelcolor": MUTED.light,
    "axes.edgecolor": MUTED.light,
    "axes.facecolor": SURFACE.light,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": GRID.light,
    "xtick.color": MUTED.light,
    "ytick.color": MUTED.light,
    "legend.frameon": False,
    "svg.hashsalt": "slo-ctl",
}
"""For `matplotlib.rc_context`."""


_WIDTH_IN = 4.1
_HEIGHT_IN = 2.65

_SVG_STYLE: Any = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8.5,
    "text.color": _INK.stand_in,
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
    """A plot with its title and caption."""

    key: str
    title: str
    caption: str
    svg: str


@contextmanager
def plot_figure() -> Iterator[tuple[Figure, Axes]]:
    """A figure with one pair of axes, in the report's style."""
    with mpl.rc_context(_SVG_STYLE):
        figure = Figure(figsize=(_WIDTH_IN, _HEIGHT_IN), layout="constrained")
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


_LABEL_CHARACTERS = 14
_LEGEND_CHARACTERS = 50
"""Entries that fit next to each other at the legend's size."""


def bar(
    axes: Axes, x: float, height: float, width: float, vm: int, alpha: float = 1.0, bottom: float = 0.0
) -> None:
    """A bar in the colour of the VM of index `vm`, around `x`; `alpha` is how opaque it is."""
    if alpha < 1:  # or the grid would shine through
        axes.bar(x, height, width * 0.92, bottom=bottom, color=SURFACE.stand_in)
    axes.bar(
        x,
        height,
        width * 0.92,
        bottom=bottom,
        color=vm_colour(vm).stand_in,
        alpha=alpha,
        edgecolor=SURFACE.stand_in,
        linewidth=0.6,
    )


def strength(number: int, of: int) -> float:
    """Opacity of the bars of a run; the last run, which is the subject, is opaque."""
    return 1.0 if of == 1 else 0.35 + 0.65 * number / (of - 1)


def short_name(name: str) -> str:
    """A VM's name, shortened to fit below a bar."""
    shown = printable(name)
    return shown if len(shown) <= _LABEL_CHARACTERS else shown[: _LABEL_CHARACTERS - 1] + "\u2026"


def legend_of_vms(axes: Axes, labels: Sequence[str]) -> None:
    """A legend above the plot: the VMs' colours, in the order of `labels`."""
    handles = [Patch(facecolor=vm_colour(index).stand_in, linewidth=0) for index in range(len(labels))]
    legend = axes.legend(handles, ["." for _ in labels], **legend_place(axes, labels))
    # A label given to `legend` loses a leading underscore's entry; a text set afterwards is taken as it is.
    for text, label in zip(legend.get_texts(), labels, strict=True):
        text.set_text(label)


def legend_place(axes: Axes, labels: Sequence[str]) -> dict[str, Any]:
    """Above the plot, in as many columns as fit; the figure grows by the rows that takes."""
    one_row = sum(len(label) + 4 for label in labels) <= _LEGEND_CHARACTERS
    columns = len(labels) if one_row else max(1, _LEGEND_CHARACTERS // (max(map(len, labels)) + 5))
    _grow(axes, (math.ceil(len(labels) / columns) - 1) * 0.17)
    return {
        "loc": "lower left",
        "bbox_to_anchor": (0.0, 1.0, 1.0, 0.0),
        "ncols": columns,
        "borderaxespad": 0.3,
        "columnspacing": 1.2,
    }


def name_bars(axes: Axes, names: Sequence[str]) -> None:
    """Write `names` below the bars at 0, 1, ..., slanted where they would run into each other."""
    labels = [short_name(name) for name in names]
    crowded = sum(len(label) + 2 for label in labels) > _LEGEND_CHARACTERS
    if crowded:
        _grow(axes, 0.5)
    axes.set_xticks(
        range(len(labels)),
        labels,
        rotation=35 if crowded else 0,
        ha="right" if crowded else "center",
        rotation_mode="anchor" if crowded else "default",
    )


def _grow(axes: Axes, inches: float) -> None:
    figure = axes.get_figure()
    if isinstance(figure, Figure):
        figure.set_figheight(figure.get_figheight() + inches)


def headroom(axes: Axes) -> None:
    """From 0 to a bit above the highest bar."""
    axes.set_ylim(0, max(axes.get_ylim()[1] * 1.04, 1e-9))
