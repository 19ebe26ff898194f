"""Pools of an NVMe drive, from which namespaces get their capacity, and their isolation. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slo_ctl.base.errors import UserError
from slo_ctl.base.quantity import format_bytes_exact
from slo_ctl.model.mapping import NamespaceMapping, NamespacePlacement, SpareOwner
from slo_ctl.model.nvme import Isolation, NvmeDevice, NvmeNamespace, OfferedPlacement

WHOLE_DRIVE = "drive"
_OWN_OPS = "a namespace with OPS of its own"
_ENOUGH = 2
"""Least number of sets, groups, handles or namespaces: a single one does not separate anything."""


@dataclass(frozen=True, slots=True)
class Pool:
    """An NVM set, an endurance group, or the whole drive."""

    name: str
    group: int | None
    """Number of the endurance group; None: the drive has none."""
    nvm_set: int | None
    """Number of the NVM set; None: the pool is no set."""
    unallocated_bytes: int | None
    """None: the drive does not report it."""
    mechanism: str
    """Mechanism that isolates the pool from the rest of the drive; empty for the whole drive."""
    alone: bool
    """Whether the namespace in question is the only one in the pool, and the pool is not the whole drive."""
    fdp: bool = False
    """Whether FDP is enabled."""
    unused_handles: tuple[int, ...] = ()
    """Reclaim unit handles that no namespace uses."""
    own_ops: bool = False
    """Whether each namespace has flash blocks of its own."""

    @property
    def spare_owner(self) -> SpareOwner:
        """Whether spare capacity in the pool serves the garbage collection of one VM or of the drive."""
        return SpareOwner.VM if self.alone else SpareOwner.DRIVE

    @property
    def placement(self) -> NamespacePlacement:
        """Isolation of a namespace in the pool, without FDP."""
        if self.alone:
            return NamespacePlacement(Isolation.ISOLATED, self.mechanism)
        if self.own_ops:
            return NamespacePlacement(Isolation.ISOLATED, _OWN_OPS)
        return NamespacePlacement(Isolation.CAPACITY, "a namespace")

    @staticmethod
    def of_namespace(device: NvmeDevice, namespace: NvmeNamespace) -> Pool:
        """The pool that a namespace is in."""
        others = [other for other in device.namespaces if other.nsid != namespace.nsid]
        return _pool(device, namespace.endurance_group, namespace.nvm_set, others)


def choose_pool(
    device: NvmeDevice,
    mappings: Iterable[NamespaceMapping],
    group: int | None,
    size_bytes: int,
    spare_bytes: int,
) -> Pool:
    """The pool for a new namespace: one without other namespaces if possible, else that with the most room.

    Spare capacity of earlier mappings stays unallocated. Raises UserError when no pool has room.
    """
    pools = [pool for pool in _pools(device) if group is None or pool.group == group]
    if not pools:
        groups = ", ".join(str(endurance_group.id) for endurance_group in device.groups) or "none"
        raise UserError(
            f"{device.controller.name} has no endurance group {group}",
            f"leave --group out; existing groups: {groups}",
        )
    reserved = {pool.name: 0 for pool in pools}
    for mapping in mappings:
        if mapping.pool in reserved and mapping.spare.how == "unallocated":
            reserved[mapping.pool] += mapping.spare.size_bytes
    needed = size_bytes + spare_bytes
    candidates = [
        pool
        for pool in pools
        if pool.unallocated_bytes is None or pool.unallocated_bytes - reserved[pool.name] >= needed
    ]
    if not candidates:
        raise UserError(
            f"{device.controller.name} has no room for {format_bytes_exact(size_bytes)}"
            + (f" and a spare of {format_bytes_exact(spare_bytes)}" if spare_bytes else ""),
            "unallocated: " + ", ".join(_room_text(pool, reserved[pool.name]) for pool in pools),
        )
    return max(candidates, key=lambda pool: (pool.alone, (pool.unallocated_bytes or 0) - reserved[pool.name]))


def _room_text(pool: Pool, reserved: int) -> str:
    text = f"{format_bytes_exact(pool.unallocated_bytes or 0)} in {pool.name}"
    return text + (f", {format_bytes_exact(reserved)} of it reserved as spare" if reserved else "")


def _pools(device: NvmeDevice) -> list[Pool]:
    if device.sets:
        return [_pool(device, s.endurance_group, s.id, device.namespaces) for s in device.sets]
    if device.groups:
        return [_pool(device, group.id, None, device.namespaces) for group in device.groups]
    return [_pool(device, None, None, device.namespaces)]


def _pool(
    device: NvmeDevice, group: int | None, nvm_set: int | None, others: Sequence[NvmeNamespace]
) -> Pool:
    """The pool of an NVM set, else of an endurance group, else of the drive; `others`: other namespaces."""
    own_set = next((candidate for candidate in device.sets if candidate.id == nvm_set), None)
    own_group = device.group(group)
    if own_set is not None:
        name, mechanism, enough = f"set {own_set.id}", "an NVM set of its own", len(device.sets) >= _ENOUGH
        unallocated: int | None = own_set.unallocated_bytes
        alone = not any(other.nvm_set == own_set.id for other in others)
    elif own_group is not None:
        name, mechanism = f"group {own_group.id}", "an endurance group of its own"
        enough, unallocated = len(device.groups) >= _ENOUGH, own_group.unallocated_bytes
        alone = not any(other.endurance_group == own_group.id for other in others)
    else:
        name, mechanism, enough, unallocated, alone = WHOLE_DRIVE, "", False, None, False
    if unallocated is None:
        unallocated = device.controller.unallocated_bytes
    return Pool(
        name=name,
        group=own_group.id if own_group is not None else None,
        nvm_set=own_set.id if own_set is not None else None,
        unallocated_bytes=unallocated,
        mechanism=mechanism,
        alone=alone and enough,
        fdp=own_group is not None and own_group.fdp_enabled,
        unused_handles=own_group.unused_handles if own_group is not None and own_group.fdp_enabled else (),
        own_ops=device.has_own_ops,
    )


def handles_for(pool: Pool, supports_placement_handles: bool) -> tuple[tuple[int, ...], list[str]]:
    """Reclaim unit handles for a new namespace, and why it gets none although FDP is enabled."""
    if not pool.fdp:
        return (), []
    if not supports_placement_handles:
        return (), ["FDP is enabled, but nvme-cli before 2.5 cannot give a namespace a handle of its own"]
    if not pool.unused_handles:
        return (), ["FDP is enabled, but every reclaim unit handle is in use: the drive's default is shared"]
    return (pool.unused_handles[0],), []


# The strongest placement that an NVMe drive offers to a VM.
#
# It is that of the existing sets, groups and namespaces, not of those that capacity management could create.
# FDP separates but does not isolate: SNIA measured how invalidations in one handle raised the WAF of the
# others (WARP, "noisy RUH"; see docs/nvme.md).


def strongest(device: NvmeDevice) -> OfferedPlacement:
    """The strongest of NVM sets, endurance groups, OPS of namespaces, FDP and namespaces, or none."""
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
            "the controller and its interface; dies, if groups share them",
            f"{len(device.groups)} endurance groups (ctratt bit 4)",
        )
    several = controller.namespace_management or len(device.namespaces) >= _ENOUGH
    if device.has_own_ops and several:
        return OfferedPlacement(
            Isolation.ISOLATED,
            "namespaces with OPS of their own",
            "flash blocks, garbage collection, OPS and write amplification of each namespace",
            "the controller, its interface and its dies; unallocated capacity serves all",
            "the drive reports the OPS of each namespace (log page E0h)",
        )
    group = max(
        (candidate for candidate in device.groups if candidate.fdp_enabled),
        key=lambda candidate: max((config.handles for config in candidate.fdp_configs), default=0),
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
    if several:
        why = []
        if controller.namespace_management:
            why.append("it reports namespace management (oacs bit 3)")
        if len(device.namespaces) >= _ENOUGH:
            why.append(f"it has {len(device.namespaces)} namespaces")
        return OfferedPlacement(
            Isolation.CAPACITY,
            "namespaces",
            "the address space: no stream can fill another's capacity",
            "flash blocks, garbage collection and over-provisioning: unallocated capacity serves all",
            " and ".join(why),
        )
    return OfferedPlacement(
        Isolation.NONE,
        "",
        "nothing",
        "everything",
        "one namespace, and no namespace management (oacs bit 3), FDP, endurance groups or NVM sets",
    )
