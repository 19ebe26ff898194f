"""The policy of an emulated device, and the limits and weights that it has set."""

from __future__ import annotations

from typing import Any

from slo_ctl.daemon.occupants import Occupant
from slo_ctl.decide.policies import DEFAULT_POLICY, Policy, make_policy
from slo_ctl.model.decision import Decision
from slo_ctl.model.sample import DeviceSample


class PolicyInForce:
    """A policy with its state. What it has set for a stream stays until it decides otherwise."""

    def __init__(self, policy: str, *, keeps_split: bool) -> None:
        self.keeps_split = keeps_split
        """Whether it begins with the split of OPS, the limits and the weights in force."""
        self._policy: Policy[Any] = make_policy(policy)
        self._has_decided = False
        self._state: Any = None
        self._limits_iops: dict[str, float | None] = {}
        """By stream: limits below the SLO's maximum."""
        self._weights: dict[str, float] = {}
        """Weights of device time, by stream."""

    @property
    def name(self) -> str:
        return self._policy.name

    def decide(self, sample: DeviceSample) -> Decision:
        """The decision for a sample; none, with the reason, if the policy cannot decide."""
        try:
            if self._has_decided:
                self._state, decision = self._policy.step(self._state, sample)
            elif self.keeps_split or self.name == DEFAULT_POLICY:
                # A device in use keeps its split until a move is worth its cost.
                self._state, decision = self._policy.resume(sample)
                self._limits_iops = _limits_below_maximum(sample)
            else:
                self._state, decision = self._policy.start(sample)
        except ValueError as error:
            return Decision(reasons=(f"{self.name} cannot decide: {error}",))
        self._has_decided = True
        streams = {vm.vm for vm in sample.vms}
        limits, weights = self._limits_iops | decision.limits_iops, self._weights | decision.scheduler_weights
        self._limits_iops = {stream: limit for stream, limit in limits.items() if stream in streams}
        self._weights = {stream: weight for stream, weight in weights.items() if stream in streams}
        return decision

    def weight(self, occupant: Occupant, sample: DeviceSample) -> tuple[float, str]:
        """Weight of device time, and the reason: the SLO's, or one that gives the VM its share of IOPS."""
        if self.keeps_split and not self._has_decided:
            in_force = {v.vm: v.scheduler_weight for v in sample.vms}
            return in_force.get(occupant.key, occupant.slo.weight), "as it was"
        if occupant.key in self._weights:
            return self._weights[occupant.key], f"device time for its weight, by {self.name}"
        return occupant.slo.weight, "its weight"

    def limit(self, occupant: Occupant, sample: DeviceSample, remark: str) -> tuple[float | None, str]:
        """Limit of IOPS, and the reason: the policy's, with `remark`, or the SLO's, whichever is lower."""
        keeps_limits = self.keeps_split and not self._has_decided
        limits = _limits_below_maximum(sample) if keeps_limits else self._limits_iops
        limit, max_iops = limits.get(occupant.key), occupant.slo.max_iops
        if limit is not None and (max_iops is None or limit < max_iops):
            return limit, remark
        return max_iops, "its maximum"


def _limits_below_maximum(sample: DeviceSample) -> dict[str, float | None]:
    """Limits in force that are below the maximum of the VM's SLO."""
    return {
        v.vm: v.limit_iops
        for v in sample.vms
        if v.limit_iops is not None and (v.slo.max_iops is None or v.limit_iops < v.slo.max_iops)
    }
