"""One point of the paper's figures 4 and 5: a file system filled to some utilisation, and Postmark on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal

from pydantic import Field

from fsim.allocators import ALLOCATORS
from fsim.drives import OCCUPANT, SyncedDrive, Wear, shape_of
from fsim.file_system import FileSystem, Step, Sync
from fsim.layout import LAYOUTS
from fsim.space import BLOCK_BYTES, Extent, NoSpaceError, SpaceMap
from fsim.workloads import SETTINGS, TraceSource, fill, steps, trace_steps
from lab.paper_drives import LOG_BLOCKS, PAPER_DRIVES, log_blocks_of, plan_whole
from slo_ctl import tool_version
from slo_ctl.base.errors import UserError
from slo_ctl.base.json_store import StrictModel
from slo_ctl.base.keyvalue import join_pairs, split_pairs
from slo_ctl.base.progress import ProgressSink
from slo_ctl.base.workers import on_processes
from slo_ctl.decide.profile_fit import half_width

# Result of a comparison of allocators: the JSON of `slo-ctl fsim`, typed.
# Units are in the names. Times are virtual, of an emulated drive. Unknown values are null.

FORMAT_VERSION: Literal[1] = 1
CONFIDENCE = 0.95


class Mean(StrictModel):
    """A mean over seeds and half its two-sided 95 % interval by Student's t; null with one seed."""

    mean: float
    half_width: float | None = None


class Point(StrictModel):
    """One allocator at one utilisation of one drive."""

    allocator: str
    utilisation: float
    elapsed_s: list[float]
    """Values in the order of `AllocationResult.seeds`."""
    elapsed: Mean
    """Elapsed time in seconds."""
    ratio: Mean | None = None
    """Ratio to the base allocator's time with the same seed; null if that was not measured."""
    blocks_per_merge: float
    """The paper's n: 4 KiB blocks that a sync writes to each logical block it touches."""
    switch_merges: float
    """Merges, as means over seeds."""
    partial_merges: float
    full_merges: float
    waf: float | None
    """(host + merge) / host page writes."""


class DrivePoints(StrictModel):
    """All points of a drive."""

    name: str
    device: str
    """Spec as for `slo-ctl replay --device`."""
    capacity_bytes: int
    logical_block_bytes: int
    log_blocks: int | None
    """Null for a mapping without log blocks."""
    points: list[Point] = Field(default_factory=list)

    def curve(self, allocator: str) -> dict[float, Point]:
        """Points of an allocator by utilisation."""
        return {point.utilisation: point for point in self.points if point.allocator == allocator}


class AllocationResult(StrictModel):
    """Result of a comparison of allocators."""

    format_version: Literal[1] = FORMAT_VERSION
    kind: Literal["allocation"] = "allocation"
    tool_version: str = Field(default_factory=tool_version)
    label: Literal["emulated"] = "emulated"
    command: str
    """Command line that repeats the run."""
    workload: str
    synthetic: bool
    """Whether the workload is synthetic, such as Postmark, and not a trace."""
    trim: bool
    seeds: list[int]
    base: str
    """The allocator that ratios are relative to."""
    allocators: list[str]
    utilisations: list[float]
    drives: list[DrivePoints]
    complete: bool = True
    notes: list[str] = Field(default_factory=list)


SYNC_BYTES = 16 << 20
"""Dirty data and metadata that start a sync."""
_FILL_NUMBERS = 1 << 40
"""First number of files and directories of the filling, to keep them apart from Postmark's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One run of one allocator on one drive."""

    allocator: str
    """A name in `ALLOCATORS`."""
    setting: str
    """A name in `postmark.SETTINGS`; with `trace`, the name of the trace."""
    drive: str
    """Spec as for `slo-ctl replay --device`."""
    utilisation: float
    trim: bool = False
    churn: float = 0.0
    """Share of the filling that was deleted and replaced."""
    sync_bytes: int = SYNC_BYTES
    log_blocks: int = LOG_BLOCKS
    seed: int = 1
    trace: TraceSource | None = None
    """Workload instead of Postmark."""
    transactions: int | None = None
    """Number of Postmark transactions, instead of that of its setting."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of an experiment."""

    elapsed_s: float
    """Virtual time that the drive took for all syncs."""
    syncs: int
    logical_blocks_written: int
    """Logical blocks that each sync wrote to, summed."""
    wear: Wear

    @property
    def blocks_per_merge(self) -> float:
        """The paper's n: 4 KiB blocks that a sync writes to each logical block it touches."""
        return self.wear.host_page_writes / max(1, self.logical_blocks_written)


@dataclass(frozen=True, slots=True)
class Work:
    """The writes of the file system in an experiment: they do not depend on the mapping of the drive."""

    blocks: int
    """Blocks of the drive and of each of its logical blocks."""
    logical_block: int
    filled: tuple[Extent, ...]
    """Extents in use before the first sync."""
    syncs: tuple[Sync, ...]


def run(experiment: Experiment) -> Outcome:
    """Fill, run, measure. Raises NoSpaceError if the files do not fit, UserError for the drive, TraceError
    for the trace.
    """
    return play(experiment, work_of(experiment))


def work_of(experiment: Experiment) -> Work:
    """Fill a file system and run the workload on it. Raises as `run` does."""
    row = ALLOCATORS[experiment.allocator]
    blocks, logical_block = shape_of(experiment.drive)
    space = SpaceMap(blocks)
    layout = LAYOUTS[row.layout]()
    layout.prepare(space)
    system = FileSystem(layout, row.allocator(space, logical_block, experiment.trim))
    fill(system, experiment.utilisation, experiment.seed, _FILL_NUMBERS, experiment.churn)
    system.settle()
    filled = tuple(space.used_extents())
    directories = 0
    if experiment.trace is None:
        directories = SETTINGS[experiment.setting].directories
        for directory in range(directories):
            system.make_directory(directory)
    syncs = []
    for step in _steps(experiment):
        # Files of a trace appear in the order of their numbers.
        while step.directory >= directories:
            system.make_directory(directories)
            directories += 1
        system.apply(step)
        if system.dirty_bytes >= experiment.sync_bytes:
            syncs.append(system.sync())
    syncs.append(system.sync(last=True))
    return Work(blocks, logical_block, filled, tuple(syncs))


def play(experiment: Experiment, work: Work) -> Outcome:
    """Measure the drive of an experiment under `work`, which was made for a drive of the same geometry."""
    drive = SyncedDrive(experiment.drive, experiment.trim, experiment.log_blocks)
    if (drive.blocks, drive.logical_block) != (work.blocks, work.logical_block):
        raise ValueError(f"the work is not for {experiment.drive}")
    drive.fill(work.filled)
    return Outcome(
        elapsed_s=sum(drive.play(sync) for sync in work.syncs),
        syncs=len(work.syncs),
        logical_blocks_written=sum(sync.logical_blocks(drive.logical_block) for sync in work.syncs),
        wear=drive.wear(),
    )


def _steps(experiment: Experiment) -> Iterator[Step]:
    if experiment.trace is not None:
        return trace_steps(experiment.trace)
    setting = SETTINGS[experiment.setting]
    if experiment.transactions is not None:
        setting = replace(setting, transactions=experiment.transactions)
    return steps(setting, experiment.seed)


# Comparison of allocators: each one at each utilisation of each drive with each seed, on all processors.

Key = tuple[str, str, float, int]
"""Drive, allocator, utilisation, seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Parameters of the comparison."""

    allocators: tuple[str, ...]
    """Names in `ALLOCATORS`."""
    drives: Mapping[str, str]
    """Specs as for `slo-ctl replay --device`, by name."""
    workload: str
    """A name in `postmark.SETTINGS`, or the name of the trace."""
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
        """The allocator that ratios are relative to: ext if it is among them."""
        return "ext" if "ext" in self.allocators else self.allocators[0]

    def experiments(self) -> dict[Key, Experiment]:
        """All runs, point by point, so that a partial result has complete points."""
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
    """A drive of table I with some keys of its spec replaced."""
    return join_pairs(split_pairs("drive", PAPER_DRIVES[name]) | dict(changes))


def compare(sweep: Sweep, command: str, progress: ProgressSink, jobs: int) -> AllocationResult:
    """Run all of it on `jobs` processes.

    Ctrl-C ends it with the points that were complete by then (`complete` is then False). Raises UserError for
    an invalid drive, TraceError for a trace, and UserError if a file system is too small.
    """
    drives = {name: _drive(name, spec, sweep.log_blocks) for name, spec in sweep.drives.items()}
    outcomes: dict[Key, Outcome] = {}
    notes = [*sweep.trace.notes] if sweep.trace is not None else []
    experiments = sweep.experiments()
    phase = progress.phase(f"{sweep.workload}, {len(sweep.allocators)} allocators", len(experiments), "runs")
    try:
        with closing(on_processes(_measure, experiments.items(), jobs)) as results:
            for key, outcome in results:
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


def _measure(item: tuple[Key, Experiment]) -> tuple[Key, Outcome]:
    (drive, allocator, utilisation, _), experiment = item
    try:
        return item[0], run(experiment)
    except NoSpaceError as error:
        raise NoSpaceError(f"{allocator} on {drive} at {utilisation:.0%}: {error}") from None


def _drive(name: str, spec: str, most_log_blocks: int) -> DrivePoints:
    plan = plan_whole(spec, OCCUPANT)
    if plan.config.page_bytes != BLOCK_BYTES:
        raise UserError(
            f"drive {name}: page={plan.config.page_bytes} is not a file-system block",
            f"page={BLOCK_BYTES} it is",
        )
    if plan.total_pages % plan.config.block_pages:
        raise UserError(
            f"drive {name}: size is not a whole number of logical blocks", "change size= or block="
        )
    return DrivePoints(
        name=name,
        device=spec,
        capacity_bytes=plan.total_pages * BLOCK_BYTES,
        logical_block_bytes=plan.config.block_pages * BLOCK_BYTES,
        log_blocks=log_blocks_of(plan, most_log_blocks) if plan.config.merges else None,
    )


def _points(sweep: Sweep, drive: str, outcomes: Mapping[Key, Outcome]) -> list[Point]:
    points = []
    for utilisation in sweep.utilisations:
        base = _seeds(sweep, (drive, sweep.base, utilisation), outcomes)
        for allocator in sweep.allocators:
            of_seeds = _seeds(sweep, (drive, allocator, utilisation), outcomes)
            if of_seeds:
                points.append(_point(allocator, utilisation, of_seeds, base))
    return points


def _seeds(
    sweep: Sweep, point: tuple[str, str, float], outcomes: Mapping[Key, Outcome]
) -> list[Outcome] | None:
    """The outcomes of all seeds; None if one is missing."""
    found = [outcomes.get((*point, seed)) for seed in sweep.seeds]
    whole = [outcome for outcome in found if outcome is not None]
    return whole if len(whole) == len(found) else None


def _point(allocator: str, utilisation: float, outcomes: list[Outcome], base: list[Outcome] | None) -> Point:
    elapsed_s = [outcome.elapsed_s for outcome in outcomes]
    ratios = [own / other.elapsed_s for own, other in zip(elapsed_s, base or (), strict=False)]
    host = sum(outcome.wear.host_page_writes for outcome in outcomes)
    merged = sum(outcome.wear.merge_page_writes for outcome in outcomes)
    return Point(
        allocator=allocator,
        utilisation=utilisation,
        elapsed_s=elapsed_s,
        elapsed=mean_of(elapsed_s),
        ratio=mean_of(ratios) if ratios else None,
        blocks_per_merge=fmean(outcome.blocks_per_merge for outcome in outcomes),
        switch_merges=fmean(outcome.wear.switch_merges for outcome in outcomes),
        partial_merges=fmean(outcome.wear.partial_merges for outcome in outcomes),
        full_merges=fmean(outcome.wear.full_merges for outcome in outcomes),
        waf=(host + merged) / host if host else None,
    )


def mean_of(values: Sequence[float]) -> Mean:
    """Mean and half width of its interval."""
    return Mean(mean=fmean(values), half_width=half_width(values, CONFIDENCE) if len(values) > 1 else None)
