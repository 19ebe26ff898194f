"""A simulated device on which VMs contend, without real I/O."""

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
    """Outstanding requests: on a busy device the VM's rate is proportional to them."""
    demand: float = float("inf")


@dataclass
class Plant:
    """Serves queues in proportion, like a device without a scheduler; others use what limits leave."""

    vms: dict[str, PlantVm]
    capacity: float
    noise: float = 0.0
    seed: int = 1
    limits: Mapping[str, float] = field(default_factory=dict)
    limit_step: float = 0.0
    """Step of limits, as in the kernel."""
    least_p99_us: float = 0.0
    """Service time of a request that does not wait."""

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
        """Three times the mean, from Little's law, of a VM without a limit."""
        return max(self.least_p99_us, 3e6 * self.vms[name].queue / iops)

    def granted(self, name: str) -> float:
        """The rate that its limit grants; infinite without one."""
        return granted_iops(self.limits[name], self.limit_step) if name in self.limits else math.inf


@dataclass
class Loop:
    """The controller on the plant, once a second."""

    plant: Plant
    protection: Protection = field(default_factory=Protection)
    history: list[tuple[dict[str, float], dict[str, float]]] = field(default_factory=list)
    """IOPS, and limits in force at that time."""
    notes: set[str] = field(default_factory=set)
    guessing: bool = False
    """The observer assumes that every VM wants more, as it does if it only sees a busy device."""
    knows_steps: bool = True
    """The controller knows the steps of limits, and chooses limits that are granted completely."""
    p99_window: int = 5
    """Seconds over which a p99 is measured."""
    by_weight: bool = False
    """Every VM has its own namespace: shares are enforced by limits, and a VM that is throttled by one seems
    to want no more, since its namespace is not busy."""

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
        """The p99 measured now; None if the VM has no target."""
        if self.plant.vms[vm].slo.p99_latency_us is None:
            return None
        return self.plant.p99_us(vm, self.mean(vm, min(self.p99_window, len(self.history))))

    def mean(self, vm: str, last: int) -> float:
        return sum(iops[vm] for iops, _ in self.history[-last:]) / last

    def changes(self, last: int) -> int:
        limits = [limits for _, limits in self.history[-last:]]
        return sum(before != after for before, after in pairwise(limits))
