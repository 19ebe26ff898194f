"""An analytic device for a closed loop: decisions of a policy change its next measurements.

u follows the closed formula of its VM's workload with a first-order lag measured in pages written, rates
follow from u, and seeded noise disturbs both. No FTL in here: that one is the emulator.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from lab import waf_theory
from slo_ctl.decide import gc_model
from slo_ctl.decide.policies.interface import Policy
from slo_ctl.model.decision import Decision
from slo_ctl.model.sample import DeviceSample, FlashTiming, Placement, ShareBy, TimingModel, VmSample
from slo_ctl.model.slo import Slo

PAPER = FlashTiming(128, 60, 800, 1500, 102, TimingModel.PAPER)
FULL = FlashTiming(128, 60, 800, 1500, 102, TimingModel.FULL)


@dataclass
class PlantVm:
    """One VM and its workload."""

    name: str
    weight: float
    logical_blocks: int = 1000
    footprint: float = 1.0
    """Share of the logical size that holds live data."""
    hot: tuple[float, float] | None = None
    """(r, f): r of the writes go to f of the pages; uniform when None."""
    write_pages_per_request: float = 1.0
    read_us_per_request: float = 0.0
    outstanding: int = 1
    ops_blocks: int = 0
    min_ops_blocks: int = 2
    active: bool = True
    slo: dict[str, float] = field(default_factory=dict)
    demand_iops: float = math.inf
    u: float = 0.8
    limit_iops: float | None = None
    scheduler_weight: float = 1.0
    luck: float = 1.0
    """Noise of this window on its possible rate."""
    pages_written: float = 0.0
    requests_done: float = 0.0

    def steady_u(self, pages_per_block: int, reserve_blocks: int) -> float:
        alpha = (self.logical_blocks + self.ops_blocks - reserve_blocks) / (
            self.footprint * self.logical_blocks
        )
        return _steady_u(alpha, self.hot, pages_per_block)


# Its input changes at most once a window, and often less.
@lru_cache(maxsize=1000)
def _steady_u(alpha: float, hot: tuple[float, float] | None, pages_per_block: int) -> float:
    if alpha <= 1.001:
        return 0.995
    if hot is None:
        u = gc_model.u_at_alpha(alpha, pages_per_block)
    else:
        u = gc_model.u_at_gc_write_ratio(waf_theory.hotcold_lru_waf(alpha, *hot) - 1.0)
    return min(u, 0.995)


@dataclass
class Plant:
    """The device; `run` runs it in closed loop with a policy."""

    vms: list[PlantVm]
    total_ops_blocks: int
    timing: FlashTiming = PAPER
    noise: float = 0.01
    seed: int = 1
    lag: float = 0.3
    """Pages written, relative to the pages owned, in which u goes 63 % of its way."""
    lag_in_host_pages: bool = False
    contention: float = 0.0
    """Share of the other VMs' device time that a request waits for: 0 independent dies, 1 a single server."""
    scheduled: bool = False
    """A single server, shared by a scheduler that is fair by device time."""
    measures_outstanding: bool = False
    reserve_blocks: int = 0
    windows_per_drive_write: int = 12
    moves: int = 0
    blocks_moved: int = 0
    history: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        if not any(v.ops_blocks for v in self.vms):
            share, rest = divmod(self.total_ops_blocks, len(self.vms))
            for i, vm in enumerate(self.vms):
                vm.ops_blocks = share + (i < rest)
        for vm in self.vms:
            vm.u = vm.steady_u(self.timing.pages_per_block, self.reserve_blocks)

    def vm(self, name: str) -> PlantVm:
        return next(v for v in self.vms if v.name == name)

    @property
    def drive_pages(self) -> float:
        return self.timing.pages_per_block * sum(v.logical_blocks for v in self.vms)

    def iops(self) -> dict[str, float]:
        running = [v for v in self.vms if v.active]
        own = {v.name: self._request_s(v) for v in running}
        if self.scheduled:
            total = sum(v.scheduler_weight for v in running)
            return {v.name: v.scheduler_weight / total / own[v.name] for v in running}

        def limited(v: PlantVm, request_s: float) -> float:
            return min(v.outstanding / request_s * v.luck, v.limit_iops or math.inf, v.demand_iops)

        if not self.contention:
            return {v.name: limited(v, own[v.name]) for v in running}
        rates = {v.name: v.outstanding / own[v.name] for v in running}
        for _ in range(30):  # a request waits for the requests of the others
            there = {name: min(1.0, rate * own[name]) * own[name] for name, rate in rates.items()}
            all_s = sum(there.values())
            new = {
                v.name: limited(v, own[v.name] + self.contention * (all_s - there[v.name])) for v in running
            }
            rates = {name: math.sqrt(rates[name] * new[name]) for name in rates}
        return rates

    def window(self) -> DeviceSample:
        """Run for one window and return its sample."""
        counts = {v.name: np.zeros(5) for v in self.vms}
        for v in self.vms:
            v.luck = math.exp(self.noise * self.random.standard_normal())
        parts = 4
        length_s = 0.0
        for _ in range(parts):
            rates = self.iops()
            pages_per_s = sum(rates[v.name] * v.write_pages_per_request for v in self.vms if v.active)
            quarter_s = self.drive_pages / self.windows_per_drive_write / parts / pages_per_s
            length_s += quarter_s
            for v in self.vms:
                if v.active:
                    counts[v.name] += self._serve(v, rates[v.name] * quarter_s)
        return DeviceSample(
            self.timing,
            tuple(self._sample(v, counts[v.name], length_s) for v in self.vms),
            self.total_ops_blocks - sum(v.ops_blocks for v in self.vms),
            ShareBy.REQUESTS,
        )

    def _serve(self, v: PlantVm, requests: float) -> np.ndarray:
        host = requests * v.write_pages_per_request
        gc = host * gc_model.gc_write_ratio(v.u)
        np_ = self.timing.pages_per_block
        victims = (host + gc) / np_
        v.pages_written += host
        v.requests_done += requests
        written = host if self.lag_in_host_pages else host + gc
        progress = written / (self.lag * np_ * (v.logical_blocks + v.ops_blocks))
        v.u += (v.steady_u(np_, self.reserve_blocks) - v.u) * -math.expm1(-progress)
        return np.array([requests, host, gc, victims * np_, gc])

    def _sample(self, v: PlantVm, counts: np.ndarray, length_s: float) -> VmSample:
        requests, host, gc, victim, valid = counts
        valid = min(valid * (1.0 + self.noise * self.random.standard_normal()), victim)
        rate = counts[0] / length_s
        outstanding = None
        if self.measures_outstanding and rate:
            outstanding = v.outstanding * rate / self._unheld_iops(v)
        return VmSample(
            vm=v.name,
            slo=Slo(weight=v.weight, **v.slo),
            active=v.active,
            window_s=length_s,
            requests=max(0, round(requests)),
            host_page_writes=max(0, round(host)),
            gc_page_writes=max(0, round(gc)),
            victim_pages=max(0, round(victim)),
            victim_valid_pages=max(0, round(valid)),
            logical_blocks=v.logical_blocks,
            ops_blocks=v.ops_blocks,
            min_ops_blocks=v.min_ops_blocks,
            limit_iops=v.limit_iops,
            scheduler_weight=v.scheduler_weight,
            device_s=counts[0] * self._request_s(v) if self.scheduled else 0.0,
            outstanding=outstanding,
            backlog_share=0.5 if rate > 0.99 * v.demand_iops else 1.0,
            queued_share=1.0 if self.scheduled else self.contention,
            throttled=None if outstanding is None else max(0.0, v.outstanding - outstanding),
        )

    def _request_s(self, v: PlantVm) -> float:
        """Device time of a request."""
        write_us = gc_model.write_time_us(self.timing, v.u)
        return 1e-6 * (v.read_us_per_request + v.write_pages_per_request * write_us)

    def _unheld_iops(self, v: PlantVm) -> float:
        limit, v.limit_iops = v.limit_iops, None
        demand, v.demand_iops = v.demand_iops, math.inf
        rate = self.iops()[v.name]
        v.limit_iops, v.demand_iops = limit, demand
        return rate

    def apply(self, decision: Decision) -> None:
        for move in decision.moves:
            assert move.blocks > 0
            self.moves += 1
            self.blocks_moved += move.blocks
            if move.source is not None:
                self.vm(move.source).ops_blocks -= move.blocks
            if move.target is not None:
                self.vm(move.target).ops_blocks += move.blocks
        for name, limit in decision.limits_iops.items():
            assert limit is None or limit > 0
            self.vm(name).limit_iops = limit
        for name, weight in decision.scheduler_weights.items():
            self.vm(name).scheduler_weight = weight
        assert all(v.ops_blocks >= v.min_ops_blocks for v in self.vms)
        assert sum(v.ops_blocks for v in self.vms) <= self.total_ops_blocks
        self.history.append([v.ops_blocks for v in self.vms])

    def shares(self, before: dict[str, float]) -> dict[str, float]:
        done = {v.name: v.requests_done - before[v.name] for v in self.vms}
        return {name: d / sum(done.values()) for name, d in done.items()}

    def done(self) -> dict[str, float]:
        return {v.name: v.requests_done for v in self.vms}


class Loop:
    """A plant and a policy in closed loop."""

    def __init__(self, plant: Plant, policy: Policy[Any]) -> None:
        self.plant = plant
        self.policy = policy
        assert policy.placement in Placement
        self.state, decision = policy.start(plant.window())
        plant.apply(decision)
        self.decisions = [decision]

    def run(self, drive_writes: float, each: Callable[[], None] | None = None) -> dict[str, float]:
        """Continue; returns every VM's share of the completed requests."""
        before = self.plant.done()
        for _ in range(round(drive_writes * self.plant.windows_per_drive_write)):
            self.state, decision = self.policy.step(self.state, self.plant.window())
            self.plant.apply(decision)
            self.decisions.append(decision)
            if each is not None:
                each()
        return self.plant.shares(before)

    def worst_error(self, drive_writes: float) -> float:
        """Continue; returns the largest relative deviation of an active VM's share from that by weight."""
        shares = self.run(drive_writes)
        weights = {v.name: v.weight for v in self.plant.vms if v.active}
        total = sum(weights.values())
        active = sum(shares[name] for name in weights)
        return max(abs(shares[n] / active * total / w - 1.0) for n, w in weights.items())
