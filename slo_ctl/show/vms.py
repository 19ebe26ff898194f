"""VMs and their streams on a terminal and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from slo_ctl.show import numbers
from slo_ctl.show.text import printable

if TYPE_CHECKING:
    from slo_ctl.model import DeviceNumber, Stream, Vm
    from slo_ctl.observe.inventory import Inventory

FORMAT_VERSION = 1


def where_line(inventory: Inventory) -> str:
    """Where VMs were looked for, in one line."""
    tree = inventory.tree
    if tree is None:
        cgroups = "no cgroup tree"
    else:
        cgroups = f"cgroup v{tree.version} at {printable(str(tree.root))}"
        if not tree.io:
            cgroups += " (without the io controller: no counters)"
    libvirt = f"libvirt {printable(inventory.libvirt_uri)}" if inventory.libvirt_uri else "without libvirt"
    return f"{cgroups}, {libvirt}"


def stream_table(inventory: Inventory) -> Table:
    """A line for each stream, and one for each VM without any."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in ("VM", "STATE", "DISK", "SOURCE", "DEVICE", "READ", "WRITTEN", "CGROUP"):
        right = heading in ("DEVICE", "READ", "WRITTEN")
        table.add_column(heading, justify="right" if right else "left", no_wrap=right, overflow="fold")
    # By object and not by name: libvirt and the cgroup tree may each know a VM of the same name.
    waiting = list(inventory.streams)
    for vm in inventory.vms:
        count = stream_count(vm, waiting)
        for cells in [stream_cells(stream) for stream in waiting[:count]] or [stream_cells(None, vm.cgroup)]:
            table.add_row(*(Text(cell) for cell in (printable(vm.name), vm.state.value, *cells)))
        del waiting[:count]
    return table


def stream_count(vm: Vm, streams: list[Stream]) -> int:
    """How many streams at the head of the list are that VM's; they follow the order of the VMs."""
    count = 0
    while count < len(streams) and (streams[count].vm, streams[count].cgroup) == (vm.name, vm.cgroup):
        count += 1
    return count


def stream_cells(stream: Stream | None, cgroup: str | None = None) -> list[str]:
    """Disk, source, device, bytes read and written, cgroup."""
    if stream is None:
        return [*[numbers.UNKNOWN] * 5, _text(cgroup)]
    disk, counters = stream.disk, stream.counters
    return [
        _text(disk.target if disk else None),
        _text(disk.source if disk else None),
        _text(_device(stream.device)),
        numbers.size(counters.read_bytes if counters else None),
        numbers.size(counters.written_bytes if counters else None),
        _text(stream.cgroup),
    ]


def inventory_json(inventory: Inventory) -> dict[str, Any]:
    """Everything that was found; what is not known is null."""
    tree = inventory.tree
    return {
        "format_version": FORMAT_VERSION,
        "cgroup": None
        if tree is None
        else {"version": tree.version, "root": str(tree.root), "io_controller": tree.io},
        "libvirt_uri": inventory.libvirt_uri,
        "vms": [_vm_json(vm) for vm in inventory.vms],
        "streams": [_stream_json(stream) for stream in inventory.streams],
        "notes": list(inventory.notes),
    }


def _vm_json(vm: Vm) -> dict[str, Any]:
    return asdict(vm) | {"disks": disks_json(vm)}


def disks_json(vm: Vm) -> list[dict[str, Any]]:
    """Its disks; devices as MAJOR:MINOR."""
    return [asdict(disk) | {"device": _device(disk.device)} for disk in vm.disks]


def _stream_json(stream: Stream) -> dict[str, Any]:
    counters = asdict(stream.counters) if stream.counters else None
    return {"vm": stream.vm, **stream_json(stream), "counters": counters}


def stream_json(stream: Stream) -> dict[str, Any]:
    """By which way it goes, without whose it is."""
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
    return printable(text) if text else numbers.UNKNOWN
