"""The strongest placement that an NVMe drive truly offers to a VM's stream. Pure.

Only what is there counts, not what could be made by capacity management. FDP is separation, not isolation:
SNIA measured how invalidations in one handle raised the WAF of the others (WARP, "noisy RUH"; see
docs/nvme.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slo_ctl.model.nvme import Isolation, OfferedPlacement

if TYPE_CHECKING:
    from slo_ctl.model.nvme import NvmeDevice

_ENOUGH = 2
"""One of anything keeps nobody apart."""


def strongest(device: NvmeDevice) -> OfferedPlacement:
    """By what the drive has: NVM sets, endurance groups, FDP, namespaces, or nothing."""
    controller = device.controller
    if len(device.sets) >= _ENOUGH:
        return OfferedPlacement(
            Isolation.ISOLATED,
            "NVM sets",
            "media, garbage collection, spare and write amplification of each set",
            "the controller and its interface",
            f"{len(device.sets)} NVM sets (ctratt bit 2)",
        )
    if len(device.groups) >= _ENOUGH:
        return OfferedPlacement(
            Isolation.ISOLATED,
            "endurance groups",
            "media, wear, spare and write amplification of each group",
            "the controller and its interface; dies, where the drive puts groups on the same ones",
            f"{len(device.groups)} endurance groups (ctratt bit 4)",
        )
    group = max(
        (each for each in device.groups if each.fdp_enabled),
        key=lambda each: max((config.handles for config in each.fdp_configs), default=0),
        default=None,
    )
    handles = max((config.handles for config in group.fdp_configs), default=0) if group is not None else 0
    if group is not None and handles >= _ENOUGH:
        return OfferedPlacement(
            Isolation.SEPARATION,
            "FDP",
            "data of streams with different reclaim unit handles is put into different reclaim units",
            "over-provisioning and garbage collection: one stream's can still raise the WAF of the others",
            f"{handles} reclaim unit handles in endurance group {group.id} (ctratt bit 19, enabled)",
        )
    if controller.namespace_management or len(device.namespaces) >= _ENOUGH:
        why = []
        if controller.namespace_management:
            why.append("it claims namespace management (oacs bit 3)")
        if len(device.namespaces) >= _ENOUGH:
            why.append(f"it has {len(device.namespaces)} namespaces")
        return OfferedPlacement(
            Isolation.CAPACITY,
            "namespaces",
            "the address space: no stream can fill another's capacity",
            "flash blocks, garbage collection and over-provisioning: what is left unallocated is the drive's",
            " and ".join(why),
        )
    return OfferedPlacement(
        Isolation.NONE,
        "",
        "nothing",
        "everything",
        "one namespace, and no namespace management (oacs bit 3), FDP, endurance groups or NVM sets",
    )
