"""`slo-ctl vm`: the VMs of this host, their disks and what they are promised."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slo_ctl.cli import vm_attach, vm_map, vm_slo
from slo_ctl.cli.say import remark, tell_json
from slo_ctl.errors import UserError

if TYPE_CHECKING:
    from slo_ctl.observe.cgroup import CgroupTree
    from slo_ctl.observe.inventory import Inventory

app = typer.Typer(
    help="VMs of this host, their disks and what they are promised.",
    rich_markup_mode=None,
)

_CGROUP_ROOT = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Where cgroups are mounted. [default: /sys/fs/cgroup]")
]


@app.command("list")
def list_(
    json_: Annotated[bool, typer.Option("--json", help="One JSON object instead of the table.")] = False,
    connect: Annotated[
        str | None,
        typer.Option(
            metavar="URI", help="The libvirt to ask. [default: qemu:///system, if it can be reached]"
        ),
    ] = None,
    no_libvirt: Annotated[
        bool, typer.Option("--no-libvirt", help="Ask no libvirt: find VMs by their cgroups only.")
    ] = False,
    cgroup_root: _CGROUP_ROOT = None,
    cgroup: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="Treat this cgroup as a VM. Repeatable."),
    ] = None,
) -> None:
    """List VMs and the streams of I/O they make: disk, device, cgroup. Changes nothing."""
    if no_libvirt and connect is not None:
        raise UserError("--connect has no meaning with --no-libvirt", "leave one of them out")
    tree = _tree(cgroup_root)
    named = _named(tree, cgroup or [])
    inventory = _look(tree, None if no_libvirt else connect or "", named)
    if json_:
        from slo_ctl.show.vms import inventory_json

        tell_json(inventory_json(inventory))
        return
    _print(inventory)


app.command("show")(vm_slo.show)
app.command("set")(vm_slo.set_)
app.command("unset")(vm_slo.unset)
app.command("attach")(vm_attach.attach)
app.command("detach")(vm_attach.detach)
app.command("map")(vm_map.map_)
app.command("unmap")(vm_map.unmap)
app.command("maps")(vm_map.maps)


def _tree(root: Path | None) -> CgroupTree | None:
    from slo_ctl.observe.cgroup import find_tree, require_tree

    return find_tree() if root is None else require_tree(root)


def _named(tree: CgroupTree | None, paths: list[str]) -> list[str]:
    from slo_ctl.observe.cgroup import named_group

    if tree is None and paths:
        raise UserError(
            f"--cgroup {paths[0]}: this host has no cgroup tree", "name one with --cgroup-root DIR"
        )
    return [named_group(tree, path) for path in paths] if tree else []


def _look(tree: CgroupTree | None, uri: str | None, named: list[str]) -> Inventory:
    """`uri` is None to ask no libvirt, and empty for the usual one, which need not be there."""
    from slo_ctl.observe.inventory import look
    from slo_ctl.observe.libvirt_domains import DEFAULT_URI, LibvirtError, connect

    if uri is None:
        return look(tree, None, named)
    try:
        with connect(uri or DEFAULT_URI) as libvirt:
            return look(tree, libvirt, named)
    except LibvirtError as error:
        if uri:
            raise UserError(error.reason, error.fix) from None
        remark(f"slo-ctl: {error.reason}; only VMs found by their cgroups are listed")
        return look(tree, None, named)


def _print(inventory: Inventory) -> None:
    from rich.text import Text

    from slo_ctl.show.console import console_for
    from slo_ctl.show.vms import stream_table, where_line

    console = console_for(sys.stdout)
    console.print(Text(where_line(inventory)), soft_wrap=True)
    if inventory.vms:
        console.print()
        console.print(stream_table(inventory))
    else:
        console.print(Text("no VMs found"))
    for note in inventory.notes:
        remark(f"note: {note}")
