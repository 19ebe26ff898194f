"""A replay scenario, checked as a whole.

`scenario_text` reads what was written, and writes a Scenario as a command line; `scenario_build` checks
what was written and makes a Scenario of it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from slo_ctl.base.errors import UserError
from slo_ctl.base.keyvalue import did_you_mean
from slo_ctl.base.quantity import Duration
from slo_ctl.decide.policies import DEFAULT_POLICY
from slo_ctl.drives.build import DeviceSpec, check_namespaces
from slo_ctl.model import ShareBy, Slo, TimingModel

REMAP_NAMES = ("modulo", "scale", "partition", "compact")


class Mode(StrEnum):
    """When a VM's next request is issued."""

    CLOSED = "closed"
    """As soon as one of its queue_depth outstanding requests completes."""
    OPEN = "open"
    """At the time stamp in its trace, or at the steady rate of a synthetic workload's `iops`."""


class Action(StrEnum):
    """Action on a VM in the middle of a run."""

    STOP = "stop"
    START = "start"
    WEIGHT = "weight"


class WindowKind(StrEnum):
    """Which part of a run is measured."""

    LAST_HALF = "last-half"
    ALL = "all"
    RANGE = "range"


@dataclass(frozen=True, slots=True)
class SyntheticSource:
    """Requests drawn from a model."""

    workload: str
    parameters: tuple[tuple[str, float | int | str], ...] = ()
    """What was given, by the names and in the order of `traces.workload_kinds.WORKLOADS`; shares are 0..1."""


@dataclass(frozen=True, slots=True)
class TraceSource:
    """Requests read from a file."""

    path: Path
    format: str | None = None
    """None: detected."""
    remap: str | None = None
    """How offsets beyond the VM's size are brought in, one of REMAP_NAMES; None: the default of `traces`."""
    loops: int | None = None
    """How often the trace is run through; None: again and again until the run is over."""
    time_scale: float = 1.0
    """Open loop: trace seconds per virtual second; 2 replays twice as fast."""
    period_s: float | None = None
    """Open loop: trace seconds from one start of the trace to the next; None: it starts again at its end."""


@dataclass(frozen=True, slots=True)
class VmSpec:
    """One VM: its SLO and what it does."""

    name: str
    slo: Slo
    source: SyntheticSource | TraceSource
    size_bytes: int
    """Logical size of its namespace."""
    mode: Mode = Mode.CLOSED
    queue_depth: int = 1
    """Requests kept outstanding (closed loop only)."""
    starts_stopped: bool = False
    """Does nothing until an event starts it."""

    @property
    def workload_label(self) -> str:
        """Workload of the VM in a word or two, saying whether it is synthetic."""
        if isinstance(self.source, TraceSource):
            return f"trace {encodable(self.source.path.name)}"
        return f"{self.source.workload} (synthetic)"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happens to one VM at a moment of the run."""

    at: Duration
    vm: str
    action: Action
    weight: float | None = None
    """The new weight, for Action.WEIGHT."""


@dataclass(frozen=True, slots=True)
class Window:
    """The measured part of a run. `start` and `stop` are set for WindowKind.RANGE only."""

    kind: WindowKind = WindowKind.LAST_HALF
    start: Duration | None = None
    stop: Duration | None = None

    def __str__(self) -> str:
        if self.kind is WindowKind.RANGE:
            return f"{self.start}..{self.stop}"
        return self.kind.value

    def bounds(self, duration: Duration) -> tuple[float, float]:
        """Start and end in the unit of `duration`."""
        if self.kind is WindowKind.ALL:
            return 0.0, duration.amount
        if self.kind is WindowKind.LAST_HALF or self.start is None or self.stop is None:
            return duration.amount / 2, duration.amount
        return self.start.amount, self.stop.amount


def encodable(text: str) -> str:
    """File names need not be valid text; JSON and HTML must be."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


@dataclass(frozen=True, slots=True)
class Scenario:
    """One replay, checked: whatever constructs is a run that makes sense. Raises UserError otherwise."""

    device: DeviceSpec
    vms: tuple[VmSpec, ...]
    policy: str = DEFAULT_POLICY
    compare: tuple[str, ...] = ()
    """Policies run before `policy`, on the same preconditioned device, to compare it with."""
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
    """Handling of bad records of a trace: an error before the run, or left out and counted."""
    measure_alone: bool = True
    """Also run every VM by itself on the whole preconditioned device."""
    events: tuple[Event, ...] = ()

    def __post_init__(self) -> None:
        if not self.vms:
            raise UserError("no VM to run", "add --vm name=NAME,workload=uniform or a [[vm]] table")
        check_namespaces(self.device, [(vm.name, vm.size_bytes) for vm in self.vms])
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
        raise UserError(f"duration {duration} is not longer than zero", "write 20x or 600s")
    if epoch.amount <= 0 or (epoch.timed == duration.timed and epoch.amount > duration.amount):
        raise UserError(
            f"epoch {epoch} does not fit into {duration}", "such as --epoch 0.05x, a small part of the run"
        )
    if window.kind is not WindowKind.RANGE or window.start is None or window.stop is None:
        return
    if not window.start.timed == window.stop.timed == duration.timed:
        raise UserError(
            f"window {window} and duration {duration} are in different units", "use x or time in both"
        )
    if window.start.amount >= window.stop.amount:
        raise UserError(f"window {window} ends before it begins", f"write {window.stop}..{window.start}")
    if window.stop.amount > duration.amount:
        raise UserError(
            f"window {window} does not lie within {duration}", f"write FROM..TO, at most 0..{duration}"
        )


def _check_events(scenario: Scenario) -> None:
    names = [vm.name for vm in scenario.vms]
    for event in scenario.events:
        where = f"event at {event.at}"
        if event.vm not in names:
            raise UserError(f"{where}: VM {event.vm} not found", did_you_mean(event.vm, names))
        if (event.weight is None) == (event.action is Action.WEIGHT):
            problem = "needs weight=" if event.weight is None else "takes no weight="
            raise UserError(
                f"{where}: action={event.action} {problem}", "action=weight,weight=6 or action=stop"
            )
        if event.at.timed == scenario.duration.timed and event.at.amount >= scenario.duration.amount:
            raise UserError(f"{where}: the run is over at {scenario.duration}", "choose an earlier moment")
