"""OPS of the namespaces of an NVMe drive that moves them by command: so that it can be restored."""

from __future__ import annotations

from pathlib import Path

from slo_ctl.act.journal import Original
from slo_ctl.base.clock import SYSTEM_CLOCK, Clock
from slo_ctl.base.errors import UserError
from slo_ctl.base.text import counted
from slo_ctl.host.nvme import pages
from slo_ctl.host.nvme.command import NvmeError, NvmeTool
from slo_ctl.host.nvme.drive import attribute, controllers
from slo_ctl.host.nvme.ops import DriveOpsLog
from slo_ctl.model import Knob, Lever, SettingValue
from slo_ctl.model.decision import ActError
from slo_ctl.model.nvme import DriveOps, NamespaceOps

OPS_KNOB = "ops_blocks"
_POLL_S = 0.1


def ops_knob(drive: str, nsid: int) -> Knob:
    """The OPS of a namespace; `drive` is the NQN of its subsystem."""
    return Knob(Lever.NVME_OPS, f"{drive}/{nsid}", OPS_KNOB)


def ops_split(drive: str, ops: DriveOps, vms: dict[int, str]) -> dict[Knob, Original]:
    """What every namespace has, to be restored; `vms` by NSID."""
    return {
        ops_knob(drive, each.nsid): Original(float(each.ops_blocks), vms.get(each.nsid, ""))
        for each in ops.namespaces
    }


class NvmeOpsActuator:
    """One drive. Decisions move OPS without it (`daemon.drive_ops`), as they need not wait for the drive."""

    levers = frozenset({Lever.NVME_OPS})

    def __init__(
        self, drive: str, log: DriveOpsLog, *, wait_s: float = 2.0, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """`drive` is the NQN of its subsystem; `wait_s`: how long writing waits for blocks under way."""
        self._drive = drive
        self._log = log
        self._wait_s = wait_s
        self._clock = clock

    def owns(self, knob: Knob) -> bool:
        """Knobs of this drive's namespaces."""
        return knob.lever in self.levers and knob.place.rpartition("/")[0] == self._drive

    def normalise(self, knob: Knob, value: SettingValue) -> SettingValue:
        """Whole blocks."""
        return float(_blocks(knob, value))

    def read(self, knob: Knob) -> SettingValue:
        """Blocks that it has now."""
        return float(self._namespace(knob, self._read()).ops_blocks)

    def write(self, knob: Knob, value: SettingValue) -> None:
        """Move the difference to the drive's spare or from there, and wait until that is done."""
        blocks, deadline_s = _blocks(knob, value), self._clock.monotonic_s() + self._wait_s
        ops = self._settled(deadline_s)
        namespace = self._namespace(knob, ops)
        lacking = blocks - namespace.ops_blocks
        if not lacking:
            return
        if lacking > ops.spare_blocks:
            spare = f"the drive has {ops.spare_blocks} to spare"
            raise ActError(f"{knob.place} lacks {lacking} OPS blocks, {spare}")
        source, target = (None, namespace.nsid) if lacking > 0 else (namespace.nsid, None)
        try:
            self._log.move(source, target, abs(lacking))
        except NvmeError as error:
            raise ActError(str(error)) from None
        self._settled(deadline_s)

    def _settled(self, deadline_s: float) -> DriveOps:
        while (ops := self._read()).pending_blocks:
            if self._clock.monotonic_s() > deadline_s:
                raise ActError(
                    f"{counted(ops.pending_blocks, 'OPS block')} of {self._drive} still to move, "
                    "which the drive does by itself",
                    under_way=True,
                )
            self._clock.sleep(_POLL_S)
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
            raise ActError(f"{self._drive} has no namespace {nsid} any more", gone=True)
        return found


def nvme_ops_actuator(drive: str, sys: Path) -> NvmeOpsActuator:
    """Of the drive with this NQN, whatever the kernel calls it now. Raises UserError when it is not there."""
    name = next((each for each in controllers(sys) if attribute(sys, each, "subsysnqn") == drive), None)
    if name is None:
        raise UserError("the drive is missing", "connect it, then run `slo-ctl apply --undo`")
    tool = NvmeTool()
    controller = pages.controller(tool.read("id-ctrl", f"/dev/{name}"), name)
    found = DriveOpsLog.find(tool, controller, SYSTEM_CLOCK.monotonic_s)
    if found is None:
        raise UserError("the drive does not report OPS any more", "see its vendor's documentation")
    return NvmeOpsActuator(drive, found)


def _blocks(knob: Knob, value: SettingValue) -> int:
    if not isinstance(value, int | float):
        raise ActError(f"{knob}: a number of blocks is needed")
    return round(value)
