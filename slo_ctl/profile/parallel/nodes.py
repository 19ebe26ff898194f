"""A node at work: opens its target, and does what it is given until the master is gone. A process of its
own.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Self

from slo_ctl.base.errors import UserError
from slo_ctl.base.progress import Silent
from slo_ctl.profile.identity import Surroundings
from slo_ctl.profile.parallel.schedule import Done, Event, Lost, Node, Noted, Ready, Work
from slo_ctl.profile.session import Opened, Request, open_target
from slo_ctl.profile.store import Conditioning

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess


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
    opened.report_stale(_Notes(node, pipe))
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


# Nodes that are processes of this machine, each with a target of its own.

END_TIMEOUT_S = 15.0
"""For a node that is to end: fio is stopped, and a file removed."""


class LocalNodes:
    """A Transport to processes that it starts."""

    def __init__(self, requests: Sequence[Request], around: Surroundings, first: Node = 0) -> None:
        """A process for each request, numbered from `first`."""
        self._first = first
        self._names = [request.target for request in requests]
        self._processes: dict[Node, SpawnProcess] = {}
        self._pipes: dict[Node, Connection[Work | None, Event]] = {}
        # Not forked: threads of the parent, and MPI, would not survive it.
        context = multiprocessing.get_context("spawn")
        for node, request in enumerate(requests, first):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=work_for_master, args=(node, request, around, theirs), name=f"node {node}", daemon=True
            )
            process.start()
            # Else it would never break.
            theirs.close()
            self._processes[node], self._pipes[node] = process, ours

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def names(self) -> Sequence[str]:
        """The targets."""
        return self._names

    def give(self, node: Node, work: Work) -> None:
        """Have a process do something."""
        pipe = self._pipes.get(node)
        if pipe is None:
            return
        try:
            pipe.send(work)
        except OSError:
            return  # It is dead, which `next_event` finds, too.

    def dismiss(self, node: Node) -> None:
        """End a process, and wait until it has cleaned up."""
        self._end([node])

    def next_event(self, timeout_s: float) -> Event | None:
        """The next message of a process, or its death."""
        by_pipe = {pipe: node for node, pipe in self._pipes.items()}
        for ready in wait(list(by_pipe), timeout_s):
            node = next(node for pipe, node in by_pipe.items() if pipe is ready)
            try:
                return self._pipes[node].recv()
            except (EOFError, OSError):
                return Lost(node, self._death(node))
        return None

    def now_s(self) -> float:
        """Real time."""
        return time.monotonic()

    def pid(self, node: Node) -> int | None:
        """Of a node's process."""
        return self._processes[node].pid

    def close(self) -> None:
        """End every process."""
        self._end(list(self._pipes))

    def _death(self, node: Node) -> str:
        process = self._processes[node]
        process.join(END_TIMEOUT_S)
        status = process.exitcode
        self._pipes.pop(node).close()
        if status is not None and status < 0:
            return f"its process was killed by {signal.Signals(-status).name}"
        return f"its process ended with status {status}"

    def _end(self, nodes: Sequence[Node]) -> None:
        ending = [node for node in nodes if node in self._pipes]
        for node in ending:
            self._processes[node].terminate()
        for node in ending:
            process = self._processes[node]
            process.join(END_TIMEOUT_S)
            if process.is_alive():
                process.kill()
                process.join()
            self._pipes.pop(node).close()
