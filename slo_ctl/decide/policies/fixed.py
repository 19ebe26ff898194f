"""`shared`: no isolation, the baseline. One pool for all VMs; never decides anything."""

from __future__ import annotations

from dataclasses import dataclass

from slo_ctl.decide.ops_plan import allocate, moves_between
from slo_ctl.decide.policies.interface import without_pacing
from slo_ctl.model import Decision, DeviceSample, OpsMove, Placement


@dataclass(frozen=True, slots=True)
class Shared:
    """Leaves everything as it is."""

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


# `static`: OPS by ratio of the weights, once (FAST'15, Algorithm 1, lines 3 and 4).


@dataclass(frozen=True, slots=True)
class Static:
    """Splits once; never adjusts."""

    name: str = "static"
    placement: Placement = Placement.ISOLATED

    def start(self, sample: DeviceSample) -> tuple[None, Decision]:
        """Split the OPS by weight; ValueError when the min_ops_blocks exceed what there is."""
        return None, Decision(
            moves=split_by_weight(sample), reasons=("OPS split by the ratio of the weights",)
        )

    def resume(self, sample: DeviceSample) -> tuple[None, Decision]:
        """Keep the split, lifting the limits of another policy."""
        return None, Decision(limits_iops=without_pacing(sample))

    def step(self, state: None, sample: DeviceSample) -> tuple[None, Decision]:  # noqa: ARG002
        """Decide nothing."""
        return None, Decision()


def split_by_weight(sample: DeviceSample) -> tuple[OpsMove, ...]:
    """Moves after which OPS(VM_i) = OPS_total x w_i / sum w, every VM keeping at least its minimum."""
    weights = sum(v.slo.weight for v in sample.vms)
    ideal = {v.vm: sample.total_ops_blocks * v.slo.weight / weights for v in sample.vms}
    wanted = allocate(sample.total_ops_blocks, ideal, {v.vm: v.min_ops_blocks for v in sample.vms})
    return moves_between({v.vm: v.ops_blocks for v in sample.vms}, wanted, sample.spare_blocks)
