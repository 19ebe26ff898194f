"""Worker processes: many independent tasks on this machine, or on the workers of a Dask cluster.

The task of a worker that dies is started again. If workers die repeatedly because of a task, such as one
whose drive does not fit into memory, only this task is given up.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
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

MAX_DEATHS = 3
"""Number of workers that may die during a task before it is given up."""
_CONNECT_S = 10.0

Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")
Arguments = tuple[Any, ...]


def become_worker() -> None:
    """Leave it to the parent to stop this process: by the executor, or by its own death.

    Signals that the whole process group receives from a terminal are ignored.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Without this, a worker whose parent was killed would wait for tasks for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def local_executor(
    workers: int, initializer: Callable[..., None] = become_worker, arguments: tuple[Any, ...] = ()
) -> ProcessPoolExecutor:
    """A pool of processes, each of which first calls `initializer(*arguments)`."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, context, initializer, arguments)


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A task that was given up, and why."""

    reason: str


def on_local_workers(
    task: Callable[..., Result], arguments: Mapping[Key, Arguments], jobs: int, progress: ProgressSink
) -> Iterator[tuple[Key, Result | GivenUp]]:
    """Run `task` with each of `arguments` on `jobs` processes; yields results as they complete."""
    waiting, deaths = deque(arguments), Counter[Key]()
    with ExitStack() as everything:
        # Pools of one process each, because a larger pool does not tell whose task killed a process.
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
                    if deaths[key] < MAX_DEATHS:
                        progress.note("a worker process died; its replay is started again")
                        # Last, when other tasks do not need memory any more.
                        waiting.append(key)
                    else:
                        yield key, GivenUp(f"{MAX_DEATHS} worker processes died during it")
                idle.append(worker)


class _Worker:
    """A worker process, which is replaced when it dies."""

    def __init__(self, ending: ExitStack) -> None:
        self._pool: ProcessPoolExecutor = local_executor(1)
        ending.callback(lambda: self._pool.shutdown(cancel_futures=True))

    def submit(self, task: Callable[..., Result], arguments: Arguments) -> Future[Result]:
        """Start a task, in a new process if the old one has died."""
        try:
            return self._pool.submit(task, *arguments)
        except BrokenExecutor:
            self.replace()
            return self._pool.submit(task, *arguments)

    def replace(self) -> None:
        """Start a new process after one died."""
        self._pool.shutdown()
        self._pool = local_executor(1)


def on_cluster(
    task: Callable[..., Result], arguments: Mapping[Key, Arguments], scheduler: str
) -> Iterator[tuple[Key, Result | GivenUp]]:
    """Run `task` with each of `arguments` on the workers of a Dask scheduler; yields results when complete.

    The scheduler starts the task of a lost worker again, and waits for workers if there are none. Raises
    UserError if it does not answer.
    """
    import distributed

    # Suppress its tracebacks; the reason of the task says the same.
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
        return GivenUp("workers died repeatedly during it")
    except (CancelledError, CommClosedError):
        return GivenUp("the scheduler was lost")
