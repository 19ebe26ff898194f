"""Statistics of a trace for `slo-ctl trace info`: as JSON and as lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from slo_ctl.base import numbers
from slo_ctl.base.text import printable
from traces.batch import PAGE_BYTES

if TYPE_CHECKING:
    from traces.reader import TraceReader
    from traces.summary import TraceSummary

FORMAT_VERSION = 1
_SHOWN_VOLUMES = 20


def as_json(reader: TraceReader, summary: TraceSummary, wall_s: float) -> dict[str, Any]:
    """One JSON object."""
    return {
        "format_version": FORMAT_VERSION,
        "files": [str(path) for path in reader.paths],
        "format": reader.format,
        "origin_ns": reader.origin_ns,
        "records": summary.records,
        "records_by_op": summary.records_by_op,
        "write_share": summary.write_share,
        "duration_ns": summary.duration_ns,
        "read_bytes": summary.read_bytes,
        "written_bytes": summary.written_bytes,
        "average_read_bytes": summary.average_read_bytes,
        "average_write_bytes": summary.average_write_bytes,
        "host_page_writes": summary.written_page_count,
        "footprint_pages": summary.footprint_pages,
        "written_pages": summary.written_pages,
        "sequential_share": summary.sequential_share,
        "gaps_ns": {"mean": summary.mean_gap_ns, "max": summary.max_gap_ns, "cv": summary.gap_cv},
        "backward_records": summary.backward_records,
        "volumes": [asdict(volume) for volume in summary.volumes],
        "skipped": dict(sorted(reader.skipped.items())),
        "bad_records": reader.bad_records,
        "notes": list(reader.notes),
        "wall_s": wall_s,
    }


def as_table(reader: TraceReader, summary: TraceSummary, wall_s: float) -> Iterator[str]:
    """Lines of text."""
    ops = ", ".join(f"{count:,} {op}" for op, count in summary.records_by_op.items())
    gap_us = summary.mean_gap_ns / 1000
    rows = [
        ("file", ", ".join(str(path) for path in reader.paths)),
        ("format", reader.format),
        ("records", f"{summary.records:,} ({ops})"),
        ("write share", f"{summary.write_share:.3f}"),
        ("duration", f"{summary.duration_ns / 1e9:,.6g} s"),
        (
            "read",
            f"{numbers.size(summary.read_bytes)}, {numbers.size(summary.average_read_bytes)} on average",
        ),
        (
            "written",
            f"{numbers.size(summary.written_bytes)}, {numbers.size(summary.average_write_bytes)} on average",
        ),
        ("page writes", f"{summary.written_page_count:,} of 4 KiB"),
        (
            "footprint",
            f"{summary.footprint_pages:,} pages ({numbers.size(summary.footprint_pages * PAGE_BYTES)})",
        ),
        (
            "written pages",
            f"{summary.written_pages:,} distinct ({numbers.size(summary.written_pages * PAGE_BYTES)})",
        ),
        ("sequential", numbers.percent(summary.sequential_share)),
        (
            "between records",
            f"{numbers.latency(gap_us)} mean, {numbers.latency(summary.max_gap_ns / 1000)} at most",
        ),
    ]
    if summary.backward_records:
        rows.append(("out of order", f"{summary.backward_records:,} records earlier than the one before"))
    rows += [("skipped", f"{count:,} x {reason}") for reason, count in sorted(reader.skipped.items())]
    rows += [("note", note) for note in reader.notes]
    rows.append(("read in", f"{wall_s:.2f} s, {summary.records / max(wall_s, 1e-9) / 1e6:.2f} M records/s"))
    yield from (f"{name:<16} {printable(value)}" for name, value in rows)
    if len(summary.volumes) > 1:
        yield from _volume_lines(summary)


def _volume_lines(summary: TraceSummary) -> Iterator[str]:
    yield ""
    line = "{:<20} {:>12} {:>7} {:>10} {:>10} {:>12} {:>10}"
    yield line.format("volume", "records", "writes", "read", "written", "pages", "size")
    largest = sorted(summary.volumes, key=lambda volume: -volume.records)
    for volume in largest[:_SHOWN_VOLUMES]:
        yield line.format(
            printable(volume.name),
            f"{volume.records:,}",
            numbers.percent(volume.write_records / volume.records),
            numbers.size(volume.read_bytes),
            numbers.size(volume.written_bytes),
            f"{volume.footprint_pages:,}",
            numbers.size(volume.end_bytes),
        )
    if len(largest) > _SHOWN_VOLUMES:
        yield f"... and {len(largest) - _SHOWN_VOLUMES:,} more (--json lists all)"
