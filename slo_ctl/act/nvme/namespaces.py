"""Creating, attaching, detaching and deleting namespaces by nvme-cli, one of these at a time."""

from __future__ import annotations

import subprocess
import time
from typing import TYPE_CHECKING

from slo_ctl.errors import UserError
from slo_ctl.nvme import identify
from slo_ctl.nvme.errors import NvmeCommandError, NvmeError
from slo_ctl.observe import nvme_sysfs

if TYPE_CHECKING:
    from pathlib import Path

    from slo_ctl.model.mapping import CreateNamespace, LbaFormat
    from slo_ctl.model.nvme import NvmeDevice
    from slo_ctl.nvme.command import NvmeTool

PLACES_HANDLES_SINCE = (2, 5)
"""nvme-cli's `create-ns --nphndls --phndls`."""
APPEAR_PATIENCE_S = 10.0
_POLL_S = 0.05
_DISCARD_PATIENCE_S = 600.0
_ANY_NAMESPACE = 0xFFFFFFFF
"""Identify with this NSID tells what all namespaces have in common."""


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
                found = identify.lba_formats(self._tool.read("id-ns", self._admin, options))
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
        return identify.nsids(self._tool.read("list-ns", self._admin, ["--all"]))

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
            told = (
                f"namespaces {', '.join(map(str, sorted(new)))} are new"
                if new
                else "there is no new namespace"
            )
            raise UserError(
                f"{self._name} accepted the new namespace, but {told}",
                "see `nvme list-ns --all`; nobody else should be making namespaces meanwhile",
            )
        return new.pop()

    def _explained(self, error: NvmeCommandError) -> UserError:
        if not error.unsupported:
            return error
        free = [each.nsid for each in self._device.namespaces if not each.attached]
        adopt = f"adopt one that is there, such as --adopt {free[0]}" if free else "adopt one that is there"
        who = "QEMU's emulated drive" if self._device.controller.emulated else self._name
        return UserError(
            f"{who} claims namespace management (oacs bit 3), and lacks the command that makes namespaces: "
            f"{error.message}",
            f"{adopt}: --adopt NSID; `slo-ctl device show {self._admin}` has them all",
        )

    def attach(self, nsid: int, controller_id: int) -> str:
        """Have the controller offer it; the name of its block device, once that is there."""
        self._tool.run("attach-ns", self._admin, [f"--namespace-id={nsid}", f"--controllers={controller_id}"])
        return self.block(nsid)

    def block(self, nsid: int) -> str:
        """Name of the block device of an attached namespace; it may take a moment to come."""
        deadline = time.monotonic() + APPEAR_PATIENCE_S
        rescanned = False
        while True:
            for each in nvme_sysfs.blocks(self._sys, self._name):
                if each.nsid == nsid and (self._dev / each.name).is_block_device():
                    return each.name
            if time.monotonic() > deadline:
                raise UserError(
                    f"namespace {nsid} of {self._name} has no block device after {APPEAR_PATIENCE_S:g} s",
                    "see `dmesg` and `lsblk`",
                )
            if not rescanned and time.monotonic() > deadline - APPEAR_PATIENCE_S / 2:
                self._tool.run("ns-rescan", self._admin)
                rescanned = True
            time.sleep(_POLL_S)

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
                timeout=_DISCARD_PATIENCE_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UserError(f"`{' '.join(command)}`: {error}", "install util-linux; see `dmesg`") from None
        if done.returncode:
            raise UserError(
                f"`{' '.join(command)}` ended with {done.returncode}: {done.stderr.strip()[:200]}",
                "does the drive support deallocation (oncs bit 2)? leave --size and --spare out otherwise",
            )
