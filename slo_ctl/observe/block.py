"""VMs on a real block device: windows from the counters of their cgroups."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Generic, TypeVar

from slo_ctl.model import DeviceNumber, IoCounters, ShareBy, Stream

# What one VM did on one device over the last seconds, for people.

Reading = TypeVar("Reading")


@dataclass(frozen=True, slots=True)
class LatencyCounts:
    """How long requests of one kind took since the device was served, counted between bounds."""

    bounds_s: tuple[float, ...]
    counts: tuple[int, ...]
    """One more than there are bounds: the last is of what took longer than all of them."""
    sum_s: float


@dataclass(frozen=True, slots=True)
class StreamTotals:
    """Counters of one VM on one device since its cgroup was created or the device was served.

    None: not counted there.
    """

    reads: int | None = None
    writes: int | None = None
    read_bytes: int | None = None
    written_bytes: int | None = None
    host_page_writes: int | None = None
    gc_page_writes: int | None = None
    read_latency: LatencyCounts | None = None
    write_latency: LatencyCounts | None = None


@dataclass(frozen=True, slots=True)
class StreamWindow:
    """One VM on one device over a sliding window. None: not known there."""

    vm: str
    """Key of the stream, as in `VmSample.vm`."""
    window_s: float
    """Time covered: shorter than asked for in the beginning; 0 before the second reading. Modelled time
    on an emulated SSD with latency, else real time."""
    totals: StreamTotals = StreamTotals()
    iops: float | None = None
    read_iops: float | None = None
    write_iops: float | None = None
    bandwidth_bytes_s: float | None = None
    """Reads and writes."""
    p99_read_us: float | None = None
    p99_write_us: float | None = None
    throttle_wait_us: float | None = None
    """Mean time that a request was throttled by a limit."""
    host_page_writes: int | None = None
    gc_page_writes: int | None = None
    u: float | None = None
    waf: float | None = None
    size_bytes: int | None = None
    ops_blocks: int | None = None
    """OPS without the blocks that are kept free for GC."""
    ops_bytes: int | None = None
    requests: int = 0
    pages: int = 0
    """Host pages read and written."""
    device_s: float = 0.0
    """Die and channel time spent on its requests."""
    queued_share: float = 1.0
    """Share of the time with a request waiting for its turn in the device's queue."""
    backlog_share: float = 1.0
    """Share of the time with a request outstanding."""

    def amount(self, share_by: ShareBy) -> float:
        """Delivered to the VM, in the unit of shares."""
        return share_by.amount(self.pages, self.requests, self.device_s)


class Sliding(Generic[Reading]):
    """The last readings: enough to span a window, and no more."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._readings: deque[tuple[float, Reading]] = deque()

    def add(self, at_s: float, reading: Reading) -> None:
        """One more; `at_s` never goes back."""
        readings = self._readings
        readings.append((at_s, reading))
        while len(readings) > 2 and readings[1][0] <= at_s - self._window_s:
            readings.popleft()

    def clear(self) -> None:
        """Forget what was: it is not comparable with what comes."""
        self._readings.clear()

    @property
    def last(self) -> Reading | None:
        """The latest."""
        return self._readings[-1][1] if self._readings else None

    @property
    def first(self) -> Reading | None:
        """The one that the window begins with."""
        return self._readings[0][1] if self._readings else None

    @property
    def length_s(self) -> float:
        """Time from the first to the last."""
        return self._readings[-1][0] - self._readings[0][0] if self._readings else 0.0


_Counted = dict[str, IoCounters]
"""Counters by cgroup."""


@dataclass(slots=True)
class _Vm:
    cgroups: frozenset[str]
    readings: Sliding[_Counted]


class BlockDevice:
    """A block device of the host. The kernel keeps no latencies of a cgroup, so there are no percentiles."""

    def __init__(
        self,
        name: str,
        path: Path,
        number: DeviceNumber,
        *,
        window_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`number` is the one that cgroups charge: that of the whole disk."""
        self.name = name
        self.path = path
        self.number = number
        self.windows: dict[str, StreamWindow] = {}
        """Windows as of the last `update`, by VM."""
        self._window_s = window_s
        self._clock = clock
        self._vms: dict[str, _Vm] = {}

    def update(self, streams: Iterable[Stream]) -> dict[str, StreamWindow]:
        """Take the counters of a look into account; returns `windows`.

        A VM whose cgroup is another one than before, or counts less, has restarted: so does its window.
        """
        now_s = self._clock()
        counted: dict[str, _Counted] = {}
        for stream in streams:
            if stream.device == self.number and stream.cgroup is not None:
                counters = stream.counters or IoCounters()
                counted.setdefault(stream.vm, {})[stream.cgroup] = counters
        self._vms = {vm: self._known(vm, now) for vm, now in counted.items()}
        for vm, now in counted.items():
            self._vms[vm].readings.add(now_s, now)
        self.windows = {vm: _stream_window(vm, known.readings) for vm, known in self._vms.items()}
        return self.windows

    def _known(self, vm: str, now: Mapping[str, IoCounters]) -> _Vm:
        known, cgroups = self._vms.get(vm), frozenset(now)
        if known is None or known.cgroups != cgroups:
            return _Vm(cgroups, Sliding(self._window_s))
        last = known.readings.last or {}
        if any(
            last[cgroup] is not counters and _went_back(last[cgroup], counters)
            for cgroup, counters in now.items()
        ):
            known.readings.clear()
        return known


def _stream_window(vm: str, readings: Sliding[_Counted]) -> StreamWindow:
    first, last, length_s = readings.first or {}, readings.last or {}, readings.length_s
    if length_s > 0 and all(first.get(cgroup) is counters for cgroup, counters in last.items()):
        return _still(vm, length_s, list(last.values()))

    def rate(*names: str) -> float | None:
        """Rate of the sum of several counters; None when the kernel keeps none of them."""
        changes = [_change(first[cgroup], last[cgroup], name) for cgroup in last for name in names]
        known = [change for change in changes if change is not None]
        return sum(known) / length_s if known and length_s > 0 else None

    return StreamWindow(
        vm=vm,
        window_s=length_s,
        totals=_totals(last.values()),
        iops=rate("reads", "writes"),
        read_iops=rate("reads"),
        write_iops=rate("writes"),
        bandwidth_bytes_s=rate("read_bytes", "written_bytes"),
    )


def _still(vm: str, length_s: float, counters: list[IoCounters]) -> StreamWindow:
    """Of a VM of which nothing was counted, as is so for most VMs most of the time; None is none still."""
    reads = 0.0 if any(each.reads is not None for each in counters) else None
    writes = 0.0 if any(each.writes is not None for each in counters) else None
    moved = any(each.read_bytes is not None or each.written_bytes is not None for each in counters)
    return StreamWindow(
        vm=vm,
        window_s=length_s,
        totals=_totals(counters),
        iops=writes if reads is None else reads,
        read_iops=reads,
        write_iops=writes,
        bandwidth_bytes_s=0.0 if moved else None,
    )


def _totals(counters: Collection[IoCounters]) -> StreamTotals:
    """Totals of all cgroups of a VM."""

    def total(name: str) -> int | None:
        known = [value for each in counters if (value := getattr(each, name)) is not None]
        return sum(known) if known else None

    return StreamTotals(total("reads"), total("writes"), total("read_bytes"), total("written_bytes"))


def _change(first: IoCounters, last: IoCounters, name: str) -> int | None:
    """A device is absent from a cgroup's statistics until its first I/O: then it began at 0."""
    then, now = getattr(first, name), getattr(last, name)
    return None if now is None else int(now) - int(then or 0)


def _went_back(first: IoCounters, last: IoCounters) -> bool:
    return any((getattr(last, f.name) or 0) < (getattr(first, f.name) or 0) for f in fields(IoCounters))
