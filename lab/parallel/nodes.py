"""Working nodes, each a process that opens its target: on this machine, or behind the ranks of an MPI job."""

from __future__ import annotations

import importlib
import os
import signal
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, Self

from lab.parallel.schedule import Done, Event, Lost, Node, Noted, Ready, Work
from slo_ctl.base.errors import UserError
from slo_ctl.base.progress import Silent
from slo_ctl.base.termination import end_with_parent
from slo_ctl.base.workers import PipedProcess
from slo_ctl.profile.identity import IdentitySources
from slo_ctl.profile.session import Opened, ProfileRequest, open_target
from slo_ctl.profile.store import Conditioning

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


# A node carries out work until the master is gone.


def work_for_master(
    node: Node, request: ProfileRequest, around: IdentitySources, pipe: Connection[Event, Work | None]
) -> None:
    """Serve at the end of a pipe: Ready, then Done for each Work, until there is no more; or Lost with a
    reason.

    A file that was created is removed at the end, also on SIGTERM and if the master is gone.
    """
    # mpirun kills the process group of a rank a second after SIGTERM, while fio may still be ending.
    os.setpgid(0, 0)
    end_with_parent()
    # A broken pipe means that the master is gone.
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        try:
            with open_target(request, around, _Notes(node, pipe)) as opened:
                try:
                    _serve(node, request, opened, pipe)
                finally:
                    opened.fio.remove()
        except UserError as error:
            pipe.send(Lost(node, str(error), error.hint))
        except OSError as error:
            pipe.send(Lost(node, f"{error.filename or request.target}: {error.strerror or error}"))


def _serve(node: Node, request: ProfileRequest, opened: Opened, pipe: Connection[Event, Work | None]) -> None:
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
    """Sends notes to the master; the progress of a node is not shown."""

    def __init__(self, node: Node, pipe: Connection[Event, Work | None]) -> None:
        self._node = node
        self._pipe = pipe

    def note(self, text: str) -> None:
        """Let the master print it."""
        self._pipe.send(Noted(self._node, text))


# Nodes that are processes of this machine, each with its own target.


class LocalNodes:
    """A Transport to processes that it starts."""

    def __init__(self, requests: Sequence[ProfileRequest], around: IdentitySources, first: Node = 0) -> None:
        """A process for each request, numbered from `first`."""
        self._names = [request.target for request in requests]
        self._nodes = {
            node: PipedProcess(work_for_master, node, request, around, name=f"node {node}")
            for node, request in enumerate(requests, first)
        }
        self._running = dict(self._nodes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def names(self) -> Sequence[str]:
        """The targets."""
        return self._names

    def give(self, node: Node, work: Work) -> None:
        if node in self._running:
            # If the process is dead, `next_event` detects it, too.
            with suppress(OSError):
                self._running[node].pipe.send(work)

    def dismiss(self, node: Node) -> None:
        """End a process, and wait until it has cleaned up."""
        self._end([node])

    def next_event(self, timeout_s: float) -> Event | None:
        """The next message of a process, or its death."""
        by_pipe = {process.pipe: node for node, process in self._running.items()}
        for ready in wait(list(by_pipe), timeout_s):
            node = next(node for pipe, node in by_pipe.items() if pipe is ready)
            try:
                event: Event = self._running[node].pipe.recv()
            except (EOFError, OSError):
                return Lost(node, self._death(node))
            return event
        return None

    def now_s(self) -> float:
        return time.monotonic()

    def pid(self, node: Node) -> int | None:
        """PID of a node's process."""
        return self._nodes[node].process.pid

    def close(self) -> None:
        self._end(list(self._running))

    def _death(self, node: Node) -> str:
        dead = self._running.pop(node)
        dead.join()
        status = dead.process.exitcode
        if status is not None and status < 0:
            return f"its process was killed by {signal.Signals(-status).name}"
        return f"its process ended with status {status}"

    def _end(self, nodes: Sequence[Node]) -> None:
        ending = [self._running.pop(node) for node in nodes if node in self._running]
        for node in ending:
            node.process.terminate()
        for node in ending:
            node.join()


# Nodes that are the ranks of an MPI job. Rank 0 is the master, and its own device is measured, too.
#
# Every rank only passes messages between MPI and a child process that measures, so that it always answers,
# and a rank that sends nothing is dead. Only point-to-point messages are used: a collective operation would
# wait for dead ranks. Open MPI 4 ends the whole job when a rank dies, unless `mpirun --enable-recovery` is
# given; MPI then cannot be finalized, and is not.

MASTER = 0
ALIVE_EVERY_S = 1.0
SILENT_S = 15.0
"""A silent rank counts as dead after this time; it sends a message every ALIVE_EVERY_S."""
MASTER_SILENT_S = 30.0
"""The master has more time: it writes profiles to disk in between."""
_LOOK_EVERY_S = 0.02
_FAREWELL_S = 3.0
_RECOVERY = "OMPI_MCA_orte_enable_recovery"
"""Environment that mpirun --enable-recovery gives its ranks."""


@dataclass(frozen=True, slots=True)
class _Alive:
    host: str


@dataclass(frozen=True, slots=True)
class _Dismissed:
    """No more work."""


@dataclass(frozen=True, slots=True)
class _End:
    orderly: bool
    """All ranks are there to finalize MPI together."""


class World:
    """All ranks of the job, as seen by one of them."""

    def __init__(self) -> None:
        """Join it. Raises UserError if there is no MPI."""
        try:
            configuration: Any = importlib.import_module("mpi4py")
            configuration.rc.finalize = False
            configuration.rc.thread_level = "funneled"
            self._mpi: Any = importlib.import_module("mpi4py.MPI")
        except (ImportError, RuntimeError) as error:
            raise UserError(
                f"--mpi: mpi4py cannot be used: {error}",
                "install Open MPI and the extra `mpi` (mpi4py), or name targets of this machine with --node",
            ) from None
        self._all: Any = self._mpi.COMM_WORLD
        self._sending: list[Any] = []
        self.rank: Node = self._all.Get_rank()
        self.size: int = self._all.Get_size()

    @property
    def survives(self) -> bool:
        """Whether the job continues when a rank dies."""
        return os.environ.get(_RECOVERY) == "1"

    def send(self, rank: Node, message: object) -> bool:
        """Send without waiting; False if MPI reports an error."""
        try:
            self._sending = [each for each in self._sending if not each.Test()]
            self._sending.append(self._all.isend(message, dest=rank))
        except self._mpi.Exception:
            return False
        return True

    def receive(self) -> tuple[Node, Any] | None:
        """A received message and its sender."""
        try:
            status = self._mpi.Status()
            if not self._all.iprobe(source=self._mpi.ANY_SOURCE, status=status):
                return None
            source = status.Get_source()
            return source, self._all.recv(source=source)
        except self._mpi.Exception:
            return None  # half a message of a rank that died, which its silence reveals

    def leave(self, orderly: bool) -> None:
        """Leave the job; no other call may follow."""
        deadline_s = time.monotonic() + _FAREWELL_S
        while time.monotonic() < deadline_s and not self._sent():
            time.sleep(_LOOK_EVERY_S)
        if orderly:
            self._mpi.Finalize()

    def _sent(self) -> bool:
        try:
            return all(each.Test() for each in self._sending)
        except self._mpi.Exception:
            return True


class MpiNodes:
    """The Transport of rank 0."""

    def __init__(self, world: World, request: ProfileRequest, around: IdentitySources) -> None:
        self._world = world
        self._own = LocalNodes([request], around, MASTER)
        self._hosts = {MASTER: socket.gethostname()}
        now_s = time.monotonic()
        self._heard_s = dict.fromkeys(range(1, world.size), now_s)
        self._dead: set[Node] = set()
        self._heartbeat_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def names(self) -> Sequence[str]:
        """Ranks and hosts."""
        return [
            f"rank {rank} on {self._hosts[rank]}" if rank in self._hosts else f"rank {rank}"
            for rank in range(self._world.size)
        ]

    def give(self, node: Node, work: Work) -> None:
        if node == MASTER:
            self._own.give(node, work)
        else:
            self._world.send(node, work)

    def dismiss(self, node: Node) -> None:
        """The rank stays, as MPI requires it, and measures no more."""
        if node == MASTER:
            self._own.dismiss(node)
        elif node not in self._dead:
            self._world.send(node, _Dismissed())

    def next_event(self, timeout_s: float) -> Event | None:
        """The next message of a rank, or the loss of a silent one."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            self._tell_that_we_live()
            while (message := self._world.receive()) is not None:
                rank, said = message
                self._heard_s[rank] = time.monotonic()
                if isinstance(said, _Alive):
                    self._hosts[rank] = said.host
                elif rank not in self._dead:
                    event: Event = said
                    return event
            for rank, heard_s in self._heard_s.items():
                if rank not in self._dead and time.monotonic() - heard_s > SILENT_S:
                    self._dead.add(rank)
                    return Lost(rank, f"nothing was heard of it for {SILENT_S:.0f} s")
            if (own := self._own.next_event(_LOOK_EVERY_S)) is not None:
                return own
            if time.monotonic() >= deadline_s:
                return None

    def now_s(self) -> float:
        return time.monotonic()

    def close(self) -> None:
        orderly = not self._dead
        for rank in range(1, self._world.size):
            self._world.send(rank, _End(orderly))
        self._own.close()
        self._world.leave(orderly)

    def _tell_that_we_live(self) -> None:
        now_s = time.monotonic()
        if now_s - self._heartbeat_s < ALIVE_EVERY_S:
            return
        self._heartbeat_s = now_s
        for rank in range(1, self._world.size):
            if rank not in self._dead:
                self._world.send(rank, _Alive(""))


def serve_rank(world: World, request: ProfileRequest, around: IdentitySources) -> None:
    """The work of every rank except the master: pass work on to a child process, and results back.

    Ends on request of the master. Raises UserError if the master is silent.
    """
    with LocalNodes([request], around, world.rank) as own:
        end = _pass_messages(world, own)
    world.leave(end is not None and end.orderly)
    if end is None:
        raise UserError(
            f"rank {MASTER}, which distributes the work, is lost: it sent nothing for "
            f"{MASTER_SILENT_S:.0f} s",
            "measurements are kept on its host: run the same command again to continue",
        )


def _pass_messages(world: World, own: LocalNodes) -> _End | None:
    """Pass messages until the master ends it; None: the master is silent."""
    host = socket.gethostname()
    heard_s, told_s = time.monotonic(), 0.0
    while time.monotonic() - heard_s < MASTER_SILENT_S:
        if time.monotonic() - told_s >= ALIVE_EVERY_S:
            told_s = time.monotonic()
            world.send(MASTER, _Alive(host))
        while (message := world.receive()) is not None:
            heard_s = time.monotonic()
            said = message[1]
            if isinstance(said, _End):
                return said
            if isinstance(said, _Dismissed):
                own.close()
            elif not isinstance(said, _Alive):
                own.give(world.rank, said)
        event = own.next_event(_LOOK_EVERY_S)
        if event is not None:
            world.send(MASTER, event)
    return None
