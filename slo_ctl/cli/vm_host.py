"""The host for the commands about VMs: configuration, VMs, and the SLO of each."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from slo_ctl.base.errors import UserError
from slo_ctl.base.patterns import expand, is_pattern
from slo_ctl.base.text import toml_key
from slo_ctl.cli.output import notes_about
from slo_ctl.daemon.files import DaemonPlaces
from slo_ctl.drives.places import ExportPaths

if TYPE_CHECKING:
    from slo_ctl.config.settings import Config
    from slo_ctl.daemon.slos import EpochSlos
    from slo_ctl.host.cgroup import CgroupTree
    from slo_ctl.model.host import Stream, Vm
    from slo_ctl.model.slo import SloBySource, SloFields
    from slo_ctl.observe.streams import Inventory
    from slo_ctl.record.slo_store import StoredSlos


def is_many(patterns: Sequence[str]) -> bool:
    """Whether command-line words name several VMs or a pattern, not one VM by its name."""
    return len(patterns) > 1 or any(map(is_pattern, patterns))


@dataclass
class VmHost:
    """A snapshot of the host; each part is read when it is first needed."""

    root: Path | None
    connect: str | None = None
    """URI that replaces the configured one, and has to be reachable."""
    use_libvirt: bool = True
    cgroup_root: Path | None = None
    """Directory that replaces the configured one, and has to be a cgroup hierarchy."""
    cgroups: tuple[str, ...] = ()
    """Groups that are VMs in addition to those of the configuration."""

    def __post_init__(self) -> None:
        self.notes: list[str] = []
        self.gaps: list[str] = []
        """Why `names` may lack VMs of the host."""

    @cached_property
    def places(self) -> DaemonPlaces:
        """Files of the daemon in use."""
        return DaemonPlaces.in_use(self.root)

    @cached_property
    def config(self) -> Config:
        """The configuration; the defaults, with a note, when it has an error."""
        from slo_ctl.config.load import load
        from slo_ctl.config.settings import DEFAULTS

        try:
            return load(self.places.config)
        except UserError as error:
            self._lacks_vms(f"the configuration is ignored: {error}")
            return DEFAULTS

    @cached_property
    def libvirt_uri(self) -> str | None:
        """None: libvirt is not used."""
        if not self.use_libvirt:
            return None
        return self.connect or self.config.libvirt.uri

    @property
    def required_uri(self) -> str:
        """As `libvirt_uri`. Raises UserError where libvirt is not used."""
        if self.libvirt_uri is None:
            raise UserError("libvirt is not configured", "set [libvirt] uri, or use --connect URI")
        return self.libvirt_uri

    @cached_property
    def inventory(self) -> Inventory:
        """VMs and streams, as the daemon sees them.

        A libvirt that is not reachable is a note, unless --connect names it.
        """
        from slo_ctl.host.libvirt import LibvirtError, connect
        from slo_ctl.observe.streams import read_inventory

        tree, named = self._tree_and_groups()
        namespaces, run = self.config.namespaces_of, self.places.devices.run
        scan = partial(read_inventory, tree, cgroups=named, namespaces=namespaces, run=run)
        if self.libvirt_uri is None:
            return scan(None)
        try:
            with connect(self.libvirt_uri) as libvirt:
                return scan(libvirt)
        except LibvirtError as error:
            if self.connect:
                raise
            self._lacks_vms(f"{error.message}; only VMs found by their cgroups are known")
            return scan(None)

    def _lacks_vms(self, reason: str) -> None:
        self.notes.append(reason)
        self.gaps.append(reason)

    def unknown_clients(self) -> list[str]:
        """A sentence for each namespace with a client that is not one of the VMs."""
        from slo_ctl.host.processes import connections

        exports = ExportPaths(self.places.devices.run)
        tenants_of_vms = {stream.tenant for stream in self.inventory.streams}
        try:
            tenants_in_use = {exports.tenant_of(path) for path in connections(exports.is_export).values()}
        except OSError:
            return []
        return [
            f"{tenant} is used by no known VM: add [vm.{toml_key(tenant.namespace)}] with "
            f'namespaces = ["{tenant}"] to {self.places.config}/slo-ctl.toml'
            for tenant in sorted(
                each for each in tenants_in_use if each is not None and each not in tenants_of_vms
            )
        ]

    def _tree_and_groups(self) -> tuple[CgroupTree | None, dict[str, str]]:
        """The cgroup tree, and the groups in it that options and configuration define as VMs, by name."""
        from slo_ctl.config.settings import DEFAULTS
        from slo_ctl.host.cgroup import find_tree, missing_group, named_group, require_tree

        if self.cgroup_root is not None:
            tree: CgroupTree | None = require_tree(self.cgroup_root)
        elif self.config.cgroup.root == DEFAULTS.cgroup.root:
            tree = find_tree()
        else:
            try:
                tree = require_tree(self.config.cgroup.root)
            except UserError as error:
                self._lacks_vms(str(error))
                tree = None
        if tree is None and self.cgroups:
            raise UserError(
                f"--cgroup {self.cgroups[0]}: this host has no cgroup tree", "give one with --cgroup-root DIR"
            )
        names = {group: group for path in self.cgroups if tree for group in [named_group(tree, path)]}
        for vm in self.config.vms.values():
            if tree is None or vm.cgroup is None:
                continue
            subject = f"VM {vm.name} ({vm.source})"
            try:
                names[named_group(tree, vm.cgroup, "cgroup")] = vm.name
            except UserError as error:
                exists = tree.folder(vm.cgroup).is_dir()
                reason = error.message if exists else missing_group(tree, vm.name, vm.cgroup)
                self.notes.append(f"{subject}: {reason}")
        return tree, {name: group for group, name in names.items()}

    def vm(self, name: str) -> Vm | None:
        return next((vm for vm in self.inventory.vms if vm.name == name), None)

    def streams(self, vm: Vm | None) -> list[Stream]:
        return [s for s in self.inventory.streams if vm and (s.vm, s.cgroup) == (vm.name, vm.cgroup)]

    def names(self) -> list[str]:
        """Names of all VMs of the host and of the configuration."""
        return sorted({*(vm.name for vm in self.inventory.vms), *self.config.vms})

    def unknown(self, name: str) -> UserError:
        """The error about a VM that does not exist."""
        from difflib import get_close_matches

        names = self.names()
        folded = {each.casefold(): each for each in names}
        similar = get_close_matches(name.casefold(), folded, n=1)
        suggestion = f"did you mean {folded[similar[0]]}? " if similar else ""
        return UserError(
            f"VM {name} not found: {self._existing(names)}", f"{suggestion}`slo-ctl vm list` shows them all"
        )

    def _existing(self, names: Sequence[str]) -> str:
        names_text = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
        host_notes = notes_about((), self.notes)
        notes_text = f" ({'; '.join(host_notes)})" if host_notes else ""
        return (f"there are {names_text}" if names else "there are none") + notes_text

    @cached_property
    def slos(self) -> EpochSlos:
        """The SLOs of all VMs, as the daemon resolves them. Raises UserError."""
        from slo_ctl.daemon.slos import VmSlos

        vm_slos = VmSlos(self.places.slos)
        slos = vm_slos.update(self.inventory, self.config)
        self.notes += vm_slos.notes
        return slos

    def stored(self) -> StoredSlos:
        """SLOs set by `vm set`. Raises UserError."""
        from slo_ctl.record.slo_store import SloStore

        return SloStore(self.places.slos).read()

    def slo_by_source(self, name: str, metadata: Mapping[str, SloFields]) -> SloBySource:
        """SLO of the VM in each source, with its SLO in `metadata`, by VM. Raises UserError."""
        from slo_ctl.daemon.slos import slo_by_source

        return slo_by_source(name, self.stored(), metadata, self.config)

    def expand(self, patterns: Sequence[str], vms: Sequence[str] | None = None) -> list[str]:
        """Names of VMs; patterns are replaced by the matching VMs of `vms`, or of the host for None.

        Raises UserError for a pattern that no VM matches.
        """
        return expand(patterns, self.names if vms is None else lambda: vms, self._unmatched)

    def _unmatched(self, pattern: str, names: Collection[str]) -> UserError:
        return UserError(
            f"no VM matches {pattern}: {self._existing(list(names))}", "`slo-ctl vm list` shows them all"
        )
