"""The simulated host: its VMs and their activity, and the daemon's observer of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from daemon_sim.drive import SimulatedDrive
from daemon_sim.scenario import DEVICE, Scenario, SimulatedVm, namespace_name
from slo_ctl.drives.places import Places
from slo_ctl.drives.status import nbd_uri
from slo_ctl.host.disk_latency import DiskLatencies
from slo_ctl.host.task_delay import BlockDelay
from slo_ctl.model import Disk, FoundBy, Vm, VmState
from slo_ctl.observe.host import HostObserver
from slo_ctl.observe.streams import ExportPaths, Inventory, assign_namespaces, streams_of


@dataclass(slots=True)
class _Standing:
    """State of a VM."""

    vm: SimulatedVm
    number: int
    namespace: int | None = None
    """Number of the namespace it uses; None: it is not running."""
    visits: int = 0
    asleep: bool = False
    """Put to sleep by an event."""
    resting: bool = False
    """Asleep as its load prescribes."""


class SimulatedHost:
    """VMs on the namespaces of one drive."""

    def __init__(self, scenario: Scenario, drive: SimulatedDrive, places: Places) -> None:
        self._drive = drive
        self._places = places
        self._exports = ExportPaths(places.run)
        self._vms = {vm.name: _Standing(vm, number) for number, vm in enumerate(scenario.vms)}
        self._inventory: Inventory | None = None
        for vm in scenario.vms:
            if vm.running:
                self.arrive(vm.name)

    def namespace_of(self, name: str) -> int | None:
        """Number of the namespace of a VM; None: it is not running."""
        return self._vms[name].namespace

    def arrive(self, name: str, namespace: int | None = None) -> bool:
        """Start a VM; False if it is already running, or another VM uses the namespace."""
        standing = self._vms[name]
        wanted = standing.vm.namespace if namespace is None else namespace
        taken = {other.namespace for other in self._vms.values()}
        if standing.namespace is not None or wanted in taken:
            return False
        standing.namespace = wanted
        standing.visits += 1
        seed = (standing.number, standing.visits)
        self._drive.occupy(namespace_name(wanted), standing.vm.load, seed)
        self._inventory = None
        self._let(standing)
        return True

    def leave(self, name: str) -> bool:
        """Shut down a VM; False if it is not running."""
        standing = self._vms[name]
        if standing.namespace is None:
            return False
        self._drive.vacate(namespace_name(standing.namespace))
        standing.namespace = None
        self._inventory = None
        return True

    def migrate(self, name: str, namespace: int) -> bool:
        """Move a VM to another namespace; False if that is impossible."""
        taken = {other.namespace for other in self._vms.values()}
        return namespace not in taken and self.leave(name) and self.arrive(name, namespace)

    def sleep(self, name: str, *, asleep: bool) -> None:
        """Let a VM sleep or wake up, by an event."""
        self._vms[name].asleep = asleep
        self._let(self._vms[name])

    def rest(self, name: str, *, resting: bool) -> None:
        """Let a VM sleep or wake up, as its load prescribes."""
        self._vms[name].resting = resting
        self._let(self._vms[name])

    def _let(self, standing: _Standing) -> None:
        if standing.namespace is not None:
            paused = standing.asleep or standing.resting
            self._drive.pause(namespace_name(standing.namespace), paused=paused)

    def inventory(self) -> Inventory:
        """The inventory that libvirt would report; the same object until a VM comes or goes."""
        if self._inventory is None:
            running = [each for each in self._vms.values() if each.namespace is not None]
            vms = sorted((self._vm_of(each) for each in running), key=lambda vm: vm.name)
            streams = assign_namespaces(
                (stream for vm in vms for stream in streams_of(vm, {})),
                self._exports,
                connected={},
                configured={},
                cgroups={},
                note=lambda _note: None,
            )
            self._inventory = Inventory(None, None, tuple(vms), tuple(streams))
        return self._inventory

    def _vm_of(self, standing: _Standing) -> Vm:
        namespace = namespace_name(standing.namespace or 0)
        export = self._places.run_of(DEVICE).export(namespace)
        return Vm(
            standing.vm.name,
            FoundBy.LIBVIRT,
            VmState.RUNNING,
            uuid=f"{standing.number:032x}",
            libvirt_id=standing.number * 1000 + standing.visits,
            disks=(Disk("vda", "network", nbd_uri(export, namespace)),),
        )


class SimulatedObserver(HostObserver):
    """The simulated host as the daemon sees it."""

    def __init__(self, host: SimulatedHost) -> None:
        self._host = host

    def observe(self) -> Inventory:
        """The running VMs."""
        return self._host.inventory()

    def configure(self, cgroups: Mapping[str, str], namespaces: Mapping[str, Sequence[str]]) -> None:
        """No effect: the simulated configuration names no cgroups or namespaces."""

    def delays(self, inventory: Inventory, names: Collection[str]) -> dict[str, BlockDelay]:  # noqa: ARG002
        """Empty: there is no block device."""
        return {}

    def latencies(self, uuids: Collection[str]) -> Mapping[str, DiskLatencies]:  # noqa: ARG002
        """Empty: there is no block device."""
        return {}

    def take_tuned(self) -> set[str]:
        """Empty: nothing is tuned in libvirt."""
        return set()

    def announce(self, xml: str) -> str:
        """No effect: no libvirt starts VMs."""
        del xml
        return ""

    def close(self) -> None:
        """No effect: there is nothing to release."""
