"""Elapsed time by utilisation, a panel for each drive: the paper's figures 4 and 5."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from slo_ctl.show.palette import vm_colour, vm_dashes
from slo_ctl.show.plot_style import FILE_STYLE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_MARKERS = ("o", "s", "^", "D", "v", "P")


def save_plot(title: str, drives: Mapping[str, Mapping[str, Mapping[float, float]]], path: Path) -> None:
    """Draw seconds by utilisation by allocator by drive, to an SVG or PNG file. Raises OSError."""
    with mpl.rc_context(FILE_STYLE):
        figure = Figure(figsize=(3.1 * len(drives), 3.0), layout="constrained")
        panels = figure.subplots(1, len(drives), squeeze=False)[0]
        for axes, (drive, curves) in zip(panels, drives.items(), strict=True):
            for index, (allocator, points) in enumerate(curves.items()):
                utilisations = sorted(points)
                axes.plot(
                    utilisations,
                    [points[each] for each in utilisations],
                    color=vm_colour(index).light,
                    linestyle=vm_dashes(index),
                    marker=_MARKERS[index % len(_MARKERS)],
                    markersize=4,
                    label=allocator,
                )
            axes.set_title(drive)
            axes.set_ylim(bottom=0)
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
            axes.set_xlabel("utilisation of the file system")
        panels[0].set_ylabel("elapsed time, s (emulated drive)")
        panels[0].legend()
        figure.suptitle(title)
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
