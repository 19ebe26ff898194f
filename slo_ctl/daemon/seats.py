"""Who sits on which namespace of an emulated SSD, and with which part of its SLO."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from slo_ctl.model import Slo, Stream


@dataclass(frozen=True, slots=True)
class Seat:
    """A VM on a namespace."""

    vm: str
    key: str
    """What policies call it: the VM's name, or `VM:disk` when it has several namespaces on the device."""
    disk: str
    """As the guest names it; empty where nobody tells."""
    slo: Slo
    """The VM's, or its part of it."""


def seats_on(
    device: str,
    streams: Iterable[Stream],
    slos: Mapping[str, Slo],
    before: Mapping[str, Seat] | None = None,
) -> tuple[dict[str, Seat], list[str]]:
    """The seats on a device by namespace, and a sentence for each VM that found its namespace taken.

    A VM of which no disk is known is seen only while it is connected; it keeps its seat of `before` until
    it goes, or another VM comes.
    A VM with several namespaces there has one budget for all: each gets an even part, so that splitting
    disks gains nothing.
    """
    holders: dict[str, tuple[str, str]] = {}
    notes = []
    for stream in streams:
        if stream.tenant is None or stream.tenant.device != device or stream.vm not in slos:
            continue
        disk = stream.disk.target if stream.disk is not None else ""
        holder, _ = holders.setdefault(stream.tenant.namespace, (stream.vm, disk))
        if holder != stream.vm:
            notes.append(f"{stream.tenant} is used by {holder} and {stream.vm}: it counts as {holder}'s")
    for namespace, seat in (before or {}).items():
        if not seat.disk and seat.vm in slos:
            holders.setdefault(namespace, (seat.vm, ""))
    of_vm: dict[str, list[str]] = defaultdict(list)
    for namespace, (vm, _) in holders.items():
        of_vm[vm].append(namespace)
    seats = {}
    for namespace, (vm, disk) in holders.items():
        parts = len(of_vm[vm])
        key = vm if parts == 1 else f"{vm}:{disk or namespace}"
        seats[namespace] = Seat(vm, key, disk, part_of(slos[vm], parts))
    return seats, notes


def part_of(slo: Slo, parts: int) -> Slo:
    """The SLO of each of `parts` streams that share one; a latency is the same for all."""
    if parts == 1:
        return slo
    return replace(
        slo,
        weight=slo.weight / parts,
        min_iops=None if slo.min_iops is None else slo.min_iops / parts,
        max_iops=None if slo.max_iops is None else slo.max_iops / parts,
        max_bandwidth_bytes_s=None
        if slo.max_bandwidth_bytes_s is None
        else slo.max_bandwidth_bytes_s / parts,
    )
