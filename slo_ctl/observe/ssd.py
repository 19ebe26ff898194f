"""Samples of VMs on an emulated SSD, computed from its counters and read from the server of a device."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from operator import lt, sub
from pathlib import Path
from typing import Any, NamedTuple

from slo_ctl.base.errors import ObserveGone
from slo_ctl.drives.build import flash_timing
from slo_ctl.drives.control import Connect, ControlClient, ControlError
from slo_ctl.drives.record import DeviceRecord, DiskRecord, SsdRecord
from slo_ctl.model.host import IoCounters, LatencyCounts
from slo_ctl.model.sample import (
    DeviceSample,
    FlashTiming,
    ShareBy,
    TimingModel,
    VmSample,
)
from slo_ctl.observe.block import SlidingWindow

_NS_PER_S = 1e9


class VmReading(NamedTuple):
    """Counters of one VM at one time, or their increase over a window. Times in nanoseconds."""

    now_ns: int
    reads: int
    writes: int
    other_requests: int
    read_bytes: int
    write_bytes: int
    latency_ns: int
    throttled_ns: int
    backlog_ns: int
    host_page_writes: int
    host_page_reads: int
    gc_page_writes: int
    victims: int
    victim_valid_pages: int
    switch_merges: int = 0
    """Merges caused by this VM, on hybrid mappings (docs/device.md)."""
    partial_merges: int = 0
    full_merges: int = 0
    merged_blocks: int = 0
    """Logical blocks of full merges."""
    switch_merge_ns: int = 0
    """Die and channel time; 0 without a clock."""
    partial_merge_ns: int = 0
    full_merge_ns: int = 0
    device_ns: int = 0
    """Die and channel time spent on this VM's requests, garbage collection included."""
    queued_ns: int = 0
    """Time with a request waiting in the device's queue."""
    moved_pages_of: tuple[int, ...] = ()
    """Pages copied while serving this VM, by the number of their owner; empty from a server."""

    @property
    def requests(self) -> int:
        """Completed requests of every kind."""
        return self.reads + self.writes + self.other_requests

    @property
    def pages(self) -> int:
        """Host pages read and written."""
        return self.host_page_reads + self.host_page_writes

    def amount(self, share_by: ShareBy) -> float:
        """Work delivered to the VM, in the unit of shares."""
        return share_by.amount(self.pages, self.requests, self.device_ns / _NS_PER_S)

    def is_reset(self, earlier: VmReading) -> bool:
        """Whether a counter is lower than in an earlier reading, as after a restart."""
        if len(self.moved_pages_of) != len(earlier.moved_pages_of):
            return True
        return any(map(lt, self[:_COUNTERS], earlier[:_COUNTERS]))

    def since(self, earlier: VmReading) -> VmReading:
        moved = tuple(map(sub, self.moved_pages_of, earlier.moved_pages_of))
        return VmReading._make((*map(sub, self[:_COUNTERS], earlier[:_COUNTERS]), moved))


_COUNTERS = len(VmReading._fields) - 1
"""Number of fields before `moved_pages_of`."""


def sample_of(vm: VmSample, window: VmReading, pages_per_block: int, *, queued: bool = True) -> VmSample:
    """`vm` with the counters of a window; active with requests in it.

    `queued`: whether the device has a queue that is measured.
    """
    length_ns = window.now_ns
    on_device_ns = max(0, window.latency_ns - window.throttled_ns)
    length_s, measured = length_ns / _NS_PER_S, bool(length_ns) and queued
    return vm._replace(
        window_s=length_s,
        iops=window.requests / length_s if length_ns else None,
        bandwidth_bytes_s=(window.read_bytes + window.write_bytes) / length_s if length_ns else None,
        active=vm.active or window.requests > 0,
        requests=window.requests,
        host_page_reads=window.host_page_reads,
        host_page_writes=window.host_page_writes,
        gc_page_writes=window.gc_page_writes,
        victim_pages=window.victims * pages_per_block,
        victim_valid_pages=window.victim_valid_pages,
        outstanding=on_device_ns / length_ns if measured else None,
        throttled=window.throttled_ns / length_ns if measured else None,
        device_s=window.device_ns / _NS_PER_S,
        queued_share=min(1.0, window.queued_ns / length_ns) if measured else 1.0,
        backlog_share=min(1.0, window.backlog_ns / length_ns) if measured else 1.0,
    )


# Samples of an emulated SSD that is served as a block device, over its control socket.
#
# On a device with latency all times are in modelled seconds: windows, IOPS, waits, and percentiles, which the
# server measures in real time and which are divided by the time scale. Limits of the control socket are in
# modelled time as well, so decisions need no conversion; SLOs of VMs on a device with a time scale are about
# the modelled drive. Without latency, windows are in real time, requests are those that were answered, and
# the timing model is `none`, so that policies use counts of writes instead of flash timing.

_US_PER_NS = 1e-3
_US_PER_S = 1e6
_TIMEOUT_S = 0.5
"""A server answers within 2 ms; one that hangs must not delay an epoch for longer."""
_RECENT_S = 10.0
"""Window of the server's percentiles, in real time."""
_FIRST_PAUSE_S = 1.0
"""Time without queries after the first timeout; doubled by each further one."""
_LONGEST_PAUSE_S = 8.0
_SILENT = "its server does not answer; it is asked again later"
"""Problem of a server that hangs, the same while it is asked and while not, so that it is logged once."""

_Readings = dict[str, VmReading]


class ServedDevice:
    """The server of one device, over a connection that is reopened when it breaks."""

    def __init__(
        self,
        control_socket: Path,
        record: DeviceRecord,
        *,
        window_s: float = 10.0,
        capacity_bytes: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        connect: Connect = ControlClient,
    ) -> None:
        """`record`: for the timing and the blocks that GC keeps free, which a server does not report.
        `capacity_bytes`: for namespaces, if some of it may be unallocated; its blocks are not spare.

        All attributes are as of the last sample.
        """
        self.name = record.name
        self.windows: dict[str, VmSample] = {}
        """Status windows by the key of the stream; empty if the server did not answer."""
        self.totals: tuple[VmReading, ...] = ()
        """Counters of all namespaces since the device was served."""
        self.time_scale: float | None = None
        """Real seconds per modelled second; None without latency."""
        self.scheduler = record.scheduler
        """Scheduler between the namespaces."""
        self.statistics: dict[str, Any] = {}
        """The server's reply."""
        self.moves: dict[str, Any] | None = None
        """Pending moves of OPS and their budget; None: not reported."""
        self._path = control_socket
        self._record = record
        self._capacity_bytes = capacity_bytes
        self._clock = clock
        self._connect = connect
        self._client: ControlClient | None = None
        self._paused_until_s = 0.0
        self._pause_s = _FIRST_PAUSE_S
        self._window: SlidingWindow[_Readings] = SlidingWindow(window_s)
        self._bounds_s: tuple[float, ...] = ()
        """Bounds of the latency counts of all namespaces; empty if they are not reported."""

    @property
    def window_length_s(self) -> float:
        """Length of `windows` in real time."""
        return self._window.length_s

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def sample(self, keys: Mapping[str, str] | None = None) -> DeviceSample:
        """The window since the last sample. Raises ObserveGone if the server does not answer.

        `keys`: keys of streams by namespace, by default `DEVICE/NAMESPACE`. A namespace is active if a
        request was completed or is outstanding. Weights and limits are those in force. The first sample, also
        after a restart of the server, has windows of length 0.
        """
        statistics = self._query()
        try:
            sample = self._sample(statistics, keys or {})
        except (KeyError, TypeError, AttributeError) as error:
            self._disconnect()
            raise ObserveGone(f"its server is of another version: no {error}") from None
        self.statistics = statistics
        return sample

    def _sample(self, statistics: dict[str, Any], keys: Mapping[str, str]) -> DeviceSample:
        self.time_scale = statistics["time_scale"]
        self.scheduler = str(statistics["scheduler"])
        now_ns = statistics["now_ns"] if self.time_scale is not None else round(self._clock() * _NS_PER_S)
        namespaces = {namespace["name"]: namespace for namespace in statistics["namespaces"]}
        totals = {name: _reading(namespace, now_ns) for name, namespace in namespaces.items()}
        last = self._window.last
        if last is None or _has_restarted(last, totals):
            self._window.clear()
            last = totals
        # The status window has its configured length in real time, whatever the time scale is.
        self._window.add(self._clock(), totals)
        first = self._window.first or totals
        self._bounds_s = tuple(bound / _US_PER_S for bound in statistics.get("latency_bounds_us", ()))
        self.totals = tuple(totals.values())
        self.windows = {}
        vms, timing = [], self._timing()
        pages_per_block = timing.pages_per_block
        for name, namespace in namespaces.items():
            key, reading = keys.get(name) or f"{self.name}/{name}", totals[name]
            vm, queued = self._vm(key, namespace, reading), "queue" in namespace
            status_window = reading.since(first.get(name, reading))
            self.windows[key] = sample_of(vm, status_window, pages_per_block, queued=queued)
            interval = reading.since(last.get(name, reading))
            vms.append(sample_of(vm, interval, pages_per_block, queued=queued))
        self.moves = statistics.get("moves")
        spare_blocks = 0
        if isinstance(self._record, SsdRecord):
            spare_blocks = max(0, statistics["spare_blocks"] - self._reserved_blocks(statistics))
        return DeviceSample(timing=timing, vms=tuple(vms), spare_blocks=spare_blocks)

    def _reserved_blocks(self, statistics: dict[str, Any]) -> int:
        """Blocks for namespaces that may be added: the unallocated part of the capacity in all flash."""
        capacity = self._capacity_bytes
        if capacity is None:
            return 0
        unallocated = capacity - sum(int(namespace["size_bytes"]) for namespace in statistics["namespaces"])
        return int(statistics["blocks"]) * max(0, unallocated) // capacity

    def _timing(self) -> FlashTiming:
        if not isinstance(self._record, SsdRecord):
            return self._disk_timing()
        return flash_timing(
            self._record.drive, TimingModel.NONE if self.time_scale is None else TimingModel.FULL
        )

    def _disk_timing(self) -> FlashTiming:
        """Timing of a hard disk: the policy for disks does not use the values that are 0."""
        access_us = 0.0
        if isinstance(self._record, DiskRecord):
            disk = self._record.disk
            access_us = (disk.command_ns + disk.seek_average_ns + disk.rotation_ns / 2) * _US_PER_NS
        return FlashTiming(
            pages_per_block=1,
            read_us=access_us,
            program_us=access_us,
            erase_us=0.0,
            transfer_us=0.0,
            model=TimingModel.NONE if self.time_scale is None else TimingModel.FULL,
            copyback=False,
        )

    def _vm(self, key: str, namespace: dict[str, Any], reading: VmReading) -> VmSample:
        """The part of a sample that does not depend on its window."""
        scale = self.time_scale or 1.0
        vm = VmSample(
            key,
            window_s=0.0,
            totals=self._counters(namespace, reading),
            p99_read_us=_p99_us(namespace, "read", scale),
            p99_write_us=_p99_us(namespace, "write", scale),
            p99_window_s=_RECENT_S / scale,
            active="queue" in namespace and namespace["queue"]["outstanding"] > 0,
            size_bytes=namespace["size_bytes"],
            limit_iops=namespace["limit_iops"],
            scheduler_weight=namespace["weight"],
        )
        if not isinstance(self._record, SsdRecord):
            return vm
        drive, space = self._record.drive, namespace["space"]
        # Blocks that its GC or merges keep free are not OPS, as in replay.
        held = drive.held_blocks if space["isolated"] else 0
        return vm._replace(
            logical_blocks=space["logical_blocks"],
            ops_blocks=space["ops_blocks"] - held,
            min_ops_blocks=space["min_ops_blocks"] - held,
            block_bytes=drive.block_pages * drive.page_bytes,
        )

    def _counters(self, namespace: dict[str, Any], totals: VmReading) -> IoCounters:
        """Counters since the device was served, for metrics."""
        has_flash = isinstance(self._record, SsdRecord)
        return IoCounters(
            reads=totals.reads,
            writes=totals.writes,
            read_bytes=totals.read_bytes,
            written_bytes=totals.write_bytes,
            host_page_writes=totals.host_page_writes if has_flash else None,
            gc_page_writes=totals.gc_page_writes if has_flash else None,
            read_latency=self._latency(namespace, "read"),
            write_latency=self._latency(namespace, "write"),
        )

    def _latency(self, namespace: dict[str, Any], kind: str) -> LatencyCounts | None:
        """Latency counts since the device was served; None if they are not reported."""
        histogram = namespace.get("latency_histogram")
        if histogram is None or not self._bounds_s:
            return None
        counts = histogram[kind]
        return LatencyCounts(self._bounds_s, tuple(counts["counts"]), counts["sum_us"] / _US_PER_S)

    def _query(self) -> dict[str, Any]:
        """The server's statistics. Raises ObserveGone."""
        now_s = self._clock()
        if now_s < self._paused_until_s:
            raise ObserveGone(_SILENT)
        try:
            if self._client is None:
                # Earlier counters may be those of another process.
                self._disconnect()
                self._client = self._connect(self._path, _TIMEOUT_S)
            statistics = self._client.brief_statistics()
        except ControlError as error:
            if self._clock() - now_s >= _TIMEOUT_S:
                self._paused_until_s = self._clock() + self._pause_s
                self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
            self._disconnect()
            raise ObserveGone(_SILENT if now_s < self._paused_until_s else error.message) from None
        self._pause_s = _FIRST_PAUSE_S
        return statistics

    def _disconnect(self) -> None:
        """Close the connection and forget its counters."""
        self.close()
        self._window.clear()
        self.windows = {}


def _reading(namespace: dict[str, Any], now_ns: int) -> VmReading:
    # A hard disk has no flash.
    flash: dict[str, Any] = namespace.get("flash") or defaultdict(int)
    queue, answered = namespace.get("queue"), namespace.get("answered", {})
    done = queue["completed"] if queue else {kind: each["requests"] for kind, each in answered.items()}
    return VmReading(
        now_ns=now_ns,
        reads=done["reads"],
        writes=done["writes"],
        other_requests=done["trims"] + done["zeroes"] + done["flushes"],
        read_bytes=queue["read_bytes"] if queue else answered["reads"]["bytes"],
        write_bytes=queue["write_bytes"] if queue else answered["writes"]["bytes"],
        latency_ns=queue["latency_ns"] if queue else 0,
        throttled_ns=queue["throttled_ns"] if queue else 0,
        backlog_ns=queue["backlog_ns"] if queue else 0,
        device_ns=queue["device_ns"] if queue else 0,
        queued_ns=queue["queued_ns"] if queue else 0,
        host_page_writes=flash["host_page_writes"],
        host_page_reads=flash["host_page_reads"] + flash["unmapped_page_reads"],
        gc_page_writes=flash["gc_page_writes"],
        victims=flash["victims"],
        victim_valid_pages=flash["victim_valid_pages"],
    )


def _has_restarted(last: _Readings, now: _Readings) -> bool:
    """Whether a counter was reset or namespaces were added or removed."""
    if last.keys() != now.keys():
        return True
    return any(reading.is_reset(last[name]) for name, reading in now.items())


def _p99_us(namespace: dict[str, Any], kind: str, scale: float) -> float | None:
    """The p99 of the last 10 s; None if it is not reported, or without requests."""
    recent = namespace.get("recent")
    value = recent["latency_us"][kind].get("p99") if recent else None
    return None if value is None else float(value) / scale
