"""Which knobs have to have which values for the promises made: pure."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from slo_ctl.decide.limit_split import UNSEEN, Split
from slo_ctl.decide.systemd_unit import unit_of
from slo_ctl.decide.weight_scale import scale_weights
from slo_ctl.model import FoundBy, Knob, Lever, Setting, VmState

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

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
    limitable: frozenset[tuple[str, str]] = frozenset()
    """Whose IOPS can be limited."""


@dataclass(frozen=True, slots=True)
class Splits:
    """How the maximums of one VM on one device are divided between reads and writes."""

    iops: Split = UNSEEN
    bytes_s: Split = UNSEEN


@dataclass(frozen=True, slots=True)
class HeldBack:
    """A limit for the time being, for the sake of other VMs."""

    iops: float
    served: tuple[str, ...]
    """Those VMs."""


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
    promised: bool
    """Somebody promised it something; otherwise its SLO is what everybody has."""
    shares: bool
    """It was seen to do I/O there."""
    by_systemd: bool
    """Its group is a unit of systemd, which would overwrite what is written past it."""

    @property
    def by_libvirt(self) -> bool:
        return self.vm.found_by is FoundBy.LIBVIRT and self.vm.uuid is not None

    @property
    def weight_lever(self) -> Lever:
        """By which its weight is set."""
        if self.by_libvirt:
            return Lever.LIBVIRT_WEIGHT
        return Lever.SYSTEMD_PROPERTY if self.by_systemd else Lever.CGROUP_WEIGHT

    @property
    def limit_lever(self) -> Lever:
        """By which reads and writes of its group are limited."""
        if self.by_libvirt:
            return Lever.LIBVIRT_LIMIT
        return Lever.SYSTEMD_PROPERTY if self.by_systemd else Lever.CGROUP_LIMIT

    @property
    def limitable(self) -> bool:
        """Whether its IOPS there can be limited."""
        if self.untouchable:
            return False
        return bool((self.by_libvirt and self.targets) or (self.can.limits and self.place))

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
    *,
    promised: Collection[str] | None = None,
    default_weight: float = 1.0,
    splits: Mapping[tuple[str, DeviceNumber], Splits] | None = None,
    held: Mapping[tuple[str, DeviceNumber], HeldBack] | None = None,
) -> Wanted:
    """Settings that keep the promises, VM by VM in their order.

    `slos` are those in force by VM; a VM without one is left alone. `devices` are the managed block devices
    by name: no other is ever touched. A VM of libvirt is steered through libvirt, any other by its cgroup.
    `promised` are the VMs that the operator named (None: all); `default_weight` is that of all others.
    `splits` divide maximums where reads and writes are limited apart, by default evenly. `held` are limits
    for others' sake: of such a one and a maximum promised the tighter is set. A VM is touched
    on account of a device only
    - that one of its disks is on, or that its cgroup was counted I/O on;
    - or any of them, when it was promised something and no disk of it is known.
    One that nobody promised anything gets its weight only beside one that was, and once it did I/O there.
    On emulated SSDs only the bandwidth is bounded here, as their policy decides the rest.
    """
    uses = _uses(vms, slos, streams, devices, capabilities, promised)
    no_mechanism: dict[tuple[str, str], str] = {}
    settings: list[Setting] = []
    weights, notes = _weights(uses, default_weight)
    settings.extend(weights)
    unequal = _with_unequal_weights(uses)
    limitable = frozenset(use.key for use in uses if use.limitable)
    for use in uses:
        key = (use.vm.name, use.can.device)
        limits, lacking = _limits(use, (splits or {}).get(key, Splits()), (held or {}).get(key))
        settings.extend(limits)
        latency, without_latency = _latency(use)
        settings.extend(latency)
        minimum = _without_minimum(use, uses, limitable)
        lacking = [*_without_weights(use, unequal), *minimum, *lacking, *without_latency]
        if lacking:
            no_mechanism[use.key] = "; ".join(lacking)
    settings.extend(_emulated(slos, streams))
    backends = {use.key: _backend(use, capabilities) for use in uses}
    cautions = dict.fromkeys(caution for use in uses for caution in use.can.cautions)
    return Wanted(tuple(settings), no_mechanism, backends, (*notes, *cautions), limitable)


def _uses(
    vms: Sequence[Vm],
    slos: Mapping[str, Slo],
    streams: Sequence[Stream],
    devices: Mapping[str, DeviceNumber],
    capabilities: Capabilities,
    promised: Collection[str] | None,
) -> list[_Use]:
    numbers = {number: name for name, number in devices.items()}
    listed: dict[str, set[DeviceNumber]] = defaultdict(set)
    counted: dict[str, set[DeviceNumber]] = defaultdict(set)
    elsewhere = set()
    for stream in streams:
        if stream.tenant is not None:
            elsewhere.add(stream.vm)
        elif stream.device is not None and stream.device in numbers:
            listed[stream.vm].add(stream.device)
            if did_io(stream):
                counted[stream.vm].add(stream.device)
    uses = []
    for vm in vms:
        if vm.name not in slos or vm.state in _OFF:
            continue
        named = promised is None or vm.name in promised or vm.found_by is FoundBy.OPTION
        on_disks = {disk.device for disk in vm.disks if disk.device in numbers and disk.device}
        used = on_disks | (listed if named else counted)[vm.name]
        if named and not vm.disks and not used and vm.name not in elsewhere:
            used = set(numbers)
        for number in sorted(used):
            disks = [disk for disk in vm.disks if disk.device == number]
            targets = tuple(disk.target for disk in disks if disk.kind not in _NO_IOTUNE)
            untouchable = tuple(disk.target for disk in disks if disk.kind in _NO_IOTUNE)
            if (can := capabilities.devices.get(number)) is not None:
                shares = number in counted[vm.name]
                unit = capabilities.systemd and unit_of(vm.cgroup or "") is not None
                place = (numbers[number], can, targets, untouchable)
                uses.append(_Use(vm, slos[vm.name], *place, named, shares, unit))
    return uses


def did_io(stream: Stream) -> bool:
    """Whether any I/O was counted; a device may be listed with zeros, such as once it is limited."""
    counters = stream.counters
    return counters is not None and bool(
        counters.reads or counters.writes or counters.read_bytes or counters.written_bytes
    )


def _weights(uses: Sequence[_Use], default_weight: float) -> tuple[list[Setting], list[str]]:
    """One weight for each VM and kind of weight: a cgroup has the same one on every device."""
    by_scale: dict[WeightScale, dict[str, _Use]] = defaultdict(dict)
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


def _with_unequal_weights(uses: Sequence[_Use]) -> set[str]:
    """Devices that have to be shared otherwise than equally."""
    weights: dict[str, set[float]] = defaultdict(set)
    for use in uses:
        weights[use.device].add(use.slo.weight)
    return {device for device, found in weights.items() if len(found) > 1}


def _without_weights(use: _Use, unequal: set[str]) -> list[str]:
    if use.device not in unequal or not use.promised:
        return []
    if use.can.weights is None:
        return [f"nothing shares {use.device} by weight: {use.can.problem}"]
    return [] if use.place else [f"{use.vm.name} has no cgroup that could have a weight"]


def _without_minimum(use: _Use, uses: Sequence[_Use], limitable: Collection[tuple[str, str]]) -> list[str]:
    """A minimum is kept by holding others back: why nobody can be."""
    if use.slo.min_iops is None:
        return []
    others = [other.key for other in uses if other.device == use.device and other.vm.name != use.vm.name]
    if any(other in limitable for other in others) or (not others and use.can.limits):
        return []
    return [f"min_iops {use.slo.min_iops:g}: no other VM on {use.device} can be limited in its favour"]


def _latency(use: _Use) -> tuple[list[Setting], list[str]]:
    """A latency target of the kernel's, as nobody measures what a VM's requests take on a block device."""
    target_us = use.slo.p99_latency_us
    if target_us is None:
        return [], []
    promise = f"p99 {target_us / 1000:g} ms"
    if not use.can.latency:
        return [], [f"{promise}: on {use.device} latencies are not measured by VM, and it has no io.latency"]
    if not use.vm.cgroup:
        return [], [f"{promise}: {use.vm.name} has no cgroup that could have a latency target"]
    lever = Lever.SYSTEMD_PROPERTY if use.by_systemd else Lever.CGROUP_LATENCY
    reason = f"{promise}: io.latency slows neighbours down when more than a tenth of its requests take longer"
    knob = Knob(lever, use.vm.cgroup, "latency_us", str(use.can.device))
    return [Setting(knob, target_us, use.vm.name, reason)], []


def _limits(use: _Use, splits: Splits, held: HeldBack | None) -> tuple[list[Setting], list[str]]:
    """Settings for the maximums of a VM on one device, and what cannot be limited."""
    settings: list[Setting] = []
    lacking: list[str] = []
    for promise, kind, value in _maximums(use, held):
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
            # Neither version of cgroups limits the sum: two limits that add up to it do.
            split = splits.iops if kind == "iops" else splits.bytes_s
            for side, limit in zip(("read", "write"), split.limits(value), strict=True):
                knob = Knob(use.limit_lever, use.place, f"{side}_{kind}", str(use.can.device))
                reason = f"{promise}, {split.read_share:.0%} of it for reads as it was used"
                settings.append(Setting(knob, limit, use.vm.name, reason))
    return settings, lacking


def _maximums(use: _Use, held: HeldBack | None) -> list[tuple[str, str, float]]:
    """What is promised or needed, of what kind, and how much: of two limits on IOPS the tighter one."""
    found = []
    most = use.slo.max_iops
    if held is not None and (most is None or held.iops < most):
        found.append((f"{held.iops:.0f} IOPS for the minimum of {', '.join(held.served)}", "iops", held.iops))
    elif most is not None:
        found.append((f"max_iops {most:g}", "iops", most))
    if (bandwidth := use.slo.max_bandwidth_bytes_s) is not None:
        found.append((f"max_bandwidth {bandwidth:g}", "bytes_s", bandwidth))
    return found


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
    through = "libvirt, " if use.by_libvirt else "systemd, " if use.by_systemd else ""
    if use.place and use.can.weights is not None:
        return f"{through}{tree} {use.can.weights.mechanism}"
    if use.by_libvirt and use.targets:
        return "libvirt limits"
    return f"{through}{tree} limits" if use.place and use.can.limits else "none"
