"""How long the threads of VMs waited for block I/O, as the kernel accounts delays (taskstats)."""

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
"""Asked about in one call, at 0.13 ms each; where there are more, VMs take turns."""
_NS_PER_S = 1e9
_SLACK = 1.5
"""A thread cannot wait longer than time passes; what exceeds that by so much is an outlier, such as a
counter that was
cleared, or a number that came to belong to another thread."""

Waits = tuple[int, int]
"""Of one thread since it began: how often it waited, and for how many nanoseconds in all."""


@dataclass(frozen=True, slots=True)
class BlockDelay:
    """Time that a VM's threads waited between two readings, in total."""

    window_s: float
    waits: int
    delay_s: float
    """Exceeds the window where several threads wait at a time."""
    threads: int
    """Threads present at both readings."""


def delay_between(earlier: Mapping[str, Waits], later: Mapping[str, Waits], window_s: float) -> BlockDelay:
    """Sum up the differences of threads that are in both readings, without outliers."""
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
    """Delays of VMs, each since it was asked about last. Off where the kernel does not account them."""

    def __init__(
        self,
        proc: Path,
        read: Callable[[int], Waits] | None = None,
    ) -> None:
        """`read` asks for one thread and raises OSError; by default it is the kernel that is asked."""
        self._proc = proc
        self._stats: Any = None
        self._read = read or self._ask
        self._last: dict[str, tuple[float, dict[str, Waits]]] = {}
        self._turn = 0
        self.problem = self._why_off()
        """Why there are none; empty when there are."""

    def _why_off(self) -> str:
        try:
            file = read_bounded(self._proc / "sys" / "kernel" / "task_delayacct")
        except OSError as error:
            return f"delays of block I/O are not known: {error.strerror}"
        if file is None:
            return "delays of block I/O are not known: this kernel lacks CONFIG_TASK_DELAY_ACCT"
        if file.text.strip() == "0":
            return f"delays of block I/O are not known: set sysctl {SYSCTL}=1 before VMs start"
        return ""

    def sample(self, pids: Mapping[str, Iterable[str]]) -> dict[str, BlockDelay]:
        """Of the VMs whose turn it is and that were asked about before. `pids` are the processes of each
        VM."""
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
                self.problem = f"delays of block I/O are not known: taskstats: {error.strerror or error}"
                return {}
            if vm in self._last:
                before_s, before = self._last[vm]
                found[vm] = delay_between(before, waits, now_s - before_s)
            self._last[vm] = now_s, waits
        return found

    def close(self) -> None:
        """Hang up."""
        if self._stats is not None:
            with suppress(OSError):  # it is given up in any case
                self._stats.close()
            self._stats = None

    def _threads(self, pid: str) -> list[str]:
        try:
            return [entry.name for entry in (self._proc / pid / "task").iterdir()]
        except OSError:
            # It has ended.
            return []

    def _waits(self, threads: Iterable[str]) -> dict[str, Waits]:
        found = {}
        for thread in threads:
            try:
                found[thread] = self._read(int(thread))
            except ProcessLookupError:
                continue
        return found

    def _ask(self, thread: int) -> Waits:
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
