"""Performance of VMs on a block device, from counters of their cgroups and latencies of their disks."""

from __future__ import annotations

import operator
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Generic, TypeVar

from slo_ctl.base.numbers import max_known, sum_known
from slo_ctl.model.host import DeviceNumber, DiskLatency, IoCounters, LatencyCounts, Stream
from slo_ctl.model.sample import VmSample

Reading = TypeVar("Reading")


class SlidingWindow(Generic[Reading]):
    """The latest readings, back to the last one that is at least `window_s` old."""

    def __init__(self, window_s: float) -> None:
        self.window_s = window_s
        """Length of the window once there are readings for it."""
        self._readings: deque[tuple[float, Reading]] = deque()

    def add(self, at_s: float, reading: Reading) -> None:
        """Add a reading; `at_s` must not decrease."""
        readings = self._readings
        readings.append((at_s, reading))
        while len(readings) > 2 and readings[1][0] <= at_s - self.window_s:
            readings.popleft()

    def clear(self) -> None:
        """Drop all readings, when later ones cannot be compared with them."""
        self._readings.clear()

    @property
    def last(self) -> Reading | None:
        return self._readings[-1][1] if self._readings else None

    @property
    def first(self) -> Reading | None:
        """The reading at the beginning of the window."""
        return self._readings[0][1] if self._readings else None

    @property
    def length_s(self) -> float:
        """Time from the first to the last reading."""
        return self._readings[-1][0] - self._readings[0][0] if self._readings else 0.0


StreamsByDevice = Mapping[DeviceNumber | None, Sequence[Stream]]
"""Streams of a scan, by the block device whose counters they have."""
_GroupCounters = dict[str, IoCounters]
"""Counters by cgroup."""
_KERNEL_COUNTERS = ("read_bytes", "written_bytes", "reads", "writes")
_NO_COUNTERS = IoCounters()
_NO_LATENCIES: Mapping[str, Sequence[DiskLatency]] = MappingProxyType({})


# Latencies of a VM on a device. The kernel has none of cgroups; QEMU or a bpftrace program counts them.

_QUANTILE = 0.99
_US_PER_S = 1e6


def sum_latencies(latencies: Sequence[LatencyCounts]) -> LatencyCounts:
    """Sum over several disks; without bounds if their bounds differ."""
    bounds = {latency.bounds_s for latency in latencies}
    sum_s = sum(latency.sum_s for latency in latencies)
    if len(bounds) == 1:
        counts = tuple(map(sum, zip(*(latency.counts for latency in latencies), strict=True)))
        return LatencyCounts(bounds.pop(), counts, sum_s)
    return LatencyCounts((), (sum(sum(latency.counts) for latency in latencies),), sum_s)


def latency_increase(first: LatencyCounts, last: LatencyCounts) -> LatencyCounts | None:
    """Counts between two readings; None if they cannot be compared."""
    if first.bounds_s != last.bounds_s:
        return None
    counts = tuple(after - before for before, after in zip(first.counts, last.counts, strict=True))
    # A histogram that was enabled again counts from 0.
    if min(counts) < 0 or last.sum_s < first.sum_s:
        return None
    return LatencyCounts(last.bounds_s, counts, last.sum_s - first.sum_s)


def p99_of(latency: LatencyCounts) -> float | None:
    """The p99 in seconds, interpolated linearly between bounds; None without bounds or requests.

    Latencies above the last bound count as equal to it.
    """
    total = sum(latency.counts)
    if not latency.bounds_s or total == 0:
        return None
    rank, below = _QUANTILE * total, 0
    lower_s = 0.0
    for bound_s, count in zip(latency.bounds_s, latency.counts, strict=False):
        if count and below + count >= rank:
            return lower_s + (bound_s - lower_s) * max(0.0, rank - below) / count
        below, lower_s = below + count, bound_s
    return lower_s


class LatencyWindow:
    """Latencies of a VM's disks on one device, in the status window and since the first reading."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._readings: SlidingWindow[DiskLatency] = SlidingWindow(window_s)
        self._base: DiskLatency | None = None
        """First reading since the counts were reset."""
        self._newest: DiskLatency | None = None
        self._disks: tuple[DiskLatency, ...] = ()
        """Latest latencies of each disk."""
        self._changed_at_s = 0.0

    @property
    def has_histogram(self) -> bool:
        """Whether percentiles are known, not only means."""
        last = self._readings.last
        return last is not None and bool(last.reads.bounds_s or last.writes.bounds_s)

    def add(self, now_s: float, disks: Sequence[DiskLatency]) -> None:
        """Add the latest reading of the disks: the same objects as before if there is no newer one."""
        same = len(disks) == len(self._disks) and all(map(operator.is_, disks, self._disks))
        if not disks or same:
            if now_s - self._changed_at_s > self._window_s:
                self._readings.clear()
            return
        # A further disk has counts of all requests since the start of the VM.
        has_other_disks = len(disks) != len(self._disks)
        self._disks, self._changed_at_s = tuple(disks), now_s
        reading = DiskLatency(
            sum_latencies([disk.reads for disk in disks]), sum_latencies([disk.writes for disk in disks])
        )
        last = self._newest
        if (
            last is None
            or has_other_disks
            or latency_increase(last.reads, reading.reads) is None
            or latency_increase(last.writes, reading.writes) is None
        ):
            self._readings.clear()
            self._base = reading
        self._newest = reading
        self._readings.add(now_s, reading)

    def add_to(self, window: VmSample) -> VmSample:
        """The window with latencies, and with IOPS from their counts if the kernel counts no requests."""
        base, newest = self._base, self._newest
        if base is None or newest is None:
            return window
        totals = window.totals._replace(
            read_latency=latency_increase(base.reads, newest.reads),
            write_latency=latency_increase(base.writes, newest.writes),
        )
        window = window._replace(totals=totals)
        first = self._readings.first
        if first is None:
            return window
        reads = latency_increase(first.reads, newest.reads)
        writes = latency_increase(first.writes, newest.writes)
        if reads is None or writes is None:
            return window
        window = window._replace(p99_read_us=_us(p99_of(reads)), p99_write_us=_us(p99_of(writes)))
        length_s = self._readings.length_s
        if length_s <= 0:
            return window
        iops = (sum(reads.counts) + sum(writes.counts)) / length_s
        if window.iops is not None:
            return window._replace(guest_iops=iops)
        return window._replace(window_s=length_s, iops=iops, guest_iops=iops)


def _us(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * _US_PER_S


class BlockDevice:
    """A block device of the host and its VMs: rates from the kernel's counters, latencies from histograms."""

    def __init__(
        self,
        number: DeviceNumber,
        *,
        window_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`number`: the device in the statistics of cgroups, which is the whole disk."""
        self.number = number
        self.windows: dict[str, VmSample] = {}
        """Windows as of the last `update`, by VM."""
        self._window_s = window_s
        self._clock = clock
        self._readings: dict[str, SlidingWindow[_GroupCounters]] = {}
        self._latencies: dict[str, LatencyWindow] = {}

    @property
    def vms_with_histogram(self) -> set[str]:
        """VMs whose percentiles are known as soon as they have requests."""
        return {vm for vm, latency in self._latencies.items() if latency.has_histogram}

    def update(
        self, streams: Iterable[Stream], latencies: Mapping[str, Sequence[DiskLatency]] = _NO_LATENCIES
    ) -> dict[str, VmSample]:
        """Add the counters of a scan, and return `windows`.

        `latencies`: of the disks that each VM has on this device. The window of a VM starts anew if its
        cgroup changed or a counter decreased, because the VM was restarted.
        """
        now_s = self._clock()
        counters_of: dict[str, _GroupCounters] = {}
        for stream in streams:
            if stream.device == self.number and stream.cgroup is not None:
                counters_of.setdefault(stream.vm, {})[stream.cgroup] = stream.counters or _NO_COUNTERS
        self._readings = {vm: self._with_reading(vm, now_s, counters) for vm, counters in counters_of.items()}
        last = self.windows
        self.windows = {vm: _vm_sample(vm, readings, last.get(vm)) for vm, readings in self._readings.items()}
        self._latencies = {vm: self._latencies.get(vm) or LatencyWindow(self._window_s) for vm in latencies}
        for vm, disks in latencies.items():
            self._latencies[vm].add(now_s, disks)
            window = self.windows.get(vm) or VmSample(vm, 0.0)
            self.windows[vm] = self._latencies[vm].add_to(window)
        return self.windows

    def _with_reading(self, vm: str, now_s: float, counters: _GroupCounters) -> SlidingWindow[_GroupCounters]:
        """Readings of the VM that can be compared with `counters`, and these."""
        readings = self._readings.get(vm)
        last = readings.last if readings is not None else None
        if readings is None or last is None or last.keys() != counters.keys():
            readings = SlidingWindow(self._window_s)
        elif _are_same(last, counters):
            counters = last
        elif any(_decreased(last[cgroup], counters[cgroup]) for cgroup in counters):
            readings.clear()
        readings.add(now_s, counters)
        return readings


def _are_same(first: _GroupCounters, last: _GroupCounters) -> bool:
    """Whether these are the same objects, as they are for a VM without I/O."""
    return first is last or all(map(operator.is_, first.values(), last.values()))


def _vm_sample(vm: str, readings: SlidingWindow[_GroupCounters], before: VmSample | None) -> VmSample:
    """The window of a VM; that of the epoch before if it is complete and without I/O in both."""
    first, last, length_s = readings.first or {}, readings.last or {}, readings.length_s
    totals = sum_counters(list(last.values()))
    if length_s <= 0:
        return VmSample(vm, length_s, totals)
    if _are_same(first, last):
        if (
            before is not None
            and before.totals is totals
            and not (before.iops or before.bandwidth_bytes_s)
            and before.window_s >= readings.window_s <= length_s
        ):
            return before
        has_requests = totals.reads is not None or totals.writes is not None
        has_bytes = totals.read_bytes is not None or totals.written_bytes is not None
        return VmSample(vm, length_s, totals, 0.0 if has_requests else None, 0.0 if has_bytes else None)

    def rate(*names: str) -> float | None:
        """Rate of the sum of these counters; None if the kernel has none of them."""
        increases = [_increase(first[cgroup], last[cgroup], name) for cgroup in last for name in names]
        known = [increase for increase in increases if increase is not None]
        return sum(known) / length_s if known else None

    return VmSample(
        vm,
        length_s,
        totals,
        iops=rate("reads", "writes"),
        bandwidth_bytes_s=rate("read_bytes", "written_bytes"),
    )


def sum_counters(counters: Sequence[IoCounters]) -> IoCounters:
    """Sum over the cgroups or streams of a VM."""
    if len(counters) == 1:
        return counters[0]

    def total(name: str) -> int | None:
        return sum_known(getattr(part, name) for part in counters)

    def latency(name: str) -> LatencyCounts | None:
        known = [counts for part in counters if (counts := getattr(part, name)) is not None]
        return sum_latencies(known) if known else None

    return IoCounters(
        **{name: total(name) for name in (*_KERNEL_COUNTERS, "host_page_writes", "gc_page_writes")},
        read_latency=latency("read_latency"),
        write_latency=latency("write_latency"),
    )


def merge_windows(windows: Sequence[VmSample]) -> VmSample:
    """Several streams of one VM as one, over the longest of their windows."""
    if len(windows) == 1:
        return windows[0]
    return VmSample(
        vm=windows[0].vm,
        window_s=max(w.window_s for w in windows),
        totals=sum_counters([w.totals for w in windows]),
        iops=sum_known(w.iops for w in windows),
        bandwidth_bytes_s=sum_known(w.bandwidth_bytes_s for w in windows),
        guest_iops=sum_known(w.guest_iops for w in windows),
        p99_read_us=max_known(w.p99_read_us for w in windows),
        p99_write_us=max_known(w.p99_write_us for w in windows),
        requests=sum(w.requests for w in windows),
        host_page_reads=sum(w.host_page_reads for w in windows),
        host_page_writes=sum(w.host_page_writes for w in windows),
        gc_page_writes=sum(w.gc_page_writes for w in windows),
        victim_pages=sum(w.victim_pages for w in windows),
        victim_valid_pages=sum(w.victim_valid_pages for w in windows),
        size_bytes=sum_known(w.size_bytes for w in windows),
        ops_blocks=sum(w.ops_blocks for w in windows),
        block_bytes=max(w.block_bytes for w in windows),
        throttled=sum_known(w.throttled for w in windows),
        device_s=sum(w.device_s for w in windows),
        queued_share=max(w.queued_share for w in windows),
        backlog_share=max(w.backlog_share for w in windows),
    )


def _increase(first: IoCounters, last: IoCounters, name: str) -> int | None:
    """Increase of a counter; from 0 if the cgroup had no I/O on the device at the first reading."""
    before, after = getattr(first, name), getattr(last, name)
    return None if after is None else int(after) - int(before or 0)


def _decreased(first: IoCounters, last: IoCounters) -> bool:
    """Whether a counter decreased between two readings."""
    return any((getattr(last, name) or 0) < (getattr(first, name) or 0) for name in _KERNEL_COUNTERS)
