"""Plots of a run's time series, one line a VM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.ticker import FuncFormatter

from slo_ctl.show.inline_svg import Plot, inline_svg, plot_figure, tick
from slo_ctl.show.palette import GRID, MUTED, vm_colour, vm_dashes
from slo_ctl.show.plot_parts import legend_of_vms, short_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slo_ctl.replay.result import RunResult, VmSeries


def over_time(runs: Sequence[RunResult], column: str, title: str, caption: str) -> list[Plot]:
    """One column of the time series per run, all to one scale; runs that lack it are left out."""
    drawn = [run for run in runs if any(_known(series, column) for series in run.series.vms)]
    if not drawn:
        return []
    # The first few epochs after a start swing widely; they must not squeeze the rest of every plot.
    top = max(_high(run, column) for run in drawn) * 1.12
    return [_over_time(run, column, f"{title}: {run.policy}", caption, top) for run in drawn]


def _over_time(run: RunResult, column: str, title: str, caption: str, top: float) -> Plot:
    with plot_figure() as (figure, axes):
        times = run.series.drive_writes
        window = run.window
        axes.axvspan(
            window.from_drive_writes, window.to_drive_writes, color=GRID.stand_in, alpha=0.45, linewidth=0
        )
        targets = {vm.name: vm.target_share for vm in run.vms}
        for index, series in enumerate(run.series.vms):
            values = getattr(series, column)
            if not values:
                continue
            drawn = [float("nan") if value is None else value for value in values]
            colour = vm_colour(index).stand_in
            axes.plot(times, drawn, color=colour, linestyle=vm_dashes(index), linewidth=1.5)
            target = targets.get(series.name)
            if column == "share" and target:
                axes.plot(
                    [window.from_drive_writes, window.to_drive_writes],
                    [target, target],
                    color=colour,
                    linestyle=(0, (1, 1.6)),
                    linewidth=1.2,
                )
        for event in run.events:
            axes.axvline(event.drive_writes, color=MUTED.stand_in, linewidth=0.9, linestyle=(0, (3, 2)))
            axes.annotate(
                short_name(f"{event.vm} {event.action}"),
                (event.drive_writes, top),
                (3, -2),
                textcoords="offset points",
                va="top",
                fontsize=7,
                color=MUTED.stand_in,
            )
        axes.set_ylim(0, top)
        axes.set_xlim(0, max(times))
        axes.set_xlabel("full drive writes")
        axes.xaxis.set_major_formatter(FuncFormatter(tick))
        if column == "share":
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value * 100:.0f}%"))
        legend_of_vms(axes, [short_name(series.name) for series in run.series.vms])
        svg = inline_svg(figure, f"{column}-{run.policy}")
    return Plot(
        f"{column.replace('_', '-')}-{run.policy}", title, f"{caption} Shaded: the measured window.", svg
    )


def _known(series: VmSeries, column: str) -> list[float]:
    return [value for value in getattr(series, column) if value is not None]


def _high(run: RunResult, column: str) -> float:
    """The top of the axis: what all but the wildest hundredth of the points stay below."""
    values = sorted(value for series in run.series.vms for value in _known(series, column))
    return max(values[int(0.99 * (len(values) - 1))], 1e-9) if values else 1e-9
