"""The policies of the paper (FAST '15): `shared`, its baseline, `static` and `algorithm1`.

`algorithm1` is Algorithm 1 exactly as printed (section 4.2), and starves: line 18 takes every block from the
VM whose current u is highest, which is the VM that has least, and a VM that is itself the maximum can never
be given one. docs/policies.md shows it; `proportional` is the remedy.

Where the paper leaves a choice: the SSD's IOPS "specification" is, unless given (`algorithm1:IOPS`), what all
VMs together reach by equation 1 with uniform writes and OPS in proportion to their sizes; one pass of lines
13-19 stands for one GC, so a window takes as many passes as `max_move_blocks` allows blocks (one pass when
None); a VM that is itself the maximum moves a block from itself to itself, so nothing; a donor keeps its
min_ops_blocks, because the device refuses to go below. New weights or VMs give new targets (lines 7-11), not
a new split.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from slo_ctl.decide import gc_model
from slo_ctl.decide.gc_model import GcCurve
from slo_ctl.decide.ops_plan import allocate, moves_between
from slo_ctl.decide.policies.interface import without_pacing
from slo_ctl.model import Decision, DeviceSample, OpsMove, Placement, TimingModel


@dataclass(frozen=True, slots=True)
class Shared:
    """No isolation: one pool for all VMs. Leaves everything as it is."""

    name: str = "shared"
    placement: Placement = Placement.SHARED

    def start(self, sample: DeviceSample) -> tuple[None, Decision]:  # noqa: ARG002
        """Decide nothing."""
        return None, Decision()

    def resume(self, sample: DeviceSample) -> tuple[None, Decision]:
        """Keep the split, lifting the limits of another policy."""
        return None, Decision(limits_iops=without_pacing(sample))

    def step(self, state: None, sample: DeviceSample) -> tuple[None, Decision]:  # noqa: ARG002
        """Decide nothing."""
        return None, Decision()


Split = dict[str, int]
"""OPS blocks by VM that are still to be arrived at; empty when they have been."""


@dataclass(frozen=True, slots=True)
class Static:
    """OPS by ratio of the weights (Algorithm 1, lines 3 and 4), as they are when the controller starts."""

    name: str = "static"
    placement: Placement = Placement.ISOLATED

    def start(self, sample: DeviceSample) -> tuple[Split, Decision]:
        """Split the OPS by weight; ValueError when the min_ops_blocks exceed what there is."""
        wanted = split_by_weight(sample)
        return wanted, Decision(
            moves=_moves_to(wanted, sample), reasons=("OPS split by the ratio of the weights",)
        )

    def resume(self, sample: DeviceSample) -> tuple[Split, Decision]:
        """As `start`, which moves nothing where the split is that by weight; lifts other policies' limits."""
        wanted, decision = self.start(sample) if sample.vms else ({}, Decision())
        return wanted, replace(decision, limits_iops=without_pacing(sample))

    def step(self, state: Split, sample: DeviceSample) -> tuple[Split, Decision]:
        """Ask again for moves that have not been made, such as those that a busy device refused."""
        if state.keys() != {v.vm for v in sample.vms}:
            return {}, Decision()
        moves = _moves_to(state, sample)
        return state if moves else {}, Decision(moves=moves)


def split_by_weight(sample: DeviceSample) -> Split:
    """OPS(VM_i) = OPS_total x w_i / sum w, every VM keeping at least its minimum."""
    weights = sum(v.slo.weight for v in sample.vms)
    ideal = {v.vm: sample.total_ops_blocks * v.slo.weight / weights for v in sample.vms}
    return allocate(sample.total_ops_blocks, ideal, {v.vm: v.min_ops_blocks for v in sample.vms})


def _moves_to(wanted: Split, sample: DeviceSample) -> tuple[OpsMove, ...]:
    return moves_between({v.vm: v.ops_blocks for v in sample.vms}, wanted, sample.spare_blocks)


LastU = dict[str, float]
"""Last known utilization by VM."""


@dataclass(frozen=True, slots=True)
class Algorithm1State:
    """All that is remembered between windows."""

    last_u: LastU
    initial_split: Split = field(default_factory=dict)
    """Still to be arrived at; empty when it has been."""


@dataclass(frozen=True, slots=True)
class Algorithm1:
    """One block at a time to every VM above its target u, from the VM with the highest u."""

    iops_total: float | None = None
    """SSD IOPS specification (line 6); None: derived from the device's OP."""
    name: str = "algorithm1"
    placement: Placement = Placement.ISOLATED

    def start(self, sample: DeviceSample) -> tuple[Algorithm1State, Decision]:
        """Lines 3-4: split by weight."""
        split, decision = Static().start(sample)
        return Algorithm1State(_current_u(sample, {}), split), decision

    def resume(self, sample: DeviceSample) -> tuple[Algorithm1State, Decision]:
        """The split as it is; limits of another policy are lifted."""
        return Algorithm1State(_current_u(sample, {})), Decision(limits_iops=without_pacing(sample))

    def step(self, state: Algorithm1State, sample: DeviceSample) -> tuple[Algorithm1State, Decision]:
        """Lines 12-20: every VM above its target u gains a block of the VM with the highest u."""
        current_u = _current_u(sample, state.last_u)
        split, initial = Static().step(state.initial_split, sample)
        if initial.moves:
            return Algorithm1State(current_u, split), initial
        return Algorithm1State(current_u), self._adjusted(current_u, sample)

    def _adjusted(self, current_u: LastU, sample: DeviceSample) -> Decision:
        targets = self.target_u(sample)
        if not targets:
            return Decision(reasons=("no VM, or a device without clock: no target u",))
        donor = max(current_u, key=lambda vm: current_u[vm])
        receivers = [vm for vm in current_u if current_u[vm] > targets[vm] and vm != donor]
        to_give = sum(v.ops_blocks - v.min_ops_blocks for v in sample.vms if v.vm == donor)
        budget = min(to_give, len(receivers) if sample.max_move_blocks is None else sample.max_move_blocks)
        if not receivers or budget <= 0:
            return Decision()
        gains = Counter(receivers[i % len(receivers)] for i in range(budget))
        return Decision(
            moves=tuple(OpsMove(donor, vm, blocks) for vm, blocks in gains.items()),
            reasons=(f"{', '.join(gains)} above target u: {budget} blocks of {donor}, whose u is highest",),
        )

    def target_u(self, sample: DeviceSample) -> dict[str, float]:
        """Lines 5-11: the u at which each VM has its share of the SSD's IOPS; empty without a clock."""
        timing = sample.timing
        if timing.model is TimingModel.NONE or not sample.vms:
            return {}
        iops_total = self.iops_total
        if iops_total is None:
            device = GcCurve.prior(sum(v.logical_blocks for v in sample.vms), timing.pages_per_block)
            iops_total = len(sample.vms) * gc_model.iops(timing, device.u_at(sample.total_ops_blocks))
        weights = sum(v.slo.weight for v in sample.vms)
        return {v.vm: gc_model.u_at_iops(timing, iops_total * (v.slo.weight / weights)) for v in sample.vms}


def _current_u(sample: DeviceSample, before: LastU) -> LastU:
    return {v.vm: v.u if v.u is not None else before.get(v.vm, 0.0) for v in sample.vms}
