"""A profile as a plot: access times and ratios by request size."""

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
    from matplotlib.axes import Axes

    from slo_ctl.decide.profile_fit import Analysis
    from slo_ctl.profile.store import Profile


def save_plot(profile: Profile, analysis: Analysis, path: Path) -> None:
    """Draw to an SVG or PNG file, as its name says. Raises OSError."""
    with mpl.rc_context(FILE_STYLE):
        figure = Figure(figsize=(8.4, 3.4), layout="constrained")
        times, ratios = figure.subplots(1, 2)
        _draw_times(times, profile, analysis)
        _draw_ratios(ratios, analysis)
        figure.suptitle(printable(f"{profile.identity.model}, {profile.identity.place}"))
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)


def _draw_times(axes: Axes, profile: Profile, analysis: Analysis) -> None:
    accesses = sorted({curve.access for curve in analysis.curves})
    measurements = profile.measurements()
    for index, access in enumerate(accesses):
        colour = vm_colour(index).light
        label: str | None = str(access)
        for curve in analysis.curves:
            if curve.access != access:
                continue
            known = [
                (size, curve.line.at_s(size)) for size in curve.interval.sizes() if curve.line.at_s(size) > 0
            ]
            axes.plot(
                [size for size, _ in known],
                [time * 1e3 for _, time in known],
                color=colour,
                linestyle="solid" if curve.misfit is None else "dotted",
                label=label,
            )
            label = None
        own = [each for each in measurements if each.access == access]
        axes.plot(
            [each.size_bytes for each in own],
            [each.access_time_s * 1e3 for each in own],
            marker="o",
            markersize=3,
            linestyle="none",
            color=colour,
        )
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    _sizes(axes)
    axes.set_ylabel("access time, ms")
    axes.legend()


def _draw_ratios(axes: Axes, analysis: Analysis) -> None:
    for index, summary in enumerate(analysis.summaries):
        known = [ratio for ratio in summary.ratios if ratio.value is not None]
        sizes = [ratio.size_bytes for ratio in known]
        colour = vm_colour(index).light
        axes.plot(
            sizes,
            [ratio.value if ratio.value is not None else float("nan") for ratio in known],
            color=colour,
            linestyle=vm_dashes(0),
            label=summary.direction.value,
        )
        bounded = [ratio for ratio in known if ratio.low is not None and ratio.high is not None]
        axes.fill_between(
            [ratio.size_bytes for ratio in bounded],
            [ratio.low or 0.0 for ratio in bounded],
            [ratio.high or 0.0 for ratio in bounded],
            color=colour,
            alpha=0.2,
            linewidth=0,
        )
    axes.axhline(1, color=MUTED.light, linewidth=0.8, linestyle=(0, (4, 3)))
    _sizes(axes)
    axes.set_ylabel("sequential / random throughput")
    axes.legend()


def _sizes(axes: Axes) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: numbers.size(value)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("request size")
