"""VMs on a real block device: windows from the counters of their cgroups."""

from __future__ import annotations

import operator
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Generic, TypeVar

from slo_ctl.model import DeviceNumber, DiskLatency, IoCounters, LatencyCounts, ShareBy, Stream

# What one VM did on one device over the last seconds, for people.

Reading = TypeVar("Reading")


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
_NO_LATENCIES: Mapping[str, Sequence[DiskLatency]] = MappingProxyType({})


@dataclass(slots=True)
class _Vm:
    cgroups: frozenset[str]
    readings: Sliding[_Counted]


# Latencies of one VM on one device: the kernel keeps none of a cgroup, QEMU does of each disk.

_QUANTILE = 0.99
_US_PER_S = 1e6


def merged(latencies: Collection[LatencyCounts]) -> LatencyCounts:
    """Several disks as one; without bounds where theirs differ."""
    bounds = {each.bounds_s for each in latencies}
    sum_s = sum(each.sum_s for each in latencies)
    if len(bounds) == 1:
        counts = tuple(map(sum, zip(*(each.counts for each in latencies), strict=True)))
        return LatencyCounts(bounds.pop(), counts, sum_s)
    return LatencyCounts((), (sum(sum(each.counts) for each in latencies),), sum_s)


def since(first: LatencyCounts, last: LatencyCounts) -> LatencyCounts | None:
    """What was counted between two readings; None where they cannot be compared."""
    if first.bounds_s != last.bounds_s:
        return None
    counts = tuple(after - before for before, after in zip(first.counts, last.counts, strict=True))
    # A histogram that was started again counts from 0.
    if min(counts) < 0 or last.sum_s < first.sum_s:
        return None
    return LatencyCounts(last.bounds_s, counts, last.sum_s - first.sum_s)


def quantile_s(latency: LatencyCounts, quantile: float = _QUANTILE) -> float | None:
    """By linear interpolation between bounds; None without any, and without requests.

    What took longer than the last bound is taken to be on it.
    """
    total = sum(latency.counts)
    if not latency.bounds_s or total == 0:
        return None
    rank, below = quantile * total, 0
    lower_s = 0.0
    for bound_s, count in zip(latency.bounds_s, latency.counts, strict=False):
        if count and below + count >= rank:
            return lower_s + (bound_s - lower_s) * max(0.0, rank - below) / count
        below, lower_s = below + count, bound_s
    return lower_s


class LatencyWindow:
    """Latencies of a VM's disks on one device, over the status window and since the first reading."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._readings: Sliding[DiskLatency] = Sliding(window_s)
        self._base: DiskLatency | None = None
        self._read: tuple[DiskLatency, ...] = ()
        self._read_at_s = 0.0

    @property
    def has_histogram(self) -> bool:
        """Whether more than means are known."""
        last = self._readings.last
        return last is not None and bool(last.reads.bounds_s or last.writes.bounds_s)

    def add(self, now_s: float, disks: Sequence[DiskLatency]) -> None:
        """A reading; the same objects as before if there is no newer one."""
        same = len(disks) == len(self._read) and all(map(operator.is_, disks, self._read))
        if not disks or same:
            if now_s - self._read_at_s > self._window_s:
                self._readings.clear()
            return
        self._read, self._read_at_s = tuple(disks), now_s
        now = DiskLatency(merged([each.reads for each in disks]), merged([each.writes for each in disks]))
        last = self._readings.last or self._base
        if last is None or since(last.reads, now.reads) is None or since(last.writes, now.writes) is None:
            self._readings.clear()
            self._base = now
        self._readings.add(now_s, now)

    def applied_to(self, window: StreamWindow) -> StreamWindow:
        """The window with latencies, and with QEMU's counters where the kernel counts no requests."""
        first, last, base = self._readings.first, self._readings.last, self._base
        if first is None or last is None or base is None:
            return window
        reads, writes = since(first.reads, last.reads), since(first.writes, last.writes)
        if reads is None or writes is None:
            return window
        totals = replace(
            window.totals,
            read_latency=since(base.reads, last.reads),
            write_latency=since(base.writes, last.writes),
        )
        window = replace(
            window, totals=totals, p99_read_us=_us(quantile_s(reads)), p99_write_us=_us(quantile_s(writes))
        )
        length_s = self._readings.length_s
        if window.iops is not None or length_s <= 0:
            return window
        read_iops, write_iops = sum(reads.counts) / length_s, sum(writes.counts) / length_s
        return replace(
            window,
            window_s=length_s,
            iops=read_iops + write_iops,
            read_iops=read_iops,
            write_iops=write_iops,
        )


def _us(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * _US_PER_S


class BlockDevice:
    """A block device of the host: rates by the kernel's counters, latencies by QEMU's."""

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
        self._latencies: dict[str, LatencyWindow] = {}

    @property
    def with_histogram(self) -> set[str]:
        """VMs of which percentiles are known as soon as they have requests."""
        return {vm for vm, latency in self._latencies.items() if latency.has_histogram}

    def update(
        self, streams: Iterable[Stream], latencies: Mapping[str, Sequence[DiskLatency]] = _NO_LATENCIES
    ) -> dict[str, StreamWindow]:
        """Take the counters of a look into account; returns `windows`.

        `latencies` are those of the disks that VMs have on this device, by VM. A VM whose cgroup is another
        one than before, or counts less, has restarted: so does its window.
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
        self._latencies = {vm: self._latencies.get(vm) or LatencyWindow(self._window_s) for vm in latencies}
        for vm, disks in latencies.items():
            self._latencies[vm].add(now_s, disks)
            window = self.windows.get(vm) or StreamWindow(vm, 0.0)
            self.windows[vm] = self._latencies[vm].applied_to(window)
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
