"""VMs on the namespaces of a drive, with the part of the SLO for each namespace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from slo_ctl.model.host import Stream
from slo_ctl.model.slo import Slo


@dataclass(frozen=True, slots=True)
class Occupant:
    """A VM on a namespace.

    The SLO of a VM with several namespaces is divided evenly among them, so that several disks give no
    advantage.
    """

    vm: str
    key: str
    """Key of the stream: the VM's name, with the disk if the VM has several namespaces of the drive."""
    slo: Slo
    """The SLO of the VM, or its part for this namespace."""
    disk: str = ""
    """Name of the disk in the guest; empty if unknown."""


def emulated_occupants(
    device: str,
    streams: Iterable[Stream],
    slos: Mapping[str, Slo],
    before: Mapping[str, Occupant],
    namespaces: Collection[str],
) -> tuple[dict[str, Occupant], list[str]]:
    """The occupants of an emulated device by namespace, and a sentence for each namespace of several VMs, and
    for each that is not among its `namespaces`.

    A VM without known disks is found only while it is connected. It keeps its namespaces of `before`, the
    occupants that may still use theirs, until it is removed or another VM uses them.
    """
    holders: dict[str, tuple[str, str]] = {}
    notes = []
    for stream in streams:
        if stream.tenant is None or stream.tenant.device != device or stream.vm not in slos:
            continue
        if stream.tenant.namespace not in namespaces:
            # It takes no part of the VM's SLO.
            notes.append(f"VM {stream.vm}: {device} has no namespace {stream.tenant.namespace}")
            continue
        disk = stream.disk.target if stream.disk is not None else ""
        holder, _ = holders.setdefault(stream.tenant.namespace, (stream.vm, disk))
        if holder != stream.vm:
            notes.append(f"{stream.tenant} is used by {holder} and {stream.vm}: it is assigned to {holder}")
    for namespace, occupant in before.items():
        if not occupant.disk and occupant.vm in slos:
            holders.setdefault(namespace, (occupant.vm, ""))
    parts = Counter(vm for vm, _ in holders.values())
    return {
        namespace: _occupant(vm, slos[vm], parts[vm], disk or namespace, disk)
        for namespace, (vm, disk) in holders.items()
    }, notes


def nvme_occupants(vms: Mapping[int, Collection[str]], slos: Mapping[str, Slo]) -> dict[int, Occupant]:
    """The occupants of a drive by NSID, from the VMs on each namespace.

    A namespace of several VMs has no occupant.
    """
    single = {nsid: next(iter(names)) for nsid, names in vms.items() if len(names) == 1}
    parts = Counter(single.values())
    return {nsid: _occupant(vm, slos[vm], parts[vm], f"n{nsid}") for nsid, vm in single.items() if vm in slos}


def _occupant(vm: str, slo: Slo, parts: int, label: str, disk: str = "") -> Occupant:
    return Occupant(vm, vm if parts == 1 else f"{vm}:{label}", split_slo(slo, parts), disk)


def split_slo(slo: Slo, parts: int) -> Slo:
    """The SLO of each of `parts` streams that share one; the latency is the same for all."""
    if parts == 1:
        return slo

    def part(bound: float | None) -> float | None:
        return None if bound is None else bound / parts

    return replace(
        slo,
        weight=slo.weight / parts,
        min_iops=part(slo.min_iops),
        max_iops=part(slo.max_iops),
        max_bandwidth_bytes_s=part(slo.max_bandwidth_bytes_s),
    )
