"""The policies of the paper (FAST '15): `shared`, its baseline, `static` and `algorithm1`.

`algorithm1` is Algorithm 1 exactly as printed (section 4.2), and it starves a VM: line 18 takes every block
from the VM with the highest current u, which is the VM with the least OPS, and that VM never receives one.
docs/policies.md shows it; `proportional` does not have this fault.

Choices that the paper leaves open:
- The SSD's IOPS "specification" is the argument of `algorithm1:IOPS`; without it, the sum that all VMs reach
  by equation 1 with uniform writes and OPS in proportion to their sizes.
- One pass of lines 13-19 stands for one GC: in a window, as many blocks move as were collected, and one if
  none was.
- The VM with the highest u, if it is above its own target, would move a block from itself to itself: nothing
  moves.
- A donor keeps its min_ops_blocks, because the device refuses to go below.
- New weights or VMs give new targets (lines 7-11), not a new split.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from slo_ctl.base.text import counted
from slo_ctl.decide import gc_model
from slo_ctl.decide.gc_model import GcCurve
from slo_ctl.decide.ops_plan import allocate, moves_between
from slo_ctl.decide.policies.interface import lifted_limits
from slo_ctl.model.decision import Decision, OpsMove
from slo_ctl.model.sample import DeviceSample, Placement, TimingModel


@dataclass(frozen=True, slots=True)
class Shared:
    """The policy `shared`: one pool of blocks for all VMs, without isolation. It changes nothing."""

    name: str = "shared"
    placement: Placement = Placement.SHARED

    def start(self, sample: DeviceSample) -> tuple[None, Decision]:  # noqa: ARG002
        return None, Decision()

    def resume(self, sample: DeviceSample) -> tuple[None, Decision]:
        """Lift the limits of another policy."""
        return None, Decision(limits_iops=lifted_limits(sample))

    def step(self, state: None, sample: DeviceSample) -> tuple[None, Decision]:  # noqa: ARG002
        return None, Decision()


Split = dict[str, int]
"""Target of OPS blocks by VM; empty once it is reached."""


@dataclass(frozen=True, slots=True)
class Static:
    """The policy `static`: OPS by the ratio of the weights at the start (Algorithm 1, lines 3 and 4)."""

    name: str = "static"
    placement: Placement = Placement.ISOLATED

    def start(self, sample: DeviceSample) -> tuple[Split, Decision]:
        """Split the OPS by weight; ValueError when the min_ops_blocks exceed the total."""
        wanted = split_by_weight(sample)
        return wanted, Decision(
            moves=_moves_to(wanted, sample), reasons=("OPS split by the ratio of the weights",)
        )

    def resume(self, sample: DeviceSample) -> tuple[Split, Decision]:
        """As `start`, which moves nothing if the split is right already; lifts limits of another policy."""
        wanted, decision = self.start(sample) if sample.vms else ({}, Decision())
        return wanted, replace(decision, limits_iops=lifted_limits(sample))

    def step(self, state: Split, sample: DeviceSample) -> tuple[Split, Decision]:
        """Request the moves again that have not been made, such as those that a busy device refused."""
        if state.keys() != {v.vm for v in sample.vms}:
            return {}, Decision()
        moves = _moves_to(state, sample)
        return state if moves else {}, Decision(moves=moves)


def split_by_weight(sample: DeviceSample) -> Split:
    """OPS blocks by VM: OPS_total x w_i / sum w, but at least the VM's min_ops_blocks."""
    weights = sum(v.slo.weight for v in sample.vms)
    ideal = {v.vm: sample.total_ops_blocks * v.slo.weight / weights for v in sample.vms}
    return allocate(sample.total_ops_blocks, ideal, {v.vm: v.min_ops_blocks for v in sample.vms})


def _moves_to(wanted: Split, sample: DeviceSample) -> tuple[OpsMove, ...]:
    return moves_between({v.vm: v.ops_blocks for v in sample.vms}, wanted, sample.spare_blocks)


LastU = dict[str, float]
"""Victim utilization last measured, by VM."""


@dataclass(frozen=True, slots=True)
class Algorithm1State:
    """State of the policy between windows."""

    last_u: LastU
    initial_split: Split = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Algorithm1:
    """The policy `algorithm1`: every VM above its target u gets blocks from the VM with the highest u."""

    iops_total: float | None = None
    """IOPS specification of the SSD (line 6); None: derived from its over-provisioning."""
    name: str = "algorithm1"
    placement: Placement = Placement.ISOLATED

    def start(self, sample: DeviceSample) -> tuple[Algorithm1State, Decision]:
        """Lines 3-4: split by weight."""
        split, decision = Static().start(sample)
        return Algorithm1State(_current_u(sample, {}), split), decision

    def resume(self, sample: DeviceSample) -> tuple[Algorithm1State, Decision]:
        """Keep the split of OPS, and lift the limits of another policy."""
        return Algorithm1State(_current_u(sample, {})), Decision(limits_iops=lifted_limits(sample))

    def step(self, state: Algorithm1State, sample: DeviceSample) -> tuple[Algorithm1State, Decision]:
        """Lines 12-20: every VM above its target u gets a block from the VM with the highest u."""
        current_u = _current_u(sample, state.last_u)
        split, initial = Static().step(state.initial_split, sample)
        if initial.moves:
            return Algorithm1State(current_u, split), initial
        return Algorithm1State(current_u), self._adjusted(current_u, sample)

    def _adjusted(self, current_u: LastU, sample: DeviceSample) -> Decision:
        targets = self.target_u(sample)
        if not targets:
            return Decision(reasons=("no target u: there is no VM, or the device has no timing model",))
        donor = max(current_u, key=lambda vm: current_u[vm])
        receivers = [vm for vm in current_u if current_u[vm] > targets[vm] and vm != donor]
        to_give = sum(v.ops_blocks - v.min_ops_blocks for v in sample.vms if v.vm == donor)
        collected = sum(v.victim_pages for v in sample.vms) // sample.timing.pages_per_block
        budget = min(to_give, max(1, collected))
        if not receivers or budget <= 0:
            return Decision()
        gains = Counter(receivers[i % len(receivers)] for i in range(budget))
        return Decision(
            moves=tuple(OpsMove(donor, vm, blocks) for vm, blocks in gains.items()),
            reasons=(
                f"u of {', '.join(gains)} above target: {counted(budget, 'block')} from {donor} (highest u)",
            ),
        )

    def target_u(self, sample: DeviceSample) -> dict[str, float]:
        """Lines 5-11: u by VM at which it has its share of the SSD's IOPS; empty without a timing model."""
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
    """Victim utilization by VM; without victims in the window that from `before`, or 0."""
    return {v.vm: v.u if v.u is not None else before.get(v.vm, 0.0) for v in sample.vms}
