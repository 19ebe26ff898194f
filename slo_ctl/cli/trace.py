"""`slo-ctl trace`: inspect, convert and record block traces."""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slo_ctl.base import numbers
from slo_ctl.base.errors import UserError
from slo_ctl.base.files import remove_leftovers
from slo_ctl.base.text import counted, printable
from slo_ctl.cli import trace_record, write_size
from slo_ctl.cli.options import JSON, LABORATORY, ON_ERROR, TRACE_FORMAT, on_error_of, trace_errors
from slo_ctl.cli.output import print_json, stdout_console, warn, warn_notes

if TYPE_CHECKING:
    from traces.batch import Batch, Op
    from traces.reader import TraceReader
    from traces.remap import Remap
    from traces.summary import TraceSummary


_SHOWN_VOLUMES = 20
_REMAPS = "modulo, scale, partition, per-volume, compact or first-touch"
_JOINING = ("partition", "per-volume", "compact", "first-touch")
"""Remappings that leave one volume."""
_ACTION = Annotated[
    str | None,
    typer.Option(
        "--action",
        metavar="Q|D|C",
        help="Event of blktrace and blkparse that counts as a request. [default: Q, else D, else C]",
    ),
]
_NS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}


app = typer.Typer(
    help="Inspect, convert and record block traces.\n\nExamples:\nslo-ctl trace info trace.csv.zst",
    rich_markup_mode=None,
)


@app.command()
def info(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The trace, plain or compressed (gz, xz, zst).")
    ],
    format_: TRACE_FORMAT = None,
    on_error: ON_ERROR = "raise",
    action: _ACTION = None,
    json_: JSON = False,
) -> None:
    """Show statistics of a trace: counts, sizes, footprint, order and arrival times.

    Examples:
    slo-ctl trace info trace.csv.zst
    """
    from traces.summary import Tally

    with _trace_errors():
        reader = _open(file, format_, on_error, action)
        if reader.is_text:
            import traces.dataframes  # noqa: F401 - loaded before the measured time
        tally = Tally()
        started = time.perf_counter()
        for batch in _with_progress(reader, f"reading {file.name}"):
            tally.add(batch)
        summary = tally.summary(reader.volumes)
    wall_s = time.perf_counter() - started
    if json_:
        print_json(_summary_json(reader, summary, wall_s))
    else:
        typer.echo("\n".join(_summary_lines(reader, summary, wall_s)))
        if len(summary.volumes) > 1:
            _print_volumes(summary)


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(metavar="IN", help="The trace to read.")],
    target: Annotated[
        Path, typer.Argument(metavar="OUT", help="The file to write; .gz, .xz, .zst are compressed.")
    ],
    from_: Annotated[
        str | None, typer.Option("--from", metavar="FORMAT", help="Format of IN. [default: detected]")
    ] = None,
    to: Annotated[
        str, typer.Option("--to", metavar="FORMAT", help="Format of OUT: slo-ctl, spc, msr or iolog.")
    ] = "slo-ctl",
    volume: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Keep only this volume. Repeatable.")
    ] = None,
    only: Annotated[
        str | None, typer.Option(metavar="OP,...", help="Keep only these operations: read, write, trim, ...")
    ] = None,
    start: Annotated[
        str, typer.Option(metavar="TIME", help="Skip records before this time, such as 90s.")
    ] = "0s",
    stop: Annotated[str | None, typer.Option(metavar="TIME", help="Skip records from this time on.")] = None,
    monotonic: Annotated[bool, typer.Option(help="Raise timestamps that go backwards.")] = False,
    max_gap: Annotated[str | None, typer.Option(metavar="TIME", help="Shorten longer gaps to this.")] = None,
    scale: Annotated[
        float, typer.Option(metavar="FACTOR", help="Multiply timestamps; 0.5 is twice as fast.")
    ] = 1.0,
    loops: Annotated[int, typer.Option(metavar="N", min=1, help="Number of repetitions of the trace.")] = 1,
    align: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Extend requests to multiples of this.")
    ] = None,
    shift: Annotated[str | None, typer.Option(metavar="SIZE", help="Add this to every offset.")] = None,
    remap: Annotated[str | None, typer.Option(metavar="HOW", help=f"Remap offsets: {_REMAPS}.")] = None,
    size: Annotated[str | None, typer.Option(metavar="SIZE", help="Device size for --remap.")] = None,
    on_error: ON_ERROR = "raise",
    action: _ACTION = None,
    force: Annotated[bool, typer.Option(help="Overwrite OUT.")] = False,
) -> None:
    """Convert a trace to another format; optionally cut, filter, scale or remap it.

    Options apply in the order of this list. OUT is replaced atomically.

    Examples:
    slo-ctl trace convert fin.spc.zst fin.csv --start 1h --stop 2h
    slo-ctl trace convert web.csv web.csv.zst --only write --remap modulo --size 8GiB
    """
    from slo_ctl.base.termination import terminable
    from traces.timewarp import loop
    from traces.writing import TraceWriter

    with terminable(), _trace_errors("--from"):
        if not math.isfinite(scale) or scale <= 0:
            raise UserError(f"--scale: {scale:g} is not a positive number", "0.5 replays twice as fast")
        start_ns = _time_ns("--start", start)
        stop_ns = _time_ns("--stop", stop) if stop is not None else None
        if stop_ns is not None and stop_ns <= start_ns:
            raise UserError(f"--stop {stop} is not after --start {start}", "give a later --stop")
        remove_leftovers(target.parent, target.name)
        writer = TraceWriter(target, to, overwrite=force)
        reader = _open(source, from_, on_error, action)
        selected = _Selected(
            reader,
            volumes=tuple(dict.fromkeys(volume or ())),
            ops=_operations(only),
            start_ns=start_ns,
            stop_ns=stop_ns,
            monotonic=monotonic,
            max_gap_ns=_time_ns("--max-gap", max_gap) if max_gap is not None else None,
            scale=scale,
        )
        selected.add_moves(align, shift, remap, size)
        selected.label = f"converting {source.name}"
        with writer:
            for batch in loop(selected, loops):
                writer.write(batch, ["0"] if remap in _JOINING else selected.names)
            if not writer.records:
                raise UserError(f"{source}: no records left to write", _empty_result_hint(reader, selected))
    for reason, count in sorted(reader.skipped.items()):
        warn(f"skipped {count:,} x {reason}")
    warn_notes(reader.notes)
    warn(f"{counted(writer.records, 'record')} written to {target}")


app.command("record")(trace_record.record)
app.command("write-cost", rich_help_panel=LABORATORY)(write_size.trace_write_cost)


@dataclass
class _Selected:
    """The records of a trace that options select, at new times and offsets; each iteration reads the file."""

    reader: TraceReader
    volumes: tuple[str, ...]
    ops: frozenset[Op] | None
    start_ns: int
    stop_ns: int | None
    monotonic: bool
    max_gap_ns: int | None
    scale: float
    moves: list[Remap] = field(default_factory=list)
    """Changes of offsets, in their order."""
    label: str = "reading the trace"

    @property
    def names(self) -> Sequence[str]:
        """Names of the volumes that the batches' numbers stand for."""
        return self.volumes or self.reader.volumes

    def __iter__(self) -> Iterator[Batch]:
        from traces.remap import OnlyVolumes, apply
        from traces.timewarp import GapCap, Monotonic, OnlyOps, TimeScale, Window

        steps: list[Remap] = []
        if self.volumes:
            steps.append(OnlyVolumes(self.volumes, lambda: self.reader.volumes))
        if self.ops is not None:
            steps.append(OnlyOps(self.ops))
        if self.start_ns or self.stop_ns is not None:
            steps.append(Window(self.start_ns, self.stop_ns))
        if self.monotonic:
            steps.append(Monotonic())
        if self.max_gap_ns is not None:
            steps.append(GapCap(self.max_gap_ns))
        if self.scale != 1:
            steps.append(TimeScale(self.scale))
        return apply(_with_progress(self.reader, self.label), *steps, *self.moves)

    def add_moves(self, align: str | None, shift: str | None, remap: str | None, size: str | None) -> None:
        """Add the changes of offsets that these options request. Raises UserError."""
        from traces.remap import Align, Shift

        if align is not None:
            unit_bytes = _size("--align", align)
            if unit_bytes < 1 or unit_bytes & (unit_bytes - 1):
                raise UserError(f"--align {align} is not a power of two", "such as 4KiB")
            self.moves.append(Align(unit_bytes))
        if shift is not None:
            self.moves.append(Shift(_size("--shift", shift)))
        if remap is not None:
            self.moves.append(_remap(self, remap, size))
        elif size is not None:
            raise UserError("--size requires --remap", f"add --remap {_REMAPS}")


def _remap(trace: _Selected, remap: str, size: str | None) -> Remap:
    """The change of offsets of --remap, which may read the trace. Raises UserError."""
    from traces.remap import Compact, Modulo, Partition, Scale
    from traces.summary import summarise

    if remap in ("modulo", "scale", "partition"):
        if size is None:
            raise UserError(f"--remap {remap} needs the size of the device", "add --size 8GiB, for example")
        size_bytes = _size("--size", size)
        if remap == "modulo":
            return Modulo(size_bytes)
        summary = summarise(trace)
        if remap == "scale":
            # A trace of nothing but flushes has no end.
            return Scale(size_bytes, max([1, *(volume.end_bytes for volume in summary.volumes)]))
        return Partition.equal(size_bytes, len(trace.names))
    if size is not None and remap in ("per-volume", "compact", "first-touch"):
        raise UserError(f"--size and --remap {remap} exclude each other", "the result has the size it needs")
    match remap:
        case "per-volume":
            ends = {volume.name: volume.end_bytes for volume in summarise(trace, trace.names).volumes}
            return Partition(tuple(max(ends.get(name, 1), 1) for name in trace.names))
        case "compact":
            return Compact(trace, "sorted")
        case "first-touch":
            return Compact(trace, "first-touch")
        case _:
            raise UserError(f"--remap: {remap} is not known", f"known: {_REMAPS}")


def _empty_result_hint(reader: TraceReader, selected: _Selected) -> str:
    missing = [name for name in selected.volumes if name not in reader.volumes]
    if missing:
        existing = ", ".join(list(reader.volumes)[:_SHOWN_VOLUMES])
        return f"volume '{missing[0]}' not found; the trace has {existing}"
    return "widen --start, --stop, --only or --volume"


def _operations(only: str | None) -> frozenset[Op] | None:
    from traces.batch import Op

    if only is None:
        return None
    known = {op.name.lower().replace("_", "-"): op for op in Op}
    names = [name.strip() for name in only.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise UserError(f"--only: '{name}' is not a known operation", f"known: {', '.join(known)}")
    return frozenset(known[name] for name in names)


def _time_ns(option: str, text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ns|us|ms|s|m|h)?", text.strip())
    if not match:
        raise UserError(f"{option}: '{text}' is not a valid time", "such as 90s, 500ms or 2h")
    value = Decimal(match[1]) * _NS[match[2] or "s"]
    if value > 2**62:
        raise UserError(f"{option}: '{text}' is longer than 146 years", "such as 90s, 500ms or 2h")
    return int(value)


def _size(option: str, text: str) -> int:
    from traces.parameters import size_bytes

    try:
        return size_bytes(text)
    except ValueError as error:
        raise UserError(f"{option}: {error}", "such as 4096, 64KiB or 8GiB") from None


# Reading traces.


def _open(path: Path, format_: str | None, on_error: str, action: str | None) -> TraceReader:
    from traces.reader import open_trace

    return open_trace(path, format_, on_error_of(on_error), action=action)


@contextmanager
def _trace_errors(option: str = "--format") -> Iterator[None]:
    """Convert errors of `traces`, also about arguments, to UserError; `option` names the format."""
    try:
        with trace_errors(option):
            yield
    except ValueError as error:
        problem, _, known = str(error).partition("; ")
        hint = known.replace("known are ", "known: ") or "see `slo-ctl trace --help`"
        raise UserError(problem, hint) from None


def _with_progress(reader: TraceReader, label: str) -> Iterator[Batch]:
    """The reader's batches, with a bar on stderr where that is a terminal."""
    from slo_ctl.replay.player import batches_of
    from slo_ctl.show.terminal import progress_on_stderr

    with progress_on_stderr(quiet=not sys.stderr.isatty()) as progress:
        yield from batches_of(reader, progress.phase(label, reader.size_bytes, "bytes"))


# What `trace info` prints.


def _summary_json(reader: TraceReader, summary: TraceSummary, wall_s: float) -> dict[str, Any]:
    return {
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


def _summary_lines(reader: TraceReader, summary: TraceSummary, wall_s: float) -> Iterator[str]:
    from traces.batch import PAGE_BYTES

    ops = ", ".join(f"{count:,} {op}" for op, count in summary.records_by_op.items())
    gap_us = summary.mean_gap_ns / 1000
    footprint = numbers.size(summary.footprint_pages * PAGE_BYTES)
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
            f"{counted(summary.footprint_pages, 'page')} ({footprint})",
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
        rows.append(
            ("out of order", f"{counted(summary.backward_records, 'record')} earlier than the one before")
        )
    rows += [("skipped", f"{count:,} x {reason}") for reason, count in sorted(reader.skipped.items())]
    rows += [("note", note) for note in reader.notes]
    rows.append(("read in", f"{wall_s:.2f} s, {summary.records / max(wall_s, 1e-9) / 1e6:.2f} M records/s"))
    yield from (f"{name:<16} {printable(value)}" for name, value in rows)


def _print_volumes(summary: TraceSummary) -> None:
    from slo_ctl.show.terminal import print_rows

    largest = sorted(summary.volumes, key=lambda volume: -volume.records)
    rows = [
        (
            volume.name,
            f"{volume.records:,}",
            numbers.percent(volume.write_records / volume.records),
            numbers.size(volume.read_bytes),
            numbers.size(volume.written_bytes),
            f"{volume.footprint_pages:,}",
            numbers.size(volume.end_bytes),
        )
        for volume in largest[:_SHOWN_VOLUMES]
    ]
    headings = ("VOLUME", "RECORDS", "WRITES", "READ", "WRITTEN", "PAGES", "SIZE")
    typer.echo()
    print_rows(stdout_console(), headings, rows, left=("VOLUME",), folded=("VOLUME",))
    if len(largest) > _SHOWN_VOLUMES:
        typer.echo(f"... and {len(largest) - _SHOWN_VOLUMES:,} more (--json lists all)")
