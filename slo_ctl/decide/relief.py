"""Splits for VMs that wait for each other: the largest lambda, and then the fewest GC writes.

`targets.solve` gives every VM the OPS that its own target needs, as if the others' GC cost it nothing. Where
requests wait for each other, OPS beyond a VM's own need makes all of them faster, and the VM is paced. Here
waiting, the part of the service time that a lone request would not have, is taken to grow in proportion to
the device's work; and what no target needs goes where it saves most GC writes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from slo_ctl.decide.allocation import allocate
from slo_ctl.decide.split import Writer, best_split
from slo_ctl.decide.targets import Claim, Feasible
from slo_ctl.model import Target

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_WORTH_PACING = 1.03
"""Gain of lambda from which on VMs get more OPS than they need, and are paced."""
_GIVEN_UP = 0.01
"""Of lambda, for fewer GC writes, where VMs are paced anyway."""
_BISECTIONS = 16
_ROUNDS = 5
_LEAST_WORK = 0.5
"""Relative to now: less is not believed before it is seen."""


def relieve(
    claims: Sequence[Claim], total_ops_blocks: int, feasible: Feasible, now: Mapping[str, int]
) -> Feasible:
    """`feasible`, or where they are worth it, targets and a split that also spare the VMs each other's GC.

    `now` is the split with which the claims' models were fitted.
    """
    active = [c for c in claims if c.active]
    if len(active) < 2 or feasible.level <= 0.0 or feasible.overcommitted:
        return feasible
    available = total_ops_blocks - sum(c.min_ops_blocks for c in claims if not c.active)
    device = _Device(active, available, now, feasible.level)
    alone, relieved = device.largest_level(relieving=False), device.largest_level(relieving=True)
    if feasible.ops_suffices and relieved < _WORTH_PACING * alone:
        return feasible
    level = (1.0 - _GIVEN_UP) * relieved
    split = device.split(level, relieving=True)
    if split is None:
        return feasible
    ideal = {c.vm: split.get(c.vm, float(c.min_ops_blocks)) for c in claims}
    blocks = allocate(total_ops_blocks, ideal, {c.vm: c.min_ops_blocks for c in claims})
    iops = {c.vm: c.due_iops(level) if c.active else 0.0 for c in claims}
    total_iops = sum(iops.values())
    targets = {
        c.vm: Target(iops[c.vm] / total_iops, iops[c.vm], c.model.curve.u_at(blocks[c.vm]), blocks[c.vm])
        for c in claims
    }
    return Feasible(level, targets, {}, ops_suffices=False)


class _Device:
    """The active VMs on one device, as far as they wait for each other."""

    def __init__(
        self, active: Sequence[Claim], available: float, now: Mapping[str, int], level: float
    ) -> None:
        self._active = active
        self._available = available
        self._level = level
        self._work_now = self._work({c.vm: c.model.iops_at(now[c.vm]) for c in active}, now)
        self._waiting_us = {
            c.vm: max(0.0, c.model.service.base_us - c.model.service.lone_base_us) for c in active
        }
        rates = [c.iops(level) * c.model.service.writes_per_request for c in active]
        writers = [Writer(c.model.curve, r, c.min_ops_blocks) for c, r in zip(active, rates, strict=True)]
        self._least_gc = dict(zip((c.vm for c in active), best_split(writers, available), strict=True))

    def largest_level(self, *, relieving: bool) -> float:
        """The largest lambda that some split gives: just what each VM needs, or what spares the others."""
        low, high = 0.0, 2.0 * self._level
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            low, high = (low, middle) if self.split(middle, relieving=relieving) is None else (middle, high)
        return low

    def split(self, level: float, *, relieving: bool) -> dict[str, float] | None:
        """OPS blocks with which every VM reaches lambda; None where there are none."""
        iops = {c.vm: c.due_iops(level) for c in self._active}
        blocks: dict[str, float] = dict(self._least_gc)
        # From the least work there can be upwards: the first split that feeds itself is the best one.
        for _ in range(_ROUNDS):
            slowed = self._slowed(max(_LEAST_WORK, self._work(iops, blocks) / self._work_now))
            if any(iops[c.vm] > c.ceiling_iops for c in slowed):
                return None
            need = {c.vm: c.ops_blocks(iops[c.vm]) for c in slowed}
            spare = self._available - sum(need.values())
            if spare < 0.0:
                return None
            wish = {vm: max(0.0, self._least_gc[vm] - n) for vm, n in need.items()} if relieving else need
            scale = spare / sum(wish.values()) if any(wish.values()) else 0.0
            blocks = {vm: n + scale * wish[vm] for vm, n in need.items()}
        return blocks

    def _work(self, iops: Mapping[str, float], blocks: Mapping[str, float]) -> float:
        """Device time taken per second, in microseconds."""
        models = {c.vm: c.model for c in self._active}
        return sum(
            iops[vm] * model.service.device_time_us(model.curve.u_at(blocks[vm]))
            for vm, model in models.items()
        )

    def _slowed(self, work: float) -> list[Claim]:
        """The claims if the device had `work` times as much to do as now."""
        slowed = []
        for c in self._active:
            service = c.model.service
            base_us = service.base_us + (work - 1.0) * self._waiting_us[c.vm]
            slowed.append(replace(c, model=replace(c.model, service=replace(service, base_us=base_us))))
        return slowed
