"""What an NVMe drive is and offers, by nvme-cli and /sys. Changes nothing on it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from slo_ctl.errors import UserError
from slo_ctl.model.nvme import EnduranceGroup, NvmeDevice
from slo_ctl.nvme import identify, listing, logs
from slo_ctl.nvme.errors import NvmeCommandError, NvmeError
from slo_ctl.observe import nvme_sysfs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from slo_ctl.model.nvme import NvmeController, NvmeNamespace, NvmSet, PlacementHandle
    from slo_ctl.nvme.command import NvmeTool

MAX_NAMESPACES = 1024
"""Of one drive, that are asked about; an identify list has no more."""
MAX_GROUPS = 64
MAX_SETS = 64

_T = TypeVar("_T")


def controller_of(device: str, sys: Path) -> str:
    """The controller that `nvme0`, `/dev/nvme0` or the block device of one of its namespaces belongs to.

    Raises UserError when there is none.
    """
    name = device.removeprefix("/dev/")
    known = nvme_sysfs.controllers(sys)
    if name in known:
        return name
    found = nvme_sysfs.controllers_of(sys, name)
    if found:
        return found[0]
    raise UserError(
        f"{device}: there is no such NVMe drive",
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
        blocks = nvme_sysfs.blocks(self._sys, self._name)
        controller = replace(
            identify.controller(self._tool.read("id-ctrl", self._admin), self._name),
            transport=nvme_sysfs.attribute(self._sys, self._name, "transport"),
            address=nvme_sysfs.attribute(self._sys, self._name, "address"),
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
            notes=tuple(self._notes),
        )

    def _names(self, controller: NvmeController, blocks: list[nvme_sysfs.Block]) -> dict[int, str]:
        """Block devices by NSID."""
        names = {block.nsid: block.name for block in blocks if block.nsid is not None}
        if len(names) == len(blocks):
            return names
        # A kernel whose sysfs does not tell: the tool asks each block device.
        found = (
            self._try(lambda: listing.listed(self._tool.read("list", options=["--verbose"])), "list") or ()
        )
        unknown = {block.name for block in blocks if block.nsid is None}
        names |= {each.nsid: each.name for each in found if each.name in unknown}
        missing = unknown - set(names.values())
        if missing:
            self._notes.append(f"{', '.join(sorted(missing))} of {controller.name}: the NSID is not known")
        return names

    def _namespaces(self, controller: NvmeController, names: dict[int, str]) -> tuple[NvmeNamespace, ...]:
        attached = set(identify.nsids(self._tool.read("list-ns", self._admin)))
        allocated = set(attached)
        if controller.namespace_management:
            everything = self._try(
                lambda: self._tool.read("list-ns", self._admin, ["--all"]), "list-ns --all"
            )
            allocated |= set(identify.nsids(everything)) if everything is not None else set()
        if len(allocated) > MAX_NAMESPACES:
            self._notes.append(f"{len(allocated)} namespaces: only the first {MAX_NAMESPACES} were looked at")
        found = []
        for nsid in sorted(allocated)[:MAX_NAMESPACES]:
            # --force: of one that is allocated and not attached.
            options = [f"--namespace-id={nsid}", *([] if nsid in attached else ["--force"])]

            def ask(nsid: int = nsid, options: list[str] = options) -> NvmeNamespace:
                answer = self._tool.read("id-ns", self._admin, options)
                return identify.namespace(answer, nsid, attached=nsid in attached)

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
            lambda: identify.endurance_group_ids(self._tool.read("list-endgrp", self._admin))
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
            lambda: logs.group_log(self._tool.read("endurance-log", self._admin, [f"--group-id={id_}"])),
            where,
        )
        if log is not None:
            group = replace(group, total_bytes=log.total_bytes, unallocated_bytes=log.unallocated_bytes)
        if not controller.fdp:
            return group
        option = [f"--endgrp-id={id_}"]
        configs = self._try(
            lambda: logs.fdp_configs(self._tool.read("fdp configs", self._admin, option)), f"{where}, FDP"
        )
        # Statistics and usage are refused while FDP is not enabled in the group.
        usage = self._optional(
            lambda: logs.fdp_handles_used(self._tool.read("fdp usage", self._admin, option))
        )
        return replace(group, fdp_configs=configs or (), fdp_enabled=usage is not None, handles_used=usage)

    def _handles(self, namespace: NvmeNamespace) -> tuple[PlacementHandle, ...]:
        if not namespace.attached or namespace.name is None:
            return ()
        options = [f"--namespace-id={namespace.nsid}"]
        found = self._try(
            lambda: logs.fdp_handles(self._tool.read("fdp status", f"/dev/{namespace.name}", options)),
            f"placement handles of namespace {namespace.nsid}",
        )
        return found or ()

    def _sets(self) -> tuple[NvmSet, ...]:
        found = self._try(lambda: identify.nvm_sets(self._tool.read("id-nvmset", self._admin)), "NVM sets")
        return (found or ())[:MAX_SETS]

    def _has_ocp_log(self) -> bool:
        """Tried, not guessed from the model; nvme-cli checks the GUID in it."""
        read = self._optional(
            lambda: logs.ocp_media_bytes_written(self._tool.read("ocp smart-add-log", self._admin))
        )
        return read is not None

    def _optional(self, ask: Callable[[], _T]) -> _T | None:
        """What the drive may lack; a failure for another reason is a note."""
        try:
            return ask()
        except NvmeCommandError as error:
            if not error.unsupported:
                self._notes.append(str(error))
        except NvmeError as error:
            self._notes.append(str(error))
        return None

    def _try(self, ask: Callable[[], _T], what: str) -> _T | None:
        """What the drive says that it has; any failure is a note."""
        try:
            return ask()
        except NvmeError as error:
            self._notes.append(f"{what}: {error}")
        return None
