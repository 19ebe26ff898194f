"""NVMe drives, by nvme-cli and /sys: what they have, and who uses their namespaces. Changes nothing."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from slo_ctl.base.errors import UserError
from slo_ctl.base.kernel_files import read_bounded
from slo_ctl.host.block_device import device_behind, is_held
from slo_ctl.host.nvme import pages
from slo_ctl.host.nvme.command import NvmeCommandError, NvmeError, NvmeTool
from slo_ctl.host.nvme.ops import DriveOpsLog
from slo_ctl.model import DeviceNumber, Vm
from slo_ctl.model.device_waf import MediaCounters, WafSource
from slo_ctl.model.nvme import (
    DriveOps,
    EnduranceGroup,
    NvmeController,
    NvmeDevice,
    NvmeNamespace,
    NvmSet,
    PlacementHandle,
)

# NVMe controllers and their block devices as /sys has them. Names are looked up, NSIDs read.

_CONTROLLER = re.compile(r"nvme\d{1,9}")
_BLOCK = re.compile(r"nvme\d{1,9}n\d{1,9}")
_PATH = re.compile(r"(nvme\d{1,9})c\d{1,9}(n\d{1,9})")
"""A hidden block device below a multipath disk: one controller's way to the namespace."""


@dataclass(frozen=True, slots=True)
class Block:
    """A namespace's block device."""

    name: str
    nsid: int | None
    """None: this kernel does not report it."""
    multipath: bool


def controllers(sys: Path) -> list[str]:
    """Names of this host's NVMe controllers, such as `nvme0`."""
    folder = sys / "class" / "nvme"
    found = [each.name for each in _entries(folder) if _CONTROLLER.fullmatch(each.name)]
    return sorted(found, key=lambda name: int(name.removeprefix("nvme")))


def attribute(sys: Path, controller: str, name: str) -> str:
    """An attribute such as `transport`, `address` or `state`; empty when there is none."""
    return _text(sys / "class" / "nvme" / controller / name)


def blocks_of_controllers(sys: Path, controller: str) -> list[Block]:
    """The block devices of the namespaces that this controller has."""
    found = []
    for entry in _entries(sys / "class" / "nvme" / controller):
        if _BLOCK.fullmatch(entry.name):
            found.append(Block(entry.name, _nsid(entry), multipath=False))
        elif path := _PATH.fullmatch(entry.name):
            # The disk that is used is the subsystem's, and has the NSID too.
            found.append(Block(path[1] + path[2], _nsid(entry), multipath=True))
    return sorted(found, key=lambda block: block.name)


def controllers_of(sys: Path, block: str) -> list[str]:
    """Controllers that have the namespace behind a block device such as `nvme0n1`; several with multipath."""
    if not _BLOCK.fullmatch(block):
        return []
    return [
        name
        for name in controllers(sys)
        if any(each.name == block for each in blocks_of_controllers(sys, name))
    ]


def _nsid(folder: Path) -> int | None:
    text = _text(folder / "nsid")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else None


def _text(path: Path) -> str:
    try:
        file = read_bounded(path)
    except OSError:
        # A controller that is being reset refuses; so does an attribute for root only.
        return ""
    return file.text.strip() if file else ""


def _entries(folder: Path) -> Iterator[Path]:
    try:
        yield from folder.iterdir()
    except OSError:
        return


MAX_NAMESPACES = 1024
"""Namespaces of one drive that are read; an identify list has no more."""
MAX_GROUPS = 64
_MAX_SETS = 64

_T = TypeVar("_T")


def controller_of(device: str, sys: Path) -> str:
    """The controller that `nvme0`, `/dev/nvme0` or the block device of one of its namespaces belongs to.

    Raises UserError when there is none.
    """
    name = device.removeprefix("/dev/")
    known = controllers(sys)
    if name in known:
        return name
    found = controllers_of(sys, name)
    if found:
        return found[0]
    there = (sys / "class" / "block" / name).exists()
    raise UserError(
        f"{device} is not an NVMe drive" if there else f"{device}: no such NVMe drive",
        f"there is {', '.join(f'/dev/{each}' for each in known)}" if known else "this host has no NVMe drive",
    )


def discover(tool: NvmeTool, controller: str, sys: Path) -> NvmeDevice:
    """All about the drive behind `controller` (`nvme0`): what it lacks is left out, what fails is a note.

    Raises NvmeError when not even Identify Controller can be had.
    """
    return _Discovery(tool, controller, sys).device()


class _Discovery:
    def __init__(self, tool: NvmeTool, name: str, sys: Path) -> None:
        self._tool = tool
        self._name = name
        self._admin = f"/dev/{name}"
        self._sys = sys
        self._notes: list[str] = []

    def device(self) -> NvmeDevice:
        blocks = blocks_of_controllers(self._sys, self._name)
        controller = replace(
            pages.controller(self._tool.read("id-ctrl", self._admin), self._name),
            transport=attribute(self._sys, self._name, "transport"),
            address=attribute(self._sys, self._name, "address"),
            multipath=any(block.multipath for block in blocks),
        )
        namespaces = self._namespaces(controller, self._names(controller, blocks))
        groups = self._groups(controller, namespaces) if controller.endurance_groups or controller.fdp else ()
        enabled = {group.id for group in groups if group.fdp_enabled}
        namespaces = tuple(
            replace(each, handles=self._handles(each)) if each.endurance_group in enabled else each
            for each in namespaces
        )
        return NvmeDevice(
            controller=controller,
            namespaces=namespaces,
            groups=groups,
            sets=self._sets() if controller.nvm_sets else (),
            ocp=self._has_ocp_log(),
            ops=self._try(lambda: self._ops(controller), "OPS of namespaces"),
            notes=tuple(self._notes),
        )

    def _ops(self, controller: NvmeController) -> DriveOps | None:
        log = DriveOpsLog.find(self._tool, controller, time.monotonic)
        return None if log is None else log.read()

    def _names(self, controller: NvmeController, blocks: list[Block]) -> dict[int, str]:
        """Block devices by NSID."""
        names = {block.nsid: block.name for block in blocks if block.nsid is not None}
        if len(names) == len(blocks):
            return names
        # A kernel whose sysfs does not show it: the tool asks each block device.
        found = self._try(lambda: pages.listed(self._tool.read("list", options=["--verbose"])), "list") or {}
        unknown = {block.name for block in blocks if block.nsid is None}
        names |= {nsid: name for name, nsid in found.items() if name in unknown}
        missing = unknown - set(names.values())
        if missing:
            self._notes.append(f"{', '.join(sorted(missing))} of {controller.name}: the NSID is not known")
        return names

    def _namespaces(self, controller: NvmeController, names: dict[int, str]) -> tuple[NvmeNamespace, ...]:
        attached = set(pages.nsids(self._tool.read("list-ns", self._admin)))
        allocated = set(attached)
        if controller.namespace_management:
            everything = self._try(
                lambda: self._tool.read("list-ns", self._admin, ["--all"]), "list-ns --all"
            )
            allocated |= set(pages.nsids(everything)) if everything is not None else set()
        if len(allocated) > MAX_NAMESPACES:
            self._notes.append(f"{len(allocated)} namespaces: only the first {MAX_NAMESPACES} were looked at")
        found = []
        for nsid in sorted(allocated)[:MAX_NAMESPACES]:
            # --force: of one that is allocated and not attached.
            options = [f"--namespace-id={nsid}", *([] if nsid in attached else ["--force"])]

            def ask(nsid: int = nsid, options: list[str] = options) -> NvmeNamespace:
                answer = self._tool.read("id-ns", self._admin, options)
                return pages.namespace(answer, nsid, attached=nsid in attached)

            known = self._try(ask, f"namespace {nsid}")
            if known is not None:
                found.append(replace(known, name=names.get(nsid)))
        return tuple(found)

    def _groups(
        self, controller: NvmeController, namespaces: tuple[NvmeNamespace, ...]
    ) -> tuple[EnduranceGroup, ...]:
        ids = {each.endurance_group for each in namespaces if each.endurance_group is not None}
        # Many drives, and QEMU, have groups and not the list of them.
        listed = self._optional(
            lambda: pages.endurance_group_ids(self._tool.read("list-endgrp", self._admin))
        )
        ids |= set(listed or ())
        if not ids and controller.max_endurance_group == 1:
            ids = {1}
        if len(ids) > MAX_GROUPS:
            self._notes.append(f"{len(ids)} endurance groups: only the first {MAX_GROUPS} were looked at")
        return tuple(self._group(controller, id_) for id_ in sorted(ids)[:MAX_GROUPS])

    def _group(self, controller: NvmeController, id_: int) -> EnduranceGroup:
        where = f"endurance group {id_}"
        group = EnduranceGroup(id_)
        log = self._try(
            lambda: pages.group_log(self._tool.read("endurance-log", self._admin, [f"--group-id={id_}"])),
            where,
        )
        if log is not None:
            group = replace(group, total_bytes=log.total_bytes, unallocated_bytes=log.unallocated_bytes)
        if not controller.fdp:
            return group
        option = [f"--endgrp-id={id_}"]
        configs = self._try(
            lambda: pages.fdp_configs(self._tool.read("fdp configs", self._admin, option)), f"{where}, FDP"
        )
        # Statistics and usage are refused while FDP is not enabled in the group.
        usage = self._optional(
            lambda: pages.fdp_handles_used(self._tool.read("fdp usage", self._admin, option))
        )
        return replace(group, fdp_configs=configs or (), fdp_enabled=usage is not None, handles_used=usage)

    def _handles(self, namespace: NvmeNamespace) -> tuple[PlacementHandle, ...]:
        if not namespace.attached or namespace.name is None:
            return ()
        options = [f"--namespace-id={namespace.nsid}"]
        found = self._try(
            lambda: pages.fdp_handles(self._tool.read("fdp status", f"/dev/{namespace.name}", options)),
            f"placement handles of namespace {namespace.nsid}",
        )
        return found or ()

    def _sets(self) -> tuple[NvmSet, ...]:
        found = self._try(lambda: pages.nvm_sets(self._tool.read("id-nvmset", self._admin)), "NVM sets")
        return (found or ())[:_MAX_SETS]

    def _has_ocp_log(self) -> bool:
        """Tried, not guessed from the model; nvme-cli checks the GUID in it."""
        read = self._optional(
            lambda: pages.ocp_media_bytes_written(self._tool.read("ocp smart-add-log", self._admin))
        )
        return read is not None

    def _optional(self, ask: Callable[[], _T]) -> _T | None:
        """Read an optional log; a failure for another reason is a note."""
        try:
            return ask()
        except NvmeCommandError as error:
            if not error.unsupported:
                self._notes.append(str(error))
        except NvmeError as error:
            self._notes.append(str(error))
        return None

    def _try(self, ask: Callable[[], _T], what: str) -> _T | None:
        """Read a log that the drive claims to have; any failure is a note."""
        try:
            return ask()
        except NvmeError as error:
            self._notes.append(f"{what}: {error}")
        return None


# Which NVMe drive a path means as a whole, and which drive a block device is a namespace of: by /sys.


def controller_at(path: str, sys: Path) -> str | None:
    """The controller, such as `nvme0`, whose character device a path or link leads to; else None."""
    try:
        status = Path(path).stat()
    except OSError:
        return None
    if not stat.S_ISCHR(status.st_mode):
        return None
    number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
    known = controllers(sys)
    return next((name for name in known if attribute(sys, name, "dev") == number), None)


def namespaces(sys: Path, controller: str) -> list[Block]:
    """Block devices of the namespaces that a controller has now, by NSID where it is known.

    Heads of multipath stand for their paths.
    """
    found = {block.name: block for block in blocks_of_controllers(sys, controller)}
    ordered = sorted(found.values(), key=lambda block: (block.nsid is None, block.nsid or 0, block.name))
    return ordered[:MAX_NAMESPACES]


def drive_of(number: DeviceNumber, sys: Path) -> str | None:
    """What all namespaces of one NVMe subsystem have in common; None for a device that is not a namespace.

    It is the NQN of the subsystem, or the controller's name on a kernel that does not report it.
    """
    block = (sys / "dev" / "block" / str(number)).resolve().name
    controllers = controllers_of(sys, block)
    if not controllers:
        return None
    return attribute(sys, controllers[0], "subsysnqn") or controllers[0]


def nsid_of(number: DeviceNumber, sys: Path) -> int | None:
    """The NSID of a block device; None: it is not a namespace, or the kernel does not report it."""
    block = (sys / "dev" / "block" / str(number)).resolve().name
    found = (each for name in controllers_of(sys, block) for each in blocks_of_controllers(sys, name))
    return next((each.nsid for each in found if each.name == block), None)


# Counters of an NVMe drive: bytes that hosts wrote, and bytes that went to its media.


class MediaReader:
    """All sources that a drive has for one endurance group, read one after the other."""

    def __init__(
        self, tool: NvmeTool, device: NvmeDevice, group: int | None, clock: Callable[[], float]
    ) -> None:
        """`group` is that of the namespace in question; None: it has none."""
        self._tool = tool
        self._clock = clock
        self._admin = f"/dev/{device.controller.name}"
        self._group_option = str(group)
        known = device.group(group)
        self._sources: dict[WafSource, Callable[[], tuple[int, int]]] = {}
        if known is not None and known.fdp_enabled:
            self._sources[WafSource.FDP] = self._fdp
        if known is not None:
            self._sources[WafSource.ENDURANCE_GROUP] = self._endurance_group
        if device.ocp:
            self._sources[WafSource.OCP] = self._ocp
        self.scope = {
            WafSource.FDP: f"endurance group {group} of {device.controller.name}",
            WafSource.ENDURANCE_GROUP: f"endurance group {group} of {device.controller.name}",
            WafSource.OCP: f"all of {device.controller.name}",
        }

    def read(self) -> tuple[list[MediaCounters], dict[WafSource, str]]:
        """Counters of every source, and why some have none. One that the drive refuses is not tried again."""
        counters, problems = [], {}
        for source, ask in list(self._sources.items()):
            try:
                host, media = ask()
            except NvmeError as error:
                problems[source] = str(error)
                if isinstance(error, NvmeCommandError) and error.unsupported:
                    del self._sources[source]
            else:
                counters.append(MediaCounters(source, self._clock(), host, media))
        return counters, problems

    def _fdp(self) -> tuple[int, int]:
        option = f"--endgrp-id={self._group_option}"
        return pages.fdp_bytes_written(self._tool.read("fdp stats", self._admin, [option]))

    def _endurance_group(self) -> tuple[int, int]:
        log = pages.group_log(
            self._tool.read("endurance-log", self._admin, [f"--group-id={self._group_option}"])
        )
        return log.host_bytes, log.media_bytes

    def _ocp(self) -> tuple[int, int]:
        host = pages.host_bytes_written(self._tool.read("smart-log", self._admin))
        return host, pages.ocp_media_bytes_written(self._tool.read("ocp smart-add-log", self._admin))


# Who uses the namespaces of a drive: VMs, mounts, processes.


def users_of(
    device: NvmeDevice, vms: Iterable[Vm], sys: Path, dev: Path, except_vm: str = ""
) -> dict[int, str]:
    """Users of namespaces by NSID; unused ones are left out.

    The definition of a VM that is shut off counts. `except_vm` is one whose disks do not.
    """
    blocks = {dev / each.name: each.nsid for each in device.namespaces if each.name is not None}
    users: dict[int, str] = {}
    numbers = {}
    for path in blocks:
        try:
            numbers[device_behind(str(path), sys)] = path
        except OSError:
            continue
    for vm in vms:
        for disk in vm.disks:
            mine = numbers.get(disk.device) if disk.device is not None else None
            if mine is not None and vm.name != except_vm:
                users.setdefault(blocks[mine], f"disk {disk.target} of VM {vm.name}")
    for path, nsid in blocks.items():
        if nsid not in users and (user := _kernel_user(path)):
            users[nsid] = user
    for path, pid, name in _openers(set(blocks)):
        users.setdefault(blocks[path], f"open in process {pid} ({name})")
    return users


def _kernel_user(path: Path) -> str:
    try:
        held = is_held(path)
    except FileNotFoundError:
        return ""  # detached since the drive was looked at
    except OSError as error:
        return f"it cannot be opened: {error.strerror}"
    return "mounted, swapped to, or part of another device (see lsblk)" if held else ""


def _openers(paths: set[Path]) -> list[tuple[Path, int, str]]:
    """Processes that have one of these open. Others' processes are seen by root only."""
    found = []
    names = {str(path): path for path in paths}
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            opened = {str(each.readlink()) for each in (process / "fd").iterdir()}
        except OSError:
            continue  # it ended, or it belongs to another user
        for name in opened & names.keys():
            command = read_bounded(process / "comm")
            found.append((names[name], int(process.name), command.text.strip() if command else "unknown"))
    return found
