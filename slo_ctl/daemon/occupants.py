"""Which VM is on which namespace of a drive, each with its part of the SLO."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from slo_ctl.model import Slo, Stream


@dataclass(frozen=True, slots=True)
class Occupant:
    """A VM on a namespace. One with several has one SLO for all: each gets an even part, so that splitting
    disks gains nothing."""

    vm: str
    key: str
    """Its name in policies: the VM's name, or that with the disk where it has several namespaces there."""
    slo: Slo
    """The VM's, or its part of it."""
    disk: str = ""
    """The guest's name of the disk; empty where it is not known."""


def on_emulated(
    device: str,
    streams: Iterable[Stream],
    slos: Mapping[str, Slo],
    before: Mapping[str, Occupant],
) -> tuple[dict[str, Occupant], list[str]]:
    """The occupants of an emulated device by namespace, and a sentence for each VM whose namespace is taken.

    A VM of which no disk is known is seen only while it is connected; it keeps its occupant of `before` until
    it goes, or another VM comes.
    """
    holders: dict[str, tuple[str, str]] = {}
    notes = []
    for stream in streams:
        if stream.tenant is None or stream.tenant.device != device or stream.vm not in slos:
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


def on_nvme(on: Mapping[int, Collection[str]], slos: Mapping[str, Slo]) -> dict[int, Occupant]:
    """By NSID, from the VMs on each namespace: one that several VMs use has no SLO, so belongs to none."""
    only = {nsid: next(iter(vms)) for nsid, vms in on.items() if len(vms) == 1}
    parts = Counter(only.values())
    return {nsid: _occupant(vm, slos[vm], parts[vm], f"n{nsid}") for nsid, vm in only.items() if vm in slos}


def _occupant(vm: str, slo: Slo, parts: int, label: str, disk: str = "") -> Occupant:
    return Occupant(vm, vm if parts == 1 else f"{vm}:{label}", part_of(slo, parts), disk)


def part_of(slo: Slo, parts: int) -> Slo:
    """The SLO of each of `parts` streams that share one; a latency is the same for all."""
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
