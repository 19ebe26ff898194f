"""One look at the host: its VMs and their streams, and what could not be seen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slo_ctl.observe.streams import (
    HostRoots,
    machine_groups,
    streams_of,
    with_devices,
    with_groups,
    with_named,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from slo_ctl.model import Stream, Vm
    from slo_ctl.observe.cgroup import CgroupTree
    from slo_ctl.observe.libvirt_domains import LibvirtHost


@dataclass(frozen=True, slots=True)
class Inventory:
    """What a look found. VMs are sorted by name, streams follow them."""

    tree: CgroupTree | None
    libvirt_uri: str | None
    vms: tuple[Vm, ...]
    streams: tuple[Stream, ...]
    notes: tuple[str, ...] = field(default=())
    """One sentence for each thing that is there and could not be read."""
    domain_xml: Mapping[str, str] = field(default_factory=dict)
    """Of libvirt's VMs, by UUID: for `observe.domain_metadata`."""


def look(
    tree: CgroupTree | None,
    libvirt: LibvirtHost | None,
    named_cgroups: Mapping[str, str] | Iterable[str] = (),
    roots: HostRoots | None = None,
) -> Inventory:
    """See what there is. VMs of a libvirt that is not this host's are listed without cgroups and devices.

    `named_cgroups` are VMs without libvirt: cgroups by name, or cgroups that go by their own path.
    """
    roots = roots or HostRoots()
    notes: list[str] = []
    vms = libvirt.vms(notes.append) if libvirt else []
    if libvirt is None or libvirt.runs_here:
        vms = [with_devices(vm, roots, notes.append) for vm in vms]
        vms = with_groups(vms, machine_groups(tree, roots, notes.append) if tree else ())
    vms = sorted(with_named(vms, named_cgroups), key=lambda vm: (vm.name, vm.uuid or "", vm.cgroup or ""))
    streams = [stream for vm in vms for stream in streams_of(vm, tree, notes.append)]
    return Inventory(
        tree, libvirt.uri if libvirt else None, tuple(vms), tuple(streams), tuple(dict.fromkeys(notes))
    )
