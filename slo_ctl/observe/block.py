"""VMs on a real block device: windows from the counters of their cgroups."""

from __future__ import annotations

import operator
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Generic, TypeVar

from slo_ctl.base.numbers import sum_known
from slo_ctl.model import DeviceNumber, DiskLatency, IoCounters, LatencyCounts, Stream, StreamWindow
from slo_ctl.model.sample import waf_of

Reading = TypeVar("Reading")


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


StreamsByDevice = Mapping[DeviceNumber | None, Sequence[Stream]]
"""Streams of a look, by the block device that is charged for them."""
_Counted = dict[str, IoCounters]
"""Counters by cgroup."""
_NUMBERS = ("read_bytes", "written_bytes", "reads", "writes")
"""What the kernel counts."""
_NOT_COUNTED = IoCounters()
_NO_LATENCIES: Mapping[str, Sequence[DiskLatency]] = MappingProxyType({})


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
        return replace(window, window_s=length_s, iops=(sum(reads.counts) + sum(writes.counts)) / length_s)


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
        self._readings_of: dict[str, Sliding[_Counted]] = {}
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
                counters = stream.counters or _NOT_COUNTED
                counted.setdefault(stream.vm, {})[stream.cgroup] = counters
        self._readings_of = {vm: self._readings(vm, now) for vm, now in counted.items()}
        for vm, now in counted.items():
            self._readings_of[vm].add(now_s, now)
        self.windows = {vm: _stream_window(vm, readings) for vm, readings in self._readings_of.items()}
        self._latencies = {vm: self._latencies.get(vm) or LatencyWindow(self._window_s) for vm in latencies}
        for vm, disks in latencies.items():
            self._latencies[vm].add(now_s, disks)
            window = self.windows.get(vm) or StreamWindow(vm, 0.0)
            self.windows[vm] = self._latencies[vm].applied_to(window)
        return self.windows

    def _readings(self, vm: str, now: _Counted) -> Sliding[_Counted]:
        """Those of the VM so far that `now` continues."""
        known = self._readings_of.get(vm)
        last = known.last if known is not None else None
        if known is None or last is None or last.keys() != now.keys():
            return Sliding(self._window_s)
        if not _same(last, now) and any(_went_back(last[cgroup], each) for cgroup, each in now.items()):
            known.clear()
        return known


def _same(one: _Counted, other: _Counted) -> bool:
    """Whether these are the same objects: nothing was counted in between, as is so most of the time."""
    return all(map(operator.is_, one.values(), other.values()))


def _stream_window(vm: str, readings: Sliding[_Counted]) -> StreamWindow:
    first, last, length_s = readings.first or {}, readings.last or {}, readings.length_s
    if length_s > 0 and _same(first, last):
        return _still(vm, length_s, list(last.values()))

    def rate(*names: str) -> float | None:
        """Rate of the sum of several counters; None when the kernel keeps none of them."""
        changes = [_change(first[cgroup], last[cgroup], name) for cgroup in last for name in names]
        known = [change for change in changes if change is not None]
        return sum(known) / length_s if known and length_s > 0 else None

    return StreamWindow(
        vm=vm,
        window_s=length_s,
        totals=total_counters(list(last.values())),
        iops=rate("reads", "writes"),
        bandwidth_bytes_s=rate("read_bytes", "written_bytes"),
    )


def _still(vm: str, length_s: float, counters: list[IoCounters]) -> StreamWindow:
    """Of a VM of which nothing was counted; None is none still."""
    totals = total_counters(counters)
    counted = totals.reads is not None or totals.writes is not None
    moved = totals.read_bytes is not None or totals.written_bytes is not None
    return StreamWindow(
        vm=vm,
        window_s=length_s,
        totals=totals,
        iops=0.0 if counted else None,
        bandwidth_bytes_s=0.0 if moved else None,
    )


def total_counters(counters: Sequence[IoCounters]) -> IoCounters:
    """Of all cgroups or streams of a VM."""
    if len(counters) == 1:
        return counters[0]

    def total(name: str) -> int | None:
        return sum_known(getattr(each, name) for each in counters)

    def latency(name: str) -> LatencyCounts | None:
        known = [each for counted in counters if (each := getattr(counted, name)) is not None]
        return merged(known) if known else None

    return IoCounters(
        **{name: total(name) for name in (*_NUMBERS, "host_page_writes", "gc_page_writes")},
        read_latency=latency("read_latency"),
        write_latency=latency("write_latency"),
    )


def joined(windows: Sequence[StreamWindow]) -> StreamWindow:
    """Several streams of one VM as one, over the longest of their windows."""
    if len(windows) == 1:
        return windows[0]
    host = sum_known(w.host_page_writes for w in windows)
    gc = sum_known(w.gc_page_writes for w in windows)
    return StreamWindow(
        vm=windows[0].vm,
        window_s=max(w.window_s for w in windows),
        totals=total_counters([w.totals for w in windows]),
        iops=sum_known(w.iops for w in windows),
        bandwidth_bytes_s=sum_known(w.bandwidth_bytes_s for w in windows),
        p99_read_us=_most(w.p99_read_us for w in windows),
        p99_write_us=_most(w.p99_write_us for w in windows),
        throttle_wait_us=_mean((w.throttle_wait_us, w.iops or 0.0) for w in windows),
        host_page_writes=host,
        gc_page_writes=gc,
        u=_mean((w.u, w.gc_page_writes or 0.0) for w in windows),
        waf=waf_of(host or 0, gc or 0),
        size_bytes=sum_known(w.size_bytes for w in windows),
        ops_blocks=sum_known(w.ops_blocks for w in windows),
        ops_bytes=sum_known(w.ops_bytes for w in windows),
        requests=sum(w.requests for w in windows),
        pages=sum(w.pages for w in windows),
        device_s=sum(w.device_s for w in windows),
        queued_share=max(w.queued_share for w in windows),
        backlog_share=max(w.backlog_share for w in windows),
    )


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _mean(values: Iterable[tuple[float | None, float]]) -> float | None:
    known = [(value, weight) for value, weight in values if value is not None]
    weights = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / weights if weights else None


def _change(first: IoCounters, last: IoCounters, name: str) -> int | None:
    """A device is absent from a cgroup's statistics until its first I/O: then it began at 0."""
    then, now = getattr(first, name), getattr(last, name)
    return None if now is None else int(now) - int(then or 0)


def _went_back(first: IoCounters, last: IoCounters) -> bool:
    return any((getattr(last, name) or 0) < (getattr(first, name) or 0) for name in _NUMBERS)
