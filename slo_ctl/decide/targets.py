"""What the SLOs mean right now: the largest feasible lambda with IOPS_i = lambda w_i.

Every VM's IOPS follow from its OPS (`VmModel`), so a lambda costs a known number of OPS blocks, growing
with lambda. Minimums raise a VM above lambda w_i, maximums clip it, and the largest lambda for which all
needs add up to the OPS there is gives everyone's target. An idle VM keeps only its minimum of blocks and
lends the rest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slo_ctl.decide.allocation import allocate
from slo_ctl.model import Target

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slo_ctl.decide.service import VmModel

_CEILING_SHARE = 0.95
"""Targets stop a little short of GC-free IOPS: the last percents would cost most of the OPS."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What one VM is entitled to, and what it takes to deliver."""

    vm: str
    weight: float
    model: VmModel
    min_ops_blocks: int
    active: bool = True
    min_iops: float = 0.0
    max_iops: float = math.inf
    """The SLO's maximum, or what the VM asks for if less."""

    def due_iops(self, level: float, min_scale: float = 1.0) -> float:
        """IOPS at lambda = `level`, every minimum scaled by `min_scale`."""
        return min(max(level * self.weight, min_scale * self.min_iops), self.max_iops)

    def iops(self, level: float, min_scale: float = 1.0) -> float:
        """`due_iops` as far as OPS can give them."""
        return min(self.due_iops(level, min_scale), self.ceiling_iops)

    def ops_blocks(self, iops: float) -> float:
        """OPS blocks needed for `iops`, at least the minimum."""
        return max(float(self.min_ops_blocks), self.model.ops_at(iops))

    @property
    def ceiling_iops(self) -> float:
        """The most that OPS can be asked to give this VM."""
        return max(_CEILING_SHARE * self.model.ceiling_iops, self.model.iops_at(self.min_ops_blocks))


@dataclass(frozen=True, slots=True)
class Feasible:
    """The solver's answer."""

    level: float
    """lambda:

    IOPS per unit of weight of every VM that is neither idle, nor clipped, nor raised by its minimum.
    """
    targets: dict[str, Target]
    """ops_blocks are integers that add up to the total."""
    overcommitted: dict[str, float]
    """Per VM with a min_iops that cannot be kept: how many IOPS are missing."""
    ops_suffices: bool
    """False when some active VM would exceed its target although OPS were split at best:

    only a limit holds it.
    """


def solve(claims: Sequence[Claim], total_ops_blocks: int) -> Feasible:
    """Targets for every VM, water-filled.

    Raises ValueError when the min_ops_blocks alone exceed the total.
    """
    active = [c for c in claims if c.active]
    lent = sum(c.min_ops_blocks for c in claims if not c.active)
    available = total_ops_blocks - lent

    def need(level: float, min_scale: float = 1.0) -> float:
        return sum(c.ops_blocks(c.iops(level, min_scale)) for c in active)

    min_scale = 1.0
    if active and need(0.0) > available:
        min_scale = _largest(lambda scale: need(0.0, scale) <= available, 0.0, 1.0)
    # Strict proportion: nobody's lambda exceeds what the slowest VM can reach at all.
    top = min((c.ceiling_iops / c.weight for c in active if c.max_iops > c.ceiling_iops), default=math.inf)
    if math.isinf(top):
        top = max((c.max_iops / c.weight for c in active), default=0.0)
    level = _largest(lambda x: need(x, min_scale) <= available, 0.0, top) if min_scale == 1.0 else 0.0

    iops = {c.vm: c.iops(level, min_scale) if c.active else 0.0 for c in claims}
    ideal = {c.vm: c.ops_blocks(iops[c.vm]) if c.active else float(c.min_ops_blocks) for c in claims}
    minimum = {c.vm: c.min_ops_blocks for c in claims}
    if active:
        _hand_out_rest(ideal, active, total_ops_blocks)
    blocks = allocate(total_ops_blocks, ideal, minimum) if claims else {}
    total_iops = sum(iops.values())
    targets = {
        c.vm: Target(
            share=iops[c.vm] / total_iops if total_iops > 0 else 0.0,
            iops=iops[c.vm],
            u=c.model.curve.u_at(blocks[c.vm]),
            ops_blocks=blocks[c.vm],
        )
        for c in claims
    }
    return Feasible(
        level=level,
        targets=targets,
        overcommitted={c.vm: short for c in active if (short := c.min_iops - iops[c.vm]) > 1e-6 * c.min_iops},
        ops_suffices=all(c.model.iops_at(blocks[c.vm]) <= 1.02 * iops[c.vm] for c in active),
    )


def _hand_out_rest(ideal: dict[str, float], active: Sequence[Claim], total_blocks: int) -> None:
    """Blocks nobody's target needs go to the active VMs by weight: less GC for all, and steady in time."""
    rest = total_blocks - sum(ideal.values())
    weight = sum(c.weight for c in active)
    if rest > 0:
        for c in active:
            ideal[c.vm] += rest * c.weight / weight


def _largest(holds: Callable[[float], bool], low: float, high: float) -> float:
    """The largest x in [low, high] for which `holds`, which is true at `low` and turns false at most once."""
    if holds(high):
        return high
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
