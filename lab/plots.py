"""Plots of `device write-size` and `write-cost`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lab.report import Panel, bounds
from slo_ctl.base import numbers
from slo_ctl.base.text import printable
from slo_ctl.show.file_plots import QUIET, colour_of, dashes_of, drawn_to, request_size_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from lab.write_cost import WriteCost
    from lab.write_size import WriteSizeRecord

_SPIKE_COLUMNS = 3

# The search for the optimal write size.


def save_write_size(record: WriteSizeRecord, emulated: bool, path: Path) -> None:
    """Raises OSError."""
    finding = record.finding()
    with drawn_to(path, 5.4, 3.4) as figure:
        axes = figure.subplots()
        sizes = [each.size_bytes for each in finding.sizes]
        curves = (
            ("sequential writes", [each.sequential_bytes_s for each in finding.sizes]),
            ("random writes", [each.random_bytes_s for each in finding.sizes]),
        )
        for index, (label, values) in enumerate(curves):
            axes.plot(
                sizes,
                [value / 1e6 for value in values],
                color=colour_of(index),
                linestyle=dashes_of(index),
                marker="os"[index],
                markersize=4,
                label=label,
            )
        if finding.block_bytes is not None:
            axes.axvline(
                finding.block_bytes,
                color=QUIET,
                linewidth=0.8,
                label=f"optimal write size, {numbers.size(finding.block_bytes)}",
            )
        request_size_axis(axes)
        axes.set_ylim(bottom=0)
        axes.set_ylabel("throughput, MB/s")
        axes.legend()
        what = record.identity.place if emulated else f"{record.identity.model}, {record.identity.place}"
        figure.suptitle(printable(f"{'EMULATED: ' if emulated else ''}{what}"), fontsize=7, wrap=True)


# Response times by request number, with band and spikes marked: the paper's figure 1.


def save_write_cost(title: str, panels: Sequence[Panel], cost: WriteCost, path: Path) -> None:
    """Raises OSError."""
    rows = -(-len(panels) // _SPIKE_COLUMNS)
    columns = min(len(panels), _SPIKE_COLUMNS)
    with drawn_to(path, 3.1 * columns + 0.4, 2.3 * rows + 0.8) as figure:
        grid = figure.subplots(rows, columns, squeeze=False)
        for axes, panel in zip(grid.flat, panels, strict=False):
            _draw_spikes(axes, panel)
        for axes in list(grid.flat)[len(panels) :]:
            axes.set_visible(False)
        for line in grid:
            line[0].set_ylabel("response time, ms")
        handles, labels = grid[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper right", ncols=2, markerscale=3)
        figure.suptitle(printable(title), fontsize=8)
        figure.supxlabel(f"request number\n{_fitted(cost)}", fontsize=8)


def _fitted(cost: WriteCost) -> str:
    sure = f"{100 * cost.confidence:.4g} %"
    merge = "no spikes, so no T_merge"
    if cost.merge_us is not None:
        merge = f"T_merge {bounds(cost.merge_us, numbers.latency)}"
    bandwidth = f"B {bounds(cost.bandwidth_bytes_s, numbers.bandwidth)}"
    return f"{merge}; {bandwidth}; fixed {numbers.latency(cost.fixed_us.value)} ({sure} confidence)"


def _draw_spikes(axes: Axes, panel: Panel) -> None:
    times = panel.response_us
    spikes = times > panel.band.limit_us
    order = range(1, len(times) + 1)
    for mask, colour, label in (
        (~spikes, QUIET, "band"),
        (spikes, colour_of(0), "spikes"),
    ):
        axes.plot(
            [number for number, chosen in zip(order, mask, strict=True) if chosen],
            times[mask] / 1e3,
            marker=".",
            markersize=2,
            linestyle="none",
            color=colour,
            label=label,
            # With a hundred thousand requests, a vector dot for each would be too many.
            rasterized=True,
        )
    axes.axhline(panel.band.limit_us / 1e3, color=QUIET, linewidth=0.8, linestyle=(0, (4, 3)))
    axes.set_ylim(bottom=0)
    axes.set_title(f"{panel.title}: {int(spikes.sum()):,} spikes of {len(times):,}", fontsize=8)
