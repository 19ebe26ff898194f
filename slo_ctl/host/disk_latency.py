"""Latencies of the disks of libvirt's VMs, as counted by QEMU.

The number of requests and their total time come from libvirt's bulk statistics, over a read-only connection;
so do histograms (libvirt 12.1 and later) of disks with `<latency-histogram>` in the VM's XML. With any
version of libvirt, monitor commands of QEMU can enable and read histograms. They mark a VM as tainted, so
they are sent only if the configuration allows it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

from slo_ctl.host.calls import WatchThread
from slo_ctl.host.libvirt import DomainXmlError, LibvirtError, load_module, parse_domain
from slo_ctl.host.libvirt_events import open_connection
from slo_ctl.model.host import DiskLatency, LatencyCounts

_NS_PER_US = 1_000
_NS_PER_S = 1e9
_MAX_BINS = 4096
_STEPS = (10, 12, 15, 20, 25, 30, 35, 40, 50, 60, 70, 80)
BOUNDARIES_NS = (*(step * 10**power * _NS_PER_US for power in range(6) for step in _STEPS), 10_000_000_000)
"""Boundaries of the histograms that slo-ctl enables in QEMU: from 10 us to 10 s, each at most a third above
the one before. They include the bounds of the metrics."""

DiskLatencies = Mapping[str, DiskLatency]
"""Latencies of a VM by target of the disk."""


# Libvirt's bulk statistics.


def latencies_of_stats(stats: Mapping[str, Any]) -> dict[str, DiskLatency]:
    """Latencies of each disk, from the block statistics of one VM (virConnectGetAllDomainStats)."""
    found = {}
    for number in range(int(stats.get("block.count", 0))):
        prefix = f"block.{number}"
        reads, writes = (
            _counts_of_stats(stats, prefix, "rd", "read"),
            _counts_of_stats(stats, prefix, "wr", "write"),
        )
        if reads is not None and writes is not None:
            found[str(stats.get(f"{prefix}.name", ""))] = DiskLatency(reads, writes)
    return found


def _counts_of_stats(stats: Mapping[str, Any], prefix: str, short: str, kind: str) -> LatencyCounts | None:
    requests, time_ns = stats.get(f"{prefix}.{short}.reqs"), stats.get(f"{prefix}.{short}.times")
    if requests is None or time_ns is None:
        return None
    bins = f"{prefix}.latency_histogram.{kind}.bin"
    numbers = range(min(_MAX_BINS, int(stats.get(f"{bins}.count", 0))))
    starts = [int(stats.get(f"{bins}.{number}.start", 0)) for number in numbers]
    counts = [int(stats.get(f"{bins}.{number}.value", 0)) for number in numbers]
    # The first bin starts at 0, which is not a boundary between two bins.
    return _counts(starts[1:], counts or [int(requests)], time_ns)


def _counts(boundaries_ns: list[int], counts: list[int], time_ns: float) -> LatencyCounts:
    bounds_s = tuple(boundary / _NS_PER_S for boundary in boundaries_ns)
    return LatencyCounts(bounds_s, tuple(counts), time_ns / _NS_PER_S)


# QEMU's monitor.


class MonitorError(Exception):
    """QEMU refused a command, or its reply does not match its documentation."""


_INVALID = (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)
"""Exceptions at a reply that does not, as of a QEMU that its guest has taken over."""


def query_monitor(domain: Any, command: str, **arguments: Any) -> Any:
    """Send a monitor command and return its result. Raises MonitorError, and libvirt's error."""
    text = json.dumps({"execute": command, **({"arguments": arguments} if arguments else {})})
    answer = import_module("libvirt_qemu").qemuMonitorCommand(domain, text, 0)
    try:
        reply = json.loads(answer)
        if "return" not in reply:
            raise MonitorError(str(reply.get("error", {}).get("desc", "QEMU reports no reason"))[:200])
        return reply["return"]
    except _INVALID as error:
        raise MonitorError(f"{command}: {type(error).__name__}: {error}"[:200]) from None


def block_statistics(domain: Any) -> dict[str, dict[str, Any]]:
    """QEMU's statistics by target of the disk (`query-blockstats`). Raises MonitorError, libvirt's error."""
    try:
        targets = {
            disk.find("alias").get("name", ""): disk.find("target").get("dev", "")  # type: ignore[union-attr]
            for disk in parse_domain(str(domain.XMLDesc(0))).findall("devices/disk")
            if disk.find("alias") is not None and disk.find("target") is not None
        }
    except DomainXmlError as error:
        raise MonitorError(str(error)) from None
    found = {}
    try:
        for entry in query_monitor(domain, "query-blockstats"):
            # `virtio-disk0`, or a path of QEMU's object model that contains it.
            for part in str(entry.get("qdev", "")).split("/"):
                if part in targets:
                    found[targets[part]] = entry
    except _INVALID as error:
        raise MonitorError(f"query-blockstats: {type(error).__name__}: {error}") from None
    return found


def latency_of_blockstats(entry: Mapping[str, Any]) -> DiskLatency:
    """Latencies of one disk, from its statistics. Raises MonitorError."""
    try:
        stats = entry.get("stats", {})
        return DiskLatency(_counts_of_blockstats(stats, "rd"), _counts_of_blockstats(stats, "wr"))
    except _INVALID as error:
        raise MonitorError(f"query-blockstats: {type(error).__name__}: {error}") from None


def _counts_of_blockstats(stats: Mapping[str, Any], short: str) -> LatencyCounts:
    histogram = stats.get(f"{short}_latency_histogram")
    time_ns = stats[f"{short}_total_time_ns"]
    if histogram is None or len(histogram["bins"]) != len(histogram["boundaries"]) + 1:
        return _counts([], [int(stats[f"{short}_operations"])], time_ns)
    return _counts(list(map(int, histogram["boundaries"])), list(map(int, histogram["bins"])), time_ns)


def has_histogram(latency: DiskLatency) -> bool:
    """Whether there is a histogram for reads or writes, not only a mean."""
    return bool(latency.reads.bounds_s or latency.writes.bounds_s)


# Polling in a separate thread: a hanging QEMU delays no epoch.

_POLL_S = 1.0
_RETRY_S = 5.0
"""Pause after a connection was lost."""
_CLOSE_TIMEOUT_S = 1.0


class LatencyWatch(WatchThread):
    """Latencies of the requested VMs, at most `_POLL_S` old while libvirt responds.

    The thread starts with the first VM.
    """

    def __init__(self, uri: str, *, monitor: bool) -> None:
        """`monitor`: histograms that libvirt does not report are read by monitor commands."""
        super().__init__("slo-ctl latencies", _CLOSE_TIMEOUT_S)
        self._uri = uri
        self._monitor = monitor
        self._uuids: frozenset[str] = frozenset()
        self._latest: dict[str, DiskLatencies] = {}

    def latest(self, uuids: Collection[str]) -> Mapping[str, DiskLatencies]:
        """Latencies of these VMs by UUID; VMs that were never requested before are missing. Never blocks."""
        with self._changed:
            self._uuids = frozenset(uuids)
            if self._uuids:
                self.start()
            return self._latest

    def _run(self) -> None:
        try:
            module = load_module()
        except LibvirtError:
            return  # LibvirtWatch reports it
        while not self._stopping:
            with suppress(module.libvirtError):  # LibvirtWatch reports it
                self._follow(module)
            self._latest = {}
            self._pause(_RETRY_S)

    def _follow(self, module: Any) -> None:
        """Follow a connection to its end. Raises libvirt's error."""
        connection = open_connection(module, self._uri, read_only=not self._monitor)
        try:
            while not self._stopping:
                began_s = time.monotonic()
                if self._uuids:
                    self._latest = self._read(module, connection)
                # Use libvirtd at most half of the time.
                self._pause(max(_POLL_S, time.monotonic() - began_s))
        finally:
            with suppress(module.libvirtError):
                connection.close()

    def _read(self, module: Any, connection: Any) -> dict[str, DiskLatencies]:
        domains = []
        for uuid in sorted(self._uuids):
            with suppress(module.libvirtError):  # it no longer exists
                domains.append(connection.lookupByUUIDString(uuid))
        if not domains:
            if not connection.isAlive():
                connection.getLibVersion()  # raises the error
            return {}
        # Skip VMs that are busy with another command.
        flags = module.VIR_CONNECT_GET_ALL_DOMAINS_STATS_NOWAIT
        found: dict[str, DiskLatencies] = {}
        for domain, stats in connection.domainListGetStats(domains, module.VIR_DOMAIN_STATS_BLOCK, flags):
            uuid = str(domain.UUIDString())
            before = self._latest.get(uuid, {})
            latencies: DiskLatencies = latencies_of_stats(stats)
            if self._monitor and latencies and not any(map(has_histogram, latencies.values())):
                try:
                    entries = block_statistics(domain).items()
                    latencies = {**latencies, **{disk: latency_of_blockstats(each) for disk, each in entries}}
                except (MonitorError, module.libvirtError):  # the actuator reports why there are none
                    if any(map(has_histogram, before.values())):
                        latencies = before
            # Of a VM that is busy libvirt only names the disks.
            found[uuid] = latencies or before
        return found
