"""Mapping VMs onto NVMe namespaces; each step is recorded on disk before the next one."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

from pydantic import ConfigDict

from slo_ctl.act.domain import DomainState, NoDomainError, WritableDomain
from slo_ctl.base.clock import wait_for
from slo_ctl.base.errors import UserError
from slo_ctl.base.json_store import JsonStore
from slo_ctl.drives.attach import choose_target, disk_at, disk_element, disk_text, disks_in
from slo_ctl.host.block_device import BY_ID, lasting_link
from slo_ctl.host.calls import run_program
from slo_ctl.host.libvirt import disk_of
from slo_ctl.host.nvme import drive, pages
from slo_ctl.host.nvme.command import NvmeCommandError, NvmeError, NvmeTool
from slo_ctl.model.mapping import (
    AddDisk,
    AttachNamespace,
    CreateNamespace,
    Deallocate,
    DeleteNamespace,
    DetachNamespace,
    LbaFormat,
    NamespaceMapping,
    Purpose,
    RemoveDisk,
    Step,
)
from slo_ctl.model.nvme import NvmeDevice

# Creating, attaching, detaching and deleting namespaces with nvme-cli.


PLACEMENT_HANDLES_SINCE = (2, 5)
"""First version of nvme-cli with `create-ns --nphndls --phndls`."""
_POLL_S = 0.1
APPEAR_TIMEOUT_S = 10.0
_DISCARD_TIMEOUT_S = 600.0
_ANY_NAMESPACE = 0xFFFFFFFF
"""Identify with this NSID returns the common features of all namespaces."""


class Namespaces:
    """Manages the namespaces of one drive through one controller. Methods raise UserError."""

    def __init__(self, tool: NvmeTool, device: NvmeDevice, sys: Path, dev: Path) -> None:
        self._tool = tool
        self._device = device
        self._name = device.controller.name
        self._admin = f"/dev/{self._name}"
        self._sys = sys
        self._dev = dev

    def formats(self) -> tuple[LbaFormat, ...]:
        """LBA formats for new namespaces; if the drive does not report them, those of an existing one."""
        nsids = [_ANY_NAMESPACE, *(namespace.nsid for namespace in self._device.namespaces)]
        for nsid in nsids:
            attached = nsid == _ANY_NAMESPACE or any(
                namespace.nsid == nsid and namespace.attached for namespace in self._device.namespaces
            )
            options = [f"--namespace-id={nsid}", *([] if attached else ["--force"])]
            try:
                found = pages.lba_formats(self._tool.read("id-ns", self._admin, options))
            except NvmeError:
                continue
            if found:
                return found
        return ()

    def supports_placement_handles(self) -> bool:
        """Whether nvme-cli can give a new namespace placement handles."""
        version = self._tool.version
        return (version.major, version.minor) >= PLACEMENT_HANDLES_SINCE

    def allocated(self) -> tuple[int, ...]:
        """NSIDs of all namespaces, attached or not."""
        return pages.nsids(self._tool.read("list-ns", self._admin, ["--all"]))

    def create(self, step: CreateNamespace, before: tuple[int, ...]) -> int:
        """Create a namespace and return its NSID, which is the one that was not in `before`.

        The output of the command is not used: version 3.0 prints the NSID only with --verbose.
        """
        options = [
            f"--nsze={step.size_blocks}",
            f"--ncap={step.size_blocks}",
            f"--flbas={step.format_index}",
        ]
        if step.endurance_group is not None:
            options.append(f"--endg-id={step.endurance_group}")
        if step.nvm_set is not None:
            options.append(f"--nvmset-id={step.nvm_set}")
        if step.handles:
            options += [
                f"--nphndls={len(step.handles)}",
                f"--phndls={','.join(map(str, step.handles))}",
            ]
        try:
            self._tool.run("create-ns", self._admin, options)
        except NvmeCommandError as error:
            raise self._explained(error) from None
        new = set(self.allocated()) - set(before)
        if len(new) != 1:
            detail = (
                f"namespaces {', '.join(map(str, sorted(new)))} are new"
                if new
                else "no new namespace appeared"
            )
            raise UserError(
                f"{self._name} accepted the new namespace, but {detail}",
                "see `nvme list-ns --all`; no other program may create namespaces at the same time",
            )
        return new.pop()

    def _explained(self, error: NvmeCommandError) -> UserError:
        if not error.unsupported:
            return error
        free = [namespace.nsid for namespace in self._device.namespaces if not namespace.attached]
        adopt = f"adopt an existing one, such as --adopt {free[0]}" if free else "adopt an existing one"
        drive_name = "QEMU's emulated drive" if self._device.controller.emulated else self._name
        return UserError(
            f"{drive_name} claims namespace management (oacs bit 3), but cannot create namespaces: "
            f"{error.message}",
            f"{adopt}: --adopt NSID; `slo-ctl device show {self._admin}` lists them",
        )

    def attach(self, nsid: int, controller_id: int) -> str:
        """Attach a namespace to a controller; returns the name of its block device when it exists."""
        self._tool.run("attach-ns", self._admin, [f"--namespace-id={nsid}", f"--controllers={controller_id}"])
        return self.block(nsid)

    def block(self, nsid: int) -> str:
        """Name of the block device of an attached namespace; waits until it exists."""
        for rescan in (False, True):
            if rescan:
                self._tool.run("ns-rescan", self._admin)
            if name := wait_for(lambda: self._existing_block(nsid), APPEAR_TIMEOUT_S / 2, _POLL_S):
                return name
        raise UserError(
            f"namespace {nsid} of {self._name} has no block device after {APPEAR_TIMEOUT_S:g} s",
            "see `dmesg` and `lsblk`",
        )

    def _existing_block(self, nsid: int) -> str:
        blocks = (block for block in drive.blocks_of_controller(self._sys, self._name) if block.nsid == nsid)
        return next((block.name for block in blocks if (self._dev / block.name).is_block_device()), "")

    def detach(self, nsid: int, controller_id: int) -> None:
        self._tool.run("detach-ns", self._admin, [f"--namespace-id={nsid}", f"--controllers={controller_id}"])

    def delete(self, nsid: int) -> None:
        """Delete a namespace with its data."""
        self._tool.run("delete-ns", self._admin, [f"--namespace-id={nsid}"])

    def deallocate(self, block: str, offset_bytes: int, length_bytes: int) -> None:
        """Deallocate (discard) a range of a namespace's block device."""
        command = [
            "blkdiscard",
            f"--offset={offset_bytes}",
            f"--length={length_bytes}",
            str(self._dev / block),
        ]
        # Without a terminal, on which it would require --force if it finds a file system.
        result = run_program(command, _DISCARD_TIMEOUT_S, "install util-linux; see `dmesg`")
        if result.returncode:
            raise UserError(
                f"`{' '.join(command)}` failed with status {result.returncode}: "
                f"{result.stderr.strip()[:200]}",
                "if the drive does not support deallocation (oncs bit 2), omit --size and --spare",
            )


# Disks of libvirt's VMs on namespaces, in the definition and in the running VM.

_LINK_TIMEOUT_S = 20.0
"""A host whose CPUs are busy took more than 5 s."""
_UNPLUG_TIMEOUT_S = 10.0


def stable_path(block: Path, nsid: int, by_id: Path = BY_ID, timeout_s: float = _LINK_TIMEOUT_S) -> Path:
    """A path of the namespace that survives a reboot; the block device itself if udev has none.

    udev creates the link shortly after the block device.
    """
    if not by_id.is_dir():
        return block
    return wait_for(lambda: lasting_link(block, nsid, by_id), timeout_s, _POLL_S) or block


def block_xml(path: Path, target: str, bus: str, size_bytes: int | None) -> str:
    """libvirt's XML of a disk with the first `size_bytes` of a block device; None: all of it."""
    disk = disk_element("block", cache="none", io="native", discard="unmap")
    source = ElementTree.SubElement(disk, "source", dev=str(path))
    if size_bytes is not None:
        slices = ElementTree.SubElement(source, "slices")
        ElementTree.SubElement(slices, "slice", type="storage", offset="0", size=str(size_bytes))
    return disk_text(disk, target, bus)


def target_of(domain: WritableDomain, path: Path) -> str | None:
    """Target of the VM's disk with this path; None if there is none."""
    for state in domain.states:
        for disk in map(disk_of, disks_in(domain.xml(state))):
            if disk.source == str(path):
                return disk.target
    return None


def add_disk(
    domain: WritableDomain, path: Path, target: str | None, bus: str | None, size_bytes: int | None
) -> str:
    """Add a disk to the running VM and its definition; returns its target. Raises UserError."""
    existing = target_of(domain, path)
    xml_of_states = [domain.xml(state) for state in domain.states]
    target, bus = (existing, bus or "virtio") if existing else choose_target(xml_of_states, target, bus)
    for state in domain.states:
        if disk_at(domain.xml(state), target) is None:
            domain.call("attachDeviceFlags", block_xml(path, target, bus, size_bytes), state)
        if _disk_with(domain, target, str(path), state) is None:
            raise UserError(
                f"VM {domain.name}: libvirt accepted disk {target}, but does not have it",
                "see the log of libvirtd",
            )
    return target


def remove_disk(domain: WritableDomain, target: str, path: str, *, unplug: bool) -> None:
    """Remove a disk from the definition and, with `unplug`, from the running VM. Raises UserError.

    A disk with this target but another source was not added by slo-ctl and is kept.
    """
    running = DomainState.RUNNING
    if not unplug and domain.running and _disk_with(domain, target, path, running) is not None:
        raise UserError(f"VM {domain.name} runs with disk {target}", "stop it, or add --unplug")
    for state in sorted(domain.states, reverse=True):
        disk = _disk_with(domain, target, path, state)
        if disk is None:
            continue
        domain.call("detachDeviceFlags", ElementTree.tostring(disk, encoding="unicode"), state)
        if not is_released(domain, target, [state]):
            raise UserError(
                f"VM {domain.name}: the guest has not released {target} yet",
                "try again later, at the latest after the VM has stopped",
            )


def is_released(domain: WritableDomain, target: str, states: Collection[DomainState]) -> bool:
    """Whether a detached disk disappears in time; a running guest has to release it."""
    return wait_for(
        lambda: all(disk_at(domain.xml(state), target) is None for state in states),
        _UNPLUG_TIMEOUT_S,
        _POLL_S,
    )


def _disk_with(
    domain: WritableDomain, target: str, path: str, state: DomainState
) -> ElementTree.Element | None:
    disk = disk_at(domain.xml(state), target)
    return disk if disk is not None and disk_of(disk).source == path else None


# The file with complete and incomplete mappings.


@dataclass(frozen=True, slots=True)
class _File:
    """Content of the file. Unknown keys are refused, because they could be steps."""

    format_version: Literal[1]
    mappings: tuple[NamespaceMapping, ...]
    __pydantic_config__ = ConfigDict(extra="forbid", strict=False)


class MappingStore:
    """All mappings of this host. Use it only while `locked`."""

    def __init__(self, path: Path) -> None:
        self._store = JsonStore(
            path,
            _File,
            repair="restore a copy; without one, adopt the namespaces with `slo-ctl vm map --adopt`",
            mode=0o600,
        )

    def all(self) -> tuple[NamespaceMapping, ...]:
        """All mappings. Raises UserError if the file is damaged."""
        file = self._store.read()
        return () if file is None else file.mappings

    def put(self, old: NamespaceMapping | None, new: NamespaceMapping | None) -> None:
        """Replace `old` (None: add) by `new` (None: remove). On disk on return. Raises UserError."""
        kept = [mapping for mapping in self.all() if mapping != old]
        self._store.write(_File(1, (*kept, *([new] if new is not None else []))))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock for mapping and unmapping. Raises UserError when another process holds it."""
        with self._store.locked("another slo-ctl is mapping or unmapping", timeout_s=0.0):
            yield


# Execution of the steps of a mapping, each recorded so that a crash neither loses nor repeats one.

_CLOSE_TIMEOUT_S = 30.0


class MappingRun:
    """Executes mappings. Methods raise UserError; completed steps are recorded."""

    def __init__(
        self,
        store: MappingStore,
        device: NvmeDevice,
        namespaces: Namespaces,
        domains: Callable[[str], AbstractContextManager[WritableDomain]],
        dev: Path = Path("/dev"),
        user_of: Callable[[int], str] = lambda _nsid: "",
    ) -> None:
        """`domains` opens a VM for changes, or raises UserError.

        `user_of` returns a user of a namespace other than its VM's definition; empty: none.
        """
        self._store = store
        self._device = device
        self._namespaces = namespaces
        self._domains = domains
        self._dev = dev
        self._user_of = user_of

    def carry_out(
        self, mapping: NamespaceMapping, previous: NamespaceMapping | None, report: Callable[[Step], None]
    ) -> NamespaceMapping | None:
        """Execute the remaining steps; `previous` is the stored mapping. Returns None when it was removed.

        A mapping whose first step fails without any change is not stored.
        """
        if mapping != previous:
            self._store.put(previous, mapping)
        while not mapping.complete:
            step = mapping.steps[mapping.done]
            report(step)
            if isinstance(step, CreateNamespace) and mapping.namespaces_before is None:
                before = self._namespaces.allocated()
                mapping = self._store_mapping(mapping, replace(mapping, namespaces_before=before))
            try:
                after = self._do(mapping, step)
            except UserError:
                if (
                    mapping.done == 0
                    and mapping.purpose is Purpose.MAP
                    and not self._created_namespace(mapping)
                ):
                    self._store.put(mapping, None)
                raise
            mapping = self._store_mapping(mapping, replace(after, done=mapping.done + 1))
        if mapping.purpose is Purpose.UNMAP:
            self._store.put(mapping, None)
            return None
        return mapping

    def _store_mapping(self, old: NamespaceMapping, new: NamespaceMapping) -> NamespaceMapping:
        self._store.put(old, new)
        return new

    def _created_namespace(self, mapping: NamespaceMapping) -> bool:
        """Whether the failed first step created a namespace."""
        before = mapping.namespaces_before
        return before is not None and set(self._namespaces.allocated()) != set(before)

    def _do(self, mapping: NamespaceMapping, step: Step) -> NamespaceMapping:
        if isinstance(step, CreateNamespace):
            return replace(mapping, nsid=self._namespaces.create(step, mapping.namespaces_before or ()))
        nsid = mapping.nsid
        if nsid is None:
            raise UserError(f"{mapping}: its namespace is unknown", "see `slo-ctl vm maps`")
        namespace = self._device.namespace(nsid)
        match step:
            case AttachNamespace():
                if namespace is None or not namespace.attached:
                    self._namespaces.attach(nsid, step.controller_id)
            case Deallocate():
                block = self._namespaces.block(nsid)
                self._wait_until_unused(nsid, mapping.vm)
                self._namespaces.deallocate(block, step.offset_bytes, step.length_bytes)
            case AddDisk():
                return self._give(mapping, step, nsid)
            case RemoveDisk():
                self._take(mapping, step, nsid)
            case DetachNamespace():
                if namespace is not None and namespace.attached:
                    self._wait_until_unused(nsid, mapping.vm)
                    self._namespaces.detach(nsid, step.controller_id)
            case DeleteNamespace():
                if namespace is not None:
                    self._wait_until_unused(nsid, mapping.vm)
                    self._namespaces.delete(nsid)
        return mapping

    def _give(self, mapping: NamespaceMapping, step: AddDisk, nsid: int) -> NamespaceMapping:
        path = stable_path(self._dev / self._namespaces.block(nsid), nsid)
        with self._domains(mapping.vm) as domain:
            if target_of(domain, path) is None:
                self._wait_until_unused(nsid, mapping.vm)
            size_bytes = None if step.whole else step.size_bytes
            target = add_disk(domain, path, step.target, step.bus, size_bytes)
        return replace(mapping, target=target, path=str(path))

    def _take(self, mapping: NamespaceMapping, step: RemoveDisk, nsid: int) -> None:
        try:
            with self._domains(mapping.vm) as domain:
                remove_disk(domain, mapping.target, mapping.path, unplug=step.unplug)
        except NoDomainError:
            # It was undefined, and its disk with it; or it was renamed, and has the disk under its new name.
            if user := self._user_of(nsid):
                raise UserError(
                    f"VM {mapping.vm} does not exist any more, but namespace {nsid} is in use: {user}",
                    "if the VM was renamed: `virsh detach-disk --config`, then repeat this command",
                ) from None

    def _wait_until_unused(self, nsid: int, vm: str) -> None:
        """Wait until QEMU has closed a removed disk, or udev a written one. Raises UserError if none does."""
        deadline = time.monotonic() + _CLOSE_TIMEOUT_S
        while user := self._user_of(nsid):
            if time.monotonic() > deadline:
                raise UserError(
                    f"namespace {nsid} of {self._device.controller.name} is still in use: {user}",
                    f"stop that, then continue with `slo-ctl vm map {shlex.quote(vm)} --resume`",
                )
            time.sleep(_POLL_S)
