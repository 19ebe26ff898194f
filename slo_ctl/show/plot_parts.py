"""What plots of VMs are put together from: bars, names that fit, legends."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from slo_ctl.show.palette import SURFACE, vm_colour
from slo_ctl.show.text import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

LABEL_CHARACTERS = 14
LEGEND_CHARACTERS = 50
"""What fits next to each other at the legend's size."""


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
    """How opaque the bars of a run are: the policy in question, which comes last, most."""
    return 1.0 if of == 1 else 0.35 + 0.65 * number / (of - 1)


def short_name(name: str) -> str:
    """A VM's name as far as it fits below a bar."""
    shown = printable(name)
    return shown if len(shown) <= LABEL_CHARACTERS else shown[: LABEL_CHARACTERS - 1] + "\u2026"


def legend_of_vms(axes: Axes, labels: Sequence[str]) -> None:
    """A legend above the plot: the VMs' colours, in the order of `labels`."""
    handles = [Patch(facecolor=vm_colour(index).stand_in, linewidth=0) for index in range(len(labels))]
    legend = axes.legend(handles, ["." for _ in labels], **legend_place(axes, labels))
    # A label given to `legend` loses a leading underscore's entry; a text set afterwards is taken as it is.
    for text, label in zip(legend.get_texts(), labels, strict=True):
        text.set_text(label)


def legend_place(axes: Axes, labels: Sequence[str]) -> dict[str, Any]:
    """Above the plot, in as many columns as fit; the figure grows by the rows that takes."""
    one_row = sum(len(label) + 4 for label in labels) <= LEGEND_CHARACTERS
    columns = len(labels) if one_row else max(1, LEGEND_CHARACTERS // (max(map(len, labels)) + 5))
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
    crowded = sum(len(label) + 2 for label in labels) > LEGEND_CHARACTERS
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
