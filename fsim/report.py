"""A comparison of allocators as tables on a terminal and as an HTML report.

Rows are allocators, columns utilisations. The report plots elapsed time by utilisation, a panel for each
drive: the paper's figures 4 and 5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from fsim.allocators import ALLOCATORS
from fsim.experiment import AllocationResult, DrivePoints, Mean, Point
from slo_ctl.base import numbers
from slo_ctl.base.text import printable
from slo_ctl.show.html import Axis, Curve, Curves, Table, key_class, plain, render_page
from slo_ctl.show.terminal import print_rows

if TYPE_CHECKING:
    from rich.console import Console


def print_allocation(console: Console, result: AllocationResult) -> None:
    """Print a header, one table per drive, and the notes."""
    console.print(Text(headline(result), style="bold"))
    if not result.complete:
        console.print(Text("PARTIAL: interrupted before the end.", "yellow"))
    utilisations = [numbers.percent(each, 0) for each in result.utilisations]
    for drive in result.drives:
        console.print()
        console.print(Text(drive_line(drive)))
        rows = [(name, *cells) for name, cells in drive_rows(result, drive)]
        print_rows(console, ("ALLOCATOR", *utilisations), rows, left=("ALLOCATOR",))
    console.print(Text(legend(result)))
    for note in result.notes:
        console.print(Text(f"note: {printable(note)}"))


def headline(result: AllocationResult) -> str:
    """Description of the experiment in one line."""
    synthetic = ", synthetic workload" if result.synthetic else ""
    trim = "on" if result.trim else "off"
    seeds = f"{len(result.seeds)} seeds" if len(result.seeds) > 1 else f"seed {result.seeds[0]}"
    return f"{result.label.upper()} SSD{synthetic}: {printable(result.workload)}, TRIM {trim}, {seeds}"


def drive_line(drive: DrivePoints) -> str:
    """Description of a drive in one line."""
    logs = f", {drive.log_blocks} log blocks" if drive.log_blocks is not None else ""
    return (
        f"drive {printable(drive.name)}: {numbers.size(drive.capacity_bytes)}, logical blocks of "
        f"{numbers.size(drive.logical_block_bytes)}{logs}"
    )


def legend(result: AllocationResult) -> str:
    """Legend of the cells."""
    spread = " +- half its 95 % interval over the seeds" if len(result.seeds) > 1 else ""
    return f"Elapsed virtual seconds by utilisation of the file system; (ratio to {result.base}{spread})."


def drive_rows(result: AllocationResult, drive: DrivePoints) -> list[tuple[str, list[str]]]:
    """Allocators with their cells, one for each utilisation."""
    return [
        (name, [cell(drive.curve(name).get(each), result.base) for each in result.utilisations])
        for name in result.allocators
    ]


def cell(point: Point | None, base: str) -> str:
    """Seconds, and the ratio unless the allocator is the base."""
    if point is None:
        return numbers.UNKNOWN
    mean_s = point.elapsed.mean
    seconds = numbers.decimal(mean_s, 1) if mean_s < 10 else numbers.count(mean_s)
    if point.ratio is None or point.allocator == base:
        return seconds
    return f"{seconds} ({spread(point.ratio)})"


def spread(value: Mean) -> str:
    """`.45` or `.45+-.02`."""
    text = _short(value.mean)
    return text if value.half_width is None else f"{text}+-{_short(value.half_width)}"


def _short(value: float) -> str:
    text = numbers.decimal(value)
    return text.removeprefix("0")


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
