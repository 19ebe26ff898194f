"""The result of a simulation: counters by second and VM, every epoch's status, and all settings made."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from daemon_sim.drive import Namespace, SimulatedDrive
from daemon_sim.host import SimulatedHost
from daemon_sim.scenario import Event, Scenario
from slo_ctl.model.slo import Slo
from slo_ctl.model.status import HostStatus

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Matrix = NDArray[np.float64]

_ROOT_OPTION = re.compile(r" --root [^ `]+")
COUNTERS = (
    "requests",
    "pages",
    "written_pages",
    "gc_pages",
    "device_ns",
    "backlog_ns",
    "queued_ns",
    "throttled_ns",
)
"""Counters, as their growth in a second. `pages` are those that the VM read and wrote.

`queued_ns` is the time with a request that waits for its turn if the core counts it, otherwise the time with
any request.
"""
GAUGES = ("ops_blocks", "weight", "limit_iops")
"""Values at the end of a second; a missing limit is infinite."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """One epoch of the daemon."""

    at_s: float
    status: HostStatus


@dataclass(frozen=True, slots=True)
class Command:
    """A setting that the daemon made on the drive."""

    at_s: float
    op: str
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class SloChange:
    """SLO of a VM from a moment on."""

    at_s: float
    vm: str
    slo: Slo


@dataclass(slots=True)
class Result:
    """One run of a scenario."""

    scenario: Scenario
    vms: tuple[str, ...]
    by_second: dict[str, Matrix]
    """Values by a name of COUNTERS or GAUGES: a row for each VM, a column for each second; 0 while the VM is
    not running.
    """
    running: NDArray[np.bool_]
    """By VM and second: whether the VM was on a namespace for the entire second."""
    moves_ns: NDArray[np.float64]
    """Die time that moves of OPS took, by second (ns)."""
    epochs: list[Epoch] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    happened: list[tuple[float, Event]] = field(default_factory=list)
    """Events that took place."""
    slo_changes: list[SloChange] = field(default_factory=list)
    failures: list[tuple[float, str]] = field(default_factory=list)
    """Exceptions of epochs and of operators' commands that must not happen."""
    not_restored: tuple[str, ...] = ()
    """Settings that a clean stop at the end did not restore."""
    stop_s: float = 0.0
    """Duration of that stop, in virtual time."""
    missed_epochs: int = 0
    statistics_calls: int = 0
    """Replies of the server with all its counters."""
    drive_s: float = 0.0
    """CPU time of the emulated SSD and of generating its requests; not part of the repeatable result."""
    daemon_s: float = 0.0
    """CPU time of the daemon; not part of the repeatable result either."""
    epochs_s: float = 0.0
    """Part of `daemon_s` spent in epochs; the rest is `vm set`, starts and stops."""

    @property
    def seconds(self) -> int:
        return int(self.running.shape[1])

    def of(self, name: str) -> Matrix:
        return self.by_second[name]

    def digest(self) -> str:
        """Hash of the result; two runs have the same one only if they are equal to the bit."""
        digest = hashlib.sha256()
        for name in (*COUNTERS, *GAUGES):
            digest.update(self.by_second[name].tobytes())
        digest.update(self.running.tobytes() + self.moves_ns.tobytes())
        for epoch in self.epochs:
            text = repr((epoch.at_s, replace(epoch.status, daemon_pid=0)))
            # Commands in messages name the temporary directory of the run.
            digest.update(_ROOT_OPTION.sub("", text).encode())
        for command in self.commands:
            digest.update(repr(command).encode())
        others = (self.happened, self.slo_changes, self.failures, self.not_restored, self.missed_epochs)
        digest.update(repr(others).encode())
        return digest.hexdigest()


class Recorder:
    """Records the counters of every second."""

    def __init__(self, vms: tuple[str, ...]) -> None:
        self._vms = vms
        self._last: dict[str, dict[str, float]] = {}
        self._namespaces: dict[str, int | None] = {}
        self._rows: list[list[tuple[float, ...]]] = []
        self._running: list[list[bool]] = []
        self._moved_ns: list[int] = []

    def begin(self, drive: SimulatedDrive, host: SimulatedHost) -> None:
        """Start, before the first second."""
        self._last = {name: _counters(drive, namespace) for name, namespace in drive.namespaces.items()}
        self._namespaces = {vm: host.namespace_of(vm) for vm in self._vms}

    def second(self, drive: SimulatedDrive, host: SimulatedHost) -> None:
        """Record one second, which has ended."""
        now = {name: _counters(drive, namespace) for name, namespace in drive.namespaces.items()}
        namespaces = list(drive.namespaces.values())
        rows, running = [], []
        for vm in self._vms:
            number = host.namespace_of(vm)
            stayed = number is not None and number == self._namespaces[vm]
            if number is None or not stayed:
                rows.append(_NO_VALUES)
            else:
                namespace = namespaces[number]
                counters, before = now[namespace.name], self._last[namespace.name]
                increases = (counters[name] - before[name] for name in COUNTERS)
                rows.append((*increases, *_gauges(drive, namespace)))
            running.append(stayed)
            self._namespaces[vm] = number
        self._last = now
        self._moved_ns.append(drive.device.moves().done_ns)
        self._rows.append(rows)
        self._running.append(running)

    def by_second(self) -> dict[str, Matrix]:
        """Recorded values of all seconds."""
        table = np.array(self._rows, np.float64).reshape(len(self._rows), len(self._vms), -1)
        names = (*COUNTERS, *GAUGES)
        return {name: np.ascontiguousarray(table[:, :, at].T) for at, name in enumerate(names)}

    def moves_ns(self) -> NDArray[np.float64]:
        """Die time that moves of OPS took in each second."""
        return np.diff(np.array([0, *self._moved_ns], np.float64))

    def running(self) -> NDArray[np.bool_]:
        """By VM and second: whether the VM was on a namespace."""
        return np.array(self._running, np.bool_).reshape(len(self._running), len(self._vms)).T


_NO_VALUES = (*(0.0 for _ in COUNTERS), 0.0, 1.0, np.inf)


def _counters(drive: SimulatedDrive, namespace: Namespace) -> dict[str, float]:
    flash = drive.device.counters(namespace.tenant)
    queue = drive.queue_totals(namespace)
    return {
        "requests": sum(queue[name] for name in ("reads", "writes", "trims", "write_zeroes", "flushes")),
        "pages": flash.host_page_writes + flash.host_page_reads + flash.unmapped_page_reads,
        "written_pages": flash.host_page_writes,
        "gc_pages": flash.gc_page_writes,
        **{name: queue[name] for name in ("device_ns", "backlog_ns", "throttled_ns")},
        "queued_ns": queue.get("queued_ns", queue["backlog_ns"]),
    }


def _gauges(drive: SimulatedDrive, namespace: Namespace) -> tuple[float, ...]:
    limit = np.inf if namespace.limit_iops is None else namespace.limit_iops
    return (drive.device.space(namespace.tenant).ops_blocks, namespace.weight, limit)
