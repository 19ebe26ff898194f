"""The simulated drive: an emulated SSD in virtual time, its namespaces, and the requests to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from daemon_sim.scenario import Load, Scenario
from ftl_emul import Config, Device
from slo_ctl.drives.record import SsdRecord
from traces.batch import PAGE_BYTES, Op
from traces.synth import WORKLOADS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ftl_emul import LatencyUs


# The requests of one simulated VM, a few at a time, generated as they are needed.


NS_PER_S = 1_000_000_000
_TIMES = ("read_ns", "program_ns", "erase_ns", "transfer_ns", "suspend_ns")
_DRAWN = 2048
"""Requests drawn at a time."""
_FED = 256
"""Requests passed to the drive at a time: changes of a VM take effect after them."""
_HOT_SET_STEP = 0.37
"""Distance by which a hot set moves, as a share of the space."""


@dataclass(frozen=True, slots=True)
class FedRequests:
    """Columns as `ftl_emul.Device.feed` takes them."""

    time_ns: NDArray[np.int64]
    op: NDArray[np.uint8]
    offset_bytes: NDArray[np.uint64]
    length_bytes: NDArray[np.uint64]


class RequestStream:
    """Endless requests, the same for the same seed as long as hot sets stay where they are."""

    def __init__(self, load: Load, pages: int, page_bytes: int, seed: tuple[int, ...], now_ns: int) -> None:
        """Requests to a namespace of `pages` pages; `now_ns` is the start of an open loop."""
        kind = WORKLOADS[load.workload]
        self._load = load
        self._span_bytes = pages * PAGE_BYTES
        self._scale = page_bytes // PAGE_BYTES
        self._random = np.random.default_rng(seed)
        self._make = kind.make(kind.parse(dict(load.parameters)), self._span_bytes)
        self._arrived_ns = float(now_ns)
        self._drawn: FedRequests | None = None
        self._used = 0

    def next(self, now_ns: int) -> FedRequests:
        """The next requests; called when the VM has none left."""
        if self._drawn is None or self._used >= _DRAWN:
            self._drawn, self._used = self._draw(), 0
        part = slice(self._used, self._used + _FED)
        self._used += _FED
        drawn = self._drawn
        return FedRequests(
            drawn.time_ns[part], drawn.op[part], self._placed(drawn, part, now_ns), drawn.length_bytes[part]
        )

    def _draw(self) -> FedRequests:
        op, offset, length = self._make(self._random, _DRAWN)
        if self._load.trim_share:
            trimmed = (op == Op.WRITE) & (self._random.random(_DRAWN) < self._load.trim_share)
            op = np.where(trimmed, np.uint8(Op.TRIM), op)
        if self._load.rate_iops is None:
            time_ns = np.zeros(_DRAWN, np.int64)
        else:
            gaps_ns = self._random.exponential(NS_PER_S / self._load.rate_iops, _DRAWN)
            times = self._arrived_ns + np.cumsum(gaps_ns)
            self._arrived_ns = float(times[-1])
            time_ns = times.astype(np.int64)
        return FedRequests(
            time_ns,
            op.astype(np.uint8),
            (offset * self._scale).astype(np.uint64),
            (length * self._scale).astype(np.uint64),
        )

    def _placed(self, drawn: FedRequests, part: slice, now_ns: int) -> NDArray[np.uint64]:
        """Offsets of the requests, given the present position of the hot set."""
        offset = drawn.offset_bytes[part]
        if self._load.moves_every_s is None:
            return offset
        moved = int(now_ns / NS_PER_S / self._load.moves_every_s)
        if moved == 0:
            return offset
        span_pages = self._span_bytes // PAGE_BYTES
        page_bytes = self._scale * PAGE_BYTES
        shift = int(moved * _HOT_SET_STEP * span_pages) % span_pages * page_bytes
        span = np.uint64(span_pages * page_bytes)
        placed: NDArray[np.uint64] = (offset + np.uint64(shift)) % span
        np.minimum(placed, span - drawn.length_bytes[part], out=placed)
        return placed


_UPKEEP_NS = NS_PER_S // 5
"""Interval at which blocks of moves are handed over without host writes, as in the server."""
_DRAIN_NS = NS_PER_S // 100
_RECENT_S = 10
_PERCENTILES = [50.0, 99.0, 99.9]


@dataclass(slots=True)
class Namespace:
    """One namespace, and the VM that uses it."""

    name: str
    tenant: int
    pages: int
    weight: float
    limit_iops: float | None = None
    limit_bytes_s: float | None = None
    stream: RequestStream | None = None
    recent: LatencyUs | None = None
    """Latencies of the last full ten seconds."""
    counted_before: dict[str, int] = field(default_factory=dict)
    """Counters of its earlier queues: an emulated drive counts each queue from zero."""


class SimulatedDrive:
    """Virtual time passes in `run_to` only."""

    def __init__(self, scenario: Scenario, record: SsdRecord, at_each_second: Callable[[int], None]) -> None:
        """`at_each_second` is called with the number of each second that has ended."""
        self.record = record
        self.page_bytes = record.drive.page_bytes
        self._seed = scenario.seed
        self._at_each_second = at_each_second
        self.device = Device(_config(record, scenario.drive.slowdown))
        self.namespaces: dict[str, Namespace] = {}
        for number, entry in enumerate(record.namespace):
            pages = entry.size_bytes // self.page_bytes
            tenant = self.device.create_tenant(pages, record.isolated, entry.ops_blocks)
            self.namespaces[entry.name] = Namespace(entry.name, tenant, pages, entry.weight)
            if tenant != number:
                raise AssertionError("tenants are numbered in their order")
        self._by_tenant = list(self.namespaces.values())
        self.device.precondition(scenario.seed)
        for namespace in self._by_tenant:
            self.device.open_queue(namespace.tenant, 1)
            self.device.pause(namespace.tenant, True)
            self.device.set_weight(namespace.tenant, namespace.weight)
        self.device.clear_latencies()
        self._started_ns = self.device.now_ns
        self._upkeep_ns = self._started_ns

    @property
    def now_ns(self) -> int:
        """Time since the simulation began."""
        return self.device.now_ns - self._started_ns

    def run_to(self, now_ns: int) -> None:
        """Let time pass, at least until then."""
        until_ns = now_ns + self._started_ns
        while self.device.now_ns < until_ns:
            next_ns = self._upkeep_ns + _UPKEEP_NS
            self._run(min(next_ns, until_ns))
            if self.device.now_ns >= next_ns:
                self._upkeep_ns = next_ns
                if self.now_ns % NS_PER_S == 0:
                    self._second(self.now_ns // NS_PER_S)

    def _run(self, until_ns: int) -> None:
        while True:
            reason, starving = self.device.run(until_ns)
            if reason != "starved":
                return
            for tenant in starving:
                stream = self._by_tenant[tenant].stream
                if stream is None:
                    raise AssertionError("a namespace without a client is not paused")
                fed = stream.next(self.now_ns)
                self.device.feed(tenant, fed.time_ns, fed.op, fed.offset_bytes, fed.length_bytes)

    def _second(self, number: int) -> None:
        self._at_each_second(number)
        if number % _RECENT_S == 0:
            for namespace in self._by_tenant:
                if namespace.stream is not None:
                    namespace.recent = self.device.latency_us(namespace.tenant, _PERCENTILES)
            self.device.clear_latencies()

    # Users of namespaces.

    def occupy(self, name: str, load: Load, seed: tuple[int, ...]) -> None:
        """A client begins to use a namespace that was idle."""
        namespace = self.namespaces[name]
        while self.device.outstanding(namespace.tenant):
            # The requests of its last user take some milliseconds to end.
            self.run_to(self.now_ns + _DRAIN_NS)
        namespace.counted_before = self.queue_totals(namespace)
        self.device.open_queue(namespace.tenant, load.queue_depth if load.rate_iops is None else None)
        self.device.set_weight(namespace.tenant, namespace.weight)
        self.device.set_limit(namespace.tenant, namespace.limit_iops, namespace.limit_bytes_s)
        namespace.stream = RequestStream(
            load, namespace.pages, self.page_bytes, (self._seed, *seed), self.device.now_ns
        )

    def vacate(self, name: str) -> None:
        """Stop all clients of the namespace."""
        namespace = self.namespaces[name]
        self.device.pause(namespace.tenant, True)
        namespace.stream, namespace.recent = None, None

    def pause(self, name: str, *, paused: bool) -> None:
        """Pause or continue the clients of the namespace."""
        self.device.pause(self.namespaces[name].tenant, paused)

    # Settings.

    def set_weight(self, namespace: Namespace, weight: float) -> None:
        """Raises DriveError."""
        self.device.set_weight(namespace.tenant, weight)
        namespace.weight = weight

    def set_limit(self, namespace: Namespace, iops: float | None, bytes_s: float | None) -> None:
        """Raises DriveError."""
        self.device.set_limit(namespace.tenant, iops, bytes_s)
        namespace.limit_iops, namespace.limit_bytes_s = iops, bytes_s

    def move_ops(self, source: Namespace | None, target: Namespace | None, blocks: int) -> None:
        """Raises DriveError."""
        ends = [None if end is None else end.tenant for end in (source, target)]
        self.device.request_move(ends[0], ends[1], blocks)

    # Counters.

    def queue_totals(self, namespace: Namespace) -> dict[str, int]:
        """Counters of the namespace, summed over all queues it ever had."""
        record, before = self.device.queue_counters(namespace.tenant), namespace.counted_before
        return {name: getattr(record, name) + before.get(name, 0) for name in counters_of(record)}


_COUNTERS: dict[type, tuple[str, ...]] = {}


def counters_of(record: object) -> tuple[str, ...]:
    """Names of all counters of a core record."""
    names = _COUNTERS.get(type(record))
    if names is None:
        names = tuple(name for name in dir(record) if not name.startswith("_"))
        _COUNTERS[type(record)] = names
    return names


def _config(record: SsdRecord, slowdown: float) -> Config:
    drive = record.drive
    timing = {name: round(getattr(drive, name) * slowdown) for name in _TIMES}
    return replace(drive, **timing)
