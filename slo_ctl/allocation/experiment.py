"""One point of the paper's figures 4 and 5: a file system filled so far, and Postmark on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from slo_ctl.allocation.drives import LOG_BLOCKS, SyncedDrive, Wear
from slo_ctl.allocation.file_system import FileSystem
from slo_ctl.allocation.filling import fill
from slo_ctl.allocation.layout import LAYOUTS
from slo_ctl.allocation.postmark import SETTINGS, steps
from slo_ctl.allocation.registry import ALLOCATORS
from slo_ctl.allocation.space import SpaceMap
from slo_ctl.allocation.traced import TraceSource, trace_steps

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slo_ctl.allocation.changes import Step

SYNC_BYTES = 16 << 20
"""Dirty data and metadata that make a sync."""
_FILL_NUMBERS = 1 << 40
"""Files and directories of the filling are numbered from here, apart from Postmark's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """What to run."""

    allocator: str
    """A name of `ALLOCATORS`."""
    setting: str
    """A name of `postmark.SETTINGS`; what `trace` is called where there is one."""
    drive: str
    """As for `slo-ctl replay --device`."""
    utilisation: float
    trim: bool = False
    churn: float = 0.0
    """Share of the filling that was deleted and replaced."""
    sync_bytes: int = SYNC_BYTES
    log_blocks: int = LOG_BLOCKS
    seed: int = 1
    trace: TraceSource | None = None
    """In place of Postmark."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came out."""

    elapsed_s: float
    """Virtual time that the drive took for all syncs."""
    syncs: int
    logical_blocks_written: int
    """Logical blocks that each sync wrote to, added up."""
    wear: Wear

    @property
    def blocks_per_merge(self) -> float:
        """The paper's n, 4 KiB blocks that a sync writes to each logical block that it touches."""
        return self.wear.host_page_writes / max(1, self.logical_blocks_written)


def run(experiment: Experiment) -> Outcome:
    """Fill, run, measure.

    Raises NoSpaceError where the files do not fit, UserError for the drive, TraceError for the trace.
    """
    row = ALLOCATORS[experiment.allocator]
    drive = SyncedDrive(experiment.drive, experiment.trim, experiment.log_blocks)
    space = SpaceMap(drive.blocks)
    layout = LAYOUTS[row.layout]()
    layout.prepare(space)
    allocator = row.allocator(space, drive.logical_block, experiment.trim)
    system = FileSystem(layout, allocator)
    fill(system, experiment.utilisation, experiment.seed, _FILL_NUMBERS, experiment.churn)
    system.settle()
    drive.fill(space.used_extents())
    directories = 0
    if experiment.trace is None:
        directories = SETTINGS[experiment.setting].directories
        for directory in range(directories):
            system.make_directory(directory)
    elapsed_s, syncs, written = 0.0, 0, 0

    def sync(last: bool = False) -> None:
        nonlocal elapsed_s, syncs, written
        done = system.sync(last)
        elapsed_s += drive.play(done)
        syncs += 1
        written += done.logical_blocks(drive.logical_block)

    for step in _steps(experiment):
        # Those of a trace turn up in the order of their numbers.
        while step.directory >= directories:
            system.make_directory(directories)
            directories += 1
        system.apply(step)
        if system.dirty_bytes >= experiment.sync_bytes:
            sync()
    sync(last=True)
    return Outcome(elapsed_s, syncs, written, drive.wear())


def _steps(experiment: Experiment) -> Iterator[Step]:
    if experiment.trace is not None:
        return trace_steps(experiment.trace)
    return steps(SETTINGS[experiment.setting], experiment.seed)
