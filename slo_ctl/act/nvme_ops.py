"""Restoring the OPS of the namespaces of an NVMe drive that can move it."""

from __future__ import annotations

import time
from pathlib import Path

from slo_ctl.act.journal import Original
from slo_ctl.act.keeper import Actuator
from slo_ctl.base.errors import UserError
from slo_ctl.base.text import counted
from slo_ctl.host.nvme import pages
from slo_ctl.host.nvme.command import NvmeError, NvmeTool
from slo_ctl.host.nvme.drive import attribute, controllers
from slo_ctl.host.nvme.ops import DriveOpsLog
from slo_ctl.model.nvme import DriveOps, NamespaceOps
from slo_ctl.model.setting import ActError, Knob, Lever, SettingValue

OPS_KNOB = "ops_blocks"
_POLL_S = 0.1


def ops_knob(drive: str, nsid: int) -> Knob:
    """The knob with the OPS of a namespace; `drive` is the NQN of its subsystem."""
    return Knob(Lever.NVME_OPS, f"{drive}/{nsid}", OPS_KNOB)


def ops_split(drive: str, ops: DriveOps, vms: dict[int, str]) -> dict[Knob, Original]:
    """Journal entries with the present OPS of every namespace; `vms` by NSID."""
    return {
        ops_knob(drive, namespace.nsid): Original(float(namespace.ops_blocks), vms.get(namespace.nsid, ""))
        for namespace in ops.namespaces
    }


class NvmeOpsActuator(Actuator[SettingValue]):
    """Restores the OPS of one drive. Decisions move OPS without waiting for it (`daemon.nvme`)."""

    levers = frozenset({Lever.NVME_OPS})

    def __init__(self, drive: str, log: DriveOpsLog, *, wait_s: float = 2.0) -> None:
        """`drive`: NQN of its subsystem; `wait_s`: how long `write` waits for the drive to move blocks."""
        self._drive = drive
        self._log = log
        self._wait_s = wait_s

    def owns(self, knob: Knob) -> bool:
        return knob.lever in self.levers and knob.place.rpartition("/")[0] == self._drive

    def normalise(self, knob: Knob, value: SettingValue) -> SettingValue:
        """The value as a whole number of blocks."""
        return float(_blocks(knob, value))

    def read(self, knob: Knob) -> SettingValue:
        return float(self._namespace(knob, self._read()).ops_blocks)

    def write(self, knob: Knob, value: SettingValue) -> None:
        """Move the difference to or from the spare blocks of the drive, and wait for completion."""
        blocks, deadline_s = _blocks(knob, value), time.monotonic() + self._wait_s
        ops = self._wait_for_moves(deadline_s)
        namespace = self._namespace(knob, ops)
        lacking = blocks - namespace.ops_blocks
        if not lacking:
            return
        if lacking > ops.spare_blocks:
            raise ActError(
                f"{knob.place} lacks {lacking} OPS blocks, but the drive has only {ops.spare_blocks} "
                "spare blocks"
            )
        source, target = (None, namespace.nsid) if lacking > 0 else (namespace.nsid, None)
        try:
            self._log.move(source, target, abs(lacking))
        except NvmeError as error:
            raise ActError(str(error)) from None
        self._wait_for_moves(deadline_s)

    def _wait_for_moves(self, deadline_s: float) -> DriveOps:
        while (ops := self._read()).pending_blocks:
            if time.monotonic() > deadline_s:
                raise ActError(
                    f"{counted(ops.pending_blocks, 'OPS block')} of {self._drive} still to be moved, "
                    "which the drive continues by itself",
                    in_progress=True,
                )
            time.sleep(_POLL_S)
        return ops

    def _read(self) -> DriveOps:
        try:
            return self._log.read()
        except NvmeError as error:
            raise ActError(str(error)) from None

    def _namespace(self, knob: Knob, ops: DriveOps) -> NamespaceOps:
        nsid = knob.place.rpartition("/")[2]
        found = ops.namespace(int(nsid)) if nsid.isdecimal() else None
        if found is None:
            raise ActError(f"{self._drive} has no namespace {nsid} any more", target_removed=True)
        return found


def nvme_ops_actuator(drive: str, sys: Path) -> NvmeOpsActuator:
    """Actuator of the drive with this NQN, whatever its current name. Raises UserError if it is missing."""
    matching = (name for name in controllers(sys) if attribute(sys, name, "subsysnqn") == drive)
    name = next(matching, None)
    if name is None:
        raise UserError("the drive is missing", "connect it, then run `slo-ctl apply --undo`")
    tool = NvmeTool()
    controller = pages.controller(tool.read("id-ctrl", f"/dev/{name}"), name)
    found = DriveOpsLog.find(tool, controller, time.monotonic)
    if found is None:
        raise UserError("the drive does not report OPS any more", "see its vendor's documentation")
    return NvmeOpsActuator(drive, found)


def _blocks(knob: Knob, value: SettingValue) -> int:
    if not isinstance(value, int | float):
        raise ActError(f"{knob}: a number of blocks is needed")
    return round(value)
