"""`slo-ctl vm map|unmap|maps`: namespaces of NVMe drives as disks of VMs."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from slo_ctl.cli.mapping_work import MappingWork, nsid_of
from slo_ctl.cli.option_value import bytes_of
from slo_ctl.cli.say import tell, tell_json
from slo_ctl.cli.vm_host import CONNECT, JSON, NAME, ROOT, VmHost
from slo_ctl.errors import UserError

YES = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DRY_RUN = Annotated[bool, typer.Option("--dry-run", help="Show the steps; change nothing.")]


def map_(
    name: NAME,
    device: Annotated[
        str | None,
        typer.Option("--device", metavar="DRIVE", help="Such as /dev/nvme0, see `slo-ctl device show`."),
    ] = None,
    size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="What the VM sees. [default: all of --adopt's]")
    ] = None,
    adopt: Annotated[
        str | None,
        typer.Option(metavar="NSID", help="Take a namespace that is there: its NSID or block device."),
    ] = None,
    spare: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Keep so much besides, for garbage collection. [default: nothing]"),
    ] = None,
    group: Annotated[
        int | None, typer.Option(metavar="N", help="Endurance group. [default: one for this VM alone]")
    ] = None,
    disk: Annotated[
        bool,
        typer.Option("--disk/--no-disk", help="Give it to the VM through libvirt, or leave that to you."),
    ] = True,
    target: Annotated[
        str | None, typer.Option(metavar="NAME", help="Such as vdb. [default: the next free one]")
    ] = None,
    bus: Annotated[str | None, typer.Option(help="virtio, scsi, sata, usb or ide.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a mapping (or unmapping) that was interrupted.")
    ] = False,
    yes: YES = False,
    dry_run: DRY_RUN = False,
    json_: JSON = False,
    connect: CONNECT = None,
    root: ROOT = None,
) -> None:
    """Give a VM a namespace of an NVMe drive: made for it, or adopted."""
    from slo_ctl.decide.namespace_plan import MapRequest, plan_map

    work = MappingWork(VmHost(root, connect), dry_run=dry_run, yes=yes, json_=json_)
    with work.store.locked():
        unfinished = [each for each in work.store.all() if each.vm == name and not each.complete]
        if resume:
            work.resume(name, unfinished)
            return
        if unfinished:
            raise UserError(
                f"{unfinished[0]} is unfinished",
                f"go on with it: slo-ctl vm map {name} --resume; or undo it: slo-ctl vm unmap {name}",
            )
        if device is None:
            raise UserError("on which drive?", "name it: --device /dev/nvme0; `nvme list` has them")
        drive = work.drive(device)
        request = MapRequest(
            vm=name,
            size_bytes=bytes_of("--size", size, "10GiB") if size is not None else None,
            adopt=nsid_of(adopt, drive) if adopt is not None else None,
            spare_bytes=bytes_of("--spare", spare, "2GiB") if spare is not None else 0,
            group=group,
            disk=disk,
            target=target,
            bus=bus,
        )
        if disk:
            work.check_vm(name)
        plan = plan_map(drive, request, work.surroundings(drive))
        work.confirm_and_carry_out(plan.mapping, None, drive, plan.notes)


def unmap(
    name: NAME,
    namespace: Annotated[
        str | None,
        typer.Argument(
            metavar="NSID", help="The namespace: its NSID or block device, see `slo-ctl vm maps`."
        ),
    ] = None,
    delete: Annotated[
        bool, typer.Option("--delete", help="Destroy the namespace and its data. Only one that slo-ctl made.")
    ] = False,
    unplug: Annotated[bool, typer.Option("--unplug", help="Ask a running VM for its disk back.")] = False,
    forget: Annotated[
        bool, typer.Option("--forget", help="Touch nothing; only forget that it was mapped.")
    ] = False,
    yes: YES = False,
    dry_run: DRY_RUN = False,
    json_: JSON = False,
    connect: CONNECT = None,
    root: ROOT = None,
) -> None:
    """Take a namespace away from its VM. The data stay, unless --delete."""
    from slo_ctl.decide.namespace_plan import plan_unmap

    work = MappingWork(VmHost(root, connect), dry_run=dry_run, yes=yes, json_=json_)
    with work.store.locked():
        found = work.one_mapping(name, namespace)
        if forget:
            work.forget(found)
            return
        drive = work.drive_of(found)
        mapping = work.with_namespace(found, drive)
        if mapping is None:
            return
        undo = plan_unmap(mapping, drive, work.user_of(mapping, drive), delete=delete, unplug=unplug)
        work.confirm_and_carry_out(undo, mapping, drive)


def maps(json_: JSON = False, root: ROOT = None) -> None:
    """List VMs on namespaces of NVMe drives. Changes nothing."""
    from slo_ctl.show.console import console_for
    from slo_ctl.show.mappings import mapping_table, mappings_json

    host = VmHost(root)
    found = MappingWork(host).store.all()
    if json_:
        tell_json(mappings_json(found))
    elif found:
        console_for(sys.stdout).print(mapping_table(found))
    else:
        tell("no VM is mapped onto an NVMe namespace")
