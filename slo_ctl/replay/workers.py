"""Worker processes that run replays."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any


def worker_starts() -> None:
    """Ctrl-C goes to the whole group; the parent alone ends the run."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def local_executor(
    workers: int, begins: Callable[..., None] = worker_starts, arguments: tuple[Any, ...] = ()
) -> ProcessPoolExecutor:
    """So many processes, each of which begins with `begins(*arguments)`."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(max(1, workers), context, begins, arguments)
