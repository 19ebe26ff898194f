"""Nodes that are processes of this machine, each with a target of its own."""

from __future__ import annotations

import multiprocessing
import signal
import time
from multiprocessing.connection import wait
from typing import TYPE_CHECKING

from slo_ctl.serra.parallel.work import Lost
from slo_ctl.serra.parallel.worker import work_for_master

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess
    from types import TracebackType
    from typing import Self

    from slo_ctl.serra.identity import Surroundings
    from slo_ctl.serra.parallel.work import Event, Node, Work
    from slo_ctl.serra.session import Request

END_PATIENCE_S = 15.0
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
        """What a process says, or that it is dead."""
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
        process.join(END_PATIENCE_S)
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
            process.join(END_PATIENCE_S)
            if process.is_alive():
                process.kill()
                process.join()
            self._pipes.pop(node).close()
