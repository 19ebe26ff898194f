"""Measure pair by pair until the optimal write size is found, storing each; a rule or Ctrl-C ends it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from lab.paper_drives import LOG_BLOCKS, PAPER_DRIVES, plan_whole
from lab.write_size import (
    Pair,
    Rule,
    WriteSizeRecord,
    WriteSizeStore,
    doubled_sizes,
    next_size,
)
from slo_ctl.base import numbers
from slo_ctl.base.clock import now_text
from slo_ctl.base.errors import UserError
from slo_ctl.base.progress import ProgressSink
from slo_ctl.base.quantity import format_bytes_exact
from slo_ctl.model.measurement import Order
from slo_ctl.profile.fio import FioOptions
from slo_ctl.profile.identity import Identity, IdentitySources
from slo_ctl.profile.session import Span, fill_test_file, open_span
from slo_ctl.profile.store import Measured
from slo_ctl.profile.target import Kind, Target, find_target
from traces.batch import Op

_FIRST_WARM_UP = (Order.RANDOM, Order.SEQUENTIAL, Order.RANDOM)
_WARM_UP = (Order.RANDOM,)


class PassWriter(Protocol):
    """Writes the whole span."""

    def write_pass(self, order: Order, request_bytes: int, number: int) -> float:
        """Write every request of the span once, in that order; returns the throughput in bytes/s.

        `number` distinguishes passes: no two random ones come in the same order.
        """


@dataclass(slots=True)
class Search:
    """Result of a search."""

    pairs: list[Pair] = field(default_factory=list)
    """Earlier pairs, followed by the new ones."""
    passes: int = 0
    """Passes over the span, including those that are not measured."""
    interrupted: bool = False


def passes_at_most(sizes: int, rule: Rule) -> int:
    """Maximum number of passes over the span in a search."""
    return len(_FIRST_WARM_UP) + (sizes - 1) * len(_WARM_UP) + 2 * sizes * rule.max_repetitions


def search(
    writer: PassWriter,
    sizes_bytes: Sequence[int],
    rule: Rule,
    before: Sequence[Pair],
    progress: ProgressSink,
    keep: Callable[[Search], None],
) -> Search:
    """Measure pair after pair until the search is complete; `keep` gets all pairs after each.

    Before the first pair of a size the span is written at random at that size without being measured, and at
    the first size once more in both orders: each measured pass then overwrites the data of the other order. A
    page-mapped drive has the same GC after both (without this, a first sequential pass seems up to 29 %
    faster), and log blocks filled by smaller writes are merged. KeyboardInterrupt ends the search with the
    measured pairs; other exceptions are passed on.
    """
    found = Search(list(before))
    last: int | None = None
    phase = None
    try:
        while (size := next_size(found.pairs, sizes_bytes, rule)) is not None:
            if size != last:
                if phase is not None:
                    phase.done()
                warm_up = _FIRST_WARM_UP if last is None else _WARM_UP
                phase = progress.phase(
                    f"writes of {format_bytes_exact(size)}",
                    len(warm_up) + 2 * rule.max_repetitions,
                    "passes",
                )
                for order in warm_up:
                    _write(writer, order, size, found)
                    phase.advance(1)
                last = size
            sequential = _write(writer, Order.SEQUENTIAL, size, found)
            random = _write(writer, Order.RANDOM, size, found)
            pair = Pair(size_bytes=size, sequential_bytes_s=sequential, random_bytes_s=random)
            found.pairs.append(pair)
            keep(found)
            if phase is not None:
                phase.advance(2)
    except KeyboardInterrupt:
        found.interrupted = True
    finally:
        if phase is not None:
            phase.done()
        keep(found)
    return found


def _write(writer: PassWriter, order: Order, size: int, found: Search) -> float:
    found.passes += 1
    return writer.write_pass(order, size, found.passes)


# Finding a target's optimal write size: check, confirm, announce the writes, measure, store.

DEFAULT_BYTES = 1 << 30
"""Section IV.A: uses all log blocks."""
DEFAULT_LOW_BYTES = 8 << 10
DEFAULT_HIGH_BYTES = 32 << 20
DEFAULT_RULE = Rule()
LEAST_REQUESTS = 16
"""Minimum requests of the largest size in a pass: fewer are hardly in random order."""


@dataclass(frozen=True, slots=True)
class Request:
    """Options of the user."""

    target: str
    """The specification of a drive that is emulated in virtual time."""
    span_bytes: int = DEFAULT_BYTES
    low_bytes: int = DEFAULT_LOW_BYTES
    high_bytes: int = DEFAULT_HIGH_BYTES
    rule: Rule = DEFAULT_RULE
    queue_depth: int = 1
    seed: int = 1
    allow_write: str | None = None
    fresh: bool = False


def check_sizes(request: Request) -> None:
    """Raise UserError unless sizes double from the lowest to the highest, and passes have enough requests of
    the latter."""
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


def find_on_emulated(request: Request, progress: ProgressSink) -> Measured[WriteSizeRecord]:
    """Search on an emulated drive in virtual time; nothing is stored. Raises UserError."""
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
    return _run(request, _empty(request, identity), drive, progress, None)


def find_on_target(
    request: Request, around: IdentitySources, store: WriteSizeStore, progress: ProgressSink
) -> Measured[WriteSizeRecord]:
    """Search on a target with fio; measurements are stored in `store` after every pair.

    Raises UserError if it cannot be measured, before anything is changed, and if fio fails.
    """
    check_sizes(request)
    with writable_span(request, around, progress) as span:
        begun = _begin(request, store, span.identity, progress)
        if next_size(begun.pair, begun.sizes_bytes, begun.rule) is None:
            progress.note("the stored search is complete: --fresh measures again")
            return Measured(begun, False)
        most = passes_at_most(len(begun.sizes_bytes), request.rule) * request.span_bytes
        made = prepare_writes(span, most, progress)
        begun = begun.model_copy(update={"written_bytes": begun.written_bytes + made})
        return _run(request, begun, span.fio, progress, store)


@contextmanager
def writable_span(request: Request, around: IdentitySources, progress: ProgressSink) -> Iterator[Span]:
    """The beginning of a target that may be overwritten; a file created there is removed at the end.

    Raises UserError if it must not or cannot be written, before anything is changed.
    """
    target = find_target(request.target)
    _check_target(request, target)
    options = FioOptions(request.span_bytes, request.seed, request.queue_depth)
    with open_span(target, options, request.allow_write, around, progress) as span:
        try:
            yield span
        finally:
            span.fio.remove()


def prepare_writes(span: Span, most_bytes: int, progress: ProgressSink) -> int:
    """Announce how much will be written at most, and create a missing file; returns the bytes written."""
    progress.note(
        f"{span.target.given} will be overwritten: {numbers.size(most_bytes)} ({most_bytes} bytes) are "
        "written at most"
    )
    made = span.fio.prepare()
    if made:
        fill_test_file(span.fio, made, progress)
    return made


def _check_target(request: Request, target: Target) -> None:
    given = request.target
    if not target.is_test_file and request.allow_write is None:
        raise UserError(f"{given} would be overwritten", f"allow it with --allow-write {given}")
    if request.low_bytes % target.unit_bytes:
        raise UserError(
            f"--sizes: {format_bytes_exact(request.low_bytes)} is not a multiple of the {target.unit_bytes} "
            f"bytes that {given} is written in",
            "begin with a larger size",
        )
    if target.size_bytes is not None and target.size_bytes < request.span_bytes:
        kind = "file" if target.kind is Kind.FILE else "device"
        raise UserError(
            f"{given}: the {kind} has {format_bytes_exact(target.size_bytes)}, and "
            f"{format_bytes_exact(request.span_bytes)} are to be written",
            "lower --bytes, or the upper end of --sizes",
        )


def _begin(
    request: Request, store: WriteSizeStore, identity: Identity, progress: ProgressSink
) -> WriteSizeRecord:
    """The stored search to continue, or an empty one. Raises UserError for one with other settings."""
    empty = _empty(request, identity)
    before = store.begin(empty, request.fresh, progress)
    if before is None:
        return empty
    sizes = empty.sizes_bytes
    kept = tuple(row for row in before.pair if row.size_bytes in sizes)
    if kept:
        progress.note(f"continuing with {len(kept)} pairs that were measured before")
    return empty.model_copy(
        update={"created": before.created, "written_bytes": before.written_bytes, "pair": kept}
    )


def _empty(request: Request, identity: Identity) -> WriteSizeRecord:
    now = now_text()
    return WriteSizeRecord(
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
    begun: WriteSizeRecord,
    writer: PassWriter,
    progress: ProgressSink,
    store: WriteSizeStore | None,
) -> Measured[WriteSizeRecord]:
    record = begun

    def keep(found: Search) -> None:
        nonlocal record
        if not found.passes:
            return
        changes = {
            "pair": tuple(found.pairs),
            "written_bytes": begun.written_bytes + found.passes * request.span_bytes,
        }
        record = record.model_copy(update=changes)
        if record.pair and store is not None:
            record = store.keep(record)

    found = search(writer, begun.sizes_bytes, request.rule, begun.pair, progress, keep)
    return Measured(record, found.interrupted)


# Writing to an emulated drive in virtual time.


if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ftl_emul import Device

    Times = NDArray[np.float64]

_FILL_BYTES = 1 << 20
_QUEUE_DEPTH = 1
"""The paper writes synchronously."""


class EmulatedDrive:
    """A PassWriter: an emulated drive in virtual time, which was written completely before. EMULATED."""

    def __init__(self, spec: str, span_bytes: int, seed: int = 1) -> None:
        """`spec`: a name of `PAPER_DRIVES`, or keys of `slo-ctl replay --device`.

        Raises UserError for an impossible drive, and for one that is smaller than the span.
        """
        plan = plan_whole(
            PAPER_DRIVES.get(spec, spec),
            "drive",
            where="--emulated",
            too_large="is more than can be written all over before it is measured",
        )
        if spec in PAPER_DRIVES:
            plan = replace(plan, ops_blocks=(LOG_BLOCKS,))
        size = plan.total_pages * plan.config.page_bytes
        if size < span_bytes:
            raise UserError(
                f"--emulated {spec}: the drive has {format_bytes_exact(size)}, and "
                f"{format_bytes_exact(span_bytes)} are to be written",
                "lower --bytes, or give the drive a larger size=",
            )
        self.spec = PAPER_DRIVES.get(spec, spec)
        self.block_bytes = plan.config.block_pages * plan.config.page_bytes
        """A clustered block: the size that the search should find if blocks are merged."""
        self._span_bytes = span_bytes
        self._seed = seed
        self._device: Device
        self._device, tenants = plan.create(isolated=True)
        self._tenant = tenants[0]
        starts = np.arange(0, size, _FILL_BYTES, dtype=np.uint64)
        lengths = np.minimum(_FILL_BYTES, size - starts).astype(np.uint64)
        who = np.full(len(starts), self._tenant, dtype=np.uint16)
        self._device.apply(who, _writes(len(starts)), starts, lengths)

    @property
    def page_writes(self) -> int:
        """Pages written so far, without merges and GC."""
        return self._device.counters(self._tenant).host_page_writes

    def write_pass(self, order: Order, request_bytes: int, number: int) -> float:
        """Write every request of the span once, each after the end of the previous one; returns bytes/s."""
        offsets = self._offsets(order, request_bytes, number)
        begun_ns = self._device.now_ns
        self._device.open_queue(self._tenant, _QUEUE_DEPTH)
        self._feed(offsets, request_bytes)
        self._device.end_input(self._tenant)
        self._device.run()
        return len(offsets) * request_bytes / ((self._device.now_ns - begun_ns) / 1e9)

    def response_times_us(self, order: Order, request_bytes: int, number: int) -> Times:
        """The same, with the response time of every request, in the order of the requests."""
        offsets = self._offsets(order, request_bytes, number)
        ended_ns = np.empty(len(offsets) + 1, dtype=np.int64)
        ended_ns[0] = self._device.now_ns
        self._device.open_queue(self._tenant, _QUEUE_DEPTH)
        for index in range(len(offsets)):
            self._feed(offsets[index : index + 1], request_bytes)
            self._device.run()
            ended_ns[index + 1] = self._device.now_ns
        self._device.end_input(self._tenant)
        self._device.run()
        return np.diff(ended_ns) / 1e3

    def _offsets(self, order: Order, request_bytes: int, number: int) -> NDArray[np.uint64]:
        count = self._span_bytes // request_bytes
        if order is Order.RANDOM:
            indices = np.random.default_rng([self._seed, number]).permutation(count)
        else:
            indices = np.arange(count)
        return indices.astype(np.uint64) * np.uint64(request_bytes)

    def _feed(self, offsets: NDArray[np.uint64], request_bytes: int) -> None:
        count = len(offsets)
        now = np.zeros(count, dtype=np.int64)
        lengths = np.full(count, request_bytes, dtype=np.uint64)
        self._device.feed(self._tenant, now, _writes(count), offsets, lengths)


def _writes(count: int) -> NDArray[np.uint8]:
    return np.full(count, int(Op.WRITE), dtype=np.uint8)
