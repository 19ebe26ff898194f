"""The part of an NVMe drive that a namespace's capacity is taken from, and its other users. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slo_ctl.base.errors import UserError
from slo_ctl.base.quantity import format_bytes_exact
from slo_ctl.model.mapping import NamespaceMapping, NamespacePlacement, SpareOwner
from slo_ctl.model.nvme import EnduranceGroup, Isolation, NvmeDevice, NvmeNamespace, OfferedPlacement

WHOLE_DRIVE = "drive"
_OWN_OPS = "a namespace with OPS of its own"
_ENOUGH = 2
"""A single set, group or handle isolates nothing."""


@dataclass(frozen=True, slots=True)
class Pool:
    """An NVM set, an endurance group, or the drive."""

    name: str
    group: int | None
    nvm_set: int | None
    unallocated_bytes: int | None
    """None: the drive does not report it."""
    mechanism: str
    """Its isolation from the rest of the drive; empty for the whole drive."""
    alone: bool
    """Only the VM in question uses it, and it is not the whole drive."""
    fdp: bool = False
    unused_handles: tuple[int, ...] = ()
    own_ops: bool = False
    """Each namespace has flash blocks of its own."""

    @property
    def spare_owner(self) -> SpareOwner:
        """The VM or VMs whose garbage collection the spare capacity serves."""
        return SpareOwner.VM if self.alone else SpareOwner.DRIVE

    @property
    def placement(self) -> NamespacePlacement:
        """By the pool alone."""
        if self.alone:
            return NamespacePlacement(Isolation.ISOLATED, self.mechanism)
        if self.own_ops:
            return NamespacePlacement(Isolation.ISOLATED, _OWN_OPS)
        return NamespacePlacement(Isolation.CAPACITY, "a namespace")

    @staticmethod
    def of_namespace(device: NvmeDevice, namespace: NvmeNamespace) -> Pool:
        """The one that a namespace is in."""
        others = [each for each in device.namespaces if each.nsid != namespace.nsid]
        return _pool(device, namespace.endurance_group, namespace.nvm_set, others)


def choose_pool(
    device: NvmeDevice,
    mappings: Iterable[NamespaceMapping],
    group: int | None,
    size_bytes: int,
    spare_bytes: int,
) -> Pool:
    """Where a new namespace goes: where it is alone if there is such a place, else where most is left.

    Spares that earlier mappings keep unallocated stay so. Raises UserError when nothing has room.
    """
    pools = [each for each in _pools(device) if group is None or each.group == group]
    if not pools:
        known = ", ".join(str(each.id) for each in device.groups) or "none"
        raise UserError(
            f"{device.controller.name} has no endurance group {group}",
            f"leave --group out; there are: {known}",
        )
    kept = {each.name: 0 for each in pools}
    for mapping in mappings:
        if mapping.pool in kept and mapping.spare.how == "unallocated":
            kept[mapping.pool] += mapping.spare.size_bytes
    needed = size_bytes + spare_bytes
    room = [
        each
        for each in pools
        if each.unallocated_bytes is None or each.unallocated_bytes - kept[each.name] >= needed
    ]
    if not room:
        raise UserError(
            f"{device.controller.name} has no room for {format_bytes_exact(size_bytes)}"
            + (f" and a spare of {format_bytes_exact(spare_bytes)}" if spare_bytes else ""),
            "unallocated: " + ", ".join(_left(each, kept[each.name]) for each in pools),
        )
    return max(room, key=lambda each: (each.alone, (each.unallocated_bytes or 0) - kept[each.name]))


def _left(pool: Pool, kept: int) -> str:
    text = f"{format_bytes_exact(pool.unallocated_bytes or 0)} in {pool.name}"
    return text + (f", {format_bytes_exact(kept)} of it kept as spare" if kept else "")


def _pools(device: NvmeDevice) -> list[Pool]:
    if device.sets:
        return [_pool(device, each.endurance_group, each.id, device.namespaces) for each in device.sets]
    if device.groups:
        return [_pool(device, each.id, None, device.namespaces) for each in device.groups]
    return [_pool(device, None, None, device.namespaces)]


def _pool(
    device: NvmeDevice, group: int | None, nvm_set: int | None, others: Sequence[NvmeNamespace]
) -> Pool:
    found = next((each for each in device.sets if each.id == nvm_set), None)
    in_group = device.group(group)
    if found is not None:
        name, mechanism, enough = f"set {found.id}", "an NVM set of its own", len(device.sets) >= _ENOUGH
        left: int | None = found.unallocated_bytes
        alone = not any(each.nvm_set == found.id for each in others)
    elif in_group is not None:
        name, mechanism = f"group {in_group.id}", "an endurance group of its own"
        enough, left = len(device.groups) >= _ENOUGH, in_group.unallocated_bytes
        alone = not any(each.endurance_group == in_group.id for each in others)
    else:
        name, mechanism, enough, left, alone = WHOLE_DRIVE, "", False, None, False
    if left is None:
        left = device.controller.unallocated_bytes
    return Pool(
        name=name,
        group=in_group.id if in_group is not None else None,
        nvm_set=found.id if found is not None else None,
        unallocated_bytes=left,
        mechanism=mechanism,
        alone=alone and enough,
        fdp=in_group is not None and in_group.fdp_enabled,
        unused_handles=_unused(in_group),
        own_ops=device.has_own_ops,
    )


def _unused(group: EnduranceGroup | None) -> tuple[int, ...]:
    return group.unused_handles if group is not None and group.fdp_enabled else ()


def handles_for(pool: Pool, supports_placement_handles: bool) -> tuple[tuple[int, ...], list[str]]:
    """Reclaim unit handles for a new namespace, and what to say about it."""
    if not pool.fdp:
        return (), []
    if not supports_placement_handles:
        return (), ["FDP is enabled, and nvme-cli before 2.5 cannot give a namespace a handle of its own"]
    if not pool.unused_handles:
        return (), ["FDP is enabled, and every reclaim unit handle is in use: the drive's default is shared"]
    return (pool.unused_handles[0],), []


# The strongest placement that an NVMe drive truly offers to a VM's stream.
#
# Only what is there counts, not what could be made by capacity management. FDP is separation, not isolation:
# SNIA measured how invalidations in one handle raised the WAF of the others (WARP, "noisy RUH"; see
# docs/nvme.md).


def strongest(device: NvmeDevice) -> OfferedPlacement:
    """By what the drive has: NVM sets, endurance groups, OPS of namespaces, FDP, namespaces, or nothing."""
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
    if several:
        why = []
        if controller.namespace_management:
            why.append("it claims namespace management (oacs bit 3)")
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
