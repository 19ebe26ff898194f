"""Which knobs have to have which values for the promises made: pure."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from slo_ctl.decide.weight_scale import scale_weights
from slo_ctl.model import FoundBy, Knob, Lever, Setting, VmState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from slo_ctl.model import DeviceNumber, Slo, Stream, Vm
    from slo_ctl.model.capability import BlockCapability, Capabilities, WeightScale

_OFF = frozenset({VmState.SHUT_OFF, VmState.CRASHED})
_NO_IOTUNE = frozenset({"vhostuser", "vhostvdpa"})
"""Kinds of disks whose I/O does not pass through QEMU."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What should be set, and what cannot be had. Keys are (VM, name of the managed device)."""

    settings: tuple[Setting, ...] = ()
    no_mechanism: dict[tuple[str, str], str] = field(default_factory=dict)
    """Why a promise cannot be kept by anything there is."""
    backends: dict[tuple[str, str], str] = field(default_factory=dict)
    """By what a VM is steered on a block device; `none` where by nothing."""
    notes: tuple[str, ...] = ()
    """What makes the outcome inexact, one sentence each."""


@dataclass(frozen=True, slots=True)
class _Use:
    """One VM on one managed block device."""

    vm: Vm
    slo: Slo
    device: str
    can: BlockCapability
    targets: tuple[str, ...]
    """Disks that QEMU can limit there."""
    untouchable: tuple[str, ...]
    """Disks there whose I/O is another program's."""

    @property
    def by_libvirt(self) -> bool:
        return self.vm.found_by is FoundBy.LIBVIRT and self.vm.uuid is not None

    @property
    def key(self) -> tuple[str, str]:
        return (self.vm.name, self.device)

    @property
    def place(self) -> str:
        return (self.vm.uuid if self.by_libvirt else self.vm.cgroup) or ""


def settings_for(
    vms: Sequence[Vm],
    slos: Mapping[str, Slo],
    streams: Sequence[Stream],
    devices: Mapping[str, DeviceNumber],
    capabilities: Capabilities,
) -> Wanted:
    """Settings that keep the promises, VM by VM in their order.

    `slos` are those in force by VM; a VM without one is left alone. `devices` are the managed block devices
    by name: no other is ever touched. A VM of libvirt is steered through libvirt, any other by its cgroup.
    One of which no disk is known may use any managed device. On emulated SSDs only the bandwidth is bounded
    here, as their policy decides the rest.
    """
    uses = _uses(vms, slos, streams, devices, capabilities)
    no_mechanism: dict[tuple[str, str], str] = {}
    settings: list[Setting] = []
    weights, notes = _weights(uses)
    settings.extend(weights)
    unequal = _with_unequal_weights(uses)
    for use in uses:
        limits, lacking = _limits(use)
        settings.extend(limits)
        lacking = [*_without_weights(use, unequal), *_without_minimum(use), *lacking]
        if lacking:
            no_mechanism[use.key] = "; ".join(lacking)
    settings.extend(_emulated(slos, streams))
    backends = {use.key: _backend(use, capabilities) for use in uses}
    cautions = dict.fromkeys(caution for use in uses for caution in use.can.cautions)
    return Wanted(tuple(settings), no_mechanism, backends, (*notes, *cautions))


def _uses(
    vms: Sequence[Vm],
    slos: Mapping[str, Slo],
    streams: Sequence[Stream],
    devices: Mapping[str, DeviceNumber],
    capabilities: Capabilities,
) -> list[_Use]:
    numbers = {number: name for name, number in devices.items()}
    on: dict[str, set[DeviceNumber]] = defaultdict(set)
    elsewhere = set()
    for stream in streams:
        if stream.tenant is not None:
            elsewhere.add(stream.vm)
        elif stream.device in numbers and stream.device is not None:
            on[stream.vm].add(stream.device)
    uses = []
    for vm in vms:
        if vm.name not in slos or vm.state in _OFF:
            continue
        used = on[vm.name] | {disk.device for disk in vm.disks if disk.device in numbers and disk.device}
        if not vm.disks and not used and vm.name not in elsewhere:
            used = set(numbers)
        for number in sorted(used):
            disks = [disk for disk in vm.disks if disk.device == number]
            targets = tuple(disk.target for disk in disks if disk.kind not in _NO_IOTUNE)
            untouchable = tuple(disk.target for disk in disks if disk.kind in _NO_IOTUNE)
            if (can := capabilities.devices.get(number)) is not None:
                uses.append(_Use(vm, slos[vm.name], numbers[number], can, targets, untouchable))
    return uses


def _weights(uses: Sequence[_Use]) -> tuple[list[Setting], list[str]]:
    """One weight for each VM and kind of weight: a cgroup has the same one on every device."""
    by_scale: dict[WeightScale, dict[str, _Use]] = defaultdict(dict)
    for use in uses:
        if use.can.weights is not None and use.place:
            by_scale[use.can.weights].setdefault(use.vm.name, use)
    settings, notes = [], []
    for scale, members in by_scale.items():
        scaled = scale_weights((use.slo.weight for use in members.values()), scale.low, scale.high)
        for vm, use in members.items():
            value = scaled.values[use.slo.weight]
            lever = Lever.LIBVIRT_WEIGHT if use.by_libvirt else Lever.CGROUP_WEIGHT
            reason = (
                f"weight {use.slo.weight:g} is {value} of {scale.mechanism}'s {scale.low}..{scale.high}, "
                f"where the proportions are rounded by {scaled.worst_rounding:.2%} at the worst"
            )
            settings.append(Setting(Knob(lever, use.place, scale.knob), float(value), vm, reason))
        parents = {str(PurePosixPath(use.vm.cgroup).parent) for use in members.values() if use.vm.cgroup}
        if len(parents) > 1:
            notes.append(
                "weights count among the groups of one parent, and the VMs' cgroups are in "
                f"{', '.join(sorted(parents))}: their proportions hold within each of these only"
            )
    return settings, notes


def _with_unequal_weights(uses: Sequence[_Use]) -> set[str]:
    """Devices that have to be shared otherwise than equally."""
    weights: dict[str, set[float]] = defaultdict(set)
    for use in uses:
        weights[use.device].add(use.slo.weight)
    return {device for device, found in weights.items() if len(found) > 1}


def _without_weights(use: _Use, unequal: set[str]) -> list[str]:
    if use.device not in unequal:
        return []
    if use.can.weights is None:
        return [f"nothing shares {use.device} by weight: {use.can.problem}"]
    return [] if use.place else [f"{use.vm.name} has no cgroup that could have a weight"]


def _without_minimum(use: _Use) -> list[str]:
    if use.slo.min_iops is None:
        return []
    return [f"min_iops {use.slo.min_iops:g}: nothing on {use.device} guarantees a minimum"]


def _limits(use: _Use) -> tuple[list[Setting], list[str]]:
    """Settings for the maximums of a VM on one device, and what cannot be limited."""
    promised = [
        (word, kind, value)
        for word, kind, value in (
            ("max_iops", "iops", use.slo.max_iops),
            ("max_bandwidth", "bytes_s", use.slo.max_bandwidth_bytes_s),
        )
        if value is not None
    ]
    settings: list[Setting] = []
    lacking: list[str] = []
    for word, kind, value in promised:
        promise = f"{word} {value:g}"
        if use.untouchable:
            lacking.append(f"{promise}: {', '.join(use.untouchable)} is served by another program than QEMU")
        elif use.by_libvirt and use.targets:
            together = f" over {', '.join(use.targets)} together" if len(use.targets) > 1 else ""
            knob = Knob(Lever.LIBVIRT_LIMIT, use.place, f"total_{kind}", ",".join(use.targets))
            settings.append(Setting(knob, value, use.vm.name, f"{promise}{together}"))
        elif not use.can.limits:
            lacking.append(f"{promise}: the kernel cannot limit {use.device} {use.can.problem}".rstrip())
        elif not use.place:
            lacking.append(f"{promise}: {use.vm.name} has no cgroup that could be limited")
        else:
            # Neither version of cgroups limits the sum: with one limit for each, neither alone passes it.
            lever = Lever.LIBVIRT_LIMIT if use.by_libvirt else Lever.CGROUP_LIMIT
            for side in ("read", "write"):
                knob = Knob(lever, use.place, f"{side}_{kind}", str(use.can.device))
                reason = f"{promise}, on reads and on writes each"
                settings.append(Setting(knob, value, use.vm.name, reason))
    return settings, lacking


def _emulated(slos: Mapping[str, Slo], streams: Sequence[Stream]) -> list[Setting]:
    """Bounds on bandwidth of namespaces; several of a VM on one device get equal parts of its maximum."""
    namespaces: dict[tuple[str, str], list[Stream]] = defaultdict(list)
    seen = set()
    for stream in streams:
        if stream.tenant is not None and stream.vm in slos and stream.tenant not in seen:
            seen.add(stream.tenant)
            namespaces[stream.vm, stream.tenant.device].append(stream)
    settings = []
    for (vm, _), parts in namespaces.items():
        maximum = slos[vm].max_bandwidth_bytes_s
        if maximum is None:
            continue
        shared = f", an equal part for each of {len(parts)} namespaces" if len(parts) > 1 else ""
        for stream in parts:
            knob = Knob(Lever.FTL_LIMIT, str(stream.tenant), "total_bytes_s")
            reason = f"max_bandwidth {maximum:g}{shared}"
            settings.append(Setting(knob, maximum / len(parts), vm, reason))
    return settings


def _backend(use: _Use, capabilities: Capabilities) -> str:
    tree = f"cgroup v{capabilities.cgroup_version}"
    through = "libvirt, " if use.by_libvirt else ""
    if use.place and use.can.weights is not None:
        return f"{through}{tree} {use.can.weights.mechanism}"
    if use.by_libvirt and use.targets:
        return "libvirt limits"
    return f"{through}{tree} limits" if use.place and use.can.limits else "none"
