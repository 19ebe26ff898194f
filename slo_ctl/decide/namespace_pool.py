"""Where on an NVMe drive a namespace's capacity is taken from, and whom it is shared with. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from slo_ctl.errors import UserError
from slo_ctl.model.mapping import Placement, SpareOwner
from slo_ctl.model.nvme import Isolation
from slo_ctl.quantity import format_bytes_exact

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from slo_ctl.model.mapping import Mapping
    from slo_ctl.model.nvme import EnduranceGroup, NvmeDevice, NvmeNamespace

WHOLE_DRIVE = "drive"
_ENOUGH = 2
"""One of anything keeps nobody apart."""


@dataclass(frozen=True, slots=True)
class Pool:
    """An NVM set, an endurance group, or the drive."""

    name: str
    group: int | None
    nvm_set: int | None
    unallocated_bytes: int | None
    """None: the drive does not tell."""
    mechanism: str
    """What keeps it apart from the rest of the drive; empty for the whole drive."""
    alone: bool
    """Nobody but the VM in question is in it, and it is not the whole drive."""
    fdp: bool = False
    unused_handles: tuple[int, ...] = ()

    @property
    def spare_owner(self) -> SpareOwner:
        """Whose garbage collection the spare capacity serves."""
        return SpareOwner.VM if self.alone else SpareOwner.DRIVE

    @property
    def placement(self) -> Placement:
        """By the pool alone."""
        if self.alone:
            return Placement(Isolation.ISOLATED, self.mechanism)
        return Placement(Isolation.CAPACITY, "a namespace")

    @staticmethod
    def of_namespace(device: NvmeDevice, namespace: NvmeNamespace) -> Pool:
        """The one that a namespace is in."""
        others = [each for each in device.namespaces if each.nsid != namespace.nsid]
        return _pool(device, namespace.endurance_group, namespace.nvm_set, others)


def choose_pool(
    device: NvmeDevice,
    mappings: Iterable[Mapping],
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
    )


def _unused(group: EnduranceGroup | None) -> tuple[int, ...]:
    return group.unused_handles if group is not None and group.fdp_enabled else ()


def handles_for(pool: Pool, places_handles: bool) -> tuple[tuple[int, ...], list[str]]:
    """Reclaim unit handles for a new namespace, and what to say about it."""
    if not pool.fdp:
        return (), []
    if not places_handles:
        return (), ["FDP is enabled, and nvme-cli before 2.5 cannot give a namespace a handle of its own"]
    if not pool.unused_handles:
        return (), ["FDP is enabled, and every reclaim unit handle is in use: the drive's default is shared"]
    return (pool.unused_handles[0],), []
