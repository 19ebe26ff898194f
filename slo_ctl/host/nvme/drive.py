"""Features, counters and users of NVMe drives, from nvme-cli and /sys. Read-only."""

from __future__ import annotations

import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from slo_ctl.base.errors import UserError
from slo_ctl.base.kernel_files import read_text
from slo_ctl.host.block_device import device_behind, device_number, is_held
from slo_ctl.host.nvme import pages
from slo_ctl.host.nvme.command import NvmeCommandError, NvmeError, NvmeTool
from slo_ctl.host.nvme.ops import DriveOpsLog
from slo_ctl.model.host import DeviceNumber, Vm
from slo_ctl.model.nvme import (
    DriveOps,
    EnduranceGroup,
    NvmeController,
    NvmeDevice,
    NvmeNamespace,
    NvmSet,
    PlacementHandle,
)
from slo_ctl.model.sample import MediaCounters, WafSource

# NVMe controllers and their block devices in /sys.

_CONTROLLER = re.compile(r"nvme\d{1,9}")
_BLOCK = re.compile(r"nvme\d{1,9}n\d{1,9}")
_PATH = re.compile(r"(nvme\d{1,9})c\d{1,9}(n\d{1,9})")
"""A hidden block device below a multipath disk: one controller's path to the namespace."""


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
    found = [entry.name for entry in _entries(folder) if _CONTROLLER.fullmatch(entry.name)]
    return sorted(found, key=lambda name: int(name.removeprefix("nvme")))


def attribute(sys: Path, controller: str, name: str) -> str:
    """An attribute such as `transport`, `address` or `state`; empty when it is missing."""
    return read_text(sys / "class" / "nvme" / controller / name).strip()


def blocks_of_controller(sys: Path, controller: str) -> list[Block]:
    """The block devices of a controller's namespaces."""
    found = []
    for entry in _entries(sys / "class" / "nvme" / controller):
        if _BLOCK.fullmatch(entry.name):
            found.append(Block(entry.name, _nsid(entry), multipath=False))
        elif path := _PATH.fullmatch(entry.name):
            # The disk in use is the one of the subsystem; it has the same NSID.
            found.append(Block(path[1] + path[2], _nsid(entry), multipath=True))
    return sorted(found, key=lambda block: block.name)


def controllers_of(sys: Path, block: str) -> list[str]:
    """Controllers that have the namespace behind a block device such as `nvme0n1`; several with multipath."""
    if not _BLOCK.fullmatch(block):
        return []
    return [
        name
        for name in controllers(sys)
        if any(candidate.name == block for candidate in blocks_of_controller(sys, name))
    ]


def _nsid(folder: Path) -> int | None:
    text = read_text(folder / "nsid").strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else None


def _entries(folder: Path) -> Iterator[Path]:
    with suppress(OSError):
        yield from folder.iterdir()


MAX_NAMESPACES = 1024
"""Largest number of namespaces of a drive that are read; an identify list has no more."""
MAX_GROUPS = 64
_MAX_SETS = 64

_T = TypeVar("_T")


def controller_of(device: str, sys: Path) -> str:
    """The controller of `nvme0`, `/dev/nvme0` or the block device of a namespace.

    Raises UserError when it is not an NVMe drive.
    """
    name = device.removeprefix("/dev/")
    all_controllers = controllers(sys)
    if name in all_controllers:
        return name
    if found := controllers_of(sys, name):
        return found[0]
    exists = (sys / "class" / "block" / name).exists()
    raise UserError(
        f"{device} is not an NVMe drive" if exists else f"NVMe drive {device} not found",
        f"NVMe drives: {', '.join(f'/dev/{name}' for name in all_controllers)}"
        if all_controllers
        else "this host has no NVMe drive",
    )


def discover(tool: NvmeTool, controller: str, sys: Path) -> NvmeDevice:
    """Features and namespaces of the drive with this controller (`nvme0`).

    Missing features are left out, failures become notes. Raises NvmeError when Identify Controller fails.
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
        blocks = blocks_of_controller(self._sys, self._name)
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
            replace(namespace, handles=self._handles(namespace))
            if namespace.endurance_group in enabled
            else namespace
            for namespace in namespaces
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
        # Kernels without the attribute in sysfs: nvme-cli asks each block device.
        found = self._try(lambda: pages.listed(self._tool.read("list", options=["--verbose"])), "list") or {}
        unknown = {block.name for block in blocks if block.nsid is None}
        names |= {nsid: name for name, nsid in found.items() if name in unknown}
        missing = unknown - set(names.values())
        if missing:
            self._notes.append(f"{', '.join(sorted(missing))} of {controller.name}: the NSID is unknown")
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
            self._notes.append(f"{len(allocated)} namespaces: only the first {MAX_NAMESPACES} were read")
        found = []
        for nsid in sorted(allocated)[:MAX_NAMESPACES]:
            # --force reads a namespace that is allocated but not attached.
            options = [f"--namespace-id={nsid}", *([] if nsid in attached else ["--force"])]

            def ask(nsid: int = nsid, options: list[str] = options) -> NvmeNamespace:
                answer = self._tool.read("id-ns", self._admin, options)
                return pages.namespace(answer, nsid, attached=nsid in attached)

            identified = self._try(ask, f"namespace {nsid}")
            if identified is not None:
                found.append(replace(identified, name=names.get(nsid)))
        return tuple(found)

    def _groups(
        self, controller: NvmeController, namespaces: tuple[NvmeNamespace, ...]
    ) -> tuple[EnduranceGroup, ...]:
        ids = {namespace.endurance_group for namespace in namespaces if namespace.endurance_group is not None}
        # Many drives, and QEMU, have endurance groups without a list of them.
        listed = self._optional(
            lambda: pages.endurance_group_ids(self._tool.read("list-endgrp", self._admin))
        )
        ids |= set(listed or ())
        if not ids and controller.max_endurance_group == 1:
            ids = {1}
        if len(ids) > MAX_GROUPS:
            self._notes.append(f"{len(ids)} endurance groups: only the first {MAX_GROUPS} were read")
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
        """Whether the log can be read; nvme-cli checks its GUID."""
        read = self._optional(
            lambda: pages.ocp_media_bytes_written(self._tool.read("ocp smart-add-log", self._admin))
        )
        return read is not None

    def _optional(self, ask: Callable[[], _T]) -> _T | None:
        """Read a log; None if the drive does not support it or reading fails, which adds a note."""
        try:
            return ask()
        except NvmeCommandError as error:
            if not error.unsupported:
                self._notes.append(str(error))
        except NvmeError as error:
            self._notes.append(str(error))
        return None

    def _try(self, ask: Callable[[], _T], what: str) -> _T | None:
        """Read a log that the drive claims to support; None if reading fails, which adds a note."""
        try:
            return ask()
        except NvmeError as error:
            self._notes.append(f"{what}: {error}")
        return None


# NVMe drives of paths and block devices, from /sys.


def controller_at(path: str, sys: Path) -> str | None:
    """The controller, such as `nvme0`, of a character device or a link to it; None for other paths."""
    try:
        status = Path(path).stat()
    except OSError:
        return None
    if not stat.S_ISCHR(status.st_mode):
        return None
    number = str(device_number(status.st_rdev))
    return next((name for name in controllers(sys) if attribute(sys, name, "dev") == number), None)


def namespaces(sys: Path, controller: str) -> list[Block]:
    """Block devices of a controller's namespaces, sorted by NSID; those without a known NSID are last.

    Multipath namespaces have the block device of their head.
    """
    found = {block.name: block for block in blocks_of_controller(sys, controller)}
    ordered = sorted(found.values(), key=lambda block: (block.nsid is None, block.nsid or 0, block.name))
    return ordered[:MAX_NAMESPACES]


def drive_of(number: DeviceNumber, sys: Path) -> str | None:
    """Identifier of the NVMe subsystem that a namespace belongs to; None for other block devices.

    It is the NQN of the subsystem, or the name of the controller on kernels that do not report it.
    """
    block = (sys / "dev" / "block" / str(number)).resolve().name
    found = controllers_of(sys, block)
    return (attribute(sys, found[0], "subsysnqn") or found[0]) if found else None


def nsid_of(number: DeviceNumber, sys: Path) -> int | None:
    """The NSID of a block device; None if it is not a namespace or the kernel does not report it."""
    block = (sys / "dev" / "block" / str(number)).resolve().name
    blocks = (found for name in controllers_of(sys, block) for found in blocks_of_controller(sys, name))
    return next((found.nsid for found in blocks if found.name == block), None)


# Counters of an NVMe drive: bytes written by hosts, and bytes written to its media.


class MediaReader:
    """Reads the write counters of an endurance group from all logs that the drive supports."""

    def __init__(
        self, tool: NvmeTool, device: NvmeDevice, group: int | None, clock: Callable[[], float]
    ) -> None:
        """`group`: endurance group of the namespace; None: it has none."""
        self._tool = tool
        self._clock = clock
        self._admin = f"/dev/{device.controller.name}"
        self._group_option = str(group)
        endurance_group = device.group(group)
        self._sources: dict[WafSource, Callable[[], tuple[int, int]]] = {}
        if endurance_group is not None and endurance_group.fdp_enabled:
            self._sources[WafSource.FDP] = self._fdp
        if endurance_group is not None:
            self._sources[WafSource.ENDURANCE_GROUP] = self._endurance_group
        if device.ocp:
            self._sources[WafSource.OCP] = self._ocp
        self.scope = {
            WafSource.FDP: f"endurance group {group} of {device.controller.name}",
            WafSource.ENDURANCE_GROUP: f"endurance group {group} of {device.controller.name}",
            WafSource.OCP: f"all of {device.controller.name}",
        }

    def read(self) -> tuple[list[MediaCounters], dict[WafSource, str]]:
        """Counters by source, and errors by source.

        Logs that the drive does not support are not read again.
        """
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


# Users of the namespaces of a drive: VMs, mounts, processes.


def users_of(
    device: NvmeDevice, vms: Iterable[Vm], sys: Path, dev: Path, except_vm: str = ""
) -> dict[int, str]:
    """One user of each namespace in use, by NSID.

    VMs that are shut off count as users. `except_vm` is a VM that does not.
    """
    blocks = {
        dev / namespace.name: namespace.nsid for namespace in device.namespaces if namespace.name is not None
    }
    users: dict[int, str] = {}
    numbers: dict[DeviceNumber | None, Path] = {}
    for block in blocks:
        try:
            numbers[device_behind(str(block), sys)] = block
        except OSError:
            continue
    for vm in vms:
        for disk in vm.disks:
            for path in (numbers[each] for each in disk.devices if each in numbers):
                if vm.name != except_vm:
                    users.setdefault(blocks[path], f"disk {disk.target} of VM {vm.name}")
    for block, nsid in blocks.items():
        if nsid not in users and (user := _kernel_user(block)):
            users[nsid] = user
    for block, pid, name in _openers(set(blocks)):
        users.setdefault(blocks[block], f"open in process {pid} ({name})")
    return users


def _kernel_user(path: Path) -> str:
    try:
        held = is_held(path)
    except FileNotFoundError:
        return ""  # detached since the drive was read
    except OSError as error:
        return f"it cannot be opened: {error.strerror}"
    return "mounted, swapped to, or part of another device (see lsblk)" if held else ""


def _openers(paths: set[Path]) -> list[tuple[Path, int, str]]:
    """Processes that have one of the paths open: path, PID, name. Only root sees all processes."""
    found = []
    names = {str(path): path for path in paths}
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            opened = {str(link.readlink()) for link in (process / "fd").iterdir()}
        except OSError:
            continue  # it ended, or it belongs to another user
        for name in opened & names.keys():
            command = read_text(process / "comm").strip()
            found.append((names[name], int(process.name), command or "unknown"))
    return found
