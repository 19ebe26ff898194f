"""Profiling a target from beginning to end: look, ask, prepare, measure, keep."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from slo_ctl.errors import UserError
from slo_ctl.serra.identity import identify
from slo_ctl.serra.measurement import accesses_of
from slo_ctl.serra.opened import open_target
from slo_ctl.serra.points import DEFAULT_INTERVALS, Interval
from slo_ctl.serra.profile import Profile, rows
from slo_ctl.serra.profiler import Ended, Plan
from slo_ctl.serra.profiler import run as measure
from slo_ctl.serra.stopping import StoppingRule, next_task
from slo_ctl.serra.target import find_target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slo_ctl.replay.progress import ProgressSink
    from slo_ctl.serra.identity import Identity, Surroundings
    from slo_ctl.serra.measurement import Direction, Measurement
    from slo_ctl.serra.opened import Opened
    from slo_ctl.serra.profile import Conditioning
    from slo_ctl.serra.store import ProfileStore

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
    with open_target(request, around) as opened:
        begun = begin_profile(request, store, opened.identity, opened.span_bytes, opened.intervals, progress)
        opened.tell(progress)
        return _Session(request, store, progress, opened).run(begun)


class _Session:
    def __init__(self, request: Request, store: ProfileStore, progress: ProgressSink, opened: Opened) -> None:
        self._request = request
        self._store = store
        self._progress = progress
        self._opened = opened

    def run(self, begun: Profile) -> Outcome:
        profile = begun

        def keep(measurements: Sequence[Measurement]) -> None:
            nonlocal profile
            if len(measurements) == len(profile.measurement):
                return
            profile = profile.model_copy(update={"measurement": rows(measurements), "updated": now_text()})
            self._store.save(profile)

        plan = plan_for(self._request, begun, self._opened.sizes_bytes, self._opened.directions)
        if is_precise(plan, begun, self._progress):
            return Outcome(begun, False)
        try:
            profile = profile.model_copy(update={"conditioning": self._prepared(profile.conditioning)})
            session = measure(plan, self._opened.fio, begun.measurements(), self._progress, keep)
        finally:
            self._opened.fio.remove()
        profile = ended_profile(profile, begun, session.ended)
        if profile.measurement:
            self._store.save(profile)
        return Outcome(profile, session.ended is Ended.INTERRUPTED)

    def _prepared(self, before: Conditioning) -> Conditioning:
        return self._opened.prepare(self._request.precondition, before, self._progress)


def plan_for(
    request: Request, begun: Profile, sizes_bytes: Sequence[int], directions: tuple[Direction, ...]
) -> Plan:
    """What is measured to go on with a profile."""
    rule = request.rule
    if begun.complete and request.budget_s is not None:
        # Precise already, and time was given all the same: to make it more so.
        rule = replace(rule, precision=0.0, max_repetitions=1_000_000)
    return Plan(sizes_bytes, accesses_of(directions), rule, request.test_s, request.budget_s)


def is_precise(plan: Plan, begun: Profile, progress: ProgressSink) -> bool:
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
    request: Request,
    store: ProfileStore,
    identity: Identity,
    span: int,
    intervals: tuple[Interval, ...],
    progress: ProgressSink,
) -> Profile:
    """The stored profile to go on with, or an empty one. Raises UserError for one measured otherwise."""
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


def now_text() -> str:
    """The time, as profiles tell it."""
    return datetime.now(UTC).isoformat(timespec="seconds")
