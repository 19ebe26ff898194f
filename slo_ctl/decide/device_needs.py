"""What the SLOs of the VMs on a device ask of it, and for how long that is believed. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from slo_ctl.decide.lever_use import did_io
from slo_ctl.decide.scheduler_choice import Needs, needs_of
from slo_ctl.model import VmState

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from slo_ctl.model import DeviceNumber, Slo, Stream, Vm

PATIENCE_S = 60.0
"""How long less has to be asked for until less is done: choosing a scheduler holds up all of a device."""

_OFF = frozenset({VmState.SHUT_OFF, VmState.CRASHED})


def vms_on(
    number: DeviceNumber, vms: Sequence[Vm], streams: Sequence[Stream], promised: Collection[str]
) -> tuple[str, ...]:
    """VMs whose SLOs count for the block device `number`, by name.

    Those that have a disk there or did I/O there; and of those that were promised something, the ones of
    which nobody knows where their I/O goes.
    """
    there = {each.vm for each in streams if each.device == number and each.tenant is None and did_io(each)}
    elsewhere = {each.vm for each in streams if each.device is not None or each.tenant is not None}
    return tuple(
        sorted(
            vm.name
            for vm in vms
            if vm.state not in _OFF
            and (
                vm.name in there
                or any(disk.device == number for disk in vm.disks)
                or (vm.name in promised and not vm.disks and vm.name not in elsewhere)
            )
        )
    )


def tenants_on(device: str, streams: Sequence[Stream]) -> tuple[str, ...]:
    """VMs on namespaces of an emulated SSD, by name."""
    return tuple(sorted({each.vm for each in streams if each.tenant and each.tenant.device == device}))


def needs_on(names: Collection[str], slos: Mapping[str, Slo]) -> Needs:
    """What the SLOs of these VMs need."""
    return needs_of(slos[name] for name in names if name in slos)


@dataclass(frozen=True, slots=True)
class Believed:
    """Needs that a device is set for."""

    needs: Needs
    less_since_s: float | None = None
    """Since when less has been asked for without a break; None: it is not."""


def believe(before: Believed | None, now: Needs, now_s: float, patience_s: float = PATIENCE_S) -> Believed:
    """More is believed at once, less after `patience_s`. `now_s` is of any clock that does not go back."""
    if before is None:
        return Believed(now)
    targets = [each.p99_target_us for each in (before.needs, now) if each.p99_target_us is not None]
    both = Needs(before.needs.weights or now.weights, min(targets, default=None))
    if both == now:
        return Believed(now)
    since_s = now_s if before.less_since_s is None else before.less_since_s
    return Believed(now) if now_s - since_s >= patience_s else Believed(both, since_s)
