"""`slo-ctl trace convert`: a trace in another format, cut, filtered, scaled or moved on the way."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slo_ctl.cli.say import remark
from slo_ctl.cli.trace_input import ACTION, ON_ERROR, open_named, told, with_progress
from slo_ctl.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from traces.batch import Batch, Op
    from traces.reader import TraceReader
    from traces.remap import Remap

_NAMED_VOLUMES = 20
_REMAPS = "modulo, scale, partition, per-volume, compact or first-touch"
_JOINING = ("partition", "per-volume", "compact", "first-touch")
"""Remappings that leave one volume."""
_NS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}


def register_with_traces(app: typer.Typer) -> None:
    """Add the command to `slo-ctl trace`."""
    app.command("convert")(convert)


def convert(
    source: Annotated[Path, typer.Argument(metavar="IN", help="The trace to read.")],
    target: Annotated[
        Path, typer.Argument(metavar="OUT", help="The file to write; .gz, .xz, .zst are compressed.")
    ],
    from_: Annotated[str | None, typer.Option("--from", help="Format of IN. [default: found]")] = None,
    to: Annotated[str, typer.Option("--to", help="Format of OUT: slo-ctl, spc, msr or iolog.")] = "slo-ctl",
    volume: Annotated[list[str] | None, typer.Option(help="Keep this volume only. Repeatable.")] = None,
    only: Annotated[
        str | None, typer.Option(metavar="OP,...", help="Keep read, write, trim, ... only.")
    ] = None,
    start: Annotated[str, typer.Option(metavar="TIME", help="Begin there (90s, 500ms).")] = "0s",
    stop: Annotated[str | None, typer.Option(metavar="TIME", help="End before that time.")] = None,
    monotonic: Annotated[bool, typer.Option(help="Raise times that step backwards.")] = False,
    max_gap: Annotated[
        str | None, typer.Option(metavar="TIME", help="Shorten longer pauses to this.")
    ] = None,
    scale: Annotated[float, typer.Option(help="Multiply times; 0.5 is twice as fast.")] = 1.0,
    loops: Annotated[int, typer.Option(help="Repeat the trace so many times.")] = 1,
    align: Annotated[str | None, typer.Option(metavar="SIZE", help="Widen requests to whole units.")] = None,
    shift: Annotated[str | None, typer.Option(metavar="SIZE", help="Add this to every offset.")] = None,
    remap: Annotated[str | None, typer.Option(metavar="HOW", help=f"Move requests: {_REMAPS}.")] = None,
    size: Annotated[str | None, typer.Option(metavar="SIZE", help="Device size for --remap.")] = None,
    on_error: Annotated[str, ON_ERROR] = "raise",
    action: Annotated[str, ACTION] = "Q",
    force: Annotated[bool, typer.Option(help="Overwrite OUT.")] = False,
) -> None:
    """Write a trace in another format, cut, filtered, scaled or moved on the way.

    The options apply in the order of this list. OUT is written whole or not at all.
    """
    from slo_ctl.whole_file import remove_leftovers
    from traces.timewarp import loop
    from traces.writing import TraceWriter

    with told():
        _finite("--scale", scale)
        remove_leftovers(target.parent, target.name)
        writer = TraceWriter(target, to, overwrite=force)
        reader = open_named(source, from_, on_error, action)
        selected = _Selected(
            reader,
            volumes=tuple(dict.fromkeys(volume or ())),
            ops=_ops(only),
            start_ns=_duration_ns("--start", start),
            stop_ns=_duration_ns("--stop", stop) if stop is not None else None,
            monotonic=monotonic,
            max_gap_ns=_duration_ns("--max-gap", max_gap) if max_gap is not None else None,
            scale=scale,
        )
        moves = _moves(selected, align, shift, remap, size)
        selected.label = f"converting {source.name}"
        with writer:
            for batch in loop(_Moved(selected, moves), loops):
                writer.write(batch, ["0"] if remap in _JOINING else selected.names)
            if not writer.records:
                raise UserError(f"{source}: no record is left to write", _nothing_left(reader, selected))
    for reason, count in sorted(reader.skipped.items()):
        remark(f"skipped {count:,} x {reason}")
    for note in reader.notes:
        remark(f"note: {note}")
    remark(f"{writer.records:,} records written to {target}")


@dataclass
class _Selected:
    """The records of a trace that options select, at their new times; every iteration reads the file anew."""

    reader: TraceReader
    volumes: tuple[str, ...]
    ops: frozenset[Op] | None
    start_ns: int
    stop_ns: int | None
    monotonic: bool
    max_gap_ns: int | None
    scale: float
    label: str = "looking through the trace"

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
        return apply(with_progress(self.reader, self.label), *steps)


@dataclass(frozen=True)
class _Moved:
    """The selected records after remapping."""

    selected: _Selected
    moves: list[Remap]

    def __iter__(self) -> Iterator[Batch]:
        from traces.remap import apply

        return apply(self.selected, *self.moves)


def _moves(
    selected: _Selected, align: str | None, shift: str | None, remap: str | None, size: str | None
) -> list[Remap]:
    from traces.remap import Align, Shift

    moves: list[Remap] = []
    if align is not None:
        moves.append(Align(_size("--align", align)))
    if shift is not None:
        moves.append(Shift(_size("--shift", shift)))
    if remap is None:
        if size is not None:
            raise UserError("--size has no meaning without --remap", f"add --remap {_REMAPS}")
        return moves
    moves.append(_remap(_Moved(selected, list(moves)), remap, size))
    return moves


def _remap(trace: _Moved, remap: str, size: str | None) -> Remap:
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
            return Scale(size_bytes, max((volume.end_bytes for volume in summary.volumes), default=1))
        return Partition.equal(size_bytes, len(trace.selected.names))
    if size is not None:
        raise UserError(
            f"--size has no meaning with --remap {remap}", "the result is as large as it needs to be"
        )
    match remap:
        case "per-volume":
            ends = {
                volume.name: volume.end_bytes for volume in summarise(trace, trace.selected.names).volumes
            }
            return Partition(tuple(max(ends.get(name, 1), 1) for name in trace.selected.names))
        case "compact":
            return Compact(trace, "sorted")
        case "first-touch":
            return Compact(trace, "first-touch")
        case _:
            raise UserError(f"--remap {remap} is unknown", f"known are {_REMAPS}")


def _nothing_left(reader: TraceReader, selected: _Selected) -> str:
    missing = [name for name in selected.volumes if name not in reader.volumes]
    if missing:
        shown = ", ".join(list(reader.volumes)[:_NAMED_VOLUMES])
        return f"there is no volume '{missing[0]}'; there are {shown}"
    return "widen --start, --stop, --only or --volume"


def _ops(only: str | None) -> frozenset[Op] | None:
    from traces.batch import Op

    if only is None:
        return None
    known = {op.name.lower().replace("_", "-"): op for op in Op}
    names = [name.strip() for name in only.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise UserError(f"--only: '{name}' is no operation", f"known are {', '.join(known)}")
    return frozenset(known[name] for name in names)


def _duration_ns(option: str, text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ns|us|ms|s|m|h)?", text.strip())
    if not match:
        raise UserError(f"{option}: '{text}' is no time", "like 90s, 500ms or 2h")
    value = Decimal(match[1]) * _NS[match[2] or "s"]
    if value > 2**62:
        raise UserError(f"{option}: '{text}' is longer than 146 years", "like 90s, 500ms or 2h")
    return int(value)


def _size(option: str, text: str) -> int:
    from traces.parameters import size_bytes

    try:
        return size_bytes(text)
    except ValueError as error:
        raise UserError(f"{option}: {error}", "like 4096, 64KiB or 8GiB") from None


def _finite(option: str, value: float) -> None:
    if not math.isfinite(value) or value <= 0:
        raise UserError(f"{option}: {value} is not a positive number", "0.5 replays twice as fast")
