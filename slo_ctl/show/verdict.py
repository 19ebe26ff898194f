"""One word per VM: did it get what its SLO means?"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slo_ctl.replay.result import RunResult, VmResult

TOLERANCE = 0.03
"""Relative distance from a target that still counts as on it."""


class Verdict(StrEnum):
    """What became of a VM's SLO in the window."""

    OK = "ok"
    INSUFFICIENT = "insufficient"
    """Below its target or its minimum."""
    IDLE = "idle"
    """Asked for nothing."""
    CAPPED = "capped"
    """As fast as its maximum lets it be."""


def verdict(vm: VmResult, tolerance: float = TOLERANCE) -> Verdict:
    """The verdict on one VM; `tolerance` is relative to its target.

    More than the target is ok: who pays for it is found insufficient. So is a VM that the policy's own rate
    limit holds at its share: only the maximum asked for makes it capped.
    """
    if not vm.iops and not vm.host_page_writes:
        return Verdict.IDLE if not vm.target_share else Verdict.INSUFFICIENT
    if vm.max_iops is not None and vm.iops is not None and vm.iops >= vm.max_iops * (1 - tolerance):
        return Verdict.CAPPED
    if vm.min_iops is not None and vm.iops is not None and vm.iops < vm.min_iops * (1 - tolerance):
        return Verdict.INSUFFICIENT
    if vm.share_error is not None and vm.share_error < -tolerance:
        return Verdict.INSUFFICIENT
    return Verdict.OK


def worst_share_error(run: RunResult) -> float | None:
    """The share error furthest from 0, with its sign; None when no VM has one."""
    return _furthest(vm.share_error for vm in run.vms)


def _furthest(errors: Iterable[float | None]) -> float | None:
    return max((error for error in errors if error is not None), key=abs, default=None)
