"""The host as the verbs of `slo-ctl vm` see it: configuration, VMs, and the SLO of each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from slo_ctl.base.errors import UserError
from slo_ctl.base.patterns import is_pattern, matches

if TYPE_CHECKING:
    from slo_ctl.config import Config
    from slo_ctl.daemon.files import DaemonPlaces
    from slo_ctl.host.cgroup import CgroupTree
    from slo_ctl.model import Stream, Vm
    from slo_ctl.model.slo import ResolvedSlo, SloBySource, SloFields
    from slo_ctl.observe.streams import Inventory
    from slo_ctl.record.slo_store import StoredSlos


def is_many(words: Sequence[str]) -> bool:
    """Not one VM by its name."""
    return len(words) > 1 or any(map(is_pattern, words))


_AFTER_NAME = (":", ",", " (", " is ")
"""What follows the name of a VM at the start of a note."""
_SHARED = re.compile(r"\S+ is used by \d+ VMs \((?P<names>.*)\): ")


def notes_about(vms: Sequence[str], notes: Iterable[str]) -> list[str]:
    """The notes that are not about other VMs only, each once. A note begins with what it is about."""
    starts = tuple(f"vm {vm}{after}".casefold() for vm in vms for after in _AFTER_NAME)
    return [note for note in dict.fromkeys(notes) if not _is_about_vms(note) or _names_one(note, vms, starts)]


def _is_about_vms(note: str) -> bool:
    return note[:3].casefold() == "vm " or _SHARED.match(note) is not None


def _names_one(note: str, vms: Sequence[str], starts: tuple[str, ...]) -> bool:
    match = _SHARED.match(note)
    if match is None:
        return note.casefold().startswith(starts)
    return any(f", {vm}, " in f", {match['names']}, " for vm in vms)


@dataclass
class VmHost:
    """A snapshot of the host; each part is read when it is first needed."""

    root: Path | None
    connect: str | None = None
    """Replaces the configured libvirt, and has to be reachable."""
    use_libvirt: bool = True
    cgroup_root: Path | None = None
    """Replaces the configured one, and has to be a cgroup hierarchy."""
    cgroups: tuple[str, ...] = ()
    """Groups that are VMs besides those of the configuration."""

    def __post_init__(self) -> None:
        self.notes: list[str] = []

    @cached_property
    def places(self) -> DaemonPlaces:
        """Directories and files."""
        from slo_ctl.daemon.files import DaemonPlaces

        return DaemonPlaces(self.root)

    @cached_property
    def config(self) -> Config:
        """The configuration; the defaults, with a note, when it has an error."""
        from slo_ctl.config import DEFAULTS, load

        try:
            return load(self.places.config)
        except UserError as error:
            self.notes.append(f"the configuration is ignored: {error}")
            return DEFAULTS

    @cached_property
    def libvirt_uri(self) -> str | None:
        """None: libvirt is not used."""
        if not self.use_libvirt:
            return None
        return self.connect or self.config.libvirt.uri

    @cached_property
    def inventory(self) -> Inventory:
        """VMs and streams, as the daemon sees them.

        A libvirt that is not reachable is a note, unless --connect names it.
        """
        from slo_ctl.host.libvirt import LibvirtError, connect
        from slo_ctl.observe.streams import read_inventory

        tree, named = self._tree_and_named()
        namespaces = {vm.name: vm.namespaces for vm in self.config.vms.values() if vm.namespaces}
        scan = partial(read_inventory, tree, cgroups=named, namespaces=namespaces, run=self.places.run)
        if self.libvirt_uri is None:
            return scan(None)
        try:
            with connect(self.libvirt_uri) as libvirt:
                return scan(libvirt)
        except LibvirtError as error:
            if self.connect:
                raise
            self.notes.append(f"{error.message}; only VMs found by their cgroups are known")
            return scan(None)

    def unknown_clients(self) -> list[str]:
        """A sentence for each namespace with a client that belongs to no known VM."""
        from slo_ctl.host.processes import connections
        from slo_ctl.observe.streams import ExportPaths

        exports = ExportPaths(self.places.devices.run)
        known = {stream.tenant for stream in self.inventory.streams}
        try:
            used = {exports.tenant_of(path) for path in connections(exports.is_export).values()}
        except OSError:
            return []
        return [
            f"{tenant} is used by no known VM: add [vm.{tenant.namespace}] with "
            f'namespaces = ["{tenant}"] to {self.places.config}/slo-ctl.toml'
            for tenant in sorted(each for each in used if each is not None and each not in known)
        ]

    def _tree_and_named(self) -> tuple[CgroupTree | None, dict[str, str]]:
        """The cgroup tree, and the groups in it that options and configuration define as VMs, by name."""
        from slo_ctl.config import DEFAULTS
        from slo_ctl.host.cgroup import find_tree, missing_group, named_group, require_tree

        if self.cgroup_root is not None:
            tree: CgroupTree | None = require_tree(self.cgroup_root)
        elif self.config.cgroup_root == DEFAULTS.cgroup_root:
            tree = find_tree()
        else:
            try:
                tree = require_tree(self.config.cgroup_root)
            except UserError as error:
                self.notes.append(str(error))
                tree = None
        if tree is None and self.cgroups:
            raise UserError(
                f"--cgroup {self.cgroups[0]}: this host has no cgroup tree", "give one with --cgroup-root DIR"
            )
        names = {group: group for path in self.cgroups if tree for group in [named_group(tree, path)]}
        for vm in self.config.vms.values():
            if tree is None or vm.cgroup is None:
                continue
            where = f"VM {vm.name} ({vm.source})"
            try:
                names[named_group(tree, vm.cgroup, "cgroup")] = vm.name
            except UserError as error:
                there = tree.folder(vm.cgroup).is_dir()
                why = error.message if there else missing_group(tree, vm.name, vm.cgroup)
                self.notes.append(f"{where}: {why}")
        return tree, {name: group for group, name in names.items()}

    def vm(self, name: str) -> Vm | None:
        """The VM of that name."""
        return next((vm for vm in self.inventory.vms if vm.name == name), None)

    def streams(self, vm: Vm | None) -> list[Stream]:
        """The streams of one VM."""
        return [s for s in self.inventory.streams if vm and (s.vm, s.cgroup) == (vm.name, vm.cgroup)]

    def names(self) -> list[str]:
        """Names of all VMs of the host and of the configuration."""
        return sorted({*(vm.name for vm in self.inventory.vms), *self.config.vms})

    def require(self, name: str) -> None:
        """Raise UserError unless the host or the configuration has this VM."""
        if name in self.config.vms or self.vm(name) is not None:
            return
        raise self.unknown(name)

    def unknown(self, name: str) -> UserError:
        """The error about a VM that does not exist."""
        from difflib import get_close_matches

        names = self.names()
        folded = {each.casefold(): each for each in names}
        near = get_close_matches(name.casefold(), folded, n=1)
        guess = f"did you mean {folded[near[0]]}? " if near else ""
        return UserError(
            f"VM {name} not found: {self._existing(names)}", f"{guess}`slo-ctl vm list` shows them all"
        )

    def _existing(self, names: Sequence[str]) -> str:
        listed = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
        host_notes = notes_about((), self.notes)
        unseen = f" ({'; '.join(host_notes)})" if host_notes else ""
        return (f"there are {listed}" if names else "there are none") + unseen

    def metadata(self, name: str) -> SloFields:
        """The SLO fields in libvirt's metadata of the VM."""
        from slo_ctl.host.libvirt import fields_of, read_xml
        from slo_ctl.model import FoundBy

        vm = self.vm(name)
        if vm is None or vm.found_by is not FoundBy.LIBVIRT or self.libvirt_uri is None:
            return {}
        xml = read_xml(self.libvirt_uri, vm.name)
        return fields_of(xml, self.notes.append) if xml else {}

    def stored(self) -> StoredSlos:
        """Fields set by `vm set`. Raises UserError."""
        from slo_ctl.record.slo_store import SloStore

        return SloStore(self.places.slos).read()

    def slo_by_source(
        self, name: str, stored: StoredSlos | None = None, metadata: SloFields | None = None
    ) -> SloBySource:
        """SLO of the VM in each source; with `stored` and `metadata` instead of what they are now."""
        from slo_ctl.daemon.slos import slo_by_source

        stored = self.stored() if stored is None else stored
        metadata = self.metadata(name) if metadata is None else metadata
        return slo_by_source(name, stored, {name: metadata}, self.config)

    def resolved_slo(self, name: str, by_source: SloBySource | None = None) -> ResolvedSlo:
        """The effective SLO; of `by_source` instead of what sources have now."""
        from slo_ctl.decide.slo_sources import resolve

        by_source = self.slo_by_source(name) if by_source is None else by_source
        return resolve(name, by_source, self.config.default_slo, self.config.classes, self.config.groups)

    def _split(self, words: Sequence[str], among: Sequence[str] | None) -> Iterator[str]:
        """Words, and the parts of a list with commas that no VM has as its name."""
        for word in words:
            parts = [part.strip() for part in word.split(",")]
            if len(parts) > 1 and all(parts) and word not in (self.names() if among is None else among):
                yield from parts
            else:
                yield word

    def expand(self, words: Sequence[str], among: Sequence[str] | None = None) -> list[str]:
        """Names of VMs; patterns replaced with those that match, of `among` or of all.

        Raises UserError for a pattern that none matches.
        """
        found: dict[str, None] = {}
        for word in self._split(words, among):
            if not is_pattern(word):
                found[word] = None
                continue
            known = self.names() if among is None else among
            matched = [word] if word in known else [name for name in known if matches(word, name)]
            if not matched:
                raise UserError(
                    f"no VM matches {word}: {self._existing(known)}", "`slo-ctl vm list` shows them all"
                )
            found |= dict.fromkeys(matched)
        return list(found)
