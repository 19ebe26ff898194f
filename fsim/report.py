"""Elapsed time by utilisation, a panel for each drive: the paper's figures 4 and 5."""

from __future__ import annotations

from fsim.allocators import ALLOCATORS
from fsim.experiment import AllocationResult, DrivePoints, Point
from fsim.tables import drive_line, drive_rows, headline, legend
from slo_ctl.base import numbers
from slo_ctl.base.text import printable
from slo_ctl.show.charts import Axis, Curve, Curves, Table, key_class, plain
from slo_ctl.show.html import render_page


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
        plots=[_chart(result, drive) for drive in result.drives if drive.points],
        descriptions=[(name, ALLOCATORS[name].description) for name in result.allocators],
    )


def _rows(result: AllocationResult, drive: DrivePoints) -> list[tuple[str, str, list[str]]]:
    """Class of the row's key, allocator and cells."""
    return [(key_class(index), *row) for index, row in enumerate(drive_rows(result, drive))]


def _merge_rows(result: AllocationResult, drive: DrivePoints) -> list[tuple[str, list[str]]]:
    """Allocator; switch, partial and full merges at each utilisation; empty without log blocks."""
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


def _chart(result: AllocationResult, drive: DrivePoints) -> Curves:
    used = sorted({each for name in result.allocators for each in drive.curve(name)})
    curves, rows = [], []
    for index, name in enumerate(result.allocators):
        points = [drive.curve(name).get(each) for each in used]
        curves.append(Curve(name, [None if point is None else point.elapsed.mean for point in points], index))
        rows.append((name, [_elapsed(point) for point in points]))
    return Curves(
        f"{printable(result.workload)} on {printable(drive.name)}",
        f"Elapsed time in seconds. {drive_line(drive)}",
        used,
        curves,
        "plain",
        Axis("utilisation of the file system", "percent"),
        group="utilisation",
        numbers=Table([numbers.percent(each, 0) for each in used], rows),
    )


def _elapsed(point: Point | None) -> str:
    """Mean elapsed time in seconds, with half its interval."""
    if point is None:
        return numbers.UNKNOWN
    half = point.elapsed.half_width
    return plain(point.elapsed.mean) if half is None else f"{plain(point.elapsed.mean)} ± {plain(half)}"
