"""Elapsed time by utilisation, a panel for each drive: the paper's figures 4 and 5."""

from __future__ import annotations

from matplotlib.ticker import FuncFormatter

from fsim.allocators import ALLOCATORS
from fsim.experiment import AllocationResult, DrivePoints
from fsim.tables import cell, drive_line, headline, legend
from slo_ctl.base import numbers
from slo_ctl.base.text import printable
from slo_ctl.show.plot_parts import Plot, inline_svg, plot_figure, vm_colour, vm_dashes
from slo_ctl.show.report import render_page

_MARKERS = ("o", "s", "^", "D", "v", "P")


def render_allocation(result: AllocationResult) -> str:
    """The HTML of `result`; every text in it is escaped."""
    return render_page(
        "allocation.html.j2",
        result=result,
        title=f"Space allocation: {printable(result.workload)}",
        headline=headline(result),
        legend=legend(result),
        utilisations=[numbers.percent(each, 0) for each in result.utilisations],
        drives=[
            (drive_line(drive), _rows(result, drive), _merge_rows(result, drive)) for drive in result.drives
        ],
        plots=[_plot(result, drive) for drive in result.drives if drive.points],
        descriptions=[(name, ALLOCATORS[name].description) for name in result.allocators],
    )


def _rows(result: AllocationResult, drive: DrivePoints) -> list[tuple[str, str, list[str]]]:
    """Colour, allocator and its cells."""
    return [
        (
            vm_colour(index).name,
            name,
            [cell(drive.curve(name).get(each), result.base) for each in result.utilisations],
        )
        for index, name in enumerate(result.allocators)
    ]


def _merge_rows(result: AllocationResult, drive: DrivePoints) -> list[tuple[str, list[str]]]:
    """Allocator; switch, partial and full merges at each utilisation; none for a mapping without."""
    if drive.log_blocks is None:
        return []
    rows = []
    for name in result.allocators:
        points = [drive.curve(name).get(each) for each in result.utilisations]
        rows.append(
            (
                name,
                [
                    numbers.UNKNOWN
                    if point is None
                    else " / ".join(
                        numbers.count(round(each))
                        for each in (point.switch_merges, point.partial_merges, point.full_merges)
                    )
                    for point in points
                ],
            )
        )
    return rows


def _plot(result: AllocationResult, drive: DrivePoints) -> Plot:
    with plot_figure() as (figure, axes):
        for index, name in enumerate(result.allocators):
            points = sorted(drive.curve(name).items())
            axes.errorbar(
                [utilisation for utilisation, _ in points],
                [point.elapsed.mean for _, point in points],
                yerr=[point.elapsed.half_width or 0.0 for _, point in points],
                color=vm_colour(index).stand_in,
                linestyle=vm_dashes(index),
                marker=_MARKERS[index % len(_MARKERS)],
                markersize=3.5,
                linewidth=1.3,
                label=name,
            )
        axes.set_ylim(bottom=0)
        axes.set_xlabel("utilisation of the file system")
        axes.set_ylabel("elapsed time, s")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
        axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0, 1.0, 0.0), ncols=3, columnspacing=1.2)
        svg = inline_svg(figure, f"allocation-{drive.name}")
    name = printable(drive.name)
    return Plot(f"allocation-{drive.name}", f"{printable(result.workload)} on {name}", drive_line(drive), svg)
