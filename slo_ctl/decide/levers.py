"""Which knobs have to have which values for the promises made: pure."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING

from slo_ctl.decide.lever_use import Use, uses_of
from slo_ctl.decide.limit_settings import HeldBack, Splits, latency_of, limits_of
from slo_ctl.decide.weight_scale import scale_weights
from slo_ctl.model import Knob, Lever, Setting

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from slo_ctl.model import DeviceNumber, Slo, Stream, Vm
    from slo_ctl.model.capability import Capabilities, WeightScale


_NO_DRIVES: Mapping[str, str] = MappingProxyType({})


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
    limitable: frozenset[tuple[str, str]] = frozenset()
    """Whose IOPS can be limited."""


def settings_for(
    vms: Sequence[Vm],
    slos: Mapping[str, Slo],
    streams: Sequence[Stream],
    devices: Mapping[str, DeviceNumber],
    capabilities: Capabilities,
    *,
    promised: Collection[str] | None = None,
    default_weight: float = 1.0,
    splits: Mapping[tuple[str, DeviceNumber], Splits] | None = None,
    held: Mapping[tuple[str, DeviceNumber], HeldBack] | None = None,
    drives: Mapping[str, str] = _NO_DRIVES,
    by_limits: Collection[str] = (),
) -> Wanted:
    """Settings that keep the promises, VM by VM in their order.

    `slos` are those in force by VM; a VM without one is left alone. `devices` are the managed block devices
    by name: no other is ever touched. A VM of libvirt is steered through libvirt, any other by its cgroup.
    `promised` are the VMs that the operator named (None: all); `default_weight` is that of all others.
    `splits` divide maximums where reads and writes are limited apart, by default evenly. `held` are limits
    for others' sake: of such a one and a maximum promised the tighter is set. `drives` are those that devices
    are namespaces of, by name of the device, `by_limits` those of them between whose namespaces shares are
    kept by such limits. A VM is touched on account of a device only
    - that one of its disks is on, or that its cgroup was counted I/O on;
    - or any of them, when it was promised something and no disk of it is known.
    One that nobody promised anything gets its weight only beside one that was, and once it did I/O there.
    On emulated SSDs only the bandwidth is bounded here, as their policy decides the rest.
    """
    uses = uses_of(vms, slos, streams, devices, capabilities, promised)
    no_mechanism: dict[tuple[str, str], str] = {}
    settings: list[Setting] = []
    weights, notes = _weights(uses, default_weight)
    settings.extend(weights)
    unequal = _with_unequal_weights(uses)
    limitable = frozenset(use.key for use in uses if use.limitable)
    on_drive: dict[str, list[Use]] = defaultdict(list)
    for use in uses:
        on_drive[drives.get(use.device, use.device)].append(use)
    for use in uses:
        key = (use.vm.name, use.can.device)
        limits, lacking = limits_of(use, (splits or {}).get(key, Splits()), (held or {}).get(key))
        settings.extend(limits)
        latency, without_latency = latency_of(use)
        settings.extend(latency)
        drive = drives.get(use.device, use.device)
        minimum = _without_minimum(use, on_drive[drive], limitable)
        if drive in by_limits:
            weight = _without_limits(use, on_drive[drive], limitable)
        else:
            weight = _without_weights(use, unequal)
        lacking = [*weight, *minimum, *lacking, *without_latency]
        if lacking:
            no_mechanism[use.key] = "; ".join(lacking)
    settings.extend(_emulated(slos, streams))
    backends = {use.key: _backend(use, capabilities) for use in uses}
    # They are about shares: nothing is wrong where nobody was promised a larger one.
    cautions = dict.fromkeys(caution for use in uses if use.device in unequal for caution in use.can.cautions)
    return Wanted(tuple(settings), no_mechanism, backends, (*notes, *cautions), limitable)


def _weights(uses: Sequence[Use], default_weight: float) -> tuple[list[Setting], list[str]]:
    """One weight for each VM and kind of weight: a cgroup has the same one on every device."""
    by_scale: dict[WeightScale, dict[str, Use]] = defaultdict(dict)
    with_promises = {use.device for use in uses if use.promised}
    for use in uses:
        wanted = use.promised or (use.shares and use.device in with_promises)
        if wanted and use.can.weights is not None and use.place:
            by_scale[use.can.weights].setdefault(use.vm.name, use)
    settings, notes = [], []
    for scale, members in by_scale.items():
        weights = (use.slo.weight for use in members.values())
        scaled = scale_weights(weights, scale.low, scale.high, default_weight)
        for vm, use in members.items():
            value = scaled.values[use.slo.weight]
            beside = "" if use.promised else f"shares {use.device} with VMs that were promised something: "
            reason = (
                f"{beside}weight {use.slo.weight:g} is {value} of {scale.mechanism}'s "
                f"{scale.low}..{scale.high}, "
                f"where the proportions are rounded by {scaled.worst_rounding:.2%} at the worst"
            )
            settings.append(Setting(Knob(use.weight_lever, use.place, scale.knob), float(value), vm, reason))
        parents = {str(PurePosixPath(use.vm.cgroup).parent) for use in members.values() if use.vm.cgroup}
        if len(parents) > 1:
            notes.append(
                "weights count among the groups of one parent, and the VMs' cgroups are in "
                f"{', '.join(sorted(parents))}: their proportions hold within each of these only"
            )
    return settings, notes


def _with_unequal_weights(uses: Sequence[Use]) -> set[str]:
    """Devices that have to be shared otherwise than equally."""
    weights: dict[str, set[float]] = defaultdict(set)
    for use in uses:
        weights[use.device].add(use.slo.weight)
    return {device for device, found in weights.items() if len(found) > 1}


def _without_weights(use: Use, unequal: set[str]) -> list[str]:
    if use.device not in unequal or not use.promised:
        return []
    if use.can.weights is None:
        return [f"nothing shares {use.device} by weight: {use.can.problem}"]
    return [] if use.place else [f"{use.vm.name} has no cgroup that could have a weight"]


def _without_limits(use: Use, on_drive: Sequence[Use], limitable: Collection[tuple[str, str]]) -> list[str]:
    """Between namespaces of a drive shares are kept by limits: why they are not."""
    if not use.promised or any(each.key in limitable for each in _others(use, on_drive)):
        return []
    return [f"nothing shares the drive of {use.device} by weight: no other VM on it can be limited"]


def _without_minimum(use: Use, on_drive: Sequence[Use], limitable: Collection[tuple[str, str]]) -> list[str]:
    """A minimum is kept by holding others back, on its device or another namespace of its drive: why not."""
    if use.slo.min_iops is None:
        return []
    others = _others(use, on_drive)
    if any(each.key in limitable for each in others) or (not others and use.can.limits):
        return []
    return [f"min_iops {use.slo.min_iops:g}: no other VM on {use.device} can be limited in its favour"]


def _others(use: Use, uses: Sequence[Use]) -> list[Use]:
    return [each for each in uses if each.vm.name != use.vm.name]


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


def _backend(use: Use, capabilities: Capabilities) -> str:
    tree = f"cgroup v{capabilities.cgroup_version}"
    through = "libvirt, " if use.by_libvirt else "systemd, " if use.by_systemd else ""
    if use.place and use.can.weights is not None:
        return f"{through}{tree} {use.can.weights.mechanism}"
    if use.by_libvirt and use.targets:
        return "libvirt limits"
    return f"{through}{tree} limits" if use.place and use.can.limits else "none"
