"""Interface of every policy. State is explicit and immutable: the caller keeps it between steps."""

from __future__ import annotations

from typing import Protocol, TypeVar

from slo_ctl.model import Decision, DeviceSample, Placement

S = TypeVar("S")


class Policy(Protocol[S]):
    """Samples in, decisions out."""

    @property
    def name(self) -> str:
        """The name it is chosen by."""

    @property
    def placement(self) -> Placement:
        """The placement it needs."""

    def start(self, sample: DeviceSample) -> tuple[S, Decision]:
        """The state to begin with, and the initial split of OPS.

        `sample` need not hold measurements yet. A device whose min_ops_blocks exceed its OPS gives
        ValueError.
        """

    def resume(self, sample: DeviceSample) -> tuple[S, Decision]:
        """The state to take over with where a split is in force already, disturbing nothing.

        For a controller that was restarted, or chosen in place of another unless it `splits_at_start`: no OPS
        moves now, except under `static`, which has one split only; and limits stay until there is evidence
        against them, or are lifted by a policy that sets none.
        """

    def step(self, state: S, sample: DeviceSample) -> tuple[S, Decision]:
        """The state after one more window, and what should change now."""


# Limits that another policy left behind.


def without_pacing(sample: DeviceSample) -> dict[str, float | None]:
    """The changes after which nothing but the SLOs' maximums is limited."""
    return {v.vm: v.slo.max_iops for v in sample.vms if v.limit_iops not in (None, v.slo.max_iops)}
