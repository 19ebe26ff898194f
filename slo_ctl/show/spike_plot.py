"""Response times over request numbers, band and spikes marked: the paper's figure 1."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
from matplotlib.figure import Figure

from slo_ctl.base import numbers
from slo_ctl.base.text import printable
from slo_ctl.show.plot_parts import FILE_STYLE, MUTED, vm_colour
from slo_ctl.show.write_cost import Panel, bounds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from slo_ctl.decide.write_unit import WriteCost

_COLUMNS = 3


def save_spike_plot(title: str, panels: Sequence[Panel], cost: WriteCost, path: Path) -> None:
    """Draw to an SVG or PNG file, as its name says. Raises OSError."""
    rows = -(-len(panels) // _COLUMNS)
    columns = min(len(panels), _COLUMNS)
    with mpl.rc_context(FILE_STYLE):
        figure = Figure(figsize=(3.1 * columns + 0.4, 2.3 * rows + 0.8), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False)
        for axes, panel in zip(grid.flat, panels, strict=False):
            _draw(axes, panel)
        for axes in list(grid.flat)[len(panels) :]:
            axes.set_visible(False)
        for line in grid:
            line[0].set_ylabel("response time, ms")
        handles, labels = grid[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper right", ncols=2, markerscale=3)
        figure.suptitle(printable(title), fontsize=8)
        figure.supxlabel(f"request number\n{caption(cost)}", fontsize=8)
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)


def caption(cost: WriteCost) -> str:
    """The fitted model in a line."""
    sure = f"{100 * cost.confidence:.4g} %"
    merge = "no spikes, so no T_merge"
    if cost.merge_us is not None:
        merge = f"T_merge {bounds(cost.merge_us, numbers.latency)}"
    bandwidth = f"B {bounds(cost.bandwidth_bytes_s, numbers.bandwidth)}"
    return f"{merge}; {bandwidth}; fixed {numbers.latency(cost.fixed_us.value)} ({sure} confidence)"


def _draw(axes: Axes, panel: Panel) -> None:
    times = panel.response_us
    spikes = times > panel.band.limit_us
    order = range(1, len(times) + 1)
    for mask, colour, label in (
        (~spikes, MUTED.light, "band"),
        (spikes, vm_colour(0).light, "spikes"),
    ):
        axes.plot(
            [number for number, chosen in zip(order, mask, strict=True) if chosen],
            times[mask] / 1e3,
            marker=".",
            markersize=2,
            linestyle="none",
            color=colour,
            label=label,
            # A dot for each of a hundred thousand requests is not a drawing any more.
            rasterized=True,
        )
    axes.axhline(panel.band.limit_us / 1e3, color=MUTED.light, linewidth=0.8, linestyle=(0, (4, 3)))
    axes.set_ylim(bottom=0)
    axes.set_title(f"{panel.title}: {int(spikes.sum()):,} spikes of {len(times):,}", fontsize=8)
