"""The simulated drive: an emulated SSD in virtual time, its namespaces, and who works on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ftl_emul import Config, Device
from slo_ctl.drives.record import SsdRecord
from slo_ctl.simulate.requests import RequestStream
from slo_ctl.simulate.scenario import Load, Scenario

if TYPE_CHECKING:
    from ftl_emul import LatencyUs, QueueRecord

NS_PER_S = 1_000_000_000
_UPKEEP_NS = NS_PER_S // 5
"""As the server: how often blocks of moves are handed over without the help of host writes."""
_DRAIN_NS = NS_PER_S // 100
_RECENT_S = 10
_PERCENTILES = [50.0, 99.0, 99.9]


@dataclass(slots=True)
class Namespace:
    """One namespace, and who works on it."""

    name: str
    tenant: int
    pages: int
    weight: float
    limit_iops: float | None = None
    limit_bytes_s: float | None = None
    stream: RequestStream | None = None
    recent: LatencyUs | None = None
    """Latencies of the last whole ten seconds."""
    counted_before: dict[str, int] = field(default_factory=dict)
    """By queues that it had before: an emulated drive counts from zero with each."""


class SimulatedDrive:
    """Virtual time passes in `run_to` only."""

    def __init__(self, scenario: Scenario, record: SsdRecord, at_each_second: Callable[[int], None]) -> None:
        """`at_each_second` gets the number of each second that is over."""
        self.record = record
        self.page_bytes = record.geometry.page_bytes
        self._seed = scenario.seed
        self._at_each_second = at_each_second
        self.device = Device(_config(record, scenario.drive.slowdown))
        self.namespaces: dict[str, Namespace] = {}
        for number, made in enumerate(record.namespace):
            pages = made.size_bytes // self.page_bytes
            tenant = self.device.create_tenant(pages, record.isolated, made.ops_blocks)
            self.namespaces[made.name] = Namespace(made.name, tenant, pages, made.weight)
            if tenant != number:
                raise AssertionError("tenants are numbered in their order")
        self._by_tenant = list(self.namespaces.values())
        self.device.age(scenario.seed)
        for namespace in self._by_tenant:
            self.device.open_queue(namespace.tenant, 1)
            self.device.pause(namespace.tenant, True)
            self.device.set_weight(namespace.tenant, namespace.weight)
        self.device.clear_latencies()
        self._started_ns = self.device.now_ns
        self._upkeep_ns = self._started_ns

    @property
    def now_ns(self) -> int:
        """Since the simulation began."""
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
                    raise AssertionError("nobody works on it, and it is not paused")
                fed = stream.next(self.now_ns)
                self.device.feed(tenant, fed.time_ns, fed.op, fed.offset_bytes, fed.length_bytes)

    def _second(self, number: int) -> None:
        self._at_each_second(number)
        if number % _RECENT_S == 0:
            for namespace in self._by_tenant:
                if namespace.stream is not None:
                    namespace.recent = self.device.latency_us(namespace.tenant, _PERCENTILES)
            self.device.clear_latencies()

    # Who works on it.

    def occupy(self, name: str, load: Load, seed: tuple[int, ...]) -> None:
        """A client begins to use a namespace that was idle."""
        namespace = self.namespaces[name]
        while self.device.outstanding(namespace.tenant):
            # What its last user left behind takes some milliseconds.
            self.run_to(self.now_ns + _DRAIN_NS)
        namespace.counted_before = self.queue_totals(namespace)
        self.device.open_queue(namespace.tenant, load.queue_depth if load.rate_iops is None else None)
        self.device.set_weight(namespace.tenant, namespace.weight)
        self.device.set_limit(namespace.tenant, namespace.limit_iops, namespace.limit_bytes_s)
        namespace.stream = RequestStream(
            load, namespace.pages, self.page_bytes, (self._seed, *seed), self.device.now_ns
        )

    def vacate(self, name: str) -> None:
        """Nobody works on it any more."""
        namespace = self.namespaces[name]
        self.device.pause(namespace.tenant, True)
        namespace.stream, namespace.recent = None, None

    def pause(self, name: str, *, paused: bool) -> None:
        """Who works on it sleeps, or continues."""
        self.device.pause(self.namespaces[name].tenant, paused)

    # What is set.

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

    # What it counts.

    def queue_totals(self, namespace: Namespace) -> dict[str, int]:
        """Of all queues that the namespace ever had."""
        return self.with_earlier(namespace, self.device.queue_counters(namespace.tenant))

    @staticmethod
    def with_earlier(namespace: Namespace, record: QueueRecord) -> dict[str, int]:
        """The counters of the present queue, and what was counted before it."""
        before = namespace.counted_before
        return {name: getattr(record, name) + before.get(name, 0) for name in _counters_of(record)}


def _counters_of(record: QueueRecord) -> tuple[str, ...]:
    """Whatever the core counts of a queue, without a list of it here."""
    found = _COUNTERS.get(type(record))
    if found is None:
        found = tuple(name for name in dir(record) if not name.startswith("_"))
        _COUNTERS[type(record)] = found
    return found


_COUNTERS: dict[type, tuple[str, ...]] = {}


def _config(record: SsdRecord, slowdown: float) -> Config:
    mapping = record.mapping
    timing = {name: round(ns * slowdown) for name, ns in record.timing.model_dump().items()}
    return Config(
        **record.geometry.model_dump(),
        **timing,
        copyback=mapping.copyback,
        mapping=mapping.kind,
        cluster_dies=mapping.cluster_dies,
        cached_entries=mapping.cached_entries,
        victim=mapping.victim,
        separate_gc_frontier=mapping.separate_gc_frontier,
        free_floor=mapping.free_floor,
        scheduler=mapping.scheduler,
        seed=mapping.seed,
    )
