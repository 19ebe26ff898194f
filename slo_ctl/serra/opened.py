"""A target that may be measured: looked at, allowed, and with data where it is read."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slo_ctl.errors import UserError
from slo_ctl.quantity import format_bytes_exact
from slo_ctl.serra import conditioning
from slo_ctl.serra.consent import in_use, permission
from slo_ctl.serra.fio import Fio, FioOptions
from slo_ctl.serra.identity import identify
from slo_ctl.serra.made_file import remove_stale
from slo_ctl.serra.measurement import Direction
from slo_ctl.serra.points import check_intervals, draw_points
from slo_ctl.serra.profile import Conditioning
from slo_ctl.serra.target import check_direct, check_space, find_target, span_bytes
from slo_ctl.show import numbers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from slo_ctl.replay.progress import ProgressSink
    from slo_ctl.serra.identity import Identity, Surroundings
    from slo_ctl.serra.points import Interval
    from slo_ctl.serra.session import Request
    from slo_ctl.serra.target import Target


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

    def tell(self, progress: ProgressSink) -> None:
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
            most = conditioning.at_most_bytes(self.span_bytes)
            progress.note(
                f"preconditioning: up to {numbers.size(most)} ({most} bytes) will be written to "
                f"{self.target.given}"
            )
            phase = progress.phase("preconditioning", most, "bytes")
            done = conditioning.to_steady_state(self.fio, self.span_bytes, phase.advance)
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
    conditioning.fill(fio, size_bytes, phase.advance)
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
    target: Target, options: FioOptions, allow_write: str | None, around: Surroundings
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
def open_target(request: Request, around: Surroundings) -> Iterator[Opened]:
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
