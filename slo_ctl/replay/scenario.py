"""A validated replay scenario.

`scenario_text` reads text and writes a Scenario as a command line; `scenario_build` validates the text and
creates a Scenario.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from slo_ctl.base.errors import UserError
from slo_ctl.base.quantity import Duration
from slo_ctl.drives.build import DeviceSpec, check_namespaces
from slo_ctl.model.sample import ShareBy, TimingModel
from slo_ctl.model.slo import Slo

REMAP_NAMES = ("modulo", "scale", "partition", "compact")


class Mode(StrEnum):
    """Rule for the time of a VM's next request."""

    CLOSED = "closed"
    """Closed loop: when one of its `queue_depth` outstanding requests completes."""
    OPEN = "open"
    """Open loop: at the time stamps of its trace, or at the rate `iops` of a synthetic workload."""


class Action(StrEnum):
    """Action of an event on a VM."""

    STOP = "stop"
    START = "start"
    WEIGHT = "weight"


class WindowKind(StrEnum):
    """Kind of the measured part of a run."""

    LAST_HALF = "last-half"
    ALL = "all"
    RANGE = "range"


@dataclass(frozen=True, slots=True)
class SyntheticSource:
    """Requests of a synthetic workload."""

    workload: str
    parameters: tuple[tuple[str, float | int | str], ...]
    """Given parameters by name, in the order of `traces.synth.WORKLOADS`; shares are 0..1."""


@dataclass(frozen=True, slots=True)
class TraceSource:
    """Requests of a trace file."""

    path: Path
    format: str | None = None
    """Format of the trace; None: detect it."""
    remap: str | None = None
    """How offsets are mapped into the VM's size, one of REMAP_NAMES; None: the default of `traces`."""
    loops: int | None = None
    """Number of passes of the trace; None: until the end of the run."""
    time_scale: float = 1.0
    """Open loop: trace seconds per virtual second; 2 replays twice as fast."""
    period_s: float | None = None
    """Open loop: trace seconds between two starts of the trace; None: it restarts at its end."""


@dataclass(frozen=True, slots=True)
class VmSpec:
    """A VM with its SLO and its requests."""

    name: str
    slo: Slo
    source: SyntheticSource | TraceSource
    size_bytes: int
    """Logical size of its namespace."""
    mode: Mode
    queue_depth: int
    """Requests kept outstanding (closed loop only)."""
    starts_stopped: bool
    """Whether it is stopped until an event starts it."""

    @property
    def workload_label(self) -> str:
        """Short name of the workload, marked if it is synthetic."""
        if isinstance(self.source, TraceSource):
            return f"trace {encodable(self.source.path.name)}"
        return f"{self.source.workload} (synthetic)"


@dataclass(frozen=True, slots=True)
class Event:
    """An action on one VM at a time of the run."""

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
    """Escape bytes of file names that are not valid text, for JSON and HTML."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


@dataclass(frozen=True, slots=True)
class Scenario:
    """A validated replay. The constructor raises UserError if it is not valid."""

    device: DeviceSpec
    vms: tuple[VmSpec, ...]
    policy: str
    compare: tuple[str, ...]
    """Policies to compare `policy` with, run before it on the same preconditioned device."""
    duration: Duration
    timing: TimingModel
    seed: int
    window: Window
    epoch: Duration
    """Interval of decisions and of points of the time series."""
    scheduler: str
    """Scheduler of the device; `auto`: the one of each policy."""
    share_by: ShareBy
    """Unit of shares."""
    on_error: Literal["raise", "skip"]
    """Handling of bad records of a trace: an error before the run, or skipped and counted."""
    measure_alone: bool
    """Whether to run each VM also alone on the preconditioned device."""
    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        if not self.vms:
            raise UserError("no VM to run", "add --vm name=NAME,workload=uniform or a [[vm]] table")
        check_namespaces(self.device, [(vm.name, vm.size_bytes) for vm in self.vms])
        _check_clock(self)
        _check_lengths(self)

    @property
    def policies(self) -> tuple[str, ...]:
        """All policies to run: those to compare with, followed by `policy`."""
        return tuple(dict.fromkeys((*self.compare, self.policy)))

    def echo(self) -> dict[str, Any]:
        """The scenario as plain JSON types, for the result."""
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
    if scenario.share_by is not ShareBy.PAGES:
        raise UserError(
            f"share_by={scenario.share_by} needs a clock, and timing is none", "use --timing full"
        )
    for vm in scenario.vms:
        if vm.slo.min_iops is not None or vm.slo.max_iops is not None:
            raise UserError(f"VM {vm.name}: min and max are IOPS, and timing is none", "use --timing full")
        if vm.slo.p99_latency_us is not None:
            raise UserError(f"VM {vm.name}: p99 needs a clock, and timing is none", "use --timing full")
        if vm.mode is Mode.OPEN:
            raise UserError(f"VM {vm.name}: mode=open needs a clock, and timing is none", "use --timing full")


def _check_lengths(scenario: Scenario) -> None:
    duration, epoch, window = scenario.duration, scenario.epoch, scenario.window
    if duration.amount <= 0:
        raise UserError(f"duration {duration} is not more than 0", "write 20x or 600s")
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
