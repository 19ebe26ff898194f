"""A comparison of allocators as tables on a terminal: rows are allocators, columns utilisations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from fsim.experiment import AllocationResult, DrivePoints, Mean, Point
from slo_ctl.base import numbers
from slo_ctl.base.text import printable

if TYPE_CHECKING:
    from rich.console import Console


def print_allocation(console: Console, result: AllocationResult) -> None:
    """Print a header, one table per drive, and the notes."""
    console.print(Text(headline(result), style="bold"))
    if not result.complete:
        console.print(Text("PARTIAL: interrupted before the end.", "yellow"))
    for drive in result.drives:
        console.print()
        console.print(Text(drive_line(drive)))
        console.print(drive_table(result, drive))
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


def drive_table(result: AllocationResult, drive: DrivePoints) -> Table:
    """One row per allocator."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("ALLOCATOR", no_wrap=True)
    for utilisation in result.utilisations:
        table.add_column(numbers.percent(utilisation, 0), justify="right")
    for allocator in result.allocators:
        curve = drive.curve(allocator)
        cells = [cell(curve.get(each), result.base) for each in result.utilisations]
        table.add_row(Text(allocator), *(Text(each) for each in cells))
    return table


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
