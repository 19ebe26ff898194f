"""`slo-ctl vm`: the VMs of this host, their disks and their SLOs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slo_ctl.base.errors import UnreachableError, UserError
from slo_ctl.cli import vm_attach, vm_map, vm_slo
from slo_ctl.cli.api_access import client
from slo_ctl.cli.options import CGROUP_ROOT, CONNECT, JSON, ROOT, VMS
from slo_ctl.cli.output import notes_about, print_json, print_lines, stdout_console, warn_notes
from slo_ctl.cli.vm_host import VmHost, is_many
from slo_ctl.model.host import Stream, Tenant
from slo_ctl.model.slo import check_vm_name

if TYPE_CHECKING:
    from slo_ctl.observe.streams import Inventory

_DRIVE_TIMEOUT_S = 1.0

app = typer.Typer(
    help="Show VMs, set their SLOs, and attach disks.\n\nExamples:\nslo-ctl vm list\n"
    "slo-ctl vm set web weight=3,min=500",
    rich_markup_mode=None,
)


@app.command("list")
def list_(
    no_libvirt: Annotated[bool, typer.Option("--no-libvirt", help="Find VMs by their cgroups only.")] = False,
    cgroup: Annotated[
        list[str] | None, typer.Option(metavar="PATH", help="Treat this cgroup as a VM. Repeatable.")
    ] = None,
    cgroup_root: CGROUP_ROOT = None,
    connect: CONNECT = None,
    root: ROOT = None,
    json_: JSON = False,
) -> None:
    """List VMs and their I/O streams: disk, device and cgroup.

    Examples:
    slo-ctl vm list
    slo-ctl vm list --cgroup /slo/web    # an I/O client without libvirt
    """
    if no_libvirt and connect is not None:
        raise UserError("--connect and --no-libvirt exclude each other", "give one of them")
    host = VmHost(root, connect, not no_libvirt, cgroup_root, tuple(cgroup or ()))
    inventory = host.inventory
    notes = (*host.notes, *inventory.notes, *host.unknown_clients())
    transferred = _transferred_bytes(host, inventory.streams)
    if json_:
        from slo_ctl.show.vms import inventory_json

        print_json(inventory_json(replace(inventory, notes=notes), transferred))
    else:
        _print_inventory(inventory, transferred, all_known=not host.gaps)
        warn_notes(notes)


@app.command()
def show(
    names: VMS,
    json_: JSON = False,
    connect: CONNECT = None,
    root: ROOT = None,
) -> None:
    """Show the SLO of a VM, its class, where each value comes from, its streams and its status.

    Examples:
    slo-ctl vm show web
    slo-ctl vm show 'web*' db --json
    """
    from slo_ctl.show.terminal import print_line
    from slo_ctl.show.vms import print_vm, slo_json

    for name in names:
        check_vm_name(name)
    host = VmHost(root, connect)
    slos, shown = host.slos, []
    for name in host.expand(names, sorted(slos.resolved)):
        if name not in slos.resolved:
            raise host.unknown(name)
        by_source, vm = host.slo_by_source(name, slos.metadata), host.vm(name)
        shown.append((name, by_source, slos.resolved[name], vm, host.streams(vm)))
    status = _status(host)
    notes = notes_about(
        [name for name, *_ in shown], [*host.notes, *host.inventory.notes, *host.config.notes]
    )
    if json_:
        vms = [
            {
                **slo_json(name, slo, by_source, vm, streams),
                "status": _rows_of_vm(status, name),
                "notes": notes,
            }
            for name, by_source, slo, vm, streams in shown
        ]
        print_json({"vms": vms} if is_many(names) else vms[0])
        return
    console = stdout_console()
    for name, _, slo, vm, streams in shown:
        transferred = _transferred_bytes(host, streams)
        print_vm(console, name, slo, vm, streams, transferred, all_known=not host.gaps)
        for line in _status_lines(_rows_of_vm(status, name), host):
            print_line(console, line)
        if name != shown[-1][0]:
            print_lines("")
    warn_notes(notes)


app.command("set")(vm_slo.set_)
app.command("unset")(vm_slo.unset)
app.command("attach")(vm_attach.attach)
app.command("detach")(vm_attach.detach)
app.command("map")(vm_map.map_)
app.command("unmap")(vm_map.unmap)
app.command("maps")(vm_map.maps)


def _transferred_bytes(host: VmHost, streams: Iterable[Stream]) -> dict[Tenant, tuple[int, int]]:
    """Bytes read and written on the namespaces of these streams, without drives that do not answer."""
    from slo_ctl.drives.control import ControlClient, ControlError

    transferred: dict[Tenant, tuple[int, int]] = {}
    for device in sorted({stream.tenant.device for stream in streams if stream.tenant is not None}):
        try:
            with ControlClient(host.places.devices.run_of(device).control, _DRIVE_TIMEOUT_S) as control:
                namespaces = control.statistics()["namespaces"]
        except ControlError:
            continue
        for namespace in namespaces:
            reads, writes = (namespace["answered"][kind]["bytes"] for kind in ("reads", "writes"))
            transferred[Tenant(device, namespace["name"])] = reads, writes
    return transferred


def _print_inventory(
    inventory: Inventory, transferred: Mapping[Tenant, tuple[int, int]], *, all_known: bool
) -> None:
    from slo_ctl.show.terminal import print_line
    from slo_ctl.show.vms import NO_VMS, print_streams, sources_line

    console = stdout_console()
    print_line(console, sources_line(inventory))
    if inventory.vms:
        console.print()
        print_streams(console, inventory, transferred)
    else:
        print_line(console, NO_VMS if all_known else "no VMs found, but VMs of this host may be missing")


def _status(host: VmHost) -> list[dict[str, Any]] | None:
    """Rows of the daemon's status; None when the daemon is not reachable."""
    try:
        reply = client(host.root).get("/v1/status")
    except UnreachableError:
        return None
    except UserError as error:
        host.notes.append(f"the daemon reports no status: {error.message}")
        return None
    vms = reply.get("vms")
    return [row for row in vms if isinstance(row, dict)] if isinstance(vms, list) else []


def _rows_of_vm(status: list[dict[str, Any]] | None, name: str) -> list[dict[str, Any]] | None:
    return None if status is None else [row for row in status if row.get("vm") == name]


def _status_lines(status: list[dict[str, Any]] | None, host: VmHost) -> list[str]:
    if status is None:
        return [f"daemon: not reachable at {host.places.api_socket}"]
    if not status:
        return ["daemon: no status of this VM yet"]
    return [
        f"daemon: {row.get('verdict')}{f' on {device}' if (device := row.get('device')) else ''}: "
        f"{row.get('reason') or 'no reason'}"
        for row in status
    ]
