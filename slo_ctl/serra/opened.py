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
    from collections.abc import Iterator
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
        for path in self.stale:
            progress.note(f"{path} was left by a profile that was killed: removed")
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
        progress.note(f"a file of {format_bytes_exact(new)} is made and written once, and removed in the end")
        phase = progress.phase("writing the file", new, "bytes")
        conditioning.fill(self.fio, new, phase.advance)
        phase.done()
        return before.model_copy(update={"written_bytes": before.written_bytes + new})


@contextmanager
def open_target(request: Request, around: Surroundings) -> Iterator[Opened]:
    """Look at a target and see to what may be done to it; a device to be written is claimed until the end.

    Files that killed profiles left there are removed. Raises UserError for what cannot be profiled, before
    anything else is touched.
    """
    target = find_target(request.target)
    intervals = check_intervals(request.intervals, target.unit_bytes)
    sizes = draw_points(intervals, request.points, request.seed)
    span = span_bytes(target, request.file_bytes, intervals[-1].high_bytes)
    # Before the space is looked at: they may have it.
    stale = remove_stale(target.path.parent) if target.ours and target.path is not None else ()
    check_space(target, span)
    check_direct(target)
    fio = Fio(target, FioOptions(span, request.seed, request.queue_depth))
    identity = identify(target, around)
    with permission(target, request.allow_write) as writable:
        if request.precondition and not writable:
            raise UserError(
                f"--precondition writes to {request.target}", f"allow it with --allow-write {request.target}"
            )
        directions = tuple(Direction) if writable else (Direction.READ,)
        yield Opened(target, identity, fio, span, intervals, tuple(sizes), directions, tuple(stale))
