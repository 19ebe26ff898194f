"""VMs on a terminal and as JSON: streams, SLOs, and mappings onto NVMe namespaces."""

from __future__ import annotations

import shlex
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from slo_ctl.base import numbers
from slo_ctl.base.quantity import format_bytes_exact
from slo_ctl.host.cgroup import COUNTED
from slo_ctl.model.host import FoundBy, VmState
from slo_ctl.model.mapping import (
    DESTRUCTIVE,
    AddDisk,
    AttachNamespace,
    CreateNamespace,
    Deallocate,
    DeleteNamespace,
    DetachNamespace,
    Purpose,
    RemoveDisk,
)
from slo_ctl.model.slo import CLASS_KEY, FIELDS, GROUP_KEY
from slo_ctl.show.terminal import print_line, print_rows

if TYPE_CHECKING:
    from rich.console import Console

    from slo_ctl.model.host import DeviceNumber, Stream, Tenant, Vm
    from slo_ctl.model.mapping import NamespaceMapping, Step
    from slo_ctl.model.nvme import NvmeDevice
    from slo_ctl.model.slo import ResolvedSlo, SloBySource
    from slo_ctl.observe.streams import Inventory

NO_VMS = (
    "no VMs found: start VMs of libvirt, or define clients in slo-ctl.toml as "
    "[vm.NAME] with their cgroup or their namespaces"
)


def sources_line(inventory: Inventory) -> str:
    """The sources of VMs in one line: cgroup tree and libvirt."""
    tree = inventory.tree
    if tree is None:
        cgroups = "no cgroup tree"
    else:
        cgroups = f"cgroup v{tree.version} at {tree.root}"
        if not tree.io:
            cgroups += " (without the io controller: no counters)"
    libvirt = f"libvirt {inventory.libvirt_uri}" if inventory.libvirt_uri else "without libvirt"
    return f"{cgroups}, {libvirt}"


_STREAM_HEADINGS = ("DISK", "SOURCE", "DEVICE", "READ", "WRITTEN", "CGROUP")
_LEFT = ("VM", "STATE", "DISK", "SOURCE", "CGROUP")
_FOLDED = ("VM", "SOURCE", "CGROUP")

TransferredBytes = Mapping["Tenant", tuple[int, int]]
"""Bytes read and written on namespaces of emulated drives since the drives were served."""


def print_streams(console: Console, inventory: Inventory, transferred: TransferredBytes) -> None:
    """A row for each stream, and one for each VM without streams."""
    table: list[tuple[str, ...]] = []
    # Not by name: libvirt and the cgroup tree may each have a VM of the same name.
    remaining = deque(inventory.streams)
    for vm in inventory.vms:
        rows = []
        while remaining and (remaining[0].vm, remaining[0].cgroup) == (vm.name, vm.cgroup):
            rows.append(_stream_cells(remaining.popleft(), transferred))
        for cells in rows or [_stream_cells(None, transferred, vm.cgroup)]:
            state = numbers.UNKNOWN if vm.state is VmState.UNKNOWN else vm.state.value
            table.append((vm.name, state, *cells))
    print_rows(console, ("VM", "STATE", *_STREAM_HEADINGS), table, left=_LEFT, folded=_FOLDED)


def _stream_cells(
    stream: Stream | None, transferred: TransferredBytes, cgroup: str | None = None
) -> list[str]:
    """Disk, source, device, bytes read and written, cgroup."""
    if stream is None:
        return [*[numbers.UNKNOWN] * 5, _text(cgroup)]
    disk, counters = stream.disk, stream.counters
    read, written = (counters.read_bytes, counters.written_bytes) if counters else (None, None)
    if stream.tenant is not None and stream.tenant in transferred:
        read, written = transferred[stream.tenant]
    return [
        _text(disk.target if disk else None),
        _source(stream),
        _text(str(stream.tenant) if stream.tenant else _device(stream.device)),
        numbers.size(read),
        numbers.size(written),
        _text(stream.cgroup),
    ]


def _source(stream: Stream) -> str:
    """Path or URI; for a namespace, which is in the column of the device, only the protocol."""
    source = stream.disk.source if stream.disk else None
    if stream.tenant is None or source is None:
        return _text(source)
    return "NBD" if source.startswith("nbd") else "vhost-user"


def inventory_json(inventory: Inventory, transferred: TransferredBytes) -> dict[str, Any]:
    """One JSON object; unknown values are null."""
    tree = inventory.tree
    return {
        "cgroup": None
        if tree is None
        else {"version": tree.version, "root": str(tree.root), "io_controller": tree.io},
        "libvirt_uri": inventory.libvirt_uri,
        "vms": [asdict(vm) | {"disks": _disks_json(vm)} for vm in inventory.vms],
        "streams": [
            {"vm": each.vm, **_stream_json(each), "counters": _counters_json(each, transferred)}
            for each in inventory.streams
        ],
        "notes": list(inventory.notes),
    }


def _counters_json(stream: Stream, transferred: TransferredBytes) -> dict[str, int | None] | None:
    """What the kernel counted for its cgroup, or the server of a drive for its namespace."""
    if stream.tenant is not None and stream.tenant in transferred:
        read, written = transferred[stream.tenant]
        return {**dict.fromkeys(COUNTED), "read_bytes": read, "written_bytes": written}
    return {name: getattr(stream.counters, name) for name in COUNTED} if stream.counters else None


def _disks_json(vm: Vm) -> list[dict[str, Any]]:
    """Its disks; devices as MAJOR:MINOR."""
    return [
        asdict(disk)
        | {name: _device(getattr(disk, name)) for name in ("device", "copy_device")}
        | {name: [str(each) for each in getattr(disk, name)] for name in ("below", "copy_below")}
        for disk in vm.disks
    ]


def _stream_json(stream: Stream) -> dict[str, Any]:
    """The path of a stream, without its VM."""
    return {
        "disk": stream.disk.target if stream.disk else None,
        "source": stream.disk.source if stream.disk else None,
        "cgroup": stream.cgroup,
        "device": _device(stream.device),
        "tenant": str(stream.tenant) if stream.tenant else None,
    }


def _device(device: DeviceNumber | None) -> str | None:
    return None if device is None else str(device)


def _text(text: str | None) -> str:
    return text or numbers.UNKNOWN


_FOUND_BY = {
    FoundBy.LIBVIRT: "found by libvirt",
    FoundBy.CGROUP_NAME: "found by the name of its cgroup",
    FoundBy.OPTION: "named by the configuration or an option",
}


def print_vm(
    console: Console,
    name: str,
    resolved: ResolvedSlo,
    vm: Vm | None,
    streams: Sequence[Stream],
    transferred: TransferredBytes,
    *,
    all_known: bool,
) -> None:
    """State, SLO with the source of each field, conflicts, and streams.

    `all_known`: whether a VM that was not found does not exist on this host.
    """
    absent = "not on this host" if all_known else "not found, but VMs of this host may be missing"
    state = f"state {vm.state.value}, {_FOUND_BY[vm.found_by]}" if vm else absent
    print_line(console, f"VM {name}: {state}", style="bold")
    console.print()
    _print_slo(console, resolved)
    for sentence in resolved.conflicts:
        print_line(console, f"conflict: {sentence}", style="yellow")
    if streams:
        console.print()
        rows = [_stream_cells(stream, transferred) for stream in streams]
        print_rows(console, _STREAM_HEADINGS, rows, left=_LEFT, folded=_FOLDED)
    console.print()


def slo_line(resolved: ResolvedSlo) -> str:
    """`class gold (vm set), weight 3 (class gold (slo-ctl.toml:3)), max_iops 500 (metadata)`."""
    named = ((CLASS_KEY, resolved.class_name), (GROUP_KEY, resolved.group_name))
    chosen = [f"{key} {name} ({resolved.sources[key]})" for key, name in named if name is not None]
    fields = [
        f"{field.key} {field.shown(getattr(resolved.slo, name))} ({resolved.sources[name]})"
        for name, field in FIELDS.items()
        if name in resolved.sources
    ]
    return ", ".join([*chosen, *fields])


def slo_json(
    name: str, resolved: ResolvedSlo, by_source: SloBySource | None, vm: Vm | None, streams: Sequence[Stream]
) -> dict[str, Any]:
    """One VM as JSON; field names state the units of values."""
    value: dict[str, Any] = {
        "vm": name,
        "slo": asdict(resolved.slo),
        "source": resolved.slo_source,
        "sources": {name: place for name, place in resolved.sources.items() if name in FIELDS},
        "class": resolved.class_name,
        "class_source": resolved.sources.get(CLASS_KEY),
        "group": resolved.group_name,
        "group_source": resolved.sources.get(GROUP_KEY),
        "conflicts": list(resolved.conflicts),
    }
    if by_source is None:
        return value
    return value | {
        "by_source": {source: entry.fields for source, entry in by_source.items() if entry.fields},
        "state": vm.state.value if vm else None,
        "found_by": vm.found_by.value if vm else None,
        "disks": _disks_json(vm) if vm else [],
        "streams": [_stream_json(stream) for stream in streams],
    }


def _print_slo(console: Console, resolved: ResolvedSlo) -> None:
    named = ((CLASS_KEY, resolved.class_name), (GROUP_KEY, resolved.group_name))
    rows = [(key, name, resolved.sources.get(key, "")) for key, name in named if name is not None]
    for name, field in FIELDS.items():
        value = getattr(resolved.slo, name)
        shown = numbers.UNKNOWN if value is None else field.shown(value)
        rows.append((field.key, shown, resolved.sources.get(name, "")))
    headings = ("SLO", "VALUE", "SOURCE")
    print_rows(console, headings, rows, left=("SLO", "SOURCE"), folded=("VALUE", "SOURCE"))


def step_line(step: Step, mapping: NamespaceMapping) -> str:
    """A step in one line."""
    nsid = f"namespace {mapping.nsid}" if mapping.nsid else "the new namespace"
    on_drive = f"on {mapping.controller}"
    match step:
        case CreateNamespace():
            size = format_bytes_exact(step.size_blocks * step.block_bytes)
            placements = [
                f"{kind} {value}"
                for kind, value in (("endurance group", step.endurance_group), ("NVM set", step.nvm_set))
                if value is not None
            ]
            placements += [f"reclaim unit handle {each}" for each in step.handles]
            placement_text = f", {', '.join(placements)}" if placements else ""
            return (
                f"create a namespace of {size} (LBAs of {step.block_bytes} bytes{placement_text}) {on_drive}"
            )
        case AttachNamespace():
            return f"attach {nsid} to controller {step.controller_id} ({mapping.controller})"
        case Deallocate():
            start, length = (format_bytes_exact(each) for each in (step.offset_bytes, step.length_bytes))
            return f"deallocate {length} of {nsid} from offset {start} {on_drive}"
        case AddDisk():
            size_text = "" if step.whole else f", the first {format_bytes_exact(step.size_bytes)}"
            return f"attach {nsid} to VM {mapping.vm} as disk {step.target or '(next free name)'}{size_text}"
        case RemoveDisk():
            running_text = ", even while it runs" if step.unplug else ""
            return f"detach disk {mapping.target} ({nsid}) from VM {mapping.vm}{running_text}"
        case DetachNamespace():
            return f"detach {nsid} from controller {step.controller_id} ({mapping.controller}); data stay"
        case DeleteNamespace():
            return f"delete {nsid} {on_drive}"


def plan_lines(mapping: NamespaceMapping, drive: NvmeDevice) -> list[str]:
    """The remaining steps, what they destroy, and the resulting isolation."""
    emulated = " (EMULATED by QEMU)" if drive.controller.emulated else ""
    verb = "map" if mapping.purpose is Purpose.MAP else "unmap"
    lines = [f"{verb} VM {mapping.vm}: {mapping.drive}, {mapping.controller}{emulated}"]
    remaining = mapping.steps[mapping.done :]
    for number, step in enumerate(remaining, 1):
        mark = "  DESTROYS DATA" if isinstance(step, DESTRUCTIVE) else ""
        lines.append(f"  {number}. {step_line(step, mapping)}{mark}")
    if not remaining:
        lines.append("  no steps on the drive: only the record is removed")
    if mapping.purpose is Purpose.MAP:
        lines.append(f"  isolation: {mapping.placement.isolation}, by {mapping.placement.by}")
        lines.append(f"  spare: {_spare_text(mapping)}")
    return lines


def _spare_text(mapping: NamespaceMapping) -> str:
    """Spare capacity, such as `2GiB unallocated, the drive's`."""
    spare = mapping.spare
    if not spare.size_bytes:
        return "none"
    return f"{format_bytes_exact(spare.size_bytes)} {spare.how}, {spare.owner}"


def result_line(after: NamespaceMapping | None, before: NamespaceMapping) -> str:
    """The result in one line."""
    if after is None:
        return f"{before.vm}: namespace {before.nsid} of {before.drive} unmapped"
    disk = f" as {after.target}" if after.target else ""
    return (
        f"{after.vm}: namespace {after.nsid} of {after.drive} mapped{disk}, "
        f"{format_bytes_exact(after.size_bytes)}, {after.placement.isolation}"
    )


def mapping_json(mapping: NamespaceMapping) -> dict[str, Any]:
    """One mapping; sizes in bytes."""
    return asdict(mapping) | {
        "complete": mapping.complete,
        "steps": [
            asdict(step)
            | {
                "done": index < mapping.done,
                "destroys_data": isinstance(step, DESTRUCTIVE),
                "text": step_line(step, mapping),
            }
            for index, step in enumerate(mapping.steps)
        ],
    }


def print_mappings(console: Console, mappings: Iterable[NamespaceMapping]) -> None:
    """A row for each mapping."""
    rows = []
    for mapping in mappings:
        steps = (
            f"{mapping.done} of {len(mapping.steps)} steps done: vm map {shlex.quote(mapping.vm)} --resume"
        )
        state = (
            ("created" if mapping.created else "adopted")
            if mapping.complete
            else f"{mapping.purpose}: {steps}"
        )
        cells = (
            mapping.vm,
            mapping.target or numbers.UNKNOWN,
            f"{mapping.drive}, {mapping.controller}",
            str(mapping.nsid or "(new)"),
            format_bytes_exact(mapping.size_bytes),
            mapping.placement.isolation,
            _spare_text(mapping),
            state,
        )
        rows.append(cells)
    headings = ("VM", "DISK", "DRIVE", "NSID", "SIZE", "ISOLATION", "SPARE", "STATE")
    left = {*headings} - {"NSID", "SIZE"}
    print_rows(console, headings, rows, left=left, folded=("DRIVE", "SPARE", "STATE"))
