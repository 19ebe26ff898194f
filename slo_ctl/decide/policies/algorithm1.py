"""`algorithm1`: the paper's Algorithm 1 exactly as printed (FAST'15, section 4.2).

It starves: line 18 takes every block from the VM whose current u is highest, which is the VM that has
least, and a VM that is itself the maximum can never be given one. docs/policies.md shows it; `proportional`
is the remedy.

Where the paper leaves a choice: the SSD's IOPS "specification" is, unless given, what all VMs together
reach by equation 1 with uniform writes and OPS in proportion to their sizes; one pass of lines 13-19 stands
for one GC, so a window takes as many passes as `max_move_blocks` allows blocks (one pass when None); a VM
that is itself the maximum moves a block from itself to itself, so nothing; a donor keeps its
min_ops_blocks, because the device refuses to go below. New weights or VMs give new targets (lines 7-11),
not a new split.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from slo_ctl.decide import gc_model
from slo_ctl.decide.gc_model import GcCurve
from slo_ctl.decide.policies.fixed import split_by_weight
from slo_ctl.decide.policies.interface import without_pacing
from slo_ctl.model import Decision, DeviceSample, OpsMove, Placement, Target, TimingModel


@dataclass(frozen=True, slots=True)
class Algorithm1State:
    """Last known utilization per VM."""

    current_u: dict[str, float]


@dataclass(frozen=True, slots=True)
class Algorithm1:
    """One block at a time to every VM above its target u, from the VM with the highest u."""

    iops_total: float | None = None
    """SSD IOPS specification (line 6); None: derived from the device's OP."""
    name: str = "algorithm1"
    placement: Placement = Placement.ISOLATED

    def start(self, sample: DeviceSample) -> tuple[Algorithm1State, Decision]:
        """Lines 3-11: split by weight, and set the target u of every VM."""
        decision = Decision(
            moves=split_by_weight(sample),
            targets=self._targets(sample),
            reasons=("OPS split by the ratio of the weights (Algorithm 1, lines 3-4)",),
        )
        return Algorithm1State(_current_u(sample, {})), decision

    def resume(self, sample: DeviceSample) -> tuple[Algorithm1State, Decision]:
        """Lines 5-11: the targets, with the split as it is; limits of another policy are lifted."""
        decision = Decision(targets=self._targets(sample), limits_iops=without_pacing(sample))
        return Algorithm1State(_current_u(sample, {})), decision

    def step(self, state: Algorithm1State, sample: DeviceSample) -> tuple[Algorithm1State, Decision]:
        """Lines 12-20: every VM above its target u gains a block of the VM with the highest u."""
        current_u = _current_u(sample, state.current_u)
        state = Algorithm1State(current_u)
        targets = self._targets(sample)
        if not targets:
            return state, Decision(reasons=("no VM, or a device without clock: no target u",))
        above = [vm for vm in current_u if current_u[vm] > (targets[vm].u or 0.0)]
        donor = max(current_u, key=lambda vm: current_u[vm])
        receivers = [vm for vm in above if vm != donor]
        to_give = sum(v.ops_blocks - v.min_ops_blocks for v in sample.vms if v.vm == donor)
        budget = min(to_give, len(receivers) if sample.max_move_blocks is None else sample.max_move_blocks)
        if not receivers or budget <= 0:
            return state, Decision(targets=targets)
        gains = Counter(receivers[i % len(receivers)] for i in range(budget))
        return state, Decision(
            moves=tuple(OpsMove(donor, vm, blocks) for vm, blocks in gains.items()),
            targets=targets,
            reasons=(f"{', '.join(gains)} above target u: {budget} blocks of {donor}, whose u is highest",),
        )

    def _targets(self, sample: DeviceSample) -> dict[str, Target]:
        timing = sample.timing
        if timing.model is TimingModel.NONE or not sample.vms:
            return {}
        iops_total = self.iops_total
        if iops_total is None:
            device = GcCurve.prior(sum(v.logical_blocks for v in sample.vms), timing.pages_per_block)
            iops_total = len(sample.vms) * gc_model.iops(timing, device.u_at(sample.total_ops_blocks))
        weights = sum(v.slo.weight for v in sample.vms)
        shares = {v.vm: v.slo.weight / weights for v in sample.vms}
        return {
            vm: Target(share, iops_total * share, gc_model.u_at_iops(timing, iops_total * share))
            for vm, share in shares.items()
        }


def _current_u(sample: DeviceSample, before: dict[str, float]) -> dict[str, float]:
    return {v.vm: v.u if v.u is not None else before.get(v.vm, 0.0) for v in sample.vms}
