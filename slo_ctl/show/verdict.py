"""The verdict on what a replay measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slo_ctl.decide.verdict import Delivered, judge
from slo_ctl.model import Slo

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slo_ctl.model import Verdict
    from slo_ctl.replay.result import RunResult, VmResult

TOLERANCE = 0.03
"""Relative distance from a target that still counts as on it."""


def verdict(vm: VmResult) -> Verdict:
    """The verdict on one VM; TOLERANCE is relative to its target, minimum and maximum."""
    worked = bool(vm.iops or vm.host_page_writes)
    got = Delivered(asked=worked or bool(vm.target_share), iops=vm.iops, share=vm.share if worked else 0.0)
    slo = Slo(weight=vm.weight, min_iops=vm.min_iops, max_iops=vm.max_iops)
    return judge(got, slo, vm.target_share, tolerance=TOLERANCE, at_bound=TOLERANCE).verdict


def worst_share_error(run: RunResult) -> float | None:
    """The share error furthest from 0, with its sign; None when no VM has one."""
    return _furthest(vm.share_error for vm in run.vms)


def _furthest(errors: Iterable[float | None]) -> float | None:
    return max((error for error in errors if error is not None), key=abs, default=None)
