"""How an emulated device divides itself among its namespaces, and when that keeps no SLO. Pure."""

from __future__ import annotations

from collections.abc import Collection

from slo_ctl.decide.scheduler import Choice, Needs
from slo_ctl.model import Slo

FAIR_SCHEDULER = "wfq"
"""The only one by which weights have an effect."""
_UNTIMED = (
    "it is served without latency, so that nobody can be slowed or preferred (serve with --latency real)"
)


def choose_tenant_scheduler(needs: Needs, tenants: int, *, rotates: bool = False) -> Choice:
    """The scheduler of an emulated device, which orders its tenants' requests by itself.

    `rotates`: it is a hard disk or an array of them.
    """
    if tenants < 2:
        return Choice("scheduler", "fifo", "one namespace has nobody to be distinguished from")
    if needs.weights:
        reason = f"{tenants} namespaces share the drive, and weights are to be kept: device time by weight"
        return Choice("scheduler", "wfq", reason)
    if needs.p99_target_us is not None:
        reason = f"{tenants} namespaces share the drive: one with few requests must not queue behind others"
        return Choice("scheduler", "wfq", reason)
    if rotates:
        reason = (
            "no weights to keep: the disks sort all that waits, of which wfq would show them one at a time"
        )
        return Choice("scheduler", "fifo", reason)
    reason = f"{tenants} namespaces share the drive, and nobody should take more device time than others"
    return Choice("scheduler", "wfq", reason)


def why_not_kept(
    device: str, scheduler: str, own: Collection[Slo], everybody: Collection[Slo], *, timed: bool, ops: bool
) -> str:
    """Why nothing on the device can keep the SLO of a VM; empty: something can.

    `own` are the SLOs of the VM's namespaces, `everybody` those of all; `timed`: requests take modelled time;
    `ops`: namespaces have over-provisioning of their own that a policy can move.
    """
    if not timed:
        return _UNTIMED if any(slo != Slo() for slo in own) else ""
    if ops or scheduler == FAIR_SCHEDULER or len({slo.weight for slo in everybody}) < 2:
        return ""
    return (
        f"{device} divides itself by {scheduler}, by which weights have no effect, and has no OPS to move "
        f'(scheduler = "auto" in its [[device]], or slo-ctl device policy {device} --apply)'
    )
