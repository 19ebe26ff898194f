"""Allocators compared: every one at every utilisation of every drive with every seed, on all processors."""

from __future__ import annotations

import multiprocessing
import signal
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from slo_ctl.allocation.drives import DRIVES, LOG_BLOCKS, log_blocks_of, plan_of
from slo_ctl.allocation.experiment import SYNC_BYTES, Experiment, Outcome, run
from slo_ctl.allocation.result import CONFIDENCE, AllocationResult, DrivePoints, Mean, Point
from slo_ctl.allocation.space import BLOCK_BYTES, NoSpaceError
from slo_ctl.errors import UserError
from slo_ctl.serra.student import half_width

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from slo_ctl.allocation.traced import TraceSource
    from slo_ctl.replay.progress import ProgressSink

Key = tuple[str, str, float, int]
"""Drive, allocator, utilisation, seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """What to compare."""

    allocators: tuple[str, ...]
    """Names of `ALLOCATORS`."""
    drives: Mapping[str, str]
    """Specs as for `slo-ctl replay --device`, by name."""
    workload: str
    """A name of `postmark.SETTINGS`, or what the trace is called."""
    trace: TraceSource | None = None
    utilisations: tuple[float, ...]
    trim: bool = False
    seeds: tuple[int, ...] = (1,)
    churn: float = 0.0
    """As in `Experiment`, like the next two."""
    sync_bytes: int = SYNC_BYTES
    log_blocks: int = LOG_BLOCKS

    @property
    def base(self) -> str:
        """The allocator that ratios refer to: ext where it is there."""
        return "ext" if "ext" in self.allocators else self.allocators[0]

    def experiments(self) -> dict[Key, Experiment]:
        """All runs, point by point, so that a partial result has whole points."""
        return {
            (drive, allocator, utilisation, seed): Experiment(
                allocator=allocator,
                setting=self.workload,
                drive=spec,
                utilisation=utilisation,
                trim=self.trim,
                seed=seed,
                trace=self.trace,
                churn=self.churn,
                sync_bytes=self.sync_bytes,
                log_blocks=self.log_blocks,
            )
            for drive, spec in self.drives.items()
            for utilisation in self.utilisations
            for allocator in self.allocators
            for seed in self.seeds
        }


def preset(name: str, changes: Mapping[str, str]) -> str:
    """A drive of table I with some keys of its spec changed."""
    from slo_ctl.replay.fields import join_pairs, split_pairs

    return join_pairs(split_pairs("drive", DRIVES[name]) | dict(changes))


def compare(sweep: Sweep, command: str, progress: ProgressSink, jobs: int) -> AllocationResult:
    """Run all of it on `jobs` processes.

    Ctrl-C ends it with the points that were whole by then (`complete` is then False). Raises UserError for a
    drive that cannot be, TraceError for a trace, and UserError where a file system is too small.
    """
    drives = {name: _drive(name, spec, sweep.log_blocks) for name, spec in sweep.drives.items()}
    outcomes: dict[Key, Outcome] = {}
    notes: list[str] = []
    experiments = sweep.experiments()
    phase = progress.phase(f"{sweep.workload}, {len(sweep.allocators)} allocators", len(experiments), "runs")
    try:
        for key, outcome in _run_all(experiments, jobs):
            outcomes[key] = outcome
            phase.advance(1)
    except KeyboardInterrupt:
        notes.append("interrupted: points that are missing were not run")
    except NoSpaceError as error:
        raise UserError(
            f"{sweep.workload}: the file system is full: {error}",
            "lower --utilisation or take a larger drive",
        ) from None
    phase.done()
    return AllocationResult(
        command=command,
        workload=sweep.workload,
        synthetic=sweep.trace is None,
        trim=sweep.trim,
        seeds=list(sweep.seeds),
        base=sweep.base,
        allocators=list(sweep.allocators),
        utilisations=list(sweep.utilisations),
        drives=[
            drive.model_copy(update={"points": _points(sweep, name, outcomes)})
            for name, drive in drives.items()
        ],
        complete=len(outcomes) == len(experiments),
        notes=notes,
    )


def _run_all(experiments: Mapping[Key, Experiment], jobs: int) -> Iterator[tuple[Key, Outcome]]:
    if jobs == 1:
        yield from map(_measure, experiments.items())
        return
    with multiprocessing.get_context("spawn").Pool(jobs, _worker_starts) as pool:
        yield from pool.imap(_measure, experiments.items())


def _worker_starts() -> None:
    # Ctrl-C goes to the whole group; the parent alone ends the run.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _measure(item: tuple[Key, Experiment]) -> tuple[Key, Outcome]:
    (drive, allocator, utilisation, _), experiment = item
    try:
        return item[0], run(experiment)
    except NoSpaceError as error:
        raise NoSpaceError(f"{allocator} on {drive} at {utilisation:.0%}: {error}") from None


def _drive(name: str, spec: str, most_log_blocks: int) -> DrivePoints:
    plan = plan_of(spec)
    if plan.config.page_bytes != BLOCK_BYTES:
        raise UserError(
            f"drive {name}: page={plan.config.page_bytes} is no file-system block",
            f"page={BLOCK_BYTES} it is",
        )
    if plan.total_pages % plan.block_pages:
        raise UserError(f"drive {name}: size is no whole number of logical blocks", "change size= or block=")
    return DrivePoints(
        name=name,
        device=spec,
        capacity_bytes=plan.total_pages * BLOCK_BYTES,
        logical_block_bytes=plan.block_pages * BLOCK_BYTES,
        log_blocks=log_blocks_of(plan, most_log_blocks) if plan.merges else None,
    )


def _points(sweep: Sweep, drive: str, outcomes: Mapping[Key, Outcome]) -> list[Point]:
    points = []
    for utilisation in sweep.utilisations:
        base = _seeds(sweep, (drive, sweep.base, utilisation), outcomes)
        for allocator in sweep.allocators:
            got = _seeds(sweep, (drive, allocator, utilisation), outcomes)
            if got:
                points.append(_point(allocator, utilisation, got, base))
    return points


def _seeds(
    sweep: Sweep, point: tuple[str, str, float], outcomes: Mapping[Key, Outcome]
) -> list[Outcome] | None:
    """Of all seeds; None where one is missing."""
    found = [outcomes.get((*point, seed)) for seed in sweep.seeds]
    whole = [outcome for outcome in found if outcome is not None]
    return whole if len(whole) == len(found) else None


def _point(allocator: str, utilisation: float, got: list[Outcome], base: list[Outcome] | None) -> Point:
    elapsed_s = [outcome.elapsed_s for outcome in got]
    ratios = [own / other.elapsed_s for own, other in zip(elapsed_s, base or (), strict=False)]
    host = sum(outcome.wear.host_page_writes for outcome in got)
    merged = sum(outcome.wear.merge_page_writes for outcome in got)
    return Point(
        allocator=allocator,
        utilisation=utilisation,
        elapsed_s=elapsed_s,
        elapsed=mean_of(elapsed_s),
        ratio=mean_of(ratios) if ratios else None,
        blocks_per_merge=fmean(outcome.blocks_per_merge for outcome in got),
        switch_merges=fmean(outcome.wear.switch_merges for outcome in got),
        partial_merges=fmean(outcome.wear.partial_merges for outcome in got),
        full_merges=fmean(outcome.wear.full_merges for outcome in got),
        waf=(host + merged) / host if host else None,
    )


def mean_of(values: Sequence[float]) -> Mean:
    """Mean and half width."""
    return Mean(mean=fmean(values), half_width=half_width(values, CONFIDENCE) if len(values) > 1 else None)
