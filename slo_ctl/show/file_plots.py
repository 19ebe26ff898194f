"""Plots that commands write to the file of `--plot`: profiles, write sizes, write cost and sweeps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from slo_ctl.base import numbers
from slo_ctl.base.text import printable
from slo_ctl.show.measurements import Panel, bounds
from slo_ctl.show.plot_parts import FILE_STYLE, MUTED, vm_colour, vm_dashes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from slo_ctl.decide.profile_fit import Analysis
    from slo_ctl.decide.write_size import WriteCost
    from slo_ctl.profile.store import Profile
    from slo_ctl.profile.write_size import WriteSizeRecord
    from slo_ctl.replay.sweep import Answer

_SPIKE_COLUMNS = 3


@contextmanager
def _drawn_to(path: Path, width_in: float, height_in: float) -> Iterator[Figure]:
    """A figure that is saved as SVG or PNG, as the name of the file says. Raises OSError."""
    with mpl.rc_context(FILE_STYLE):
        figure = Figure(figsize=(width_in, height_in), layout="constrained")
        yield figure
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)


def _request_size_axis(axes: Axes) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: numbers.size(value)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("request size")


# A profile: access times and ratios by request size.


def save_profile(profile: Profile, analysis: Analysis, path: Path) -> None:
    """Raises OSError."""
    with _drawn_to(path, 8.4, 3.4) as figure:
        times, ratios = figure.subplots(1, 2)
        _draw_times(times, profile, analysis)
        _draw_ratios(ratios, analysis)
        figure.suptitle(printable(f"{profile.identity.model}, {profile.identity.place}"))


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
    _request_size_axis(axes)
    axes.set_ylabel("access time, ms")
    axes.legend()


def _draw_ratios(axes: Axes, analysis: Analysis) -> None:
    for index, summary in enumerate(analysis.summaries):
        known = [ratio for ratio in summary.ratios if ratio.value is not None]
        colour = vm_colour(index).light
        axes.plot(
            [ratio.size_bytes for ratio in known],
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
    _request_size_axis(axes)
    axes.set_ylabel("sequential / random throughput")
    axes.legend()


# The search for the optimal write size.


def save_write_size(record: WriteSizeRecord, emulated: bool, path: Path) -> None:
    """Raises OSError."""
    finding = record.finding()
    with _drawn_to(path, 5.4, 3.4) as figure:
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
        _request_size_axis(axes)
        axes.set_ylim(bottom=0)
        axes.set_ylabel("throughput, MB/s")
        axes.legend()
        what = record.identity.place if emulated else f"{record.identity.model}, {record.identity.place}"
        figure.suptitle(printable(f"{'EMULATED: ' if emulated else ''}{what}"), fontsize=7, wrap=True)


# Response times by request number, band and spikes marked: the paper's figure 1.


def save_write_cost(title: str, panels: Sequence[Panel], cost: WriteCost, path: Path) -> None:
    """Raises OSError."""
    rows = -(-len(panels) // _SPIKE_COLUMNS)
    columns = min(len(panels), _SPIKE_COLUMNS)
    with _drawn_to(path, 3.1 * columns + 0.4, 2.3 * rows + 0.8) as figure:
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


# A sweep: how many VMs each drive carries, by OP.


def save_sweep(found: Sequence[Answer], path: Path) -> None:
    """A group of bars for each OP, a bar for each scenario, drive and policy. Raises OSError."""
    bars: dict[str, list[Answer]] = {}
    several = len({each.scenario for each in found}) > 1
    for each in found:
        name = f"{each.drive or 'scenario'}, {each.policy}"
        bars.setdefault(f"{each.scenario}: {name}" if several else name, []).append(each)
    ops = list(dict.fromkeys(each.op or "scenario" for each in found))
    with _drawn_to(path, 5.2, 3.2) as figure:
        axes = figure.add_subplot()
        width = 0.82 / max(1, len(bars))
        for index, (name, values) in enumerate(bars.items()):
            at = [ops.index(each.op or "scenario") - 0.41 + width * (index + 0.5) for each in values]
            heights = [float(each.most_vms) for each in values]
            axes.bar(at, heights, width * 0.92, color=vm_colour(index).light, label=printable(name))
        axes.set_xticks(range(len(ops)), ops)
        axes.set_xlabel("over-provisioning")
        axes.set_ylabel("VMs with every SLO met (emulated)")
        axes.legend(loc="upper left")
