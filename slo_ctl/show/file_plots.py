"""Plots that commands write to the file of `--plot`: profiles and sweeps."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from slo_ctl.base import numbers
from slo_ctl.base.text import printable
from slo_ctl.show.html import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from slo_ctl.decide.profile_fit import Analysis
    from slo_ctl.profile.store import Profile
    from slo_ctl.replay.sweep import Capacity

_COLOURS = dict(
    re.findall(
        r"--(\w+): (#\w{6});",
        files("slo_ctl.show").joinpath("page", "colours.css").read_text().partition("@media")[0],
    )
)
QUIET = _COLOURS["quiet"]
_DASHES: tuple[Any, ...] = ("solid", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 2, 1, 2)))
_STYLE: Any = {
    "font.size": 8.5,
    "text.parse_math": False,
    "text.color": _COLOURS["text"],
    "axes.labelcolor": QUIET,
    "axes.edgecolor": QUIET,
    "axes.facecolor": _COLOURS["ground"],
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": _COLOURS["line"],
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "legend.frameon": False,
    "svg.hashsalt": "slo-ctl",
}


def colour_of(index: int) -> str:
    """The colour of the curve or bars with this index."""
    return str(_COLOURS[f"c{index % COLOURS}"])


def dashes_of(index: int) -> Any:
    """The line style of the curve with this index."""
    return _DASHES[index // COLOURS % len(_DASHES)]


@contextmanager
def drawn_to(path: Path, width_in: float, height_in: float) -> Iterator[Figure]:
    """A figure that is saved as SVG or PNG, by the suffix of the file. Raises OSError."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(width_in, height_in), layout="constrained")
        yield figure
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)


def request_size_axis(axes: Axes) -> None:
    """Label the x axis with request sizes, doubled from tick to tick."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: numbers.size(value)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("request size")


def time_axis(axes: Axes) -> None:
    """Label the y axis with times in ms, in steps of 1, 2 and 5."""
    axes.set_yscale("log")
    axes.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
    # The usual labels are formulas, which are not parsed: names of VMs and devices may look like some.
    for set_formatter in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        set_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_ylabel("access time, ms")


# A profile: access times and ratios by request size.


def save_profile(profile: Profile, analysis: Analysis, path: Path) -> None:
    """Plot access times and ratios by request size. Raises OSError."""
    with drawn_to(path, 8.4, 3.4) as figure:
        times, ratios = figure.subplots(1, 2)
        _draw_times(times, profile, analysis)
        _draw_ratios(ratios, analysis)
        figure.suptitle(printable(f"{profile.identity.model}, {profile.identity.place}"))


def _draw_times(axes: Axes, profile: Profile, analysis: Analysis) -> None:
    accesses = sorted({measurement.access for measurement in profile.measurement})
    for index, access in enumerate(accesses):
        colour = colour_of(index)
        label: str | None = str(access)
        for curve in analysis.curves:
            if curve.access != access:
                continue
            points = [
                (size, curve.line.at_s(size)) for size in curve.interval.sizes() if curve.line.at_s(size) > 0
            ]
            axes.plot(
                [size for size, _ in points],
                [time * 1e3 for _, time in points],
                color=colour,
                linestyle="solid" if curve.misfit is None else "dotted",
                label=label,
            )
            label = None
        of_access = [measurement for measurement in profile.measurement if measurement.access == access]
        axes.plot(
            [measurement.size_bytes for measurement in of_access],
            [measurement.access_time_s * 1e3 for measurement in of_access],
            marker="o",
            markersize=3,
            linestyle="none",
            color=colour,
            label=label,
        )
    time_axis(axes)
    request_size_axis(axes)
    _add_legend(axes)


def _draw_ratios(axes: Axes, analysis: Analysis) -> None:
    for index, summary in enumerate(analysis.summaries):
        known = [ratio for ratio in summary.ratios if ratio.value is not None]
        colour = colour_of(index)
        axes.plot(
            [ratio.size_bytes for ratio in known],
            [ratio.value if ratio.value is not None else float("nan") for ratio in known],
            color=colour,
            linestyle=dashes_of(0),
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
    axes.axhline(1, color=QUIET, linewidth=0.8, linestyle=(0, (4, 3)))
    request_size_axis(axes)
    axes.set_ylabel("sequential / random throughput")
    _add_legend(axes)


def _add_legend(axes: Axes) -> None:
    """A legend if there are curves: matplotlib warns about an empty one."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend()


# A sweep: number of VMs that each drive supports, by OP.


def save_sweep(capacities: Sequence[Capacity], path: Path) -> None:
    """A group of bars for each OP, a bar for each scenario, drive and policy. Raises OSError."""
    bars: dict[str, list[Capacity]] = {}
    several = len({capacity.scenario for capacity in capacities}) > 1
    for capacity in capacities:
        name = f"{capacity.drive or 'scenario'}, {capacity.policy}"
        bars.setdefault(f"{capacity.scenario}: {name}" if several else name, []).append(capacity)
    ops = list(dict.fromkeys(capacity.op or "scenario" for capacity in capacities))
    with drawn_to(path, 5.2, 3.2) as figure:
        axes = figure.add_subplot()
        width = 0.82 / max(1, len(bars))
        for index, (name, values) in enumerate(bars.items()):
            at = [ops.index(capacity.op or "scenario") - 0.41 + width * (index + 0.5) for capacity in values]
            heights = [float(capacity.most_vms) for capacity in values]
            axes.bar(at, heights, width * 0.92, color=colour_of(index), label=printable(name))
        axes.set_xticks(range(len(ops)), ops)
        axes.set_xlabel("over-provisioning")
        axes.set_ylabel("VMs with every SLO met (emulated)")
        axes.legend(loc="upper left")
