"""Profiling a target from beginning to end: look, ask, prepare, measure, keep."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from slo_ctl.base import numbers
from slo_ctl.base.errors import UserError
from slo_ctl.base.progress import ProgressSink
from slo_ctl.base.quantity import format_bytes_exact
from slo_ctl.decide.request_sizes import DEFAULT_INTERVALS, Interval, check_intervals, draw_points
from slo_ctl.model.measurement import RAND_WRITE, SEQ_WRITE, Access, Direction, Measurement, accesses_of
from slo_ctl.profile.consent import in_use, permission
from slo_ctl.profile.fio import Fio, FioOptions
from slo_ctl.profile.identity import Identity, IdentitySources, identify
from slo_ctl.profile.store import Conditioning, Measured, Profile, ProfileStore, now_text, rows
from slo_ctl.profile.sweep import Ended, StoppingRule, SweepPlan, next_task
from slo_ctl.profile.sweep import run as measure
from slo_ctl.profile.target import Target, check_direct, check_space, find_target, remove_stale, span_bytes

# Bringing what is written to its steady state first: a fresh SSD is faster than it will ever be again.
#
# After SNIA's Solid State Storage Performance Test Specification (Enterprise, 2.0.1, sections 3.3 and 3.4):
# the span is written twice in sequence, then at random in rounds until the last five rounds' throughput stays
# within 20 % of its average, and its trend within 10 %.

PASSES = 2
ROUNDS = 25
WINDOW = 5
MAX_EXCURSION = 0.20
MAX_TREND = 0.10
_BATCH_BYTES = 256 << 20
"""Written by one run of the benchmark: progress and interruption come between."""
_SEQUENTIAL_BYTES = 1 << 20
_RANDOM_BYTES = 64 << 10


class BatchWriter(Protocol):
    """Something that writes to the target."""

    def write_batch(self, access: Access, request_bytes: int, start_bytes: int, length_bytes: int) -> float:
        """Write that much; returns the throughput in bytes/s."""


@dataclass(frozen=True, slots=True)
class Conditioned:
    """What was done."""

    written_bytes: int
    steady: bool


def at_most_bytes(span_bytes: int) -> int:
    """The most that `to_steady_state` writes."""
    return (PASSES + ROUNDS) * span_bytes


def is_steady(rounds: Sequence[float]) -> bool:
    """Whether the throughput of the last rounds has settled."""
    if len(rounds) < WINDOW:
        return False
    last = np.array(rounds[-WINDOW:], dtype=np.float64)
    mean = float(last.mean())
    slope = float(np.polyfit(np.arange(WINDOW), last, 1)[0])
    return (
        float(last.max() - last.min()) <= MAX_EXCURSION * mean
        and abs(slope) * (WINDOW - 1) <= MAX_TREND * mean
    )


def fill(writer: BatchWriter, span_bytes: int, advance: Callable[[float], None]) -> int:
    """Write the span once in sequence, so that reads find data; returns the bytes."""
    for start in range(0, span_bytes, _BATCH_BYTES):
        length = min(_BATCH_BYTES, span_bytes - start)
        writer.write_batch(SEQ_WRITE, min(_SEQUENTIAL_BYTES, length), start, length)
        advance(length)
    return span_bytes


def to_steady_state(writer: BatchWriter, span_bytes: int, advance: Callable[[float], None]) -> Conditioned:
    """Write until throughput has settled, or ROUNDS rounds were written."""
    written = sum(fill(writer, span_bytes, advance) for _ in range(PASSES))
    rounds: list[float] = []
    for number in range(ROUNDS):
        rounds.append(writer.write_batch(RAND_WRITE, _RANDOM_BYTES, number * _RANDOM_BYTES, span_bytes))
        written += span_bytes
        advance(span_bytes)
        if is_steady(rounds):
            return Conditioned(written, True)
    return Conditioned(written, False)


# A target that may be measured: looked at, allowed, and with data where it is read.


@dataclass(frozen=True, slots=True)
class Opened:
    """A target, and how it is measured."""

    target: Target
    identity: Identity
    fio: Fio
    span_bytes: int
    intervals: tuple[Interval, ...]
    sizes_bytes: tuple[int, ...]
    directions: tuple[Direction, ...]
    """Without permission to write only reads."""
    stale: tuple[Path, ...] = ()
    """Files that killed profiles had left there, and that were removed."""

    def report_stale(self, progress: ProgressSink) -> None:
        """Say what was found, what cannot be measured, and what disturbs."""
        tell_stale(self.stale, progress)
        if Direction.WRITE in self.directions:
            return
        given = self.target.given
        progress.note(f"{given} is only read: ratios of writes need --allow-write {given}")
        if in_use(self.target):
            progress.note(f"{given} is in use: others' I/O is in the times")

    def prepare(self, precondition: bool, before: Conditioning, progress: ProgressSink) -> Conditioning:
        """Have data where it is read, and steady writes where that is asked for, telling how much is
        written."""
        new = self.fio.prepare()
        if precondition:
            most = at_most_bytes(self.span_bytes)
            progress.note(
                f"preconditioning: up to {numbers.size(most)} ({most} bytes) will be written to "
                f"{self.target.given}"
            )
            phase = progress.phase("preconditioning", most, "bytes")
            done = to_steady_state(self.fio, self.span_bytes, phase.advance)
            phase.done()
            if not done.steady:
                progress.note(f"writes had not settled after {numbers.size(done.written_bytes)}")
            return Conditioning(written_bytes=before.written_bytes + done.written_bytes, steady=done.steady)
        if not new:
            return before
        fill_made_file(self.fio, new, progress)
        return before.model_copy(update={"written_bytes": before.written_bytes + new})


def tell_stale(stale: Iterable[Path], progress: ProgressSink) -> None:
    """Say which files of killed profiles were removed."""
    for path in stale:
        progress.note(f"{path} was left by a profile that was killed: removed")


def fill_made_file(fio: Fio, size_bytes: int, progress: ProgressSink) -> None:
    """Write a file that was made, once, telling so."""
    progress.note(
        f"a file of {format_bytes_exact(size_bytes)} is made and written once, and removed in the end"
    )
    phase = progress.phase("writing the file", size_bytes, "bytes")
    fill(fio, size_bytes, phase.advance)
    phase.done()


@dataclass(frozen=True, slots=True)
class Span:
    """The beginning of a target, ready for fio."""

    target: Target
    identity: Identity
    fio: Fio
    writable: bool
    stale: tuple[Path, ...]
    """Files that killed profiles had left there, and that were removed."""


@contextmanager
def open_span(
    target: Target, options: FioOptions, allow_write: str | None, around: IdentitySources
) -> Iterator[Span]:
    """See to what may be done to a target; a device to be written is claimed until the end.

    Files that killed profiles left there are removed. Raises UserError for what cannot be measured, before
    anything else is touched.
    """
    # Before the space is looked at: they may have it.
    stale = remove_stale(target.path.parent) if target.ours and target.path is not None else ()
    check_space(target, options.span_bytes)
    check_direct(target)
    fio = Fio(target, options)
    identity = identify(target, around)
    with permission(target, allow_write) as writable:
        yield Span(target, identity, fio, writable, tuple(stale))


@contextmanager
def open_target(request: ProfileRequest, around: IdentitySources) -> Iterator[Opened]:
    """Look at a target that is to be profiled, and open it as `open_span` does.

    Raises UserError for what cannot be profiled, before anything else is touched.
    """
    target = find_target(request.target)
    intervals = check_intervals(request.intervals, target.unit_bytes)
    sizes = draw_points(intervals, request.points, request.seed)
    span = span_bytes(target, request.file_bytes, intervals[-1].high_bytes)
    options = FioOptions(span, request.seed, request.queue_depth)
    with open_span(target, options, request.allow_write, around) as opened:
        if request.precondition and not opened.writable:
            raise UserError(
                f"--precondition writes to {request.target}", f"allow it with --allow-write {request.target}"
            )
        directions = tuple(Direction) if opened.writable else (Direction.READ,)
        yield Opened(
            target, opened.identity, opened.fio, span, intervals, tuple(sizes), directions, opened.stale
        )


DEFAULT_FILE_BYTES = 256 << 20
DEFAULT_POINTS = 3
DEFAULT_TEST_S = 1.0
DEFAULT_RULE = StoppingRule()


@dataclass(frozen=True, slots=True)
class ProfileRequest:
    """Options of the user."""

    target: str
    intervals: tuple[Interval, ...] = DEFAULT_INTERVALS
    points: int = DEFAULT_POINTS
    """Sizes measured of each interval; the third and more show whether a line fits."""
    rule: StoppingRule = DEFAULT_RULE
    file_bytes: int = DEFAULT_FILE_BYTES
    test_s: float | None = DEFAULT_TEST_S
    budget_s: float | None = None
    queue_depth: int = 1
    seed: int = 1
    allow_write: str | None = None
    precondition: bool = False
    fresh: bool = False
    """Measure again even where a valid profile could be refined."""


def profile_target(
    request: ProfileRequest, around: IdentitySources, store: ProfileStore, progress: ProgressSink
) -> Measured[Profile]:
    """Profile a target; what was measured is kept in `store` after every size and at the end, however it
    ends.

    Raises UserError for what cannot be profiled, before anything is touched, and when fio fails.
    """
    with open_target(request, around) as opened:
        begun = begin_profile(request, store, opened.identity, opened.span_bytes, opened.intervals, progress)
        opened.report_stale(progress)
        return _Session(request, store, progress, opened).run(begun)


class _Session:
    def __init__(
        self, request: ProfileRequest, store: ProfileStore, progress: ProgressSink, opened: Opened
    ) -> None:
        self._request = request
        self._store = store
        self._progress = progress
        self._opened = opened

    def run(self, begun: Profile) -> Measured[Profile]:
        profile = begun

        def keep(measurements: Sequence[Measurement]) -> None:
            nonlocal profile
            if len(measurements) == len(profile.measurement):
                return
            profile = self._store.keep(profile, measurement=rows(measurements))

        plan = plan_for(self._request, begun, self._opened.sizes_bytes, self._opened.directions)
        if is_precise(plan, begun, self._progress):
            return Measured(begun, False)
        try:
            profile = profile.model_copy(update={"conditioning": self._prepared(profile.conditioning)})
            session = measure(plan, self._opened.fio, begun.measurements(), self._progress, keep)
        finally:
            self._opened.fio.remove()
        profile = ended_profile(profile, begun, session.ended)
        if profile.measurement:
            self._store.save(profile)
        return Measured(profile, session.ended is Ended.INTERRUPTED)

    def _prepared(self, before: Conditioning) -> Conditioning:
        return self._opened.prepare(self._request.precondition, before, self._progress)


def plan_for(
    request: ProfileRequest, begun: Profile, sizes_bytes: Sequence[int], directions: tuple[Direction, ...]
) -> SweepPlan:
    """Measurements that continue a profile."""
    rule = request.rule
    if begun.complete and request.budget_s is not None:
        # Precise already, and time was given all the same: to make it more so.
        rule = replace(rule, precision=0.0, max_repetitions=1_000_000)
    return SweepPlan(sizes_bytes, accesses_of(directions), rule, request.test_s, request.budget_s)


def is_precise(plan: SweepPlan, begun: Profile, progress: ProgressSink) -> bool:
    """Whether there is nothing to do; says so."""
    if next_task(begun.measurements(), plan.sizes_bytes, plan.accesses, plan.rule) is not None:
        return False
    progress.note("the stored profile is precise enough: --budget or --precision refine it")
    return True


def ended_profile(profile: Profile, begun: Profile, ended: Ended) -> Profile:
    """A profile after a session that ended like that."""
    # A later interruption makes a complete profile no less complete.
    complete = ended is Ended.PRECISE or begun.complete
    return profile.model_copy(update={"stopped": ended.value, "complete": complete})


def begin_profile(
    request: ProfileRequest,
    store: ProfileStore,
    identity: Identity,
    span: int,
    intervals: tuple[Interval, ...],
    progress: ProgressSink,
) -> Profile:
    """The stored profile to continue with, or an empty one. Raises UserError for one measured otherwise."""
    now = now_text()
    empty = Profile(
        identity=identity,
        target=request.target,
        created=now,
        updated=now,
        span_bytes=span,
        queue_depth=request.queue_depth,
        intervals=intervals,
    )
    before = store.begin(empty, request.fresh, progress)
    if before is None:
        return empty
    done = {row.size_bytes for row in before.measurement}
    progress.note(f"refining a profile of {len(before.measurement)} tests of {len(done)} sizes")
    return before.model_copy(
        update={
            "intervals": intervals,
            "identity": identity,
            "complete": before.complete and before.intervals == intervals,
        }
    )


def identify_target(request_target: str, around: IdentitySources) -> Identity:
    """The identity of a target that is not touched, and need not be there if it is an NBD export."""
    return identify(find_target(request_target, connect=False), around)
