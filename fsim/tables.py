"""A comparison of allocators as tables on a terminal: rows are allocators, columns utilisations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from fsim.experiment import AllocationResult, DrivePoints, Mean, Point
from slo_ctl.base import numbers
from slo_ctl.base.text import printable
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
