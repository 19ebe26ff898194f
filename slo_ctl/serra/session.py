"""Profiling a target from beginning to end: look, ask, prepare, measure, keep."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from slo_ctl.errors import UserError
from slo_ctl.quantity import format_bytes_exact
from slo_ctl.serra import conditioning
from slo_ctl.serra.consent import in_use, permission
from slo_ctl.serra.fio import Fio, FioOptions
from slo_ctl.serra.identity import Surroundings, identify
from slo_ctl.serra.measurement import Direction, accesses_of
from slo_ctl.serra.points import DEFAULT_INTERVALS, Interval, check_intervals, draw_points
from slo_ctl.serra.profile import Conditioning, Profile, rows
from slo_ctl.serra.profiler import Ended, Plan
from slo_ctl.serra.profiler import run as measure
from slo_ctl.serra.stopping import StoppingRule, next_task
from slo_ctl.serra.target import check_direct, check_space, find_target, span_bytes
from slo_ctl.show import numbers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slo_ctl.replay.progress import ProgressSink
    from slo_ctl.serra.identity import Identity
    from slo_ctl.serra.measurement import Measurement
    from slo_ctl.serra.store import ProfileStore
    from slo_ctl.serra.target import Target

DEFAULT_FILE_BYTES = 256 << 20
DEFAULT_POINTS = 3
DEFAULT_TEST_S = 1.0
DEFAULT_RULE = StoppingRule()


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked for."""

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
    """Measure anew even where a valid profile could be refined."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A profile, and how the session went."""

    profile: Profile
    interrupted: bool


def profile_target(
    request: Request, around: Surroundings, store: ProfileStore, progress: ProgressSink
) -> Outcome:
    """Profile a target; what was measured is kept in `store` after every size and at the end, however it
    ends.

    Raises UserError for what cannot be profiled, before anything is touched, and when fio fails.
    """
    target = find_target(request.target)
    intervals = check_intervals(request.intervals, target.unit_bytes)
    sizes = draw_points(intervals, request.points, request.seed)
    span = span_bytes(target, request.file_bytes, intervals[-1].high_bytes)
    check_space(target, span)
    check_direct(target)
    fio = Fio(target, FioOptions(span, request.seed, request.queue_depth))
    identity = identify(target, around)
    with permission(target, request.allow_write) as writable:
        if request.precondition and not writable:
            raise UserError(
                f"--precondition writes to {request.target}", f"allow it with --allow-write {request.target}"
            )
        begun = _begin(request, store, identity, span, intervals, progress)
        if not writable:
            progress.note(
                f"{request.target} is only read: ratios of writes need --allow-write {request.target}"
            )
            if in_use(target):
                progress.note(f"{request.target} is in use: others' I/O is in the times")
        directions = tuple(Direction) if writable else (Direction.READ,)
        return _Session(request, store, progress, fio, target, span).run(begun, sizes, directions)


class _Session:
    def __init__(
        self,
        request: Request,
        store: ProfileStore,
        progress: ProgressSink,
        fio: Fio,
        target: Target,
        span: int,
    ) -> None:
        self._request = request
        self._store = store
        self._progress = progress
        self._fio = fio
        self._target = target
        self._span = span

    def run(self, begun: Profile, sizes: Sequence[int], directions: tuple[Direction, ...]) -> Outcome:
        profile = begun

        def keep(measurements: Sequence[Measurement]) -> None:
            nonlocal profile
            if len(measurements) == len(profile.measurement):
                return
            profile = profile.model_copy(update={"measurement": rows(measurements), "updated": _now()})
            self._store.save(profile)

        plan = Plan(
            sizes, accesses_of(directions), self._rule(begun), self._request.test_s, self._request.budget_s
        )
        if next_task(begun.measurements(), plan.sizes_bytes, plan.accesses, plan.rule) is None:
            self._progress.note("the stored profile is precise enough: --budget or --precision refine it")
            return Outcome(begun, False)
        try:
            profile = profile.model_copy(update={"conditioning": self._prepare(profile.conditioning)})
            session = measure(plan, self._fio, begun.measurements(), self._progress, keep)
        finally:
            self._fio.remove()
        profile = profile.model_copy(
            update={
                "stopped": session.ended.value,
                # A later interruption makes a complete profile no less complete.
                "complete": session.ended is Ended.PRECISE or begun.complete,
            }
        )
        if profile.measurement:
            self._store.save(profile)
        return Outcome(profile, session.ended is Ended.INTERRUPTED)

    def _rule(self, begun: Profile) -> StoppingRule:
        rule = self._request.rule
        if begun.complete and self._request.budget_s is not None:
            # Precise already, and time was given all the same: to make it more so.
            return replace(rule, precision=0.0, max_repetitions=1_000_000)
        return rule

    def _prepare(self, before: Conditioning) -> Conditioning:
        """Have data where it is read, and steady writes where that was asked for, telling how much is
        written."""
        new = self._fio.prepare()
        if self._request.precondition:
            most = conditioning.at_most_bytes(self._span)
            self._progress.note(
                f"preconditioning: up to {numbers.size(most)} ({most} bytes) will be written to "
                f"{self._target.given}"
            )
            phase = self._progress.phase("preconditioning", most, "bytes")
            done = conditioning.to_steady_state(self._fio, self._span, phase.advance)
            phase.done()
            if not done.steady:
                self._progress.note(f"writes had not settled after {numbers.size(done.written_bytes)}")
            return Conditioning(written_bytes=before.written_bytes + done.written_bytes, steady=done.steady)
        if not new:
            return before
        self._progress.note(
            f"a file of {format_bytes_exact(new)} is made and written once, and removed in the end"
        )
        phase = self._progress.phase("writing the file", new, "bytes")
        conditioning.fill(self._fio, new, phase.advance)
        phase.done()
        return before.model_copy(update={"written_bytes": before.written_bytes + new})


def _begin(
    request: Request,
    store: ProfileStore,
    identity: Identity,
    span: int,
    intervals: tuple[Interval, ...],
    progress: ProgressSink,
) -> Profile:
    """The stored profile to go on with, or an empty one."""
    now = _now()
    empty = Profile(
        identity=identity,
        target=request.target,
        created=now,
        updated=now,
        span_bytes=span,
        queue_depth=request.queue_depth,
        intervals=intervals,
    )
    found = None if request.fresh else store.find(identity)
    if found is None:
        return empty
    if found.stale:
        progress.note(f"the stored profile is {found.stale}; measuring anew")
        return empty
    before = found.profile
    for name, was, wanted in (
        ("--file-size", before.span_bytes, span),
        ("--queue-depth", before.queue_depth, request.queue_depth),
    ):
        if was != wanted:
            raise UserError(
                f"the stored profile of {request.target} was measured with {name} {was}, not {wanted}",
                f"give {name} {was} to refine it, or --fresh to replace it",
            )
    done = {row.size_bytes for row in before.measurement}
    progress.note(f"refining a profile of {len(before.measurement)} tests of {len(done)} sizes")
    return before.model_copy(
        update={
            "intervals": intervals,
            "identity": identity,
            "complete": before.complete and before.intervals == intervals,
        }
    )


def look(request_target: str, around: Surroundings) -> Identity:
    """The identity of a target that is not touched, and need not be there if it is an NBD export."""
    return identify(find_target(request_target, connect=False), around)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
