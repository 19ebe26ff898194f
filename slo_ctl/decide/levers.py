"""Settings that enforce the SLOs on block devices: weights, limits and latency targets. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import PurePosixPath

from slo_ctl.decide.device_use import NO_IOTUNE, HostState, Use, uses_of
from slo_ctl.decide.limit_split import Splits, nearest_granted
from slo_ctl.decide.objectives import tighter
from slo_ctl.model.host import Capabilities, DeviceNumber, FoundBy, Stream, Vm, WeightScale
from slo_ctl.model.setting import Knob, Lever, Setting
from slo_ctl.model.slo import Slo

# Scaling of the weights of SLOs to the whole numbers of a mechanism.

EQUAL = 100
"""Value of equal weights: the kernel's default, so that equal weights change nothing."""
_ANCHORED_ROUNDING = 0.005
"""Largest relative rounding error of a weight for which the default weight becomes the kernel's default."""


@dataclass(frozen=True, slots=True)
class ScaledWeights:
    """Weights scaled to whole numbers in the range of a mechanism."""

    values: dict[float, int]
    """Scaled weight by weight of the SLO."""
    worst_rounding: float
    """Largest relative rounding error."""


def scale_weights(
    weights: Iterable[float], low: int, high: int, default: float | None = None
) -> ScaledWeights:
    """Scale positive weights into low..high. Equal weights all become 100.

    `default`: the weight of VMs without an SLO of their own. It becomes 100, which such VMs have already, if
    then all weights are in the range and rounded by at most half a per cent. Otherwise the largest weight
    gets the value in the upper half of the range that gives the smallest worst rounding error, the highest
    one if several do. A value in the lower half cannot give a smaller error, because twice the value gives no
    larger one.
    """
    return _scaled(tuple(sorted(set(weights))), low, high, default)


@lru_cache(maxsize=64)
def _scaled(weights: tuple[float, ...], low: int, high: int, default: float | None) -> ScaledWeights:
    if len(weights) < 2:
        return ScaledWeights(dict.fromkeys(weights, min(high, max(low, EQUAL))), 0.0)
    if default is not None and (anchored := _anchored(weights, low, high, default)) is not None:
        return anchored
    ratios = [weight / weights[-1] for weight in weights]
    best, least = high, math.inf
    for top in range(high, high // 2, -1):
        worst = 0.0
        for ratio in ratios:
            exact = top * ratio
            worst = max(worst, abs(max(round(exact), low) / exact - 1))
            # Rounding errors of floats must not decide between two values that are equally good.
            if worst > least - 1e-12:
                break
        else:
            best, least = top, worst
    values = {weight: max(round(best * ratio), low) for weight, ratio in zip(weights, ratios, strict=True)}
    return ScaledWeights(values, least)


def _anchored(weights: tuple[float, ...], low: int, high: int, default: float) -> ScaledWeights | None:
    """Weights with 100 for `default`; None if they do not fit the range, or rounding is too inexact."""
    exact = [EQUAL / default * weight for weight in weights]
    if exact[-1] > high or exact[0] < low:
        return None
    values = [round(scaled) for scaled in exact]
    worst = max(abs(value / scaled - 1) for value, scaled in zip(values, exact, strict=True))
    if worst > _ANCHORED_ROUNDING:
        return None
    return ScaledWeights(dict(zip(weights, values, strict=True)), worst)


# Settings for maximums and latency targets.


@dataclass(frozen=True, slots=True)
class Throttle:
    """A temporary limit on a VM that protects other VMs."""

    iops: float
    protected_vms: tuple[str, ...]
    """VMs that the limit protects."""
    of_drive_iops: float | None = None
    """Limit on all namespaces of the drive together, of which this is a part; None: it is no part."""

    def rounded(self, step_iops: float, min_iops: float) -> Throttle:
        """The limit rounded to whole steps of the mechanism, not below the VM's own minimum `min_iops`."""
        part = 1.0 if self.of_drive_iops is None else self.iops / self.of_drive_iops
        return replace(self, iops=nearest_granted(self.iops, step_iops, part * min_iops))


def latency_of(use: Use, *, measured: bool) -> tuple[list[Setting], list[str]]:
    """Settings for the kernel's latency target of a p99, and why the p99 cannot be kept.

    Both are empty if io.latency is not available but the p99 is `measured`: then limits on other VMs keep it.
    """
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
    """Settings that enable QEMU's latency histograms of all disks of running libvirt VMs on these devices."""
    reason = "[libvirt] latency_histograms: QEMU records latencies of requests, for the p99"
    return [
        Setting(Knob(Lever.LATENCY_HISTOGRAM, vm.uuid, "histogram", disk.target), "on", vm.name, reason)
        for vm in vms
        if vm.found_by is FoundBy.LIBVIRT and vm.uuid is not None and vm.libvirt_id is not None
        for disk in vm.disks
        if disk.kind not in NO_IOTUNE and any(device in devices for device in disk.devices)
    ]


def limits_of(use: Use, splits: Splits, throttle: Throttle | None) -> tuple[list[Setting], list[str]]:
    """Settings for the maximums of a VM on one device, and why maximums cannot be enforced."""
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
        elif use.inner_group:
            lacking.append(
                f"{maximum}: limits of cgroup v1 do not reach groups inside {use.vm.cgroup}, and "
                f"{use.inner_group} has processes: move them to {use.vm.cgroup}"
            )
        else:
            # cgroups have no limit for the sum of reads and writes: the maximum is divided between them.
            split, step = (splits.iops, use.limit_step_iops) if kind == "iops" else (splits.bytes_s, 0.0)
            for side, limit in zip(("read", "write"), split.limits(value, step), strict=True):
                knob = Knob(use.limit_lever, use.place, f"{side}_{kind}", str(use.can.device))
                reason = f"{maximum}, {split.read_share:.0%} of it for reads, by the measured mix"
                settings.append(Setting(knob, limit, use.vm.name, reason))
    return settings, lacking


def _maximums(use: Use, throttle: Throttle | None) -> list[tuple[str, str, float]]:
    """Text, kind (`iops` or `bytes_s`) and value of each limit; of two limits on IOPS the tighter one."""
    limits = []
    most = _most_iops(use, throttle)
    if throttle is not None and most != use.slo.max_iops:
        part = (
            "" if throttle.of_drive_iops is None else f" (part of {throttle.of_drive_iops:.0f} on the drive)"
        )
        limits.append(
            (f"{throttle.iops:.0f} IOPS{part} for {', '.join(throttle.protected_vms)}", "iops", throttle.iops)
        )
    elif most is not None:
        limits.append((f"max_iops {most:g}", "iops", most))
    if (bandwidth := use.slo.max_bandwidth_bytes_s) is not None:
        limits.append((f"max_bandwidth {bandwidth:g}", "bytes_s", bandwidth))
    return limits


def _most_iops(use: Use, throttle: Throttle | None) -> float | None:
    """The VM's maximum, or its throttle if that is tighter; None without both."""
    return tighter(use.slo.max_iops, None if throttle is None else throttle.iops)


@dataclass(frozen=True, slots=True)
class ManagedDevices:
    """The block devices that slo-ctl manages, with their capabilities and the limits of the controller."""

    numbers: Mapping[str, DeviceNumber]
    """Device numbers by name. Settings of other devices are never changed."""
    capabilities: Capabilities
    default_weight: float = 1.0
    """Weight of VMs without an SLO of their own."""
    splits: Mapping[tuple[str, DeviceNumber], Splits] = field(default_factory=dict)
    """Division of maximums between reads and writes, by VM and device; even where there is none."""
    throttles: Mapping[tuple[str, DeviceNumber], Throttle] = field(default_factory=dict)
    """Limits that protect other VMs, by VM and device; the tighter of these and the maximum applies."""
    drives: Mapping[str, str] = field(default_factory=dict)
    """Drive by device, for devices that are namespaces of a drive."""
    by_limits: Collection[str] = ()
    """Drives on which limits keep the shares between namespaces."""
    measured: Collection[tuple[str, str]] = ()
    """VM and device of each p99 that is measured."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Settings for the SLOs, and SLOs that cannot be enforced. Most keys are names of VM and device."""

    settings: tuple[Setting, ...] = ()
    no_mechanism: dict[tuple[str, str], str] = field(default_factory=dict)
    """Why no available mechanism can enforce an SLO."""
    backends: dict[tuple[str, str], str] = field(default_factory=dict)
    """Name of the mechanism, or `none`."""
    notes: tuple[str, ...] = ()
    """Reasons why the result is inexact, one sentence each."""
    limitable: dict[tuple[str, str], float] = field(default_factory=dict)
    """Steps in IOPS in which limits act (0: exact), of VMs whose IOPS can be limited."""
    granted_iops: dict[tuple[str, DeviceNumber], float] = field(default_factory=dict)
    """Rates that the limits on IOPS really allow, by VM and number of the device."""
    maximum_slack: dict[tuple[str, str], float] = field(default_factory=dict)
    """How far below its maximum the mechanism may keep a VM, in IOPS; only of VMs whose maximums are
    enforced and whose p99, if they have a target, can be kept."""


def settings_for(host: HostState, managed: ManagedDevices) -> Wanted:
    """Settings that enforce the SLOs, in the order of the VMs.

    Settings of a libvirt VM are made through libvirt, those of other VMs in their cgroup. A VM gets settings
    for a device if
    - one of its disks is on the device, or its cgroup did I/O there; or
    - it has an SLO of its own, and no disk of it is known.
    A VM without an SLO of its own gets only a weight, and only on devices on which it did I/O and another VM
    has an SLO. On emulated SSDs only bandwidth is limited here, because their policy does the rest.
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
        splits, throttle = managed.splits.get(key, Splits()), managed.throttles.get(key)
        limits, lacking = limits_of(use, splits, throttle)
        settings.extend(limits)
        if use.limitable and (most := _most_iops(use, throttle)) is not None:
            granted_iops[key] = splits.iops.granted(most, use.limit_step_iops)
        latency, without_latency = latency_of(use, measured=use.key in managed.measured)
        settings.extend(latency)
        drive = drives.get(use.device, use.device)
        minimum = _without_minimum(use, on_drive[drive], limitable)
        if drive in managed.by_limits:
            weight = _without_limits(use, on_drive[drive], limitable)
        else:
            weight = _without_weights(use, unequal)
        if limits and not lacking and not without_latency:
            # The limits of reads and of writes may each grant one step less.
            maximum_slack[use.key] = 2.0 * use.limit_step_iops
        lacking = [*weight, *minimum, *lacking, *without_latency]
        if lacking:
            no_mechanism[use.key] = "; ".join(lacking)
    settings.extend(_emulated(host.slos, host.streams))
    backends = {use.key: _backend(use, managed.capabilities) for use in uses}
    # Cautions concern shares by weight: they do not matter where all weights are equal.
    cautions = dict.fromkeys(caution for use in uses if use.device in unequal for caution in use.can.cautions)
    notes = [*notes, *cautions]
    return Wanted(
        tuple(settings), no_mechanism, backends, tuple(notes), limitable, granted_iops, maximum_slack
    )


def _weights(uses: Sequence[Use], default_weight: float) -> tuple[list[Setting], list[str]]:
    """Weight settings, one per VM and mechanism as a cgroup has one weight for all devices; and notes."""
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
            prefix = "" if use.own_slo else f"shares {use.device} with VMs that have an SLO: "
            reason = (
                f"{prefix}weight {use.slo.weight:g} is {value} of {scale.mechanism}'s "
                f"{scale.low}..{scale.high}, with a rounding error of at most {scaled.worst_rounding:.2%}"
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
    """Devices whose VMs have different weights."""
    weights: dict[str, set[float]] = defaultdict(set)
    for use in uses:
        weights[use.device].add(use.slo.weight)
    return {device for device, values in weights.items() if len(values) > 1}


def _without_weights(use: Use, unequal: set[str]) -> list[str]:
    """Why no weight can be set for a VM that needs one; empty if it can."""
    if use.device not in unequal or not use.own_slo:
        return []
    if use.can.weights is None:
        return [f"nothing shares {use.device} by weight: {use.can.problem}"]
    return [] if use.place else [f"{use.vm.name} has no cgroup for a weight"]


def _without_limits(use: Use, on_drive: Sequence[Use], limitable: Collection[tuple[str, str]]) -> list[str]:
    """Why limits cannot keep a VM's share between namespaces of a drive; empty if they can."""
    if not use.own_slo or any(other.key in limitable for other in _others(use, on_drive)):
        return []
    return [f"nothing shares the drive of {use.device} by weight: no other VM on it can be limited"]


def _without_minimum(use: Use, on_drive: Sequence[Use], limitable: Collection[tuple[str, str]]) -> list[str]:
    """Why limits on other VMs of the device or its drive cannot keep a VM's minimum; empty if they can."""
    if use.slo.min_iops is None:
        return []
    others = _others(use, on_drive)
    if any(other.key in limitable for other in others) or (not others and use.can.limits):
        return []
    return [f"min_iops {use.slo.min_iops:g}: no other VM on {use.device} can be throttled for it"]


def _others(use: Use, uses: Sequence[Use]) -> list[Use]:
    """Uses of other VMs."""
    return [other for other in uses if other.vm.name != use.vm.name]


def _emulated(slos: Mapping[str, Slo], streams: Sequence[Stream]) -> list[Setting]:
    """Bandwidth limits of namespaces on emulated SSDs; each gets an equal part of its VM's maximum."""
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
    """Name of the mechanism that a VM is controlled by, or `none`."""
    tree = f"cgroup v{capabilities.cgroup_version}"
    through = "libvirt, " if use.by_libvirt else "systemd, " if use.by_systemd else ""
    if use.place and use.can.weights is not None:
        return f"{through}{tree} {use.can.weights.mechanism}"
    if use.by_libvirt and use.targets:
        return "libvirt limits"
    return f"{through}{tree} limits" if use.place and use.can.limits else "none"
