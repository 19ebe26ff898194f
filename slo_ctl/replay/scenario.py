"""What a replay runs, checked as a whole.

`scenario_text` is one as it was written, `scenario_build` makes a Scenario of it, `scenario_command` the
command line of a Scenario.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import InitVar, dataclass, field
from typing import Any, Literal

from slo_ctl.errors import UserError
from slo_ctl.model import ShareBy, TimingModel
from slo_ctl.quantity import Duration, format_bytes_exact
from slo_ctl.replay.fields import did_you_mean
from slo_ctl.replay.scenario_parts import (
    Action,
    DeviceSpec,
    Event,
    Mode,
    SyntheticSource,
    VmSpec,
    Window,
    WindowKind,
    encodable,
)

LEAST_OP = 0.01
"""Below 1 % no block size leaves every VM the blocks that its GC needs."""

LEAST_VM_BYTES = 4096
"""The smallest page of any preset."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One replay, checked: whatever constructs is a run that makes sense. Raises UserError otherwise."""

    device: DeviceSpec
    vms: tuple[VmSpec, ...]
    policy: str = "proportional"
    compare: tuple[str, ...] = ()
    """Policies run before `policy`, on the same aged device, to compare it with."""
    duration: Duration = field(default_factory=lambda: Duration(drive_writes=20.0))
    timing: TimingModel = TimingModel.FULL
    seed: int = 1
    window: Window = field(default_factory=Window)
    epoch: Duration = field(default_factory=lambda: Duration(drive_writes=0.05))
    """How often the policy decides and the time series gets a point."""
    scheduler: str = "auto"
    """The device's; `auto`: the one that each policy works with."""
    share_by: ShareBy = ShareBy.PAGES
    """The unit in which shares are kept and shown."""
    on_error: Literal["raise", "skip"] = "raise"
    """What a bad record of a trace does: end the run before it starts, or be left out and counted."""
    measure_alone: bool = True
    """Also run every VM by itself on the whole aged device."""
    events: tuple[Event, ...] = ()
    noun: InitVar[str] = "VM"
    """What the VMs are called where they are refused: a device to be made has namespaces."""

    def __post_init__(self, noun: str) -> None:
        _check_vms(self, noun)
        _check_device(self.device)
        _check_clock(self)
        _check_lengths(self)
        _check_events(self)

    @property
    def policies(self) -> tuple[str, ...]:
        """Every policy to run, in order: those to compare with, then the one in question."""
        return tuple(dict.fromkeys((*self.compare, self.policy)))

    @property
    def synthetic(self) -> bool:
        """Some VM's requests are synthetic."""
        return any(isinstance(vm.source, SyntheticSource) for vm in self.vms)

    def echo(self) -> dict[str, Any]:
        """Everything as JSON values, for the result."""
        echoed = _plain(dataclasses.asdict(self))
        for vm, plain in zip(self.vms, echoed["vms"], strict=True):
            if isinstance(vm.source, SyntheticSource):
                plain["source"]["parameters"] = dict(vm.source.parameters)
        return dict(echoed)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return encodable(str(value))


def _check_vms(scenario: Scenario, noun: str) -> None:
    if not scenario.vms:
        raise UserError("there is no VM to run", "add --vm name=NAME,workload=uniform or a [[vm]] table")
    for name, times in Counter(vm.name for vm in scenario.vms).items():
        if times > 1:
            raise UserError(
                f"{noun} name {name} is used {times} times", f"give every {noun} a name of its own"
            )
    least = scenario.device.page_bytes or LEAST_VM_BYTES
    for vm in scenario.vms:
        if vm.size_bytes < least:
            raise UserError(
                f"{noun} {vm.name}: {format_bytes_exact(vm.size_bytes)} is less than a page",
                f"raise size= of the {noun} or of the device",
            )
    total = sum(vm.size_bytes for vm in scenario.vms)
    if total > scenario.device.size_bytes:
        raise UserError(
            f"the {noun}s' sizes add up to {format_bytes_exact(total)}, "
            f"the device has {format_bytes_exact(scenario.device.size_bytes)}",
            f"lower size= of the {noun}s or raise size= of the device",
        )


def _check_device(device: DeviceSpec) -> None:
    if device.op < LEAST_OP:
        raise UserError(
            f"device: op={device.op * 100:g}% is too small to run",
            f"over-provisioning must be at least {LEAST_OP:.0%}; drives are sold with 7% to 28%",
        )
    if device.channels is not None and device.dies is not None and device.dies % device.channels:
        raise UserError(
            f"device: {device.dies} dies cannot be spread evenly over {device.channels} channels",
            "make dies= a multiple of channels=",
        )
    page, block = device.page_bytes, device.block_bytes
    if page is not None and block is not None and (block < page or block % page):
        raise UserError(
            f"device: a block of {format_bytes_exact(block)} is no whole number of pages "
            f"of {format_bytes_exact(page)}",
            "make block= a multiple of page=",
        )


def _check_clock(scenario: Scenario) -> None:
    if scenario.timing is not TimingModel.NONE:
        return
    moments = [scenario.duration, scenario.epoch, *(event.at for event in scenario.events)]
    moments += [edge for edge in (scenario.window.start, scenario.window.stop) if edge is not None]
    if any(moment.timed for moment in moments):
        raise UserError(
            "virtual seconds need a clock, and timing is none", "count in drive writes, such as 20x"
        )
    for vm in scenario.vms:
        if vm.slo.min_iops is not None or vm.slo.max_iops is not None:
            raise UserError(f"VM {vm.name}: min and max are IOPS, and timing is none", "use --timing full")
        if vm.mode is Mode.OPEN:
            raise UserError(f"VM {vm.name}: mode=open needs a clock, and timing is none", "use --timing full")


def _check_lengths(scenario: Scenario) -> None:
    duration, epoch, window = scenario.duration, scenario.epoch, scenario.window
    if duration.amount <= 0:
        raise UserError(f"duration {duration} is no time at all", "write 20x or 600s")
    if epoch.amount <= 0 or (epoch.timed == duration.timed and epoch.amount > duration.amount):
        raise UserError(f"epoch {epoch} does not fit into {duration}", "the epoch is a small part of the run")
    if window.kind is not WindowKind.RANGE or window.start is None or window.stop is None:
        return
    if not window.start.timed == window.stop.timed == duration.timed:
        raise UserError(
            f"window {window} and duration {duration} are in different units", "use x or time in both"
        )
    if not window.start.amount < window.stop.amount <= duration.amount:
        raise UserError(
            f"window {window} does not lie within {duration}", f"write FROM..TO, at most 0..{duration}"
        )


def _check_events(scenario: Scenario) -> None:
    names = [vm.name for vm in scenario.vms]
    for event in scenario.events:
        where = f"event at {event.at}"
        if event.vm not in names:
            raise UserError(f"{where}: there is no VM {event.vm}", did_you_mean(event.vm, names))
        if (event.weight is None) == (event.action is Action.WEIGHT):
            problem = "needs weight=" if event.weight is None else "takes no weight="
            raise UserError(
                f"{where}: action={event.action} {problem}", "action=weight,weight=6 or action=stop"
            )
        if event.at.timed == scenario.duration.timed and event.at.amount >= scenario.duration.amount:
            raise UserError(f"{where}: the run is over at {scenario.duration}", "choose an earlier moment")
