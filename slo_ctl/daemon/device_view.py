"""What all kinds of managed devices have in common: problems, the observer, and their view."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Protocol

from slo_ctl.base.errors import ObserveGone
from slo_ctl.base.numbers import sum_known
from slo_ctl.config import Config
from slo_ctl.daemon.files import DaemonPlaces
from slo_ctl.decide.verdict import Delivered
from slo_ctl.host.disk_latency import DiskLatencies
from slo_ctl.host.task_delay import BlockDelay
from slo_ctl.model import DeviceStatus, StreamWindow
from slo_ctl.observe.host import HostObserver
from slo_ctl.observe.streams import Inventory

# What goes wrong with one device is its own problem: it stops no other device's work.

log = logging.getLogger("slo_ctl.daemon")


class Problems:
    """Problems of devices, in one epoch."""

    def __init__(self) -> None:
        self.of: dict[str, str] = {}
        """The problem of each device that has one."""
        self._traced: set[str] = set()

    def begin(self) -> None:
        """A new epoch."""
        self.of = {}

    def guarded(self, name: str, do: Callable[[], None]) -> None:
        """One device's work: whatever it raises is kept, and logged with its trace once."""
        try:
            do()
        except ObserveGone as gone:
            self.of[name] = gone.reason
        except Exception as error:
            problem = f"unexpected {type(error).__name__}: {error}"
            if problem not in self._traced:
                self._traced.add(problem)
                log.exception("device %s", name)
            self.of[name] = problem


# Interface of the host observer that the daemon needs, and the real one.


class Observer(Protocol):
    """Sees the host."""

    def observe(self) -> Inventory:
        """The present inventory; never fails, but notes what could not be read."""

    def configure(self, named: Mapping[str, str], namespaces: Mapping[str, Sequence[str]]) -> None:
        """From the next look on: cgroups, and namespaces of emulated devices, of VMs by name."""

    def delays(
        self, inventory: Inventory, names: Collection[str] | None = None
    ) -> tuple[dict[str, BlockDelay], str]:
        """Time VMs waited for block I/O since the last call, or why it is not known."""

    def latencies(self, uuids: Collection[str]) -> Mapping[str, DiskLatencies]:
        """Latencies of the disks of these VMs of libvirt, by UUID, as they were read last."""

    def take_tuned(self) -> set[str]:
        """UUIDs of VMs whose tuning was changed in libvirt since the last call."""

    def announce(self, xml: str) -> str:
        """The name of a domain that libvirt is about to start. Raises DomainXmlError."""

    def close(self) -> None:
        """Close connections and files."""


def host_observer(
    config: Config, places: DaemonPlaces, on_change: Callable[[], None] | None = None
) -> HostObserver:
    """The real one; `on_change` is called, by another thread, after libvirt's domains have changed."""
    named, namespaces = configured(config)
    return HostObserver(
        cgroup_root=config.cgroup_root,
        libvirt_uri=config.libvirt.uri,
        run=places.devices.run,
        named=named,
        namespaces=namespaces,
        on_change=on_change,
        monitor=config.libvirt.latency_histograms,
    )


def configured(config: Config) -> tuple[dict[str, str], dict[str, tuple[str, ...]]]:
    """The part of the configuration that `Observer.configure` takes."""
    vms = config.vms.values()
    return (
        {vm.name: vm.cgroup for vm in vms if vm.cgroup is not None},
        {vm.name: vm.namespaces for vm in vms if vm.namespaces},
    )


# What the status needs of a managed device, whatever its kind.


@dataclass(frozen=True, slots=True)
class DeviceView(DeviceStatus):
    """One device: its status, what each VM got from it, and further counters."""

    moved_s: float | None = None
    """Die time that moves of OPS have taken since the device was served; None: there are none."""
    time_scale: float = 1.0
    """Real seconds for each second of the rates."""
    moved_blocks: int | None = None
    """OPS blocks that have changed hands since the device was served; None: not known."""
    vms: dict[str, Delivered] = field(default_factory=dict)

    def status(self, window_s: float) -> DeviceStatus:
        """The part that everybody reads."""
        known = self.estimated_iops if self.capacity_iops is None else self.capacity_iops
        values = {each.name: getattr(self, each.name) for each in fields(DeviceStatus)}
        values |= {"window_s": window_s, "overcommitted": known is not None and self.sum_min_iops > known}
        return DeviceStatus(**values)


def total_iops(windows: Iterable[StreamWindow]) -> float | None:
    """IOPS of all streams of a device; None when none is known."""
    return sum_known(window.iops for window in windows)


def view_or_problem(name: str, kind: str, make: Callable[[], DeviceView], problems: Problems) -> DeviceView:
    """The view that `make` returns, with the device's problem; an empty view if it fails."""
    made: list[DeviceView] = []
    problems.guarded(name, lambda: made.append(make()))
    problem = problems.of.get(name, "")
    return replace(made[0], problem=problem) if made else DeviceView(name, kind, "", "", 0.0, problem=problem)
