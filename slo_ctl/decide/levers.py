"""Which knobs have to have which values for the SLOs set: weights, limits and latency targets. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import PurePosixPath

from slo_ctl.decide.device_use import NO_IOTUNE, HostState, Use, uses_of
from slo_ctl.decide.limit_split import Splits, nearest_granted
from slo_ctl.model import DeviceNumber, FoundBy, Knob, Lever, Setting, Slo, Stream, Vm
from slo_ctl.model.host import Capabilities, WeightScale

# Weights as people set them, as the whole numbers that kernels take.

EQUAL = 100
"""Value of equal weights: the kernel's default, so that nothing is changed for them."""
_ANCHORED_ROUNDING = 0.005
"""The default weight becomes the kernel's default where that rounds no weight by more."""


@dataclass(frozen=True, slots=True)
class ScaledWeights:
    """Whole numbers that keep the proportions of weights as well as their range allows."""

    values: dict[float, int]
    """Scaled weight by the weight of the SLO."""
    worst_rounding: float
    """The largest relative distance of a number from its exact proportion."""


def scale_weights(
    weights: Iterable[float], low: int, high: int, default: float | None = None
) -> ScaledWeights:
    """Scale positive weights into low..high. Equal weights all become 100.

    Where `default`, the weight of those without an SLO of their own, can become 100 with all others in the
    range and rounded by half a per cent at most, it does: such a VM has that number already. Otherwise
    the largest comes near the top, where whole numbers are finest: of all tops in the upper half the one
    with the smallest worst relative rounding, the highest of equals; lower tops cannot be better, as twice
    such a one rounds no worse.
    """
    return _scaled(tuple(sorted(set(weights))), low, high, default)


@lru_cache(maxsize=64)
def _scaled(weights: tuple[float, ...], low: int, high: int, default: float | None) -> ScaledWeights:
    if len(weights) < 2:
        return ScaledWeights(dict.fromkeys(weights, min(high, max(low, EQUAL))), 0.0)
    if default is not None and (anchored := _anchored(weights, low, high, default)) is not None:
        return anchored
    import numpy as np

    tops = np.arange(high, high // 2, -1, dtype=np.float64)
    exact = tops[:, None] * (np.array(weights) / weights[-1])
    rounded = np.maximum(np.rint(exact), low)
    worst = np.abs(rounded / exact - 1).max(axis=1)
    # The last digits of a float must not decide which of two exact tops is the best one.
    best = int(np.argmax(worst <= worst.min() + 1e-12))
    values = {weight: int(value) for weight, value in zip(weights, rounded[best], strict=True)}
    return ScaledWeights(values, float(worst[best]))


def _anchored(weights: tuple[float, ...], low: int, high: int, default: float) -> ScaledWeights | None:
    """Weights with 100 for `default`, if that is exact enough."""
    exact = [EQUAL / default * weight for weight in weights]
    if exact[-1] > high or exact[0] < low:
        return None
    values = [round(each) for each in exact]
    worst = max(abs(value / each - 1) for value, each in zip(values, exact, strict=True))
    if worst > _ANCHORED_ROUNDING:
        return None
    return ScaledWeights(dict(zip(weights, values, strict=True)), worst)


# Settings for what a VM may do on a device at most, and for latencies.


@dataclass(frozen=True, slots=True)
class Throttle:
    """A limit for the time being, for the sake of other VMs."""

    iops: float
    served: tuple[str, ...]
    """VMs for which others are throttled."""
    of_drive_iops: float | None = None
    """The limit on all namespaces of a drive together, where this is a part of it."""

    def rounded(self, step_iops: float, min_iops: float) -> Throttle:
        """To what is granted completely where limits act in steps, of a VM with this minimum."""
        part = 1.0 if self.of_drive_iops is None else self.iops / self.of_drive_iops
        return replace(self, iops=nearest_granted(self.iops, step_iops, part * min_iops))


def latency_of(use: Use, *, measured: bool) -> tuple[list[Setting], list[str]]:
    """The kernel's latency target; without one, others are limited for a p99 that is `measured`."""
    target_us = use.slo.p99_latency_us
    if target_us is None:
        return [], []
    wanted = f"p99 {target_us / 1000:g} ms"
    if not use.can.latency and measured:
        return [], []
    if not use.can.latency:
        why = "latencies are not measured ([cgroup] or [libvirt] latency_histograms), nor is there io.latency"
        return [], [f"{wanted}: on {use.device} {why}"]
    if not use.vm.cgroup:
        return [], [f"{wanted}: {use.vm.name} has no cgroup for a latency target"]
    lever = Lever.SYSTEMD_PROPERTY if use.by_systemd else Lever.CGROUP_LATENCY
    reason = f"{wanted}: io.latency slows neighbours down when more than a tenth of its requests take longer"
    knob = Knob(lever, use.vm.cgroup, "latency_us", str(use.can.device))
    return [Setting(knob, target_us, use.vm.name, reason)], []


def histograms_for(vms: Sequence[Vm], devices: Collection[DeviceNumber]) -> list[Setting]:
    """QEMU's latency histograms of all disks that running VMs of libvirt have on these block devices."""
    reason = "[libvirt] latency_histograms: QEMU records latencies of requests, for the p99"
    return [
        Setting(Knob(Lever.LATENCY_HISTOGRAM, vm.uuid, "histogram", disk.target), "on", vm.name, reason)
        for vm in vms
        if vm.found_by is FoundBy.LIBVIRT and vm.uuid is not None and vm.libvirt_id is not None
        for disk in vm.disks
        if disk.device in devices and disk.kind not in NO_IOTUNE
    ]


def limits_of(use: Use, splits: Splits, throttle: Throttle | None) -> tuple[list[Setting], list[str]]:
    """Settings for the maximums of a VM on one device, and what cannot be limited."""
    settings: list[Setting] = []
    lacking: list[str] = []
    for maximum, kind, value in _maximums(use, throttle):
        if use.untouchable:
            lacking.append(f"{maximum}: {', '.join(use.untouchable)} is not served by QEMU")
        elif use.by_libvirt and use.targets:
            together = f" over {', '.join(use.targets)} together" if len(use.targets) > 1 else ""
            knob = Knob(Lever.LIBVIRT_LIMIT, use.place, f"total_{kind}", ",".join(use.targets))
            settings.append(Setting(knob, value, use.vm.name, f"{maximum}{together}"))
        elif not use.can.limits:
            lacking.append(f"{maximum}: the kernel cannot limit {use.device} {use.can.problem}".rstrip())
        elif not use.place:
            lacking.append(f"{maximum}: {use.vm.name} has no cgroup to limit")
        else:
            # Neither version of cgroups limits the sum: two limits that add up to it do.
            split, step = (splits.iops, use.limit_step_iops) if kind == "iops" else (splits.bytes_s, 0.0)
            for side, limit in zip(("read", "write"), split.limits(value, step), strict=True):
                knob = Knob(use.limit_lever, use.place, f"{side}_{kind}", str(use.can.device))
                reason = f"{maximum}, {split.read_share:.0%} of it for reads as it was used"
                settings.append(Setting(knob, limit, use.vm.name, reason))
    return settings, lacking


def _maximums(use: Use, throttle: Throttle | None) -> list[tuple[str, str, float]]:
    """What is set or needed, of what kind, and how much: of two limits on IOPS the tighter one."""
    found = []
    most = _most_iops(use, throttle)
    if throttle is not None and most != use.slo.max_iops:
        part = (
            "" if throttle.of_drive_iops is None else f" (part of {throttle.of_drive_iops:.0f} on the drive)"
        )
        found.append(
            (f"{throttle.iops:.0f} IOPS{part} for {', '.join(throttle.served)}", "iops", throttle.iops)
        )
    elif most is not None:
        found.append((f"max_iops {most:g}", "iops", most))
    if (bandwidth := use.slo.max_bandwidth_bytes_s) is not None:
        found.append((f"max_bandwidth {bandwidth:g}", "bytes_s", bandwidth))
    return found


def _most_iops(use: Use, throttle: Throttle | None) -> float | None:
    """Its maximum, or the limit for others' sake where that is tighter."""
    limits = [use.slo.max_iops, None if throttle is None else throttle.iops]
    return min((limit for limit in limits if limit is not None), default=None)


@dataclass(frozen=True, slots=True)
class ManagedDevices:
    """The block devices that are steered, what they can, and what is known of them."""

    numbers: Mapping[str, DeviceNumber]
    """By name; no other device is ever touched."""
    capabilities: Capabilities
    default_weight: float = 1.0
    """Of VMs without an SLO of their own."""
    splits: Mapping[tuple[str, DeviceNumber], Splits] = field(default_factory=dict)
    """Divide maximums where reads and writes are limited apart, by default evenly."""
    throttles: Mapping[tuple[str, DeviceNumber], Throttle] = field(default_factory=dict)
    """Limits for others' sake: of such a one and the maximum of the SLO the tighter is set."""
    drives: Mapping[str, str] = field(default_factory=dict)
    """Those that devices are namespaces of, by name of the device."""
    by_limits: Collection[str] = ()
    """Drives between whose namespaces shares are kept by limits for others' sake."""
    measured: Collection[tuple[str, str]] = ()
    """VMs, by name and device, whose p99 is known."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Settings, and SLOs without a lever. Keys are (VM, name of the managed device)."""

    settings: tuple[Setting, ...] = ()
    no_mechanism: dict[tuple[str, str], str] = field(default_factory=dict)
    """Why no available lever can enforce an SLO."""
    backends: dict[tuple[str, str], str] = field(default_factory=dict)
    """Lever of a VM on a block device, or `none`."""
    notes: tuple[str, ...] = ()
    """Reasons why the outcome is inexact, one sentence each."""
    limitable: dict[tuple[str, str], float] = field(default_factory=dict)
    """Whose IOPS can be limited, and the step in which such limits act."""
    granted_iops: dict[tuple[str, DeviceNumber], float] = field(default_factory=dict)
    """What limits on IOPS really grant, by VM and device."""
    maximum_slack: dict[tuple[str, str], float] = field(default_factory=dict)
    """Of those whose maximums are enforced, and who have no p99 that nothing measures: how far below its
    limits the mechanism keeps a VM, in IOPS."""


def settings_for(host: HostState, managed: ManagedDevices) -> Wanted:
    """Settings that keep the SLOs, VM by VM in their order.

    A VM of libvirt is steered through libvirt, any other by its cgroup. It is touched on account of a device
    only
    - that one of its disks is on, or that its cgroup was counted I/O on;
    - or any of them, when it has an SLO of its own and no disk of it is known.
    One without an SLO of its own gets its weight only beside one that has one, and once it did I/O there.
    On emulated SSDs only the bandwidth is bounded here, as their policy decides the rest.
    """
    drives = managed.drives
    uses = uses_of(host, managed.numbers, managed.capabilities)
    no_mechanism: dict[tuple[str, str], str] = {}
    maximum_slack: dict[tuple[str, str], float] = {}
    settings: list[Setting] = []
    weights, notes = _weights(uses, managed.default_weight)
    settings.extend(weights)
    unequal = _with_unequal_weights(uses)
    limitable = {use.key: use.limit_step_iops for use in uses if use.limitable}
    granted_iops: dict[tuple[str, DeviceNumber], float] = {}
    on_drive: dict[str, list[Use]] = defaultdict(list)
    for use in uses:
        on_drive[drives.get(use.device, use.device)].append(use)
    for use in uses:
        key = (use.vm.name, use.can.device)
        divided, throttle = managed.splits.get(key, Splits()), managed.throttles.get(key)
        limits, lacking = limits_of(use, divided, throttle)
        settings.extend(limits)
        if use.limitable and (most := _most_iops(use, throttle)) is not None:
            granted_iops[key] = divided.iops.granted(most, use.limit_step_iops)
        latency, without_latency = latency_of(use, measured=use.key in managed.measured)
        settings.extend(latency)
        drive = drives.get(use.device, use.device)
        minimum = _without_minimum(use, on_drive[drive], limitable)
        if drive in managed.by_limits:
            weight = _without_limits(use, on_drive[drive], limitable)
        else:
            weight = _without_weights(use, unequal)
        if limits and not lacking and not without_latency:
            # Reads and writes may each fall short of their limit by one step.
            maximum_slack[use.key] = 2.0 * use.limit_step_iops
        lacking = [*weight, *minimum, *lacking, *without_latency]
        if lacking:
            no_mechanism[use.key] = "; ".join(lacking)
    settings.extend(_emulated(host.slos, host.streams))
    backends = {use.key: _backend(use, managed.capabilities) for use in uses}
    # They are about shares: irrelevant if no VM has a larger one.
    cautions = dict.fromkeys(caution for use in uses if use.device in unequal for caution in use.can.cautions)
    notes = [*notes, *cautions]
    return Wanted(
        tuple(settings), no_mechanism, backends, tuple(notes), limitable, granted_iops, maximum_slack
    )


def _weights(uses: Sequence[Use], default_weight: float) -> tuple[list[Setting], list[str]]:
    """One weight for each VM and kind of weight: a cgroup has the same one on every device."""
    by_scale: dict[WeightScale, dict[str, Use]] = defaultdict(dict)
    devices_with_slos = {use.device for use in uses if use.own_slo}
    for use in uses:
        wanted = use.own_slo or (use.shares and use.device in devices_with_slos)
        if wanted and use.can.weights is not None and use.place:
            by_scale[use.can.weights].setdefault(use.vm.name, use)
    settings, notes = [], []
    for scale, members in by_scale.items():
        weights = (use.slo.weight for use in members.values())
        scaled = scale_weights(weights, scale.low, scale.high, default_weight)
        for vm, use in members.items():
            value = scaled.values[use.slo.weight]
            beside = "" if use.own_slo else f"shares {use.device} with VMs that have an SLO: "
            reason = (
                f"{beside}weight {use.slo.weight:g} is {value} of {scale.mechanism}'s "
                f"{scale.low}..{scale.high}, "
                f"with a rounding error of at most {scaled.worst_rounding:.2%}"
            )
            settings.append(Setting(Knob(use.weight_lever, use.place, scale.knob), float(value), vm, reason))
        parents = {str(PurePosixPath(use.vm.cgroup).parent) for use in members.values() if use.vm.cgroup}
        if len(parents) > 1:
            notes.append(
                "weights apply among cgroups with the same parent, but those of the VMs are in "
                f"{', '.join(sorted(parents))}: shares hold only within each of them"
            )
    return settings, notes


def _with_unequal_weights(uses: Sequence[Use]) -> set[str]:
    """Devices that have to be shared otherwise than equally."""
    weights: dict[str, set[float]] = defaultdict(set)
    for use in uses:
        weights[use.device].add(use.slo.weight)
    return {device for device, found in weights.items() if len(found) > 1}


def _without_weights(use: Use, unequal: set[str]) -> list[str]:
    if use.device not in unequal or not use.own_slo:
        return []
    if use.can.weights is None:
        return [f"nothing shares {use.device} by weight: {use.can.problem}"]
    return [] if use.place else [f"{use.vm.name} has no cgroup for a weight"]


def _without_limits(use: Use, on_drive: Sequence[Use], limitable: Collection[tuple[str, str]]) -> list[str]:
    """Between namespaces of a drive shares are kept by limits: why they are not."""
    if not use.own_slo or any(each.key in limitable for each in _others(use, on_drive)):
        return []
    return [f"nothing shares the drive of {use.device} by weight: no other VM on it can be limited"]


def _without_minimum(use: Use, on_drive: Sequence[Use], limitable: Collection[tuple[str, str]]) -> list[str]:
    """A minimum is kept by throttling others, on its device or another namespace of its drive: why not."""
    if use.slo.min_iops is None:
        return []
    others = _others(use, on_drive)
    if any(each.key in limitable for each in others) or (not others and use.can.limits):
        return []
    return [f"min_iops {use.slo.min_iops:g}: no other VM on {use.device} can be throttled for it"]


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
