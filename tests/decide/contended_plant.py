"""A simulated device that VMs contend for: no real I/O."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from slo_ctl.decide.limit_split import granted_iops, nearest_granted
from slo_ctl.decide.protection import Contender, Protection, step
from slo_ctl.model.slo import Slo


@dataclass
class PlantVm:
    slo: Slo
    queue: float
    """Requests outstanding: what it gets of a busy device is in proportion to that."""
    demand: float = float("inf")


@dataclass
class Plant:
    """Serves queues in proportion, as a device without a scheduler does; limits cut, others take the rest."""

    vms: dict[str, PlantVm]
    capacity: float
    noise: float = 0.0
    seed: int = 1
    limits: Mapping[str, float] = field(default_factory=dict)
    limit_step: float = 0.0
    """That in which limits act, as the kernel's do."""
    least_p99_us: float = 0.0
    """Of a request that nothing waits before."""

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)  # noqa: S311 - noise that can be repeated

    def iops(self) -> dict[str, float]:
        left = self.capacity
        caps = {n: min(v.demand, self.granted(n)) for n, v in self.vms.items()}
        got: dict[str, float] = {}
        while rest := {n: v for n, v in self.vms.items() if n not in got}:
            queues = sum(v.queue for v in rest.values())
            capped = [n for n, v in rest.items() if caps[n] <= left * v.queue / queues]
            if not capped:
                got |= {n: left * v.queue / queues for n, v in rest.items()}
                break
            for n in capped:
                got[n] = caps[n]
            left -= sum(caps[n] for n in capped)
        return {n: g * (1 + self._random.gauss(0, self.noise)) for n, g in got.items()}

    def p99_us(self, name: str, iops: float) -> float:
        """Three times the mean, by Little's law, of a VM without a limit."""
        return max(self.least_p99_us, 3e6 * self.vms[name].queue / iops)

    def granted(self, name: str) -> float:
        """What its limit grants; infinite without one."""
        return granted_iops(self.limits[name], self.limit_step) if name in self.limits else math.inf


@dataclass
class Loop:
    """The controller on the plant, once a second."""

    plant: Plant
    protection: Protection = field(default_factory=Protection)
    history: list[tuple[dict[str, float], dict[str, float]]] = field(default_factory=list)
    """IOPS, and limits in force meanwhile."""
    notes: set[str] = field(default_factory=set)
    guessing: bool = False
    """The observer takes every VM for wanting more, as it does where it only sees a busy device."""
    knows_steps: bool = True
    """The controller knows the steps of limits, and chooses limits that are granted completely."""
    p99_window: int = 5
    """Seconds that a p99 is measured over."""
    by_weight: bool = False
    """Every VM has a namespace of its own: shares are kept by limits, and a VM that is throttled by one looks
    as if it wanted no more, since its namespace is not busy."""

    def run(self, seconds: int) -> Loop:
        for _ in range(seconds):
            plant = self.plant
            iops = plant.iops()
            self.history.append((iops, dict(plant.limits)))
            vms = [
                Contender(
                    *(name, vm.slo, max(0.0, iops[name]), self._wants_more(name, iops[name])),
                    p99_us=self.p99_us(name),
                    granted_iops=plant.granted(name) if self.knows_steps else None,
                )
                for name, vm in plant.vms.items()
            ]
            self.protection = step(
                self.protection, vms, by_weight=self.by_weight, p99_effect_steps=self.p99_window + 1
            )
            plant.limits = {
                name: nearest_granted(
                    limit, plant.limit_step if self.knows_steps else 0.0, plant.vms[name].slo.min_iops or 0.0
                )
                for name, limit in self.protection.limits.items()
            }
            self.notes.update(self.protection.notes)
        return self

    def _wants_more(self, name: str, iops: float) -> bool:
        if self.by_weight and iops > 0.95 * self.plant.granted(name):
            return False
        return self.guessing or iops < 0.93 * self.plant.vms[name].demand

    def p99_us(self, vm: str) -> float | None:
        """As measured now; None where the VM has no target."""
        if self.plant.vms[vm].slo.p99_latency_us is None:
            return None
        return self.plant.p99_us(vm, self.mean(vm, min(self.p99_window, len(self.history))))

    def mean(self, vm: str, last: int) -> float:
        return sum(iops[vm] for iops, _ in self.history[-last:]) / last

    def changes(self, last: int) -> int:
        limits = [limits for _, limits in self.history[-last:]]
        return sum(before != after for before, after in pairwise(limits))
