"""Settings for what a VM may do on a device at the most, and for latencies: pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from slo_ctl.decide.limit_split import UNSEEN, Split
from slo_ctl.model import Knob, Lever, Setting

if TYPE_CHECKING:
    from slo_ctl.decide.lever_use import Use


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
    of_drive_iops: float | None = None
    """The limit on all namespaces of a drive together, where this is a part of it."""


def latency_of(use: Use) -> tuple[list[Setting], list[str]]:
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


def limits_of(use: Use, splits: Splits, held: HeldBack | None) -> tuple[list[Setting], list[str]]:
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


def _maximums(use: Use, held: HeldBack | None) -> list[tuple[str, str, float]]:
    """What is promised or needed, of what kind, and how much: of two limits on IOPS the tighter one."""
    found = []
    most = use.slo.max_iops
    if held is not None and (most is None or held.iops < most):
        part = "" if held.of_drive_iops is None else f" (part of {held.of_drive_iops:.0f} on the drive)"
        found.append((f"{held.iops:.0f} IOPS{part} for {', '.join(held.served)}", "iops", held.iops))
    elif most is not None:
        found.append((f"max_iops {most:g}", "iops", most))
    if (bandwidth := use.slo.max_bandwidth_bytes_s) is not None:
        found.append((f"max_bandwidth {bandwidth:g}", "bytes_s", bandwidth))
    return found
