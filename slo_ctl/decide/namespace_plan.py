"""Plans that give a VM an NVMe namespace, and that take it away again. Pure.

A plan has the steps and the resulting isolation, and refuses steps that would destroy data in use.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from slo_ctl.base.errors import UserError
from slo_ctl.base.quantity import format_bytes_exact
from slo_ctl.decide.drive_pool import Pool, choose_pool, handles_for
from slo_ctl.model.mapping import (
    AddDisk,
    AttachNamespace,
    CreateNamespace,
    Deallocate,
    DeleteNamespace,
    DetachNamespace,
    DriveIdentity,
    LbaFormat,
    NamespaceMapping,
    NamespacePlacement,
    Purpose,
    RemoveDisk,
    Spare,
    SpareOwner,
    Step,
)
from slo_ctl.model.nvme import Isolation, NvmeDevice, NvmeNamespace

# Identity of drives and namespaces in mappings.


def identity_of(device: NvmeDevice) -> DriveIdentity:
    """Model, serial number and NQN, by which a drive is recognised under another name."""
    controller = device.controller
    return DriveIdentity(controller.model, controller.serial, controller.subsystem_nqn)


def same_namespace(mapping: NamespaceMapping, device: NvmeDevice) -> NvmeNamespace:
    """The namespace of a mapping. Raises UserError when it was replaced or deleted."""
    namespace = device.namespace(mapping.nsid or 0)
    hint = f"forget the mapping: slo-ctl vm unmap {shlex.quote(mapping.vm)} {mapping.nsid} --forget"
    if namespace is None:
        raise UserError(f"{device.controller.name} has no namespace {mapping.nsid} any more", hint)
    other_id = bool(mapping.nguid and namespace.nguid) and mapping.nguid != namespace.nguid
    if other_id or namespace.size_bytes != mapping.namespace_bytes:
        raise UserError(
            f"namespace {mapping.nsid} of {device.controller.name} is not the one that was mapped: it had "
            f"{format_bytes_exact(mapping.namespace_bytes)} and {mapping.nguid or 'no NGUID'}, and now has "
            f"{format_bytes_exact(namespace.size_bytes)} and {namespace.nguid or 'none'}",
            hint,
        )
    return namespace


def created_before_crash(mapping: NamespaceMapping, device: NvmeDevice, taken: Collection[int]) -> int | None:
    """NSID of a namespace that was created for `mapping` just before a crash; None: it was not created.

    `taken`: NSIDs of other mappings. Raises UserError when there are several candidates.
    """
    before = set(mapping.namespaces_before or ()) | set(taken)
    candidates = [
        namespace.nsid
        for namespace in device.namespaces
        if namespace.nsid not in before
        and not namespace.attached
        and namespace.size_bytes == mapping.namespace_bytes
    ]
    if len(candidates) > 1:
        raise UserError(
            f"{mapping}: it is not known which of the namespaces {', '.join(map(str, candidates))} "
            "was created for it",
            f"forget the mapping (slo-ctl vm unmap {shlex.quote(mapping.vm)} --forget), then adopt the right "
            "one",
        )
    return candidates[0] if candidates else None


GRANULARITY_BYTES = 1 << 20
"""Sizes are rounded up to multiples of this: drives allocate in larger steps than LBAs, and partitions are
aligned to it."""
_WANTED_BLOCK_BYTES = (4096, 512)
"""LBA sizes that guests can boot from, the preferred one first."""


@dataclass(frozen=True, slots=True)
class MapRequest:
    """The operator's request for a namespace of a VM."""

    vm: str
    size_bytes: int | None = None
    """Size that the VM sees; None: all of an adopted namespace, without the spare."""
    adopt: int | None = None
    """NSID of an existing namespace; None: create one."""
    spare_bytes: int = 0
    """Capacity that no VM can use, for garbage collection."""
    group: int | None = None
    """Endurance group; None: the best one."""
    disk: bool = True
    """Whether slo-ctl adds the namespace to the VM as a disk; otherwise the operator does."""
    target: str | None = None
    """Name of the disk in the VM; None: the next free one."""
    bus: str | None = None
    """Bus of the disk; None: the default."""


@dataclass(frozen=True, slots=True)
class DriveContext:
    """LBA formats, other namespaces and mappings of the drive, and the abilities of nvme-cli."""

    formats: tuple[LbaFormat, ...] = ()
    users: dict[int, str] | None = None
    """Users of namespaces by NSID: a VM, a mount or another mapping."""
    mappings: tuple[NamespaceMapping, ...] = ()
    """All mappings on the drive."""
    supports_placement_handles: bool = False
    """Whether nvme-cli can give a new namespace placement handles."""


@dataclass(frozen=True, slots=True)
class MapPlan:
    """A mapping of which no step is done, and notes for the operator."""

    mapping: NamespaceMapping
    notes: tuple[str, ...]


def plan_map(device: NvmeDevice, request: MapRequest, context: DriveContext) -> MapPlan:
    """A plan that gives the VM a namespace. Raises UserError, which names what the drive lacks."""
    if request.adopt is not None:
        return _adopt(device, request, context)
    return _create(device, request, context)


def _create(device: NvmeDevice, request: MapRequest, context: DriveContext) -> MapPlan:
    controller = device.controller
    if not controller.namespace_management:
        raise UserError(
            f"{controller.name} has no namespace management (oacs bit 3): namespaces cannot be created on it",
            _adoptable(device, context),
        )
    if request.size_bytes is None:
        raise UserError("the size of the namespace is missing", "add --size SIZE, or --adopt NSID")
    if len(device.namespaces) >= controller.max_namespaces:
        raise UserError(
            f"{controller.name} has {len(device.namespaces)} namespaces, and cannot have more",
            _adoptable(device, context),
        )
    form = _best_format(device, context.formats)
    size_bytes = _round_up(request.size_bytes, max(form.block_bytes, GRANULARITY_BYTES))
    pool = choose_pool(device, context.mappings, request.group, size_bytes, request.spare_bytes)
    handles, notes = handles_for(pool, context.supports_placement_handles)
    spare = Spare(request.spare_bytes, pool.spare_owner, "unallocated" if request.spare_bytes else "")
    steps: list[Step] = [
        CreateNamespace(
            size_blocks=size_bytes // form.block_bytes,
            block_bytes=form.block_bytes,
            format_index=form.index,
            endurance_group=pool.group,
            nvm_set=pool.nvm_set,
            handles=handles,
        ),
        AttachNamespace(controller.controller_id),
    ]
    if request.disk:
        steps.append(AddDisk(request.target, request.bus, size_bytes, whole=True))
    placement = _placement(pool, own_handles=bool(handles))
    mapping = NamespaceMapping(
        vm=request.vm,
        drive=identity_of(device),
        controller=controller.name,
        size_bytes=size_bytes,
        created=True,
        spare=spare,
        placement=placement,
        steps=tuple(steps),
        namespace_bytes=size_bytes,
        attached_by_us=True,
        pool=pool.name,
    )
    if size_bytes != request.size_bytes:
        notes.append(
            f"{format_bytes_exact(request.size_bytes)} are rounded up to {format_bytes_exact(size_bytes)}"
        )
    return MapPlan(mapping, (*notes, *_warnings(placement, spare)))


def _adopt(device: NvmeDevice, request: MapRequest, context: DriveContext) -> MapPlan:
    controller = device.controller
    namespace = device.namespace(request.adopt or 0)
    if namespace is None:
        nsids = ", ".join(str(existing.nsid) for existing in device.namespaces) or "none"
        raise UserError(
            f"{controller.name} has no namespace {request.adopt}",
            f"its NSIDs: {nsids} (the number in a block device's name is not its NSID)",
        )
    user = (context.users or {}).get(namespace.nsid)
    if user:
        raise UserError(
            f"namespace {namespace.nsid} of {controller.name} is in use: {user}",
            "detach it there first, or choose another",
        )
    if request.group is not None and namespace.endurance_group != request.group:
        raise UserError(
            f"namespace {namespace.nsid} is in endurance group {namespace.endurance_group}, not in "
            f"{request.group}",
            "leave --group out: a namespace does not change its group",
        )
    size_bytes = _part_of(namespace, request)
    pool = Pool.of_namespace(device, namespace)
    rest = namespace.size_bytes - size_bytes
    spare = Spare(rest, pool.spare_owner, "deallocated" if rest else "")
    steps: list[Step] = []
    if not namespace.attached:
        if not controller.namespace_management:
            raise UserError(
                f"namespace {namespace.nsid} is attached to no controller of this host, and "
                f"{controller.name} cannot attach any (oacs bit 3)",
                "attach it with the vendor's tool",
            )
        steps.append(AttachNamespace(controller.controller_id))
    if rest:
        steps.append(Deallocate(size_bytes, rest))
    if request.disk:
        steps.append(AddDisk(request.target, request.bus, size_bytes, whole=not rest))
    others = {
        handle.reclaim_unit_handle
        for each in device.namespaces
        if each.nsid != namespace.nsid
        for handle in each.handles
    }
    own = {handle.reclaim_unit_handle for handle in namespace.handles}
    placement = _placement(pool, own_handles=bool(own) and not own & others)
    mapping = NamespaceMapping(
        vm=request.vm,
        drive=identity_of(device),
        controller=controller.name,
        size_bytes=size_bytes,
        created=False,
        spare=spare,
        placement=placement,
        steps=tuple(steps),
        nsid=namespace.nsid,
        namespace_bytes=namespace.size_bytes,
        nguid=namespace.nguid,
        attached_by_us=not namespace.attached,
        pool=pool.name,
    )
    notes = [f"namespace {namespace.nsid} was not created by slo-ctl: it will never be deleted"]
    if rest and not request.disk:
        notes.append(f"give the VM no more than the first {format_bytes_exact(size_bytes)} of it")
    return MapPlan(mapping, (*notes, *_warnings(placement, spare)))


def plan_unmap(
    mapping: NamespaceMapping, device: NvmeDevice, user: str, *, delete: bool, unplug: bool
) -> NamespaceMapping:
    """The mapping with the steps that undo it.

    `user`: user of the namespace, apart from the definition of its own VM; empty without one. Raises
    UserError when it is in use, unless the disk can be removed from its running VM by `unplug`; and when the
    namespace is not the one that was mapped.
    """
    namespace = same_namespace(mapping, device)
    if delete and not mapping.created:
        raise UserError(
            f"namespace {mapping.nsid} was not created by slo-ctl: it is never deleted",
            "leave --delete out; use `nvme delete-ns` if it is no longer needed",
        )
    if user and not (unplug and mapping.target):
        raise UserError(
            f"namespace {mapping.nsid} of {device.controller.name} is in use: {user}",
            "stop it first, or ask a running VM for its disk with --unplug",
        )
    steps: list[Step] = []
    if mapping.target:
        steps.append(RemoveDisk(unplug))
    if namespace.attached and mapping.attached_by_us:
        steps.append(DetachNamespace(device.controller.controller_id))
    if delete:
        steps.append(DeleteNamespace())
    return replace(
        mapping, controller=device.controller.name, steps=tuple(steps), done=0, purpose=Purpose.UNMAP
    )


def _placement(pool: Pool, *, own_handles: bool) -> NamespacePlacement:
    """Isolation of a namespace in a pool; handles of its own count only if the pool does not isolate it."""
    if own_handles and pool.placement.isolation != Isolation.ISOLATED:
        return NamespacePlacement(Isolation.SEPARATION, "FDP")
    return pool.placement


def _part_of(namespace: NvmeNamespace, request: MapRequest) -> int:
    """Bytes of an adopted namespace that the VM gets. Raises UserError when it is too small."""
    whole = namespace.size_bytes
    if request.size_bytes is None:
        wanted = whole - request.spare_bytes
    elif request.spare_bytes and request.size_bytes + request.spare_bytes > whole:
        wanted = 0
    else:
        wanted = request.size_bytes
    if not 0 < wanted <= whole:
        spare = f" and a spare of {format_bytes_exact(request.spare_bytes)}" if request.spare_bytes else ""
        size = format_bytes_exact(request.size_bytes) if request.size_bytes is not None else "some size"
        raise UserError(
            f"namespace {namespace.nsid} has {format_bytes_exact(whole)}: too little for {size}{spare}",
            "ask for less, or adopt a larger one",
        )
    rounded = _round_up(wanted, max(namespace.block_bytes, GRANULARITY_BYTES))
    return min(rounded, whole)


def _best_format(device: NvmeDevice, formats: Sequence[LbaFormat]) -> LbaFormat:
    """The best LBA format that guests can boot from. Raises UserError without one."""
    usable = [f for f in formats if not f.metadata_bytes and f.block_bytes in _WANTED_BLOCK_BYTES]
    if not usable:
        raise UserError(
            f"{device.controller.name} reports no LBA format of 4096 or 512 bytes without metadata",
            "create the namespace with nvme-cli, and --adopt it",
        )

    def rank(form: LbaFormat) -> tuple[int, int, int]:
        return (_WANTED_BLOCK_BYTES.index(form.block_bytes), form.relative_performance, form.index)

    return min(usable, key=rank)


def _warnings(placement: NamespacePlacement, spare: Spare) -> list[str]:
    """A sentence if the spare capacity does not serve the VM alone."""
    if not spare.size_bytes or spare.owner is SpareOwner.VM:
        return []
    size = format_bytes_exact(spare.size_bytes)
    return [
        f"the spare of {size} is the drive's own: it serves every VM on it ({placement.isolation})",
    ]


def _adoptable(device: NvmeDevice, context: DriveContext) -> str:
    """Hint of which existing namespaces could be adopted instead."""
    free = [str(n.nsid) for n in device.namespaces if n.nsid not in (context.users or {})]
    if not free:
        return "serve VMs of one namespace as files or logical volumes, see docs/nvme.md"
    return f"adopt an existing one: --adopt {' or '.join(free[:10])}"


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step
