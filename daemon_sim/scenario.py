"""The description of a simulation: a drive, VMs with their loads and SLOs, and events."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum

from slo_ctl.drives.plan import plan_device
from slo_ctl.drives.record import SsdRecord
from slo_ctl.model.slo import FIELD_NAMES, Slo

DEVICE = "ssd0"
"""Name of the simulated drive."""

Fields = tuple[tuple[str, float], ...]
"""Fields of `model.Slo` and their values, as `vm set` sets them."""


@dataclass(frozen=True, slots=True)
class Drive:
    """The emulated SSD.

    Large drives have large pages, so that an hour of a TiB is also simulated in seconds: OPS and GC depend on
    numbers of blocks and of pages in a block, not on their bytes.
    """

    spec: str
    """Keys of `slo-ctl device create` without the name."""
    namespaces: int
    """Number of namespaces, all of the same size."""
    slowdown: float = 1.0
    """Factor by which reads, programs, erases and transfers take longer than the daemon assumes."""

    def record(self) -> SsdRecord:
        """The record that the daemon reads."""
        names = [f"name={namespace_name(number)}" for number in range(self.namespaces)]
        record = plan_device(f"name={DEVICE},{self.spec}", names)
        if not isinstance(record, SsdRecord):
            raise TypeError(f"{self.spec} is no SSD")
        return record.model_copy(update={"created": "2026-01-01T00:00:00+00:00"})


def namespace_name(number: int) -> str:
    """Name of a namespace of the drive."""
    return f"ns{number}"


@dataclass(frozen=True, slots=True)
class Load:
    """Load of a VM on its namespace."""

    workload: str = "uniform"
    """One of `traces.synth.WORKLOADS`. Sizes are in units of 4 KiB for a page of the drive, whatever
    its size: `bs=8KiB` are two pages."""
    parameters: tuple[tuple[str, float | str], ...] = ()
    queue_depth: int = 4
    """Closed loop: requests kept outstanding."""
    rate_iops: float | None = None
    """Open loop: requests arrive at random at this mean rate, whether earlier ones have ended or not."""
    trim_share: float = 0.0
    """Share of the writes that are replaced by TRIMs of the same pages."""
    awake_s: float = math.inf
    """The VM works for this time, then sleeps for `asleep_s`, and so on."""
    asleep_s: float = 0.0
    moves_every_s: float | None = None
    """Interval at which its hot set moves by a part of the space."""

    def __str__(self) -> str:
        words = [self.workload, *(f"{name}={value}" for name, value in self.parameters)]
        words.append(f"QD {self.queue_depth}" if self.rate_iops is None else f"{self.rate_iops:g} IOPS")
        if self.trim_share:
            words.append(f"{self.trim_share:.0%} TRIM")
        if self.asleep_s:
            words.append(f"{self.awake_s:g} s awake, {self.asleep_s:g} s asleep")
        if self.moves_every_s:
            words.append(f"moves every {self.moves_every_s:g} s")
        return ", ".join(words)


@dataclass(frozen=True, slots=True)
class SimulatedVm:
    """A VM on one namespace."""

    name: str
    namespace: int
    load: Load = field(default_factory=Load)
    slo_fields: Fields = ()
    """SLO as set by `vm set` before the daemon starts."""
    running: bool = True
    """Whether it runs from the beginning; otherwise an event starts it."""
    honest: Load | None = None
    """Its load if it were not hostile; None: it is not hostile."""


class EventKind(StrEnum):
    """Kinds of events."""

    SET_SLO = "set slo"
    """`vm set` for a VM."""
    UNSET_SLO = "unset slo"
    """`vm unset`."""
    SLEEP = "sleep"
    """The VM stops sending requests."""
    WAKE = "wake"
    ARRIVE = "arrive"
    """The VM is started on its namespace, or on the one given."""
    LEAVE = "leave"
    """The VM is shut down."""
    MIGRATE = "migrate"
    """The VM continues with another namespace that no other VM uses."""
    STOP_DAEMON = "stop daemon"
    """The daemon stops cleanly; it is started again after `lasts_s`."""
    KILL_DAEMON = "kill daemon"
    """The daemon is killed in its next epoch, at its command number `command` to the drive; it is started
    again after `lasts_s`.
    """
    SILENCE = "silence"
    """The drive's server does not answer for `lasts_s`."""
    DELAY = "delay"
    """The drive's server takes `delay_s` for each answer, for `lasts_s`."""
    HANG_UP = "hang up"
    """The drive's server closes all connections."""
    STALL = "stall"
    """The daemon gets no CPU for `lasts_s`: epochs are missed."""
    SET_POLICY = "set policy"
    """SIGHUP to the daemon, with another policy in its configuration."""


DISTURBANCES = frozenset(
    {
        EventKind.SILENCE,
        EventKind.DELAY,
        EventKind.HANG_UP,
        EventKind.STALL,
        EventKind.STOP_DAEMON,
        EventKind.KILL_DAEMON,
    }
)
"""Events not caused by a VM, during which the daemon cannot do its work."""


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a simulation."""

    at_s: float
    kind: EventKind
    vm: str = ""
    fields: Fields = ()
    namespace: int | None = None
    lasts_s: float = 0.0
    delay_s: float = 0.0
    command: int = 0
    policy: str = ""

    def __str__(self) -> str:
        words = [self.kind.value]
        if self.vm:
            words.append(self.vm)
        words += [f"{name}={value:g}" for name, value in self.fields]
        if self.namespace is not None:
            words.append(f"to {namespace_name(self.namespace)}")
        if self.lasts_s:
            words.append(f"for {self.lasts_s:g} s")
        if self.policy:
            words.append(self.policy)
        return " ".join(words)


@dataclass(frozen=True, slots=True)
class Scenario:
    """One simulation. The same scenario has the same result, to the bit."""

    name: str
    drive: Drive
    vms: tuple[SimulatedVm, ...]
    events: tuple[Event, ...] = ()
    length_s: float = 3600.0
    seed: int = 0
    policy: str = "proportional"
    epoch_s: float = 1.0
    window_s: float = 10.0
    stops: bool = True
    """Whether the daemon is stopped cleanly at the end; otherwise it just ends."""

    def __post_init__(self) -> None:
        names = {vm.name for vm in self.vms}
        if len(names) < len(self.vms):
            raise ValueError("two VMs have one name")
        taken = [vm.namespace for vm in self.vms if vm.running]
        if len(set(taken)) < len(taken):
            raise ValueError("two VMs have one namespace")
        if any(not 0 <= vm.namespace < self.drive.namespaces for vm in self.vms):
            raise ValueError(f"the drive has namespaces 0 to {self.drive.namespaces - 1}")
        if unknown := {event.vm for event in self.events if event.vm} - names:
            raise ValueError(f"there is no VM {sorted(unknown)[0]}")

    @property
    def hostile(self) -> frozenset[str]:
        """VMs that try to gain by their patterns."""
        return frozenset(vm.name for vm in self.vms if vm.honest is not None)

    def honest(self) -> Scenario:
        """The same scenario without hostile loads."""
        vms = tuple(replace(vm, load=vm.honest, honest=None) if vm.honest else vm for vm in self.vms)
        return replace(self, vms=vms)


def slo_of(fields: Fields) -> Slo:
    """SLO of a VM if only `vm set` sets SLOs."""
    return Slo(**{name: value for name, value in fields if name in FIELD_NAMES})
