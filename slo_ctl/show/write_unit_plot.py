"""The search for the optimal write size as a plot."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from slo_ctl.base import numbers
from slo_ctl.base.text import printable
from slo_ctl.show.plot_parts import FILE_STYLE, MUTED, vm_colour, vm_dashes

if TYPE_CHECKING:
    from slo_ctl.profile.write_unit import LogicalBlockRecord


def save_plot(record: LogicalBlockRecord, emulated: bool, path: Path) -> None:
    """Draw to an SVG or PNG file, as its name says. Raises OSError."""
    finding = record.finding()
    with mpl.rc_context(FILE_STYLE):
        figure = Figure(figsize=(5.4, 3.4), layout="constrained")
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
                color=vm_colour(index).light,
                linestyle=vm_dashes(index),
                marker="os"[index],
                markersize=4,
                label=label,
            )
        if finding.block_bytes is not None:
            axes.axvline(
                finding.block_bytes,
                color=MUTED.light,
                linewidth=0.8,
                label=f"optimal write size, {numbers.size(finding.block_bytes)}",
            )
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: numbers.size(value)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel("request size")
        axes.set_ylim(bottom=0)
        axes.set_ylabel("throughput, MB/s")
        axes.legend()
        what = record.identity.place if emulated else f"{record.identity.model}, {record.identity.place}"
        figure.suptitle(printable(f"{'EMULATED: ' if emulated else ''}{what}"), fontsize=7, wrap=True)
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
