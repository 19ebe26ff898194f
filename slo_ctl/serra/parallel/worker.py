"""A node at work: opens its target, and does what it is given until the master is gone. A process of its
own."""

from __future__ import annotations

import signal
from contextlib import suppress
from typing import TYPE_CHECKING

from slo_ctl.errors import UserError
from slo_ctl.replay.progress import Silent
from slo_ctl.serra.opened import open_target
from slo_ctl.serra.parallel.work import Done, Lost, Noted, Ready
from slo_ctl.serra.profile import Conditioning

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from types import FrameType

    from slo_ctl.serra.identity import Surroundings
    from slo_ctl.serra.opened import Opened
    from slo_ctl.serra.parallel.work import Event, Node, Work
    from slo_ctl.serra.session import Request


def work_for_master(
    node: Node, request: Request, around: Surroundings, pipe: Connection[Event, Work | None]
) -> None:
    """Serve at the end of a pipe: Ready, then Done for each Work, until there is no more; or Lost, and why.

    A file that was made is removed in the end, also on SIGTERM and when the master is gone.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    # Ctrl-C reaches all of a terminal's processes; it is the master that says what becomes of it. (A handler,
    # since fio would inherit that a signal is ignored.)
    signal.signal(signal.SIGINT, _leave_to_master)
    # A pipe that breaks is a master that is gone.
    with suppress(KeyboardInterrupt, EOFError, BrokenPipeError, ConnectionResetError):
        try:
            with open_target(request, around) as opened:
                try:
                    _serve(node, request, opened, pipe)
                finally:
                    opened.fio.remove()
        except UserError as error:
            pipe.send(Lost(node, str(error), error.hint))
        except OSError as error:
            pipe.send(Lost(node, f"{error.filename or request.target}: {error.strerror or error}"))


def _serve(node: Node, request: Request, opened: Opened, pipe: Connection[Event, Work | None]) -> None:
    opened.tell(_Notes(node, pipe))
    conditioning = opened.prepare(request.precondition, Conditioning(), _Notes(node, pipe))
    pipe.send(
        Ready(
            node,
            opened.identity,
            opened.span_bytes,
            opened.intervals,
            opened.sizes_bytes,
            opened.directions,
            conditioning,
        )
    )
    while (work := pipe.recv()) is not None:
        measurements = tuple(
            opened.fio.measure(access, work.size_bytes, work.repetition, limit_s, work.part)
            for access, limit_s in zip(work.accesses, work.limits_s, strict=True)
        )
        pipe.send(Done(node, measurements))


class _Notes(Silent):
    """Notes go to the master; how far a node has got is not watched."""

    def __init__(self, node: Node, pipe: Connection[Event, Work | None]) -> None:
        self._node = node
        self._pipe = pipe

    def note(self, text: str) -> None:
        """Have the master say it."""
        self._pipe.send(Noted(self._node, text))


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    # Once: a second signal must not interrupt the cleaning up.
    signal.signal(signal.SIGTERM, _leave_to_master)
    raise KeyboardInterrupt


def _leave_to_master(_number: int, _frame: FrameType | None) -> None:
    return
