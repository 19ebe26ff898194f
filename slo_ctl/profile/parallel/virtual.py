"""Nodes with modelled devices, each with a virtual clock: what parallel profiling would gain."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from slo_ctl.model.measurement import Benchmark
from slo_ctl.profile.parallel.schedule import Done, Event, Node, Work


class VirtualNodes:
    """A Transport whose nodes work at the same time, in virtual time."""

    def __init__(self, benchmarks: Sequence[Benchmark], overhead_s: float = 0.0) -> None:
        """`overhead_s`: what handing out one piece of work costs its node."""
        self._benchmarks = list(benchmarks)
        self._overhead_s = overhead_s
        self._now_s = 0.0
        self._pending: list[tuple[float, Node, Event]] = []
        self.busy_s = [0.0] * len(self._benchmarks)
        """How long each node worked."""

    @property
    def names(self) -> Sequence[str]:
        """By number."""
        return [f"node {number}" for number in range(len(self._benchmarks))]

    def give(self, node: Node, work: Work) -> None:
        """Do it at once; it counts as done when the node's clock says so."""
        benchmark = self._benchmarks[node]
        begun_s = benchmark.now_s()
        measurements = tuple(
            benchmark.measure(access, work.size_bytes, work.repetition, limit_s, work.part)
            for access, limit_s in zip(work.accesses, work.limits_s, strict=True)
        )
        took_s = benchmark.now_s() - begun_s + self._overhead_s
        self.busy_s[node] += took_s
        heapq.heappush(self._pending, (self._now_s + took_s, node, Done(node, measurements)))

    def dismiss(self, node: Node) -> None:
        """Nothing more is heard of it."""
        self._pending = [entry for entry in self._pending if entry[1] != node]
        heapq.heapify(self._pending)

    def next_event(self, timeout_s: float) -> Event | None:
        """The event that comes next; time passes until then."""
        if not self._pending:
            self._now_s += timeout_s
            return None
        self._now_s, _, event = heapq.heappop(self._pending)
        return event

    def now_s(self) -> float:
        """Virtual time since the beginning."""
        return self._now_s
