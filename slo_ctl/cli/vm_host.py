"""What the verbs of `slo-ctl vm` need to know about the host: configuration, VMs there are, places."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slo_ctl.cli.completion_names import complete_vm
from slo_ctl.errors import UserError

if TYPE_CHECKING:
    from slo_ctl.config import Config
    from slo_ctl.daemon.places import DaemonPlaces
    from slo_ctl.decide.promises import Promise
    from slo_ctl.model import Stream, Vm
    from slo_ctl.observe.cgroup import CgroupTree
    from slo_ctl.observe.inventory import Inventory
    from slo_ctl.promises import SloFields

NAME = Annotated[
    str,
    typer.Argument(metavar="NAME", help="The VM, as in `slo-ctl vm list`.", autocompletion=complete_vm),
]
ROOT = Annotated[
    Path | None,
    typer.Option(
        "--root",
        metavar="DIR",
        help="Configuration, state and sockets are below DIR, for trying out. [default: those of the system]",
    ),
]
CONNECT = Annotated[
    str | None,
    typer.Option(metavar="URI", help="The libvirt to ask. [default: that of the configuration]"),
]
JSON = Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")]


@dataclass
class VmHost:
    """One look at the host, each part of it when it is asked for."""

    root: Path | None
    connect: str | None = None
    """Instead of the configuration's libvirt; it has to answer."""

    def __post_init__(self) -> None:
        self.notes: list[str] = []

    @cached_property
    def places(self) -> DaemonPlaces:
        """Where things are."""
        from slo_ctl.daemon.places import DaemonPlaces

        return DaemonPlaces(self.root)

    @cached_property
    def config(self) -> Config:
        """The configuration; a mistake in it is a note, and then the defaults stand in."""
        from slo_ctl.config import DEFAULTS, load

        try:
            return load(self.places.config)
        except UserError as error:
            self.notes.append(f"the configuration is left out: {error}")
            return DEFAULTS

    @cached_property
    def libvirt_uri(self) -> str | None:
        """None: no libvirt is asked."""
        return self.connect or self.config.libvirt.uri

    @cached_property
    def inventory(self) -> Inventory:
        """VMs and streams. A libvirt that does not answer is a note, unless it was named."""
        from slo_ctl.observe.inventory import look
        from slo_ctl.observe.libvirt_domains import LibvirtError, connect

        tree, cgroups = self._tree_and_cgroups()
        if self.libvirt_uri is None:
            return look(tree, None, cgroups)
        try:
            with connect(self.libvirt_uri) as libvirt:
                return look(tree, libvirt, cgroups)
        except LibvirtError as error:
            if self.connect:
                raise UserError(error.reason, error.fix) from None
            self.notes.append(f"VMs of libvirt are not known: {error.reason}")
            return look(tree, None, cgroups)

    def _tree_and_cgroups(self) -> tuple[CgroupTree | None, list[str]]:
        """The tree, and the groups in it that the configuration treats as VMs."""
        from slo_ctl.config import DEFAULTS
        from slo_ctl.observe.cgroup import find_tree, named_group, require_tree

        if self.config.cgroup_root == DEFAULTS.cgroup_root:
            tree = find_tree()
        else:
            try:
                tree = require_tree(self.config.cgroup_root)
            except UserError as error:
                self.notes.append(str(error))
                tree = None
        cgroups = []
        for vm in self.config.vms.values():
            if tree is None or vm.cgroup is None:
                continue
            try:
                cgroups.append(named_group(tree, vm.cgroup))
            except UserError as error:
                self.notes.append(f"VM {vm.name} ({vm.source}): {error.message}")
        return tree, cgroups

    def vm(self, name: str) -> Vm | None:
        """What there is of that name; for a VM by its cgroup, the name that the configuration gives it."""
        given = self.config.vms.get(name)
        for vm in self.inventory.vms:
            if vm.name == name or (given and given.cgroup and vm.cgroup == given.cgroup):
                return vm
        return None

    def streams(self, vm: Vm | None) -> list[Stream]:
        """Those of one VM."""
        return [s for s in self.inventory.streams if vm and (s.vm, s.cgroup) == (vm.name, vm.cgroup)]

    def names(self) -> list[str]:
        """Of every VM there is, and of those in the configuration."""
        by_cgroup = {vm.cgroup: vm.name for vm in self.config.vms.values() if vm.cgroup}
        there = {by_cgroup.get(vm.cgroup or "", vm.name) for vm in self.inventory.vms}
        return sorted({*there, *self.config.vms})

    def require(self, name: str) -> None:
        """Raise UserError unless there is such a VM, or the configuration has one."""
        if name in self.config.vms or self.vm(name) is not None:
            return
        raise self.unknown(name)

    def unknown(self, name: str) -> UserError:
        """The refusal of a VM that is not there."""
        from difflib import get_close_matches

        names = self.names()
        near = get_close_matches(name, names, n=1)
        listed = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
        there = f"there are {listed}" if names else "there is none"
        guess = f"did you mean {near[0]}? " if near else ""
        unseen = f" ({self.notes[-1]})" if self.notes else ""
        return UserError(
            f"there is no VM {name}: {there}{unseen}", f"{guess}`slo-ctl vm list` shows them all"
        )

    def metadata(self, name: str) -> SloFields:
        """What libvirt's metadata of the VM promise."""
        from slo_ctl.model import FoundBy
        from slo_ctl.observe.domain_metadata import fields_of, read_xml

        vm = self.vm(name)
        if vm is None or vm.found_by is not FoundBy.LIBVIRT or self.libvirt_uri is None:
            return {}
        xml = read_xml(self.libvirt_uri, vm.name)
        return fields_of(xml, self.notes.append) if xml else {}

    def said(self, name: str) -> dict[str, SloFields]:
        """What each source says about the VM, as `resolve` takes it."""
        from slo_ctl.decide.promises import METADATA, VM_SET
        from slo_ctl.promises import PromiseStore

        set_here = PromiseStore(self.places.promises).all().get(name, {})
        given = self.config.vms.get(name)
        found = {VM_SET: set_here, METADATA: self.metadata(name), **(given.by_source() if given else {})}
        return {source: fields for source, fields in found.items() if fields}

    def promise(self, name: str) -> Promise:
        """The SLO in force."""
        from slo_ctl.decide.promises import resolve

        return resolve(name, self.said(name), self.config.default_slo)
