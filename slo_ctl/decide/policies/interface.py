"""Interface of OPS policies. Their state is immutable, and the caller keeps it between steps."""

from __future__ import annotations

from typing import Protocol, TypeVar

from slo_ctl.model.decision import Decision
from slo_ctl.model.sample import DeviceSample, Placement

S = TypeVar("S")


class Policy(Protocol[S]):
    """An OPS policy, which turns samples into decisions; `S` is the type of its state."""

    @property
    def name(self) -> str:
        """Name in the configuration."""

    @property
    def placement(self) -> Placement:
        """Placement of data that the policy needs."""

    def start(self, sample: DeviceSample) -> tuple[S, Decision]:
        """The initial state, and the initial split of OPS.

        `sample` need not have measurements. Raises ValueError when the min_ops_blocks exceed the OPS.
        """

    def resume(self, sample: DeviceSample) -> tuple[S, Decision]:
        """The initial state on a device that has a split already, after a restart or a change of policy.

        No OPS moves, except under `static`, which has only one split. Limits stay until measurements call
        for a change, or are lifted by a policy that sets none. On a change to a policy that
        `splits_at_start`, `start` is called instead.
        """

    def step(self, state: S, sample: DeviceSample) -> tuple[S, Decision]:
        """The state one window later, and the changes to make."""


def limits_by_slo(sample: DeviceSample) -> dict[str, float | None]:
    """Changes that set the limit of each VM to its maximum: IOPS by VM, None for no limit."""
    return {v.vm: v.slo.max_iops for v in sample.vms if v.limit_iops != v.slo.max_iops}


def lifted_limits(sample: DeviceSample) -> dict[str, float | None]:
    """Changes that lift limits of another policy: IOPS by VM, its maximum or None for no limit."""
    return {v.vm: v.slo.max_iops for v in sample.vms if v.limit_iops not in (None, v.slo.max_iops)}
