"""What mapping and unmapping have in common: the drive, what is on it, the operator's consent, the steps."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from slo_ctl.cli.say import remark, tell, tell_json
from slo_ctl.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from slo_ctl.act.domain_metadata import WritableDomain
    from slo_ctl.cli.vm_host import VmHost
    from slo_ctl.decide.namespace_plan import Surroundings
    from slo_ctl.model.mapping import Mapping, Step
    from slo_ctl.model.nvme import NvmeDevice
    from slo_ctl.nvme.command import NvmeTool

SYS, DEV = Path("/sys"), Path("/dev")


def nsid_of(text: str, drive: NvmeDevice) -> int:
    """From an NSID or the name of a block device, whose number is not the NSID. Raises UserError."""
    if text.isascii() and text.isdigit() and len(text) <= 10:
        return int(text)
    name = text.removeprefix("/dev/")
    found = next((each.nsid for each in drive.namespaces if each.name == name), None)
    if found is None:
        known = ", ".join(f"{each.nsid} ({each.name or 'detached'})" for each in drive.namespaces)
        raise UserError(f"{drive.controller.name} has no namespace {text}", f"it has {known or 'none'}")
    return found


class MappingWork:
    """One command's work on the mappings of this host. Every method raises UserError."""

    def __init__(
        self, host: VmHost, *, dry_run: bool = False, yes: bool = False, json_: bool = False
    ) -> None:
        from slo_ctl.act.nvme.store import MappingStore

        self._host = host
        self._dry_run = dry_run
        self._yes = yes
        self._json = json_
        self._tool: NvmeTool | None = None
        self.store = MappingStore(host.places.mappings)

    @property
    def tool(self) -> NvmeTool:
        """nvme-cli."""
        from slo_ctl.nvme.command import NvmeTool

        if self._tool is None:
            self._tool = NvmeTool()
        return self._tool

    def drive(self, device: str) -> NvmeDevice:
        """Everything about the drive that `device` names."""
        from slo_ctl.observe.nvme import controller_of, discover

        return discover(self.tool, controller_of(device, SYS), SYS)

    def drive_of(self, mapping: Mapping) -> NvmeDevice:
        """The drive of a mapping, whatever the kernel calls it now."""
        from slo_ctl.decide.namespace_identity import identity_of
        from slo_ctl.observe import nvme_sysfs
        from slo_ctl.observe.nvme import discover

        # The name that it had comes first: mostly it still has it.
        names = sorted(nvme_sysfs.controllers(SYS), key=lambda name: name != mapping.controller)
        for name in names:
            if nvme_sysfs.attribute(SYS, name, "serial") in ("", mapping.drive.serial):
                found = discover(self.tool, name, SYS)
                if identity_of(found) == mapping.drive:
                    return found
        raise UserError(f"{mapping}: this host has no such drive", f"put it back, or {_forget(mapping)}")

    def surroundings(self, drive: NvmeDevice) -> Surroundings:
        """What else is on the drive."""
        from slo_ctl.act.nvme.namespaces import Namespaces
        from slo_ctl.decide.namespace_identity import identity_of
        from slo_ctl.decide.namespace_plan import Surroundings

        namespaces = Namespaces(self.tool, drive, SYS, DEV)
        mine = tuple(each for each in self.store.all() if each.drive == identity_of(drive))
        users = self._users(drive)
        users.update({each.nsid: f"mapped to VM {each.vm}" for each in mine if each.nsid is not None})
        return Surroundings(
            formats=namespaces.formats() if drive.controller.namespace_management else (),
            users=users,
            mappings=mine,
            places_handles=namespaces.places_handles(),
        )

    def _users(self, drive: NvmeDevice, except_vm: str = "") -> dict[int, str]:
        from slo_ctl.observe.nvme_use import users_of

        return users_of(drive, self._host.inventory.vms, SYS, DEV, except_vm=except_vm)

    def user_of(self, mapping: Mapping, drive: NvmeDevice) -> str:
        """Who uses a mapped namespace now, its VM included when it runs; empty: nobody."""
        from slo_ctl.model import VmState

        vm = self._host.vm(mapping.vm)
        running = vm is not None and vm.state not in (VmState.SHUT_OFF, VmState.CRASHED)
        return self._users(drive, "" if running else mapping.vm).get(mapping.nsid or 0, "")

    def check_vm(self, name: str) -> None:
        """Raise UserError unless libvirt has the VM: before anything is made for it."""
        with self._domains(name):
            pass

    def one_mapping(self, vm: str, namespace: str | None) -> Mapping:
        """The mapping that a VM's name and a namespace mean."""
        mine = [each for each in self.store.all() if each.vm == vm]
        if not mine:
            raise UserError(f"VM {vm} is mapped onto no namespace", "`slo-ctl vm maps` has those that are")
        listed = ", ".join(str(each.nsid or "(new)") for each in mine)
        unmade = [each for each in mine if each.nsid is None]
        if namespace is None:
            if len(unmade) == 1:
                return unmade[0]
            raise UserError(
                f"which namespace of VM {vm}?", f"name it, as it is to be taken away: it has {listed}"
            )
        named = [each for each in mine if each.nsid is not None and self._names(each, namespace)]
        if len(named) != 1:
            problem = "has no namespace" if not named else "has on several drives a namespace"
            raise UserError(f"VM {vm} {problem} {namespace}", f"it has {listed}; name the block device")
        return named[0]

    def _names(self, mapping: Mapping, namespace: str) -> bool:
        if namespace.isascii() and namespace.isdigit():
            return int(namespace[:10]) == mapping.nsid
        drive = self.drive_of(mapping)
        known = drive.namespace(mapping.nsid or 0)
        name = known.name if known is not None else None
        return name is not None and namespace.removeprefix("/dev/") == name

    def with_namespace(self, mapping: Mapping, drive: NvmeDevice) -> Mapping | None:
        """The mapping with its namespace known, also after a crash while that was being made.

        None: it had not been made, and the mapping is forgotten.
        """
        if mapping.nsid is not None:
            return mapping
        nsid = self._nsid_after_crash(mapping, drive)
        if nsid is None:
            if not self._dry_run:
                self.store.put(mapping, None)
            tell(f"{mapping.vm}: no namespace had been made for it: the mapping is forgotten")
            return None
        made = replace(mapping, nsid=nsid, done=1)
        if not self._dry_run:
            self.store.put(mapping, made)
        return made

    def _nsid_after_crash(self, mapping: Mapping, drive: NvmeDevice) -> int | None:
        from slo_ctl.decide.namespace_identity import ours_after_crash

        if mapping.namespaces_before is None:
            return None
        mine = (each for each in self.store.all() if each.drive == mapping.drive)
        return ours_after_crash(mapping, drive, [each.nsid for each in mine if each.nsid is not None])

    def resume(self, vm: str, unfinished: Sequence[Mapping]) -> None:
        """Do what an interrupted run left to do."""
        from slo_ctl.decide.namespace_identity import same_namespace

        if not unfinished:
            raise UserError(f"nothing of VM {vm} was interrupted", "`slo-ctl vm maps` has its namespaces")
        for mapping in unfinished:
            drive = self.drive_of(mapping)
            todo = replace(mapping, controller=drive.controller.name)
            if mapping.nsid is None and mapping.namespaces_before is not None:
                nsid = self._nsid_after_crash(mapping, drive)
                todo = replace(todo, nsid=nsid, done=1) if nsid else replace(todo, namespaces_before=None)
            if drive.namespace(todo.nsid or 0) is not None:
                same_namespace(todo, drive)  # what is left to do may destroy data
            self.confirm_and_carry_out(todo, mapping, drive)

    def forget(self, mapping: Mapping) -> None:
        """Only remove the record."""
        tell(f"{mapping}: forget it; nothing else is touched")
        if self._consent():
            self.store.put(mapping, None)

    def confirm_and_carry_out(
        self, mapping: Mapping, previous: Mapping | None, drive: NvmeDevice, notes: Sequence[str] = ()
    ) -> None:
        """Show the steps that are left, ask, do them, tell what came of it."""
        from slo_ctl.act.nvme.carry_out import MappingRun
        from slo_ctl.act.nvme.namespaces import Namespaces
        from slo_ctl.show.mappings import mapping_json, plan_lines, result_line, step_line

        if self._json and self._dry_run:
            tell_json({**mapping_json(mapping), "dry_run": True, "notes": list(notes)})
            return
        if not self._json:
            tell(*plan_lines(mapping, drive))
        for note in notes:
            remark(f"note: {note}")
        if not self._consent():
            return
        namespaces = Namespaces(self.tool, drive, SYS, DEV)

        def user_of(nsid: int) -> str:
            return self._users(drive, mapping.vm).get(nsid, "")

        run = MappingRun(self.store, drive, namespaces, self._domains, DEV, user_of)

        def show(step: Step) -> None:
            if not self._json:
                remark(f"... {step_line(step, mapping)}")

        after = run.carry_out(mapping, previous, show)
        if self._json:
            tell_json({**mapping_json(after or mapping), "dry_run": False, "notes": list(notes)})
        else:
            tell(result_line(after, mapping))

    def _consent(self) -> bool:
        """False: it is a dry run. Raises typer.Abort when the operator says no."""
        if self._dry_run:
            return False
        if not self._yes:
            if self._json or not sys.stdin.isatty():
                raise UserError("nothing was done: nobody can be asked", "add --yes, or look with --dry-run")
            typer.confirm("Do this?", abort=True)
        return True

    def _domains(self, name: str) -> AbstractContextManager[WritableDomain]:
        from slo_ctl.act.domain_metadata import writable_domain

        if self._host.libvirt_uri is None:
            raise UserError("no libvirt is configured", "see [libvirt] uri, --connect URI, or --no-disk")
        return writable_domain(self._host.libvirt_uri, name)


def _forget(mapping: Mapping) -> str:
    words = ["slo-ctl vm unmap", mapping.vm, *([str(mapping.nsid)] if mapping.nsid else []), "--forget"]
    return f"forget the mapping: {' '.join(words)}"
