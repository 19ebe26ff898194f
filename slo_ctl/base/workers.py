"""Worker processes: many independent tasks on this machine.

The task of a worker that dies is started again. If workers die repeatedly because of a task, such as one
whose drive does not fit into memory, only this task is given up.
"""

from __future__ import annotations

import multiprocessing
import traceback
from collections import Counter, deque
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, Self, TypeVar

from slo_ctl.base.errors import UserError
from slo_ctl.base.progress import Silent
from slo_ctl.base.termination import END_S, end_with_parent, signals_blocked, signals_deferred

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")
Arguments = tuple[Any, ...]
MAX_DEATHS = 3
"""Number of workers that may die during a task before it is given up, where it is started again."""


class PipedProcess:
    """A process of the command, at the other end of a pipe."""

    def __init__(self, work: Callable[..., None], *arguments: Any, name: str | None = None) -> None:
        """Run `work(*arguments, pipe)` in a process, which has to call `end_with_parent` first."""
        # Not forked: threads of the parent, and MPI, would not survive a fork.
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(*arguments, theirs), name=name, daemon=True)
        # It inherits the mask, so that a signal cannot end it with a traceback before it handles signals.
        with signals_blocked():
            self.process.start()
        # Otherwise the pipe would never break.
        theirs.close()

    def join(self) -> None:
        """Wait until it has ended, and cleaned up; it is killed if this takes too long."""
        self.pipe.close()
        self.process.join(END_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A task that was given up, and why."""

    reason: str


_STOP = None
_parent: Connection[Any, Any] | None = None
"""In a worker: its end of the pipe."""


def _work(pipe: Connection[Any, Any]) -> None:
    """Carry out tasks until the pipe is closed."""
    global _parent
    end_with_parent()
    _parent = pipe
    with suppress(EOFError, OSError):
        while True:
            if (message := pipe.recv()) is _STOP:
                continue  # the task was complete by then
            task, arguments = message
            try:
                answer: tuple[Any, Exception | None] = task(*arguments), None
            except Exception as error:
                error.add_note(traceback.format_exc())
                answer = None, error
            pipe.send(answer)


def report(amount: float) -> None:
    """In a task: report progress. Raises KeyboardInterrupt after `Workers.stop`."""
    if _parent is not None:
        _parent.send(float(amount))
        if _parent.poll() and _parent.recv() is _STOP:
            raise KeyboardInterrupt


_DISCARD = Silent().advance


class Workers(Generic[Key, Result]):
    """Runs a task with many arguments on processes; the processes end with its context."""

    def __init__(
        self,
        task: Callable[..., Result],
        arguments: Mapping[Key, Arguments],
        jobs: int,
        *,
        most_deaths: int = 1,
        note_death: Callable[[], None] = lambda: None,
        advance: Callable[[float], None] = _DISCARD,
    ) -> None:
        """`most_deaths`: number of workers that may die during a task before it is given up; `note_death` is
        called before it is started again. `advance` receives progress.
        """
        self._task = task
        self._arguments = arguments
        self._jobs = jobs
        self._most_deaths = most_deaths
        self._note_death = note_death
        self._advance = advance
        self._waiting = deque(arguments)
        self._done: deque[tuple[Key, Result | GivenUp]] = deque()
        self._deaths: Counter[Key] = Counter()
        self._idle: list[PipedProcess] = []
        self._busy: dict[Any, tuple[Key, PipedProcess]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        busy = [worker for _, worker in self._busy.values()]
        for worker in busy:
            worker.process.terminate()
        workers = [*self._idle, *busy]
        for worker in workers:
            worker.pipe.close()
        for worker in workers:
            worker.join()

    def __iter__(self) -> Iterator[tuple[Key, Result | GivenUp]]:
        """Results, as tasks complete."""
        while self._waiting or self._busy or self._done:
            while self._waiting and (self._idle or len(self._busy) < self._jobs):
                self._start(self._waiting.popleft())
            for pipe in wait(list(self._busy), 0.0 if self._done else None):
                with signals_deferred():
                    self._receive(pipe)
            while self._done:
                yield self._done.popleft()

    def stop(self) -> None:
        """Start no more tasks, and interrupt those that report progress."""
        self._waiting.clear()
        self._advance = _DISCARD
        for pipe in self._busy:
            with suppress(OSError):
                pipe.send(_STOP)

    def _receive(self, pipe: Any) -> None:
        """Take a message of a worker, or notice its death."""
        key, worker = self._busy[pipe]
        try:
            message = pipe.recv()
        except (EOFError, OSError):
            del self._busy[pipe]
            worker.join()
            self._deaths[key] += 1
            if self._deaths[key] < self._most_deaths:
                self._note_death()
                # Last, when other tasks do not need memory any more.
                self._waiting.append(key)
            else:
                self._done.append((key, GivenUp(f"{self._most_deaths} worker processes died during it")))
            return
        if isinstance(message, float):
            self._advance(message)
            return
        del self._busy[pipe]
        self._idle.append(worker)
        result, error = message
        if error is not None:
            raise error
        self._done.append((key, result))

    def _start(self, key: Key) -> None:
        """Start a task, in a new process if the old one has died."""
        message = self._task, self._arguments[key]
        worker = self._idle.pop() if self._idle else PipedProcess(_work)
        try:
            worker.pipe.send(message)
        except OSError:
            worker.join()
            worker = PipedProcess(_work)
            worker.pipe.send(message)
        self._busy[worker.pipe] = key, worker


def on_processes(
    work: Callable[[Item], Result], items: Iterable[Item], jobs: int
) -> Generator[Result, None, None]:
    """Results in the order of `items`. Closing it ends the processes, which first clean up.

    Raises UserError if one dies.
    """
    if jobs <= 1:
        yield from map(work, items)
        return
    arguments = {number: (item,) for number, item in enumerate(items)}
    done: dict[int, Result] = {}
    with Workers(work, arguments, jobs) as workers:
        results = iter(workers)
        for number in arguments:
            while number not in done:
                key, result = next(results)
                if isinstance(result, GivenUp):
                    raise died()
                done[key] = result
            yield done.pop(number)


def died() -> UserError:
    """The error when a process dies, as of a lack of memory."""
    return UserError("a worker process died", "try --jobs 1: each process has its own drive in memory")
