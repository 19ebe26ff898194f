"""Profiling a target: checks, permission, preparation, measurement, storage."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from slo_ctl.base import numbers
from slo_ctl.base.clock import now_text
from slo_ctl.base.errors import UserError
from slo_ctl.base.progress import ProgressSink
from slo_ctl.base.quantity import format_bytes_exact
from slo_ctl.decide.request_sizes import Interval, check_intervals, draw_points
from slo_ctl.model.measurement import RAND_WRITE, SEQ_WRITE, Direction, Measurement, accesses_of
from slo_ctl.profile.consent import in_use, measured_alone, permission
from slo_ctl.profile.fio import Fio, FioOptions
from slo_ctl.profile.identity import Identity, IdentitySources, identify
from slo_ctl.profile.store import (
    Conditioning,
    FoundRecord,
    Measured,
    Profile,
    ProfileStore,
    R,
    RecordStore,
)
from slo_ctl.profile.sweep import Ended, StoppingRule, SweepPlan, next_task
from slo_ctl.profile.sweep import run as measure
from slo_ctl.profile.target import Target, check_direct, check_space, find_target, remove_stale, span_bytes

# Preconditioning to a steady state, because a fresh SSD is faster than later.
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
"""Bytes written by one run of fio, between which progress is reported."""
_SEQUENTIAL_BYTES = 1 << 20
_RANDOM_BYTES = 64 << 10


def is_steady(rounds: Sequence[float]) -> bool:
    """Whether the throughput of the last rounds is steady."""
    if len(rounds) < WINDOW:
        return False
    last = np.array(rounds[-WINDOW:], dtype=np.float64)
    mean = float(last.mean())
    slope = float(np.polyfit(np.arange(WINDOW), last, 1)[0])
    return (
        float(last.max() - last.min()) <= MAX_EXCURSION * mean
        and abs(slope) * (WINDOW - 1) <= MAX_TREND * mean
    )


def fill(fio: Fio, span_bytes: int, advance: Callable[[float], None]) -> int:
    """Write the span once sequentially, so that reads find data; returns its bytes."""
    for start in range(0, span_bytes, _BATCH_BYTES):
        length = min(_BATCH_BYTES, span_bytes - start)
        fio.write_batch(SEQ_WRITE, min(_SEQUENTIAL_BYTES, length), start, length)
        advance(length)
    return span_bytes


def to_steady_state(fio: Fio, span_bytes: int, advance: Callable[[float], None]) -> Conditioning:
    """Write until throughput is steady, at most ROUNDS rounds."""
    written = sum(fill(fio, span_bytes, advance) for _ in range(PASSES))
    rounds: list[float] = []
    for number in range(ROUNDS):
        rounds.append(fio.write_batch(RAND_WRITE, _RANDOM_BYTES, number * _RANDOM_BYTES, span_bytes))
        written += span_bytes
        advance(span_bytes)
        if is_steady(rounds):
            return Conditioning(written_bytes=written, steady=True)
    return Conditioning(written_bytes=written)


# Opening a target: checks, permission, and data to read.


@dataclass(frozen=True, slots=True)
class Span:
    """The used part of a target, ready for fio."""

    target: Target
    identity: Identity
    fio: Fio
    writable: bool


@dataclass(frozen=True, slots=True)
class Opened(Span):
    """A target that is ready to be profiled."""

    span_bytes: int
    intervals: tuple[Interval, ...]
    sizes_bytes: tuple[int, ...]

    @property
    def directions(self) -> tuple[Direction, ...]:
        """Directions of tests: only reads without permission to write."""
        return tuple(Direction) if self.writable else (Direction.READ,)

    def prepare(self, precondition: bool, before: Conditioning, progress: ProgressSink) -> Conditioning:
        """Write data to be read, or precondition; reports how much is written."""
        new = self.fio.prepare()
        if precondition:
            most = (PASSES + ROUNDS) * self.span_bytes
            progress.note(
                f"preconditioning: up to {numbers.size(most)} ({most} bytes) will be written to "
                f"{self.target.given}"
            )
            phase = progress.phase("preconditioning", most, "bytes")
            done = to_steady_state(self.fio, self.span_bytes, phase.advance)
            phase.done()
            if not done.steady:
                progress.note(f"writes were not steady after {numbers.size(done.written_bytes)}")
            return done.model_copy(update={"written_bytes": before.written_bytes + done.written_bytes})
        if not new:
            return before
        fill_test_file(self.fio, new, progress)
        return before.model_copy(update={"written_bytes": before.written_bytes + new})


def fill_test_file(fio: Fio, size_bytes: int, progress: ProgressSink) -> None:
    """Write a test file once, and report it."""
    progress.note(
        f"a file of {format_bytes_exact(size_bytes)} is created, written once, and removed at the end"
    )
    phase = progress.phase("writing the file", size_bytes, "bytes")
    fill(fio, size_bytes, phase.advance)
    phase.done()


@contextmanager
def open_span(
    target: Target,
    options: FioOptions,
    allow_write: str | None,
    sources: IdentitySources,
    progress: ProgressSink,
) -> Iterator[Span]:
    """Check a target and the permission to write it; a device to be written is claimed within the context.

    Removes test files of killed profiles, and reports it. Raises UserError for a target that cannot be
    measured, before anything else is changed.
    """
    if target.is_test_file and target.path is not None:
        # Before the check of free space, which they may occupy.
        for path in remove_stale(target.path.parent):
            progress.note(f"{path} was left by a killed profile and was removed")
    check_space(target, options.span_bytes)
    check_direct(target)
    fio = Fio(target, options)
    identity = identify(target, sources)
    with permission(target, allow_write) as writable:
        yield Span(target, identity, fio, writable)


@contextmanager
def open_target(
    request: ProfileRequest, sources: IdentitySources, progress: ProgressSink
) -> Iterator[Opened]:
    """Open a target for profiling, as `open_span` does; reports what cannot be measured or may disturb.

    Raises UserError for a target that cannot be profiled, before anything else is changed.
    """
    target = find_target(request.target)
    intervals = check_intervals(request.intervals, target.unit_bytes)
    sizes = draw_points(intervals, request.points, request.seed)
    span = span_bytes(target, request.file_bytes, intervals[-1].high_bytes)
    options = FioOptions(span, request.seed, request.queue_depth)
    with open_span(target, options, request.allow_write, sources, progress) as part:
        name = target.given
        if request.precondition and not part.writable:
            raise UserError(f"--precondition writes to {name}", f"allow it with --allow-write {name}")
        if not part.writable:
            progress.note(f"{name} is only read: ratios of writes need --allow-write {name}")
            if in_use(target):
                progress.note(f"{name} is in use: I/O of other programs affects the measured times")
        yield Opened(target, part.identity, part.fio, part.writable, span, intervals, tuple(sizes))


@dataclass(frozen=True, slots=True)
class ProfileRequest:
    """Options of a profile."""

    target: str
    intervals: tuple[Interval, ...]
    points: int
    """Request sizes per interval; a third one shows whether a line fits."""
    rule: StoppingRule
    file_bytes: int
    test_s: float | None = 1.0
    budget_s: float | None = None
    queue_depth: int = 1
    seed: int = 1
    allow_write: str | None = None
    precondition: bool = False
    fresh: bool = False
    """Replace a valid profile instead of refining it."""


def profile_target(
    request: ProfileRequest, sources: IdentitySources, store: ProfileStore, progress: ProgressSink
) -> Measured[Profile]:
    """Profile a target; measurements are stored after every size and at the end, also after an error.

    Raises UserError for a target that cannot be profiled, before anything is changed, and when fio fails.
    """
    with open_target(request, sources, progress) as opened, measured_alone(opened.target):
        profile = initial = begin_profile(
            request, store, opened.identity, opened.span_bytes, opened.intervals, progress
        )

        def keep(measurements: Sequence[Measurement]) -> None:
            nonlocal profile
            if len(measurements) > len(profile.measurement):
                profile = store.keep(profile, measurement=tuple(measurements))

        plan = plan_for(request, initial, opened.sizes_bytes, opened.directions)
        if is_precise(plan, initial, progress):
            return Measured(initial, False)
        try:
            conditioning = opened.prepare(request.precondition, initial.conditioning, progress)
            profile = profile.model_copy(update={"conditioning": conditioning})
            session = measure(plan, opened.fio, initial.measurement, progress, keep)
        finally:
            opened.fio.remove()
        profile = ended_profile(profile, initial, session.ended)
        if profile.measurement:
            store.save(profile)
        return Measured(profile, session.ended is Ended.INTERRUPTED)


def plan_for(
    request: ProfileRequest, initial: Profile, sizes_bytes: Sequence[int], directions: tuple[Direction, ...]
) -> SweepPlan:
    """Plan of the measurements that continue a profile."""
    rule = request.rule
    if initial.complete and request.budget_s is not None:
        # It is precise, but a budget was given to make it more precise.
        rule = replace(rule, precision=0.0, max_repetitions=1_000_000)
    return SweepPlan(sizes_bytes, accesses_of(directions), rule, request.test_s, request.budget_s)


def is_precise(plan: SweepPlan, initial: Profile, progress: ProgressSink) -> bool:
    """Whether the stored profile is precise enough, which is then reported."""
    if next_task(initial.measurement, plan.sizes_bytes, plan.accesses, plan.rule) is not None:
        return False
    progress.note("the stored profile is precise enough: --budget or --precision refine it")
    return True


def ended_profile(profile: Profile, initial: Profile, ended: Ended) -> Profile:
    """The profile with the end of its session."""
    # A complete profile stays complete if it is interrupted later.
    complete = ended is Ended.PRECISE or initial.complete
    return profile.model_copy(update={"stopped": ended.value, "complete": complete})


def begin_profile(
    request: ProfileRequest,
    store: ProfileStore,
    identity: Identity,
    span: int,
    intervals: tuple[Interval, ...],
    progress: ProgressSink,
) -> Profile:
    """The stored profile to refine, or an empty one. Raises UserError if it was measured differently."""
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


def identify_target(request_target: str, sources: IdentitySources) -> Identity:
    """The identity of a target, without writing to it; an NBD export need not be served."""
    return identify(find_target(request_target, connect=False), sources)


def stored_record(
    store: RecordStore[R], target: str, sources: IdentitySources, missing: str, command: str
) -> FoundRecord[R]:
    """The stored record of a target.

    Raises UserError if there is none: `missing` and the target, with the `command` that makes one.
    """
    found = store.find(identify_target(target, sources))
    if found is None:
        raise UserError(
            f"{missing} {target}", f"measure it with: slo-ctl device {command} {shlex.quote(target)}"
        )
    return found
