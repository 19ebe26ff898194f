"""Finding a target's logical block from beginning to end: look, ask, say what is written, measure, keep."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slo_ctl.errors import UserError
from slo_ctl.quantity import format_bytes_exact
from slo_ctl.serra.fio import FioOptions
from slo_ctl.serra.identity import Identity
from slo_ctl.serra.logical_block.emulated import EmulatedDrive
from slo_ctl.serra.logical_block.record import LogicalBlockRecord, rows
from slo_ctl.serra.logical_block.rule import Rule, doubled_sizes, next_size
from slo_ctl.serra.logical_block.search import passes_at_most, search
from slo_ctl.serra.opened import fill_made_file, open_span, tell_stale
from slo_ctl.serra.session import now_text
from slo_ctl.serra.target import Kind, find_target
from slo_ctl.show import numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from slo_ctl.replay.progress import ProgressSink
    from slo_ctl.serra.identity import Surroundings
    from slo_ctl.serra.logical_block.record import LogicalBlockStore
    from slo_ctl.serra.logical_block.search import PassWriter, Search
    from slo_ctl.serra.opened import Span
    from slo_ctl.serra.target import Target

DEFAULT_BYTES = 1 << 30
"""Section IV.A: uses up all log blocks."""
DEFAULT_LOW_BYTES = 8 << 10
DEFAULT_HIGH_BYTES = 32 << 20
DEFAULT_RULE = Rule()
LEAST_REQUESTS = 16
"""Of the largest size in a pass: fewer are hardly in random order."""


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked for."""

    target: str
    """A drive's specification where it is emulated in virtual time."""
    span_bytes: int = DEFAULT_BYTES
    low_bytes: int = DEFAULT_LOW_BYTES
    high_bytes: int = DEFAULT_HIGH_BYTES
    rule: Rule = DEFAULT_RULE
    queue_depth: int = 1
    seed: int = 1
    allow_write: str | None = None
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """A search, and how it ended."""

    record: LogicalBlockRecord
    interrupted: bool


def check_sizes(request: Request) -> None:
    """Raise UserError unless sizes double from the lowest to the highest, and passes hold enough of the
    latter."""
    low, high = format_bytes_exact(request.low_bytes), format_bytes_exact(request.high_bytes)
    try:
        doubled_sizes(request.low_bytes, request.high_bytes)
    except ValueError:
        raise UserError(
            f"--sizes: doubling {low} never gives {high}", "write LOW-HIGH, such as 8KiB-32MiB"
        ) from None
    if request.span_bytes < LEAST_REQUESTS * request.high_bytes or request.span_bytes % request.high_bytes:
        least = format_bytes_exact(LEAST_REQUESTS * request.high_bytes)
        raise UserError(
            f"--bytes: {format_bytes_exact(request.span_bytes)} are too few for requests of {high}",
            f"give a multiple of {high}, {least} or more, or end --sizes sooner",
        )


def find_on_emulated(request: Request, progress: ProgressSink) -> Result:
    """Search on an emulated drive in virtual time; nothing is kept. Raises UserError."""
    check_sizes(request)
    drive = EmulatedDrive(request.target, request.span_bytes, request.seed)
    identity = Identity(
        model="EMULATED drive, virtual time",
        serial=drive.spec,
        firmware="",
        place=drive.spec,
        kernel="",
        scheduler="",
    )
    return _run(request, _empty(request, identity), drive, progress, lambda _record: None)


def find_on_target(
    request: Request, around: Surroundings, store: LogicalBlockStore, progress: ProgressSink
) -> Result:
    """Search on a target with fio; what was measured is kept in `store` after every pair.

    Raises UserError for what cannot be measured, before anything is touched, and when fio fails.
    """
    check_sizes(request)
    with writable_span(request, around, progress) as span:
        begun = _begin(request, store, span.identity, progress)
        if next_size(begun.pairs(), begun.sizes_bytes, begun.rule) is None:
            progress.note("the stored search is complete: --fresh measures anew")
            return Result(begun, False)
        most = passes_at_most(len(begun.sizes_bytes), request.rule) * request.span_bytes
        made = prepare_writes(span, most, progress)
        begun = begun.model_copy(update={"written_bytes": begun.written_bytes + made})
        return _run(request, begun, span.fio, progress, store.save)


@contextmanager
def writable_span(request: Request, around: Surroundings, progress: ProgressSink) -> Iterator[Span]:
    """The beginning of a target that may be overwritten; a file made there is removed in the end.

    Raises UserError for what must not be or cannot be written, before anything is touched.
    """
    target = find_target(request.target)
    _check_target(request, target)
    options = FioOptions(request.span_bytes, request.seed, request.queue_depth)
    with open_span(target, options, request.allow_write, around) as span:
        tell_stale(span.stale, progress)
        try:
            yield span
        finally:
            span.fio.remove()


def prepare_writes(span: Span, most_bytes: int, progress: ProgressSink) -> int:
    """Say how much will be written at the most, and make the file that is to be; returns what that wrote."""
    progress.note(
        f"{span.target.given} will be overwritten: {numbers.size(most_bytes)} ({most_bytes} bytes) are "
        "written at the most"
    )
    made = span.fio.prepare()
    if made:
        fill_made_file(span.fio, made, progress)
    return made


def _check_target(request: Request, target: Target) -> None:
    given = request.target
    if not target.ours and request.allow_write is None:
        raise UserError(f"{given} would be overwritten", f"allow it with --allow-write {given}")
    if request.low_bytes % target.unit_bytes:
        raise UserError(
            f"--sizes: {format_bytes_exact(request.low_bytes)} is no multiple of the {target.unit_bytes} "
            f"bytes that {given} is written in",
            "begin with a larger size",
        )
    if target.size_bytes is not None and target.size_bytes < request.span_bytes:
        kind = "file" if target.kind is Kind.FILE else "device"
        raise UserError(
            f"{given}: the {kind} has {format_bytes_exact(target.size_bytes)}, and "
            f"{format_bytes_exact(request.span_bytes)} are to be written",
            "lower --bytes, and end --sizes sooner where that asks for it",
        )


def _begin(
    request: Request, store: LogicalBlockStore, identity: Identity, progress: ProgressSink
) -> LogicalBlockRecord:
    """The stored search to go on with, or an empty one. Raises UserError for one measured otherwise."""
    empty = _empty(request, identity)
    found = None if request.fresh else store.find(identity)
    if found is None:
        return empty
    if found.stale:
        progress.note(f"the stored search is {found.stale}; measuring anew")
        return empty
    before = found.profile
    for name, was, wanted in (
        ("--bytes", before.span_bytes, request.span_bytes),
        ("--queue-depth", before.queue_depth, request.queue_depth),
    ):
        if was != wanted:
            raise UserError(
                f"the stored search on {request.target} was measured with {name} {was}, not {wanted}",
                f"give {name} {was} to go on with it, or --fresh to replace it",
            )
    sizes = empty.sizes_bytes
    kept = tuple(row for row in before.pair if row.size_bytes in sizes)
    if kept:
        progress.note(f"going on with {len(kept)} pairs that were measured before")
    return empty.model_copy(
        update={"created": before.created, "written_bytes": before.written_bytes, "pair": kept}
    )


def _empty(request: Request, identity: Identity) -> LogicalBlockRecord:
    now = now_text()
    return LogicalBlockRecord(
        identity=identity,
        target=request.target,
        created=now,
        updated=now,
        span_bytes=request.span_bytes,
        low_bytes=request.low_bytes,
        high_bytes=request.high_bytes,
        queue_depth=request.queue_depth,
        tolerance=request.rule.tolerance,
        confidence=request.rule.confidence,
        min_repetitions=request.rule.min_repetitions,
        max_repetitions=request.rule.max_repetitions,
    )


def _run(
    request: Request,
    begun: LogicalBlockRecord,
    writer: PassWriter,
    progress: ProgressSink,
    save: Callable[[LogicalBlockRecord], object],
) -> Result:
    record = begun

    def keep(found: Search) -> None:
        nonlocal record
        if not found.passes:
            return
        record = begun.model_copy(
            update={
                "pair": rows(found.pairs),
                "updated": now_text(),
                "written_bytes": begun.written_bytes + found.passes * request.span_bytes,
            }
        )
        if record.pair:
            save(record)

    found = search(writer, begun.sizes_bytes, request.rule, begun.pairs(), progress, keep)
    return Result(record, found.interrupted)
