"""Time that threads of VMs waited for block I/O, from the delay accounting of the kernel (taskstats)."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slo_ctl.base.kernel_files import read_bounded

SYSCTL = "kernel.task_delayacct"
MAX_THREADS = 64
"""Threads that are read in one call, at 0.13 ms each; VMs with more threads in total take turns."""
_NS_PER_S = 1e9
_SLACK = 1.5
"""A wait that exceeds the elapsed time by this factor is an outlier, such as a counter that was cleared or a
thread number that was reused."""

_PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)
"""Errors after which the next reading may succeed."""

Waits = tuple[int, int]
"""Counters of a thread since its start: number of waits, and their total time in nanoseconds."""


@dataclass(frozen=True, slots=True)
class BlockDelay:
    """Total time that a VM's threads waited between two readings."""

    window_s: float
    waits: int
    delay_s: float
    """Total of all threads; exceeds the window if several threads wait at the same time."""
    threads: int
    """Threads present at both readings."""


def delay_between(earlier: Mapping[str, Waits], later: Mapping[str, Waits], window_s: float) -> BlockDelay:
    """Sum of the differences of threads that are in both readings, without outliers."""
    waits = delay_ns = threads = 0
    for thread, (count, total_ns) in later.items():
        before = earlier.get(thread)
        if before is None:
            continue
        more, longer_ns = count - before[0], total_ns - before[1]
        if more < 0 or not 0 <= longer_ns <= _SLACK * window_s * _NS_PER_S:
            continue
        waits, delay_ns, threads = waits + more, delay_ns + longer_ns, threads + 1
    return BlockDelay(window_s, waits, delay_ns / _NS_PER_S, threads)


class TaskDelay:
    """Delays of VMs since their last reading. Disabled if the kernel does not account delays."""

    def __init__(
        self,
        proc: Path,
        read: Callable[[int], Waits] | None = None,
    ) -> None:
        """`read` returns the counters of a thread or raises OSError; by default it reads from the kernel."""
        self._proc = proc
        self._stats: Any = None
        self._read = read or self._read_kernel
        self._last: dict[str, tuple[float, dict[str, Waits]]] = {}
        self._turn = 0
        self.problem = self._why_off()
        """Why there are no delays; empty if there are."""

    def _why_off(self) -> str:
        try:
            file = read_bounded(self._proc / "sys" / "kernel" / "task_delayacct")
        except OSError as error:
            return f"delays of block I/O are unknown: {error.strerror}"
        if file is None:
            return "delays of block I/O are unknown: this kernel lacks CONFIG_TASK_DELAY_ACCT"
        if file.text.strip() == "0":
            return f"delays of block I/O are unknown: set sysctl {SYSCTL}=1 before VMs start"
        return ""

    def sample(self, pids: Mapping[str, Iterable[str]]) -> dict[str, BlockDelay]:
        """Delays of the VMs whose turn it is and that were read before. `pids`: processes of each VM."""
        self._last = {vm: reading for vm, reading in self._last.items() if vm in pids}
        found: dict[str, BlockDelay] = {}
        if self.problem:
            return found
        names, left = sorted(pids), MAX_THREADS
        for step in range(len(names)):
            vm = names[(self._turn + step) % len(names)]
            threads = [thread for pid in pids[vm] for thread in self._threads(pid)][:MAX_THREADS]
            if len(threads) > left:
                self._turn += step
                return found
            left -= len(threads)
            now_s = time.monotonic()
            try:
                waits = self._waits(threads)
            except OSError as error:
                if error.errno in _PASSING:
                    return found
                self.problem = f"delays of block I/O are unknown: taskstats: {error.strerror or error}"
                return {}
            if vm in self._last:
                before_s, before = self._last[vm]
                found[vm] = delay_between(before, waits, now_s - before_s)
            self._last[vm] = now_s, waits
        return found

    def close(self) -> None:
        if self._stats is not None:
            with suppress(OSError):  # it is not used any more
                self._stats.close()
            self._stats = None

    def _threads(self, pid: str) -> list[str]:
        try:
            return [entry.name for entry in (self._proc / pid / "task").iterdir()]
        except OSError:
            # The process has ended.
            return []

    def _waits(self, threads: Iterable[str]) -> dict[str, Waits]:
        found = {}
        for thread in threads:
            try:
                found[thread] = self._read(int(thread))
            except ProcessLookupError:
                continue
        return found

    def _read_kernel(self, thread: int) -> Waits:
        try:
            from pyroute2.netlink.exceptions import NetlinkError
            from pyroute2.netlink.taskstats import TaskStats
        except ImportError as error:
            raise OSError(errno.ENOPKG, f"pyroute2 cannot be loaded ({error})") from None
        try:
            if self._stats is None:
                self._stats = TaskStats()
                self._stats.bind()
            (reply,) = self._stats.get_pid_stat(thread)
        except NetlinkError as error:
            raise OSError(error.code, str(error.args[-1])) from None
        aggregate = reply.get_attr("TASKSTATS_TYPE_AGGR_PID")
        stats = aggregate.get_attr("TASKSTATS_TYPE_STATS")
        return int(stats["blkio_count"]), int(stats["blkio_delay_total"])
