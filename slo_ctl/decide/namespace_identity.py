"""Whether a drive or namespace is still the one that a mapping is about. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slo_ctl.errors import UserError
from slo_ctl.model.mapping import DriveIdentity
from slo_ctl.quantity import format_bytes_exact

if TYPE_CHECKING:
    from collections.abc import Collection

    from slo_ctl.model.mapping import Mapping
    from slo_ctl.model.nvme import NvmeDevice, NvmeNamespace


def identity_of(device: NvmeDevice) -> DriveIdentity:
    """By what the drive is known again."""
    controller = device.controller
    return DriveIdentity(controller.model, controller.serial, controller.subsystem_nqn)


def same_namespace(mapping: Mapping, device: NvmeDevice) -> NvmeNamespace:
    """The namespace that was mapped. Raises UserError when it is another by now, or gone."""
    namespace = device.namespace(mapping.nsid or 0)
    if namespace is None:
        raise UserError(
            f"{device.controller.name} has no namespace {mapping.nsid} any more",
            f"forget the mapping: slo-ctl vm unmap {mapping.vm} {mapping.nsid} --forget",
        )
    other_id = bool(mapping.nguid and namespace.nguid) and mapping.nguid != namespace.nguid
    if other_id or namespace.size_bytes != mapping.namespace_bytes:
        raise UserError(
            f"namespace {mapping.nsid} of {device.controller.name} is not the one that was mapped: it had "
            f"{format_bytes_exact(mapping.namespace_bytes)} and {mapping.nguid or 'no NGUID'}, and now has "
            f"{format_bytes_exact(namespace.size_bytes)} and {namespace.nguid or 'none'}",
            f"forget the mapping: slo-ctl vm unmap {mapping.vm} {mapping.nsid} --forget",
        )
    return namespace


def ours_after_crash(mapping: Mapping, device: NvmeDevice, taken: Collection[int]) -> int | None:
    """NSID of the namespace that was being created when the program ended; None: it was not created yet.

    `taken` are NSIDs of other mappings. Raises UserError when several could be it.
    """
    before = set(mapping.namespaces_before or ()) | set(taken)
    candidates = [
        each.nsid
        for each in device.namespaces
        if each.nsid not in before and not each.attached and each.size_bytes == mapping.namespace_bytes
    ]
    if len(candidates) > 1:
        raise UserError(
            f"{mapping}: which of namespaces {', '.join(map(str, candidates))} was made for it is not known",
            f"forget the mapping (slo-ctl vm unmap {mapping.vm} --forget), then adopt the right one",
        )
    return candidates[0] if candidates else None
