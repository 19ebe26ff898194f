"""`slo-ctl vm map|unmap|maps`: namespaces of NVMe drives as disks of VMs."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slo_ctl.base.errors import UserError
from slo_ctl.cli.options import CONNECT, JSON, ROOT, VM, YES, bytes_of
from slo_ctl.cli.output import print_json, print_lines, stdout_console, warn, warn_notes
from slo_ctl.cli.vm_host import VmHost

if TYPE_CHECKING:
    from slo_ctl.act.domain import WritableDomain
    from slo_ctl.decide.namespace_plan import DriveContext
    from slo_ctl.host.nvme.command import NvmeTool
    from slo_ctl.model.mapping import NamespaceMapping, Step
    from slo_ctl.model.nvme import NvmeDevice

SYS, DEV = Path("/sys"), Path("/dev")


def nsid_of(text: str, drive: NvmeDevice) -> int:
    """From an NSID or the name of a block device, whose number is not the NSID. Raises UserError."""
    if text.isascii() and text.isdigit() and len(text) <= 10:
        return int(text)
    name = text.removeprefix("/dev/")
    found = next((namespace.nsid for namespace in drive.namespaces if namespace.name == name), None)
    if found is None:
        existing = ", ".join(
            f"{namespace.nsid} ({namespace.name or 'detached'})" for namespace in drive.namespaces
        )
        raise UserError(f"{drive.controller.name} has no namespace {text}", f"it has {existing or 'none'}")
    return found


class MappingCommand:
    """Common parts of `vm map` and `vm unmap`. Methods raise UserError."""

    def __init__(self, host: VmHost, *, dry_run: bool, yes: bool, json_: bool) -> None:
        from slo_ctl.act.mapping import MappingStore

        self._host = host
        self._dry_run = dry_run
        self._yes = yes
        self._json = json_
        self.store = MappingStore(host.places.mappings)

    @cached_property
    def tool(self) -> NvmeTool:
        from slo_ctl.host.nvme.command import NvmeTool

        return NvmeTool()

    def drive(self, device: str) -> NvmeDevice:
        from slo_ctl.host.nvme.drive import controller_of, discover

        return discover(self.tool, controller_of(device, SYS), SYS)

    def drive_of(self, mapping: NamespaceMapping) -> NvmeDevice:
        """The drive of a mapping, whatever the kernel calls it now."""
        from slo_ctl.decide.namespace_plan import identity_of
        from slo_ctl.host.nvme.drive import attribute, controllers, discover

        # Its last name first: names rarely change.
        for name in sorted(controllers(SYS), key=lambda name: name != mapping.controller):
            if attribute(SYS, name, "serial") in ("", mapping.drive.serial):
                found = discover(self.tool, name, SYS)
                if identity_of(found) == mapping.drive:
                    return found
        hint = f"reinstall it, or remove the mapping: {_unmap_command(mapping)} --forget"
        raise UserError(f"{mapping}: the drive is missing", hint)

    def drive_context(self, drive: NvmeDevice) -> DriveContext:
        """Formats, users and mappings of the drive."""
        from slo_ctl.act.mapping import Namespaces
        from slo_ctl.decide.namespace_plan import DriveContext, identity_of

        namespaces = Namespaces(self.tool, drive, SYS, DEV)
        mappings = tuple(mapping for mapping in self.store.all() if mapping.drive == identity_of(drive))
        users = self._users(drive)
        users.update(
            {mapping.nsid: f"mapped to VM {mapping.vm}" for mapping in mappings if mapping.nsid is not None}
        )
        return DriveContext(
            formats=namespaces.formats() if drive.controller.namespace_management else (),
            users=users,
            mappings=mappings,
            supports_placement_handles=namespaces.supports_placement_handles(),
        )

    def _users(self, drive: NvmeDevice, except_vm: str = "") -> dict[int, str]:
        from slo_ctl.host.nvme.drive import users_of

        return users_of(drive, self._host.inventory.vms, SYS, DEV, except_vm=except_vm)

    def user_of(self, mapping: NamespaceMapping, drive: NvmeDevice) -> str:
        """The current user of a mapped namespace, including its VM when it runs; empty: none."""
        vm = self._host.vm(mapping.vm)
        running = vm is not None and not vm.state.is_off
        return self._users(drive, "" if running else mapping.vm).get(mapping.nsid or 0, "")

    def lock(self) -> AbstractContextManager[None]:
        """The lock for mapping and unmapping; none for a dry run, which leaves no file behind."""
        return nullcontext() if self._dry_run else self.store.locked()

    def check_vm(self, name: str) -> None:
        """Raise UserError unless libvirt has the VM, before anything is created for it."""
        with self._domains(name):
            pass

    def one_mapping(self, vm: str, namespace: str | None) -> NamespaceMapping:
        """The mapping of a VM and a namespace, which is optional if only one has no NSID yet."""
        mappings = [mapping for mapping in self.store.all() if mapping.vm == vm]
        if not mappings:
            raise UserError(f"VM {vm} has no mapped namespace", "see `slo-ctl vm maps`")
        nsids = ", ".join(str(mapping.nsid or "(new)") for mapping in mappings)
        uncreated = [mapping for mapping in mappings if mapping.nsid is None]
        if namespace is None:
            if len(uncreated) == 1:
                return uncreated[0]
            raise UserError(f"VM {vm} has mapped namespaces {nsids}", "give the NSID of the one to unmap")
        matching = [
            mapping
            for mapping in mappings
            if mapping.nsid is not None and self._is_namespace(mapping, namespace)
        ]
        if len(matching) != 1:
            problem = "has no namespace" if not matching else "has on several drives a namespace"
            raise UserError(f"VM {vm} {problem} {namespace}", f"it has {nsids}; give the block device")
        return matching[0]

    def _is_namespace(self, mapping: NamespaceMapping, namespace: str) -> bool:
        if namespace.isascii() and namespace.isdigit():
            return int(namespace[:10]) == mapping.nsid
        drive = self.drive_of(mapping)
        found = drive.namespace(mapping.nsid or 0)
        name = found.name if found is not None else None
        return name is not None and namespace.removeprefix("/dev/") == name

    def with_namespace(self, mapping: NamespaceMapping, drive: NvmeDevice) -> NamespaceMapping | None:
        """The mapping with its NSID, also after a crash during the creation of the namespace.

        None: it had not been created, and the mapping is removed.
        """
        if mapping.nsid is not None:
            return mapping
        nsid = self._nsid_after_crash(mapping, drive)
        if nsid is None:
            if not self._dry_run:
                self.store.put(mapping, None)
            removed = "would be removed" if self._dry_run else "is removed"
            note = f"its namespace had not been created; the mapping {removed}"
            if self._json:
                self._print_json(mapping, [note])
            else:
                print_lines(f"{mapping.vm}: {note}")
            return None
        created = replace(mapping, nsid=nsid, done=1)
        if not self._dry_run:
            self.store.put(mapping, created)
        return created

    def _nsid_after_crash(self, mapping: NamespaceMapping, drive: NvmeDevice) -> int | None:
        from slo_ctl.decide.namespace_plan import created_before_crash

        if mapping.namespaces_before is None:
            return None
        mappings = (each for each in self.store.all() if each.drive == mapping.drive)
        return created_before_crash(mapping, drive, [each.nsid for each in mappings if each.nsid is not None])

    def resume(self, vm: str, unfinished: Sequence[NamespaceMapping]) -> None:
        """Complete an interrupted mapping."""
        from slo_ctl.decide.namespace_plan import same_namespace

        if not unfinished:
            raise UserError(f"VM {vm} has no interrupted mapping", "see `slo-ctl vm maps`")
        for mapping in unfinished:
            drive = self.drive_of(mapping)
            todo = replace(mapping, controller=drive.controller.name)
            if mapping.nsid is None and mapping.namespaces_before is not None:
                nsid = self._nsid_after_crash(mapping, drive)
                todo = replace(todo, nsid=nsid, done=1) if nsid else replace(todo, namespaces_before=None)
            if drive.namespace(todo.nsid or 0) is not None:
                same_namespace(todo, drive)  # the remaining steps may destroy data
            self.confirm_and_carry_out(todo, mapping, drive)

    def forget(self, mapping: NamespaceMapping) -> None:
        """Remove only the record of a mapping."""
        note = "remove the record; nothing else is changed"
        if not self._json:
            print_lines(f"{mapping}: {note}")
        if self._confirm():
            self.store.put(mapping, None)
        if self._json:
            self._print_json(mapping, [note])

    def confirm_and_carry_out(
        self,
        mapping: NamespaceMapping,
        previous: NamespaceMapping | None,
        drive: NvmeDevice,
        notes: Sequence[str] = (),
    ) -> None:
        """Show the remaining steps, ask for confirmation, carry them out, print the result."""
        from slo_ctl.act.mapping import MappingRun, Namespaces
        from slo_ctl.show.vms import plan_lines, result_line, step_line

        if self._json and self._dry_run:
            self._print_json(mapping, notes)
            return
        if not self._json:
            print_lines(*plan_lines(mapping, drive))
        warn_notes(notes)
        if not self._confirm():
            return
        namespaces = Namespaces(self.tool, drive, SYS, DEV)

        def user_of(nsid: int) -> str:
            return self._users(drive, mapping.vm).get(nsid, "")

        run = MappingRun(self.store, drive, namespaces, self._domains, DEV, user_of)

        def show(step: Step) -> None:
            if not self._json:
                warn(f"... {step_line(step, mapping)}")

        after = run.carry_out(mapping, previous, show)
        if self._json:
            self._print_json(after or mapping, notes)
        else:
            print_lines(result_line(after, mapping))

    def _print_json(self, mapping: NamespaceMapping, notes: Sequence[str]) -> None:
        from slo_ctl.show.vms import mapping_json

        print_json({**mapping_json(mapping), "dry_run": self._dry_run, "notes": list(notes)})

    def _confirm(self) -> bool:
        """Ask for confirmation; False for a dry run. Raises typer.Abort when the operator declines."""
        if self._dry_run:
            return False
        if not self._yes:
            if self._json or not sys.stdin.isatty():
                raise UserError(
                    "confirmation needed, but stdin is not a terminal", "add --yes, or see --dry-run"
                )
            typer.confirm("Proceed?", abort=True)
        return True

    def _domains(self, name: str) -> AbstractContextManager[WritableDomain]:
        from slo_ctl.act.domain import writable_domain

        if self._host.libvirt_uri is None:
            raise UserError(
                "libvirt is not configured", "set [libvirt] uri, or use --connect URI or --no-disk"
            )
        return writable_domain(self._host.libvirt_uri, name)


def _unmap_command(mapping: NamespaceMapping) -> str:
    return shlex.join(["slo-ctl", "vm", "unmap", mapping.vm, *([str(mapping.nsid)] if mapping.nsid else [])])


_DRY_RUN = Annotated[bool, typer.Option("--dry-run", help="Show the steps; change nothing.")]


def map_(
    name: VM,
    device: Annotated[
        str | None, typer.Option("--device", metavar="DRIVE", help="The drive, such as /dev/nvme0.")
    ] = None,
    size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Size that the VM sees. [default: that of --adopt]")
    ] = None,
    adopt: Annotated[
        str | None, typer.Option(metavar="NSID", help="Use an existing namespace, by NSID or block device.")
    ] = None,
    spare: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Extra capacity reserved for garbage collection. [default: none]"),
    ] = None,
    group: Annotated[
        int | None, typer.Option(metavar="N", help="Endurance group. [default: one of its own]")
    ] = None,
    disk: Annotated[
        bool, typer.Option("--disk/--no-disk", help="Attach it to the VM through libvirt, or only create it.")
    ] = True,
    target: Annotated[
        str | None, typer.Option(metavar="NAME", help="Disk name, such as vdb. [default: the next free one]")
    ] = None,
    bus: Annotated[str | None, typer.Option(help="virtio, scsi, sata, usb or ide.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Complete an interrupted map or unmap.")] = False,
    yes: YES = False,
    dry_run: _DRY_RUN = False,
    json_: JSON = False,
    connect: CONNECT = None,
    root: ROOT = None,
) -> None:
    """Map a VM onto a namespace of an NVMe drive, created for it or adopted.

    Examples:
    slo-ctl vm map web --device /dev/nvme0 --size 20GiB
    slo-ctl vm map web --device /dev/nvme0 --adopt 3
    """
    from slo_ctl.decide.namespace_plan import MapRequest, plan_map

    command = MappingCommand(VmHost(root, connect), dry_run=dry_run, yes=yes, json_=json_)
    with command.lock():
        unfinished = [each for each in command.store.all() if each.vm == name and not each.complete]
        if resume:
            command.resume(name, unfinished)
            return
        if unfinished:
            raise UserError(
                f"{unfinished[0]} is unfinished",
                f"complete it: slo-ctl vm map {shlex.quote(name)} --resume; "
                f"or undo it: {_unmap_command(unfinished[0])}",
            )
        if device is None:
            raise UserError("--device is missing", "such as --device /dev/nvme0, see `nvme list`")
        drive = command.drive(device)
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
            command.check_vm(name)
        plan = plan_map(drive, request, command.drive_context(drive))
        command.confirm_and_carry_out(plan.mapping, None, drive, plan.notes)


def unmap(
    name: VM,
    namespace: Annotated[
        str | None,
        typer.Argument(
            metavar="NSID", help="The namespace: its NSID or block device, see `slo-ctl vm maps`."
        ),
    ] = None,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete the namespace and its data, if slo-ctl created it.")
    ] = False,
    unplug: Annotated[bool, typer.Option("--unplug", help="Unplug the disk from a running VM.")] = False,
    forget: Annotated[bool, typer.Option("--forget", help="Only remove the record of the mapping.")] = False,
    yes: YES = False,
    dry_run: _DRY_RUN = False,
    json_: JSON = False,
    connect: CONNECT = None,
    root: ROOT = None,
) -> None:
    """Unmap a namespace from its VM. The data stay, unless --delete.

    Examples:
    slo-ctl vm unmap web 3
    slo-ctl vm unmap web 3 --delete
    """
    from slo_ctl.decide.namespace_plan import plan_unmap

    command = MappingCommand(VmHost(root, connect), dry_run=dry_run, yes=yes, json_=json_)
    with command.lock():
        recorded = command.one_mapping(name, namespace)
        if forget:
            command.forget(recorded)
            return
        drive = command.drive_of(recorded)
        mapping = command.with_namespace(recorded, drive)
        if mapping is None:
            return
        undo = plan_unmap(mapping, drive, command.user_of(mapping, drive), delete=delete, unplug=unplug)
        command.confirm_and_carry_out(undo, mapping, drive)


def maps(json_: JSON = False, root: ROOT = None) -> None:
    """List VMs mapped onto namespaces of NVMe drives.

    Examples:
    slo-ctl vm maps --json
    """
    from slo_ctl.act.mapping import MappingStore
    from slo_ctl.show.vms import mapping_json, print_mappings

    found = MappingStore(VmHost(root).places.mappings).all()
    if json_:
        print_json({"mappings": [mapping_json(each) for each in found]})
    elif found:
        print_mappings(stdout_console(), found)
    else:
        print_lines("no VM is mapped onto an NVMe namespace")
