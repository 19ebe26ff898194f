"""`shared`: no isolation, the baseline. One pool for all VMs; never decides anything."""

from __future__ import annotations

from dataclasses import dataclass

from slo_ctl.decide.policies.limits import without_pacing
from slo_ctl.model import Decision, DeviceSample, Placement


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
