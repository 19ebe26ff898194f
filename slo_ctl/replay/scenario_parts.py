"""The parts of a Scenario: the device, the VMs and what they run, events, the measured window. Values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from slo_ctl.model import Slo
    from slo_ctl.quantity import Duration

POLICY_NAMES = ("shared", "static", "algorithm1", "proportional", "proportional-strict", "min_waf")
STRICT_POLICY_NAME = "proportional-strict"
SCHEDULER_NAMES = ("fifo", "rr", "wfq")
PRESET_NAMES = ("fast15", "tlc", "qlc")
VICTIM_NAMES = ("greedy", "fifo", "lru", "cost-benefit", "d-choices", "random")
"""`d-choices:N` chooses among N blocks."""
MAPPING_NAMES = ("page", "bast", "fast", "dftl")
REMAP_NAMES = ("modulo", "scale", "partition", "compact")


class Mode(StrEnum):
    """When a VM's next request is issued."""

    CLOSED = "closed"
    """As soon as one of its queue_depth outstanding requests completes."""
    OPEN = "open"
    """At the time stamp in its trace, or at the steady rate of a synthetic workload's `iops`."""


class Action(StrEnum):
    """What happens to a VM in the middle of a run."""

    STOP = "stop"
    START = "start"
    WEIGHT = "weight"


class WindowKind(StrEnum):
    """Which part of a run is measured."""

    LAST_HALF = "last-half"
    ALL = "all"
    RANGE = "range"


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """The emulated SSD. What is None comes from the preset."""

    size_bytes: int
    """Logical size: what all VMs see together."""
    preset: str = "fast15"
    op: float = 0.15
    """Over-provisioning: physical / logical - 1, over usable blocks."""
    page_bytes: int | None = None
    block_bytes: int | None = None
    channels: int | None = None
    dies: int | None = None
    """Dies of the whole device."""
    planes: int | None = None
    """Planes of one die."""
    read_us: float | None = None
    program_us: float | None = None
    erase_us: float | None = None
    transfer_us: float | None = None
    copyback: bool | None = None
    """GC copies stay inside the die."""
    mapping: str | None = None
    """One of MAPPING_NAMES; page mapping unless given."""
    cluster: int | None = None
    """bast, fast: dies that a block spans."""
    cached_entries: int | None = None
    """dftl: map entries held in memory."""
    victim: str | None = None
    """Victim policy, one of VICTIM_NAMES, or d-choices:N."""
    separate_gc_frontier: bool | None = None
    """GC writes into blocks of its own rather than into the host's open block."""


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


@dataclass(frozen=True, slots=True)
class VmSpec:
    """One VM: what it was promised and what it does."""

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
        """What the VM runs, in a word or two, saying whether it is synthetic."""
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
