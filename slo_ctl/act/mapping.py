"""Carrying out mappings of VMs onto NVMe namespaces, each step recorded on disk before the next."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol
from xml.etree import ElementTree

from pydantic import ConfigDict

from slo_ctl.act.domain_metadata import AFFECT_CONFIG, AFFECT_LIVE, WritableDomain
from slo_ctl.base.errors import UserError
from slo_ctl.base.json_store import JsonStore
from slo_ctl.drives.attach import choose_target, disk_at
from slo_ctl.host.nvme import drive, pages
from slo_ctl.host.nvme.command import NvmeCommandError, NvmeError, NvmeTool
from slo_ctl.model.mapping import (
    AttachNamespace,
    CreateNamespace,
    Deallocate,
    DeleteNamespace,
    DetachNamespace,
    GiveDisk,
    LbaFormat,
    NamespaceMapping,
    Purpose,
    Step,
    TakeDisk,
)
from slo_ctl.model.nvme import NvmeDevice

# Creating, attaching, detaching and deleting namespaces by nvme-cli, one of these at a time.


PLACES_HANDLES_SINCE = (2, 5)
"""nvme-cli's `create-ns --nphndls --phndls`."""
APPEAR_TIMEOUT_S = 10.0
_APPEAR_POLL_S = 0.05
_DISCARD_TIMEOUT_S = 600.0
_ANY_NAMESPACE = 0xFFFFFFFF
"""Identify with this NSID returns what all namespaces have in common."""


class Namespaces:
    """Those of one drive, through one controller. Every method raises UserError."""

    def __init__(self, tool: NvmeTool, device: NvmeDevice, sys: Path, dev: Path) -> None:
        """`sys` and `dev` are /sys and /dev."""
        self._tool = tool
        self._device = device
        self._name = device.controller.name
        self._admin = f"/dev/{self._name}"
        self._sys = sys
        self._dev = dev

    def formats(self) -> tuple[LbaFormat, ...]:
        """LBA formats for new namespaces. Drives that refuse the question are asked about a namespace."""
        asked = [_ANY_NAMESPACE, *(each.nsid for each in self._device.namespaces)]
        for nsid in asked:
            attached = nsid == _ANY_NAMESPACE or any(
                each.nsid == nsid and each.attached for each in self._device.namespaces
            )
            options = [f"--namespace-id={nsid}", *([] if attached else ["--force"])]
            try:
                found = pages.lba_formats(self._tool.read("id-ns", self._admin, options))
            except NvmeError:
                continue
            if found:
                return found
        return ()

    def places_handles(self) -> bool:
        """Whether nvme-cli can give a new namespace placement handles."""
        version = self._tool.version
        return (version.major, version.minor) >= PLACES_HANDLES_SINCE

    def allocated(self) -> tuple[int, ...]:
        """NSIDs of all namespaces, attached or not."""
        return pages.nsids(self._tool.read("list-ns", self._admin, ["--all"]))

    def create(self, step: CreateNamespace, before: tuple[int, ...]) -> int:
        """Make one; its NSID, by what is there afterwards and was not in `before`.

        What the command prints is not used: 3.0 prints the NSID only when asked to be verbose.
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
        free = [each.nsid for each in self._device.namespaces if not each.attached]
        adopt = f"adopt an existing one, such as --adopt {free[0]}" if free else "adopt an existing one"
        who = "QEMU's emulated drive" if self._device.controller.emulated else self._name
        return UserError(
            f"{who} claims namespace management (oacs bit 3), but lacks the command that creates namespaces: "
            f"{error.message}",
            f"{adopt}: --adopt NSID; `slo-ctl device show {self._admin}` has them all",
        )

    def attach(self, nsid: int, controller_id: int) -> str:
        """Have the controller offer it; the name of its block device, once that is there."""
        self._tool.run("attach-ns", self._admin, [f"--namespace-id={nsid}", f"--controllers={controller_id}"])
        return self.block(nsid)

    def block(self, nsid: int) -> str:
        """Name of the block device of an attached namespace; it may take a moment to come."""
        deadline = time.monotonic() + APPEAR_TIMEOUT_S
        rescanned = False
        while True:
            for each in drive.blocks_of_controllers(self._sys, self._name):
                if each.nsid == nsid and (self._dev / each.name).is_block_device():
                    return each.name
            if time.monotonic() > deadline:
                raise UserError(
                    f"namespace {nsid} of {self._name} has no block device after {APPEAR_TIMEOUT_S:g} s",
                    "see `dmesg` and `lsblk`",
                )
            if not rescanned and time.monotonic() > deadline - APPEAR_TIMEOUT_S / 2:
                self._tool.run("ns-rescan", self._admin)
                rescanned = True
            time.sleep(_APPEAR_POLL_S)

    def detach(self, nsid: int, controller_id: int) -> None:
        """Have the controller offer it no more."""
        self._tool.run("detach-ns", self._admin, [f"--namespace-id={nsid}", f"--controllers={controller_id}"])

    def delete(self, nsid: int) -> None:
        """Destroy it and its data."""
        self._tool.run("delete-ns", self._admin, [f"--namespace-id={nsid}"])

    def deallocate(self, block: str, offset_bytes: int, length_bytes: int) -> None:
        """Tell the drive that nothing is stored there."""
        command = [
            "blkdiscard",
            f"--offset={offset_bytes}",
            f"--length={length_bytes}",
            str(self._dev / block),
        ]
        try:
            done = subprocess.run(  # noqa: S603 - no shell
                command,
                stdin=subprocess.DEVNULL,  # of a terminal it would want --force where it finds a file system
                capture_output=True,
                text=True,
                timeout=_DISCARD_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UserError(f"`{' '.join(command)}`: {error}", "install util-linux; see `dmesg`") from None
        if done.returncode:
            raise UserError(
                f"`{' '.join(command)}` ended with {done.returncode}: {done.stderr.strip()[:200]}",
                "does the drive support deallocation (oncs bit 2)? leave --size and --spare out otherwise",
            )


# A namespace's block device as a disk of a VM of libvirt: in its definition, and in the running VM.

BY_ID = Path("/dev/disk/by-id")
_STABLE = ("nvme-uuid.", "nvme-eui.", "nvme-nvme.")
"""Links that udev makes, the better first: by what the drive says of the namespace, or by drive and NSID."""
_LINK_TIMEOUT_S = 5.0
_UNPLUG_TIMEOUT_S = 10.0
_DISK_POLL_S = 0.1


def stable_path(block: Path, nsid: int, by_id: Path = BY_ID, timeout_s: float = _LINK_TIMEOUT_S) -> Path:
    """A path that means the same namespace after a boot; the block device itself when udev gives none.

    udev makes it a moment after the block device is there. The link by model and serial alone is the
    drive's, and means now the one namespace of it and now another: only that with the NSID is taken.
    """

    def worth(link: Path) -> tuple[int, str]:
        index = next((i for i, prefix in enumerate(_STABLE) if link.name.startswith(prefix)), len(_STABLE))
        return (index, link.name)

    deadline = time.monotonic() + timeout_s
    while by_id.is_dir():
        links = [
            each
            for each in by_id.glob("nvme-*")
            if each.name.startswith((*_STABLE,)) or each.name.endswith(f"_{nsid}")
            if each.resolve() == block
        ]
        if links:
            return min(links, key=worth)
        if time.monotonic() > deadline:
            break
        time.sleep(_DISK_POLL_S)
    return block


def block_xml(path: Path, target: str, bus: str, size_bytes: int | None) -> str:
    """libvirt's XML; `size_bytes` are given of a larger namespace, None: all of it."""
    disk = ElementTree.Element("disk", type="block", device="disk")
    ElementTree.SubElement(
        disk, "driver", name="qemu", type="raw", cache="none", io="native", discard="unmap"
    )
    source = ElementTree.SubElement(disk, "source", dev=str(path))
    if size_bytes is not None:
        slices = ElementTree.SubElement(source, "slices")
        ElementTree.SubElement(slices, "slice", type="storage", offset="0", size=str(size_bytes))
    ElementTree.SubElement(disk, "target", dev=target, bus=bus)
    ElementTree.indent(disk)
    return ElementTree.tostring(disk, encoding="unicode")


def target_of(domain: WritableDomain, path: Path) -> str | None:
    """The disk of the VM that has this path; None: it has none."""
    for definition in domain.states:
        for disk in ElementTree.fromstring(domain.xml(definition=definition)).findall("devices/disk"):  # noqa: S314 - libvirt's
            source, target = disk.find("source"), disk.find("target")
            if source is not None and target is not None and source.get("dev") == str(path):
                return target.get("dev", "")
    return None


def give_disk(
    domain: WritableDomain, path: Path, target: str | None, bus: str | None, size_bytes: int | None
) -> str:
    """Make it a disk of the VM, running and defined; the disk's name. Read back. Raises UserError."""
    there = target_of(domain, path)
    states = [domain.xml(definition=definition) for definition in domain.states]
    where = (there, bus or "virtio") if there else choose_target(states, target, bus)
    for definition in domain.states:
        if disk_at(domain.xml(definition=definition), where[0]) is None:
            xml = block_xml(path, *where, size_bytes)
            domain.call("attachDeviceFlags", xml, AFFECT_CONFIG if definition else AFFECT_LIVE)
        disk = disk_at(domain.xml(definition=definition), where[0])
        source = disk.find("source") if disk is not None else None
        if source is None or source.get("dev") != str(path):
            raise UserError(
                f"VM {domain.name}: libvirt took disk {where[0]}, but does not have it",
                "see the log of libvirtd",
            )
    return where[0]


def take_disk(domain: WritableDomain, target: str, path: str, *, unplug: bool) -> None:
    """Take it out of the definition and, with `unplug`, out of the running VM. Raises UserError.

    A disk of that name with another source was not made by slo-ctl and stays.
    """
    if (
        not unplug
        and False in domain.states
        and _disk_with(domain, target, path, definition=False) is not None
    ):
        raise UserError(f"VM {domain.name} runs with disk {target}", "stop it, or add --unplug")
    for definition in sorted(domain.states, reverse=True):
        disk = _disk_with(domain, target, path, definition=definition)
        if disk is None:
            continue
        xml = ElementTree.tostring(disk, encoding="unicode")
        domain.call("detachDeviceFlags", xml, AFFECT_CONFIG if definition else AFFECT_LIVE)
        deadline = time.monotonic() + _UNPLUG_TIMEOUT_S
        while disk_at(domain.xml(definition=definition), target) is not None:
            if time.monotonic() > deadline:
                raise UserError(
                    f"VM {domain.name}: the guest has not released {target} yet",
                    "it was asked to; try again later, at the latest after the VM has stopped",
                )
            time.sleep(_DISK_POLL_S)


def _disk_with(
    domain: WritableDomain, target: str, path: str, *, definition: bool
) -> ElementTree.Element | None:
    disk = disk_at(domain.xml(definition=definition), target)
    source = disk.find("source") if disk is not None else None
    return disk if source is not None and source.get("dev") == path else None


# Mappings, finished or not, on disk.


@dataclass(frozen=True, slots=True)
class _File:
    """Its content. Unknown keys are refused: they could be steps."""

    format_version: Literal[1]
    mappings: tuple[NamespaceMapping, ...]
    __pydantic_config__ = ConfigDict(extra="forbid", strict=False)


class MappingStore:
    """All mappings of this host. Read and written only while `locked`."""

    def __init__(self, path: Path) -> None:
        self._store = JsonStore(
            path,
            _File,
            repair="restore a copy; without one, adopt the namespaces with `slo-ctl vm map --adopt`",
            mode=0o600,
        )

    def all(self) -> tuple[NamespaceMapping, ...]:
        """Every mapping. Raises UserError when the file is damaged: it is neither changed nor passed over."""
        file = self._store.read()
        return () if file is None else file.mappings

    def put(self, old: NamespaceMapping | None, new: NamespaceMapping | None) -> None:
        """Have `new` in place of `old`; None: add, or remove. On disk when it returns. Raises UserError."""
        kept = [each for each in self.all() if each != old]
        self._store.write(_File(1, (*kept, *([new] if new is not None else []))))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock for mapping and unmapping. Raises UserError when another process holds it."""
        with self._store.locked("another slo-ctl is mapping or unmapping", timeout_s=0.0):
            yield


# Carrying out a mapping's steps, each recorded, so that a crash loses and repeats nothing.

_CLOSE_TIMEOUT_S = 5.0
_POLL_S = 0.1


class Domains(Protocol):
    """Where VMs are found that are given disks."""

    def __call__(self, name: str) -> AbstractContextManager[WritableDomain]:
        """One VM, to change it. Raises UserError."""
        ...


class MappingRun:
    """One mapping being carried out. Every method raises UserError; what was done by then is recorded."""

    def __init__(
        self,
        store: MappingStore,
        device: NvmeDevice,
        namespaces: Namespaces,
        domains: Domains,
        dev: Path = Path("/dev"),
        user_of: Callable[[int], str] = lambda _nsid: "",
    ) -> None:
        """`user_of` finds users of a namespace apart from its VM's definition, before it is detached."""
        self._store = store
        self._device = device
        self._namespaces = namespaces
        self._domains = domains
        self._dev = dev
        self._user_of = user_of

    def carry_out(
        self, mapping: NamespaceMapping, previous: NamespaceMapping | None, report: Callable[[Step], None]
    ) -> NamespaceMapping | None:
        """Do what is left to do; `previous` is what the store has of it. None: nothing is left of it.

        A mapping whose first step fails is not kept: nothing was changed.
        """
        if mapping != previous:
            self._store.put(previous, mapping)
        while not mapping.complete:
            step = mapping.steps[mapping.done]
            report(step)
            if isinstance(step, CreateNamespace) and mapping.namespaces_before is None:
                before = self._namespaces.allocated()
                mapping = self._keep(mapping, replace(mapping, namespaces_before=before))
            try:
                after = self._do(mapping, step)
            except UserError:
                if mapping.done == 0 and mapping.purpose is Purpose.MAP and not self._made_something(mapping):
                    self._store.put(mapping, None)
                raise
            mapping = self._keep(mapping, replace(after, done=mapping.done + 1))
        if mapping.purpose is Purpose.UNMAP:
            self._store.put(mapping, None)
            return None
        return mapping

    def _keep(self, old: NamespaceMapping, new: NamespaceMapping) -> NamespaceMapping:
        self._store.put(old, new)
        return new

    def _made_something(self, mapping: NamespaceMapping) -> bool:
        """Whether the first step left anything behind, though it failed."""
        before = mapping.namespaces_before
        return before is not None and set(self._namespaces.allocated()) != set(before)

    def _do(self, mapping: NamespaceMapping, step: Step) -> NamespaceMapping:
        if isinstance(step, CreateNamespace):
            return replace(mapping, nsid=self._namespaces.create(step, mapping.namespaces_before or ()))
        nsid = mapping.nsid
        if nsid is None:
            raise UserError(f"{mapping}: its namespace is not known", "see `slo-ctl vm maps`")
        known = self._device.namespace(nsid)
        match step:
            case AttachNamespace():
                if known is None or not known.attached:
                    self._namespaces.attach(nsid, step.controller_id)
            case Deallocate():
                block = self._namespaces.block(nsid)
                self._wait_until_unused(nsid)
                self._namespaces.deallocate(block, step.offset_bytes, step.length_bytes)
            case GiveDisk():
                return self._give(mapping, step, nsid)
            case TakeDisk():
                with self._domains(mapping.vm) as domain:
                    take_disk(domain, mapping.target, mapping.path, unplug=step.unplug)
            case DetachNamespace():
                if known is not None and known.attached:
                    self._wait_until_unused(nsid)
                    self._namespaces.detach(nsid, step.controller_id)
            case DeleteNamespace():
                if known is not None:
                    self._wait_until_unused(nsid)
                    self._namespaces.delete(nsid)
        return mapping

    def _give(self, mapping: NamespaceMapping, step: GiveDisk, nsid: int) -> NamespaceMapping:
        path = stable_path(self._dev / self._namespaces.block(nsid), nsid)
        with self._domains(mapping.vm) as domain:
            if target_of(domain, path) is None:
                self._wait_until_unused(nsid)
            size_bytes = None if step.whole else step.size_bytes
            target = give_disk(domain, path, step.target, step.bus, size_bytes)
        return replace(mapping, target=target, path=str(path))

    def _wait_until_unused(self, nsid: int) -> None:
        """A QEMU that released its disk closes it a moment later. Raises UserError when it stays in use."""
        deadline = time.monotonic() + _CLOSE_TIMEOUT_S
        while user := self._user_of(nsid):
            if time.monotonic() > deadline:
                raise UserError(
                    f"namespace {nsid} of {self._device.controller.name} is still in use: {user}",
                    "stop that, then continue with `slo-ctl vm map VM --resume`",
                )
            time.sleep(_POLL_S)
