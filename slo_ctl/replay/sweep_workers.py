"""Many independent tasks, on processes of this machine or on the workers of a Dask cluster.

A worker that dies costs the task that it had, which is begun again. Where workers die of one task repeatedly,
as with a drive that does not fit into memory, that task alone is given up.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Future,
    ProcessPoolExecutor,
    wait,
)
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeVar

from slo_ctl.base.errors import UserError
from slo_ctl.base.progress import ProgressSink
from slo_ctl.replay.run import local_executor

MOST_DEATHS = 3
"""Workers that may die of a task before it is given up."""
_CONNECT_S = 10.0

Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")
Arguments = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A task without a result."""

    reason: str


def on_processes(
    task: Callable[..., Result], arguments: Mapping[Key, Arguments], jobs: int, progress: ProgressSink
) -> Iterator[tuple[Key, Result | GivenUp]]:
    """Run `task` with each of `arguments` on `jobs` processes; results as they are there."""
    waiting, deaths = deque(arguments), Counter[Key]()
    with ExitStack() as everything:
        # Pools of one process each: a pool of several does not tell which task its dead process had.
        idle = [_Worker(everything) for _ in range(min(jobs, len(waiting)))]
        running: dict[Future[Result], tuple[Key, _Worker]] = {}
        while waiting or running:
            while waiting and idle:
                key, worker = waiting.popleft(), idle.pop()
                running[worker.submit(task, arguments[key])] = key, worker
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                key, worker = running.pop(future)
                try:
                    yield key, future.result()
                except BrokenExecutor:
                    worker.replace()
                    deaths[key] += 1
                    if deaths[key] < MOST_DEATHS:
                        progress.note("a worker process died; its replay is started again")
                        # Last: what is short of memory beside others may have enough after them.
                        waiting.append(key)
                    else:
                        yield key, GivenUp(f"{MOST_DEATHS} worker processes died of it")
                idle.append(worker)


class _Worker:
    """One process, and the next where it dies."""

    def __init__(self, ending: ExitStack) -> None:
        self._pool: ProcessPoolExecutor = local_executor(1)
        ending.callback(lambda: self._pool.shutdown(cancel_futures=True))

    def submit(self, task: Callable[..., Result], arguments: Arguments) -> Future[Result]:
        """Begin a task, unless the process died while it had none: then with another process."""
        try:
            return self._pool.submit(task, *arguments)
        except BrokenExecutor:
            self.replace()
            return self._pool.submit(task, *arguments)

    def replace(self) -> None:
        """Another process in place of one that died."""
        self._pool.shutdown()
        self._pool = local_executor(1)


def on_cluster(
    task: Callable[..., Result], arguments: Mapping[Key, Arguments], scheduler: str
) -> Iterator[tuple[Key, Result | GivenUp]]:
    """Run `task` with each of `arguments` on the workers of a Dask scheduler; results as they are there.

    The scheduler begins again what a lost worker had, and waits for workers where there is none. Raises
    UserError where it does not answer.
    """
    import distributed

    # Its tracebacks: what becomes of the tasks says the same in a line.
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
    try:
        client = distributed.Client(scheduler, timeout=_CONNECT_S)
    except (OSError, ValueError) as error:
        raise UserError(
            f"--dask: the scheduler {scheduler} does not answer: {error}",
            "start `dask scheduler` and `dask worker ADDRESS --nthreads 1`",
        ) from None
    with client:
        futures = {client.submit(task, *words, pure=False): key for key, words in arguments.items()}
        try:
            for future in distributed.as_completed(futures):
                yield futures[future], _result_of(future)
        finally:
            client.cancel(list(futures))


def _result_of(future: Any) -> Any:
    from distributed import KilledWorker
    from distributed.comm import CommClosedError

    try:
        return future.result()
    except KilledWorker:
        return GivenUp("workers died of it repeatedly")
    except (CancelledError, CommClosedError):
        return GivenUp("the scheduler was lost")
