"""The simulated host: its VMs and their activity, and the daemon's observer of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from daemon_sim.drive import SimulatedDrive
from daemon_sim.scenario import DEVICE, Scenario, SimulatedVm, namespace_name
from slo_ctl.drives.places import ExportPaths, Places
from slo_ctl.drives.status import nbd_uri
from slo_ctl.host.disk_latency import DiskLatencies
from slo_ctl.host.task_delay import BlockDelay
from slo_ctl.model.host import Disk, FoundBy, Vm, VmState
from slo_ctl.observe.host import HostObserver
from slo_ctl.observe.streams import Inventory, assign_namespaces, streams_of


@dataclass(slots=True)
class _VmState:
    """State of a VM."""

    vm: SimulatedVm
    number: int
    namespace: int | None = None
    """Number of the namespace it uses; None: it is not running."""
    starts: int = 0
    """How often it was started."""
    asleep: bool = False
    """Whether an event put it to sleep."""
    resting: bool = False
    """Whether it is asleep as its load prescribes."""


class SimulatedHost:
    """VMs on the namespaces of one drive."""

    def __init__(self, scenario: Scenario, drive: SimulatedDrive, places: Places) -> None:
        self._drive = drive
        self._places = places
        self._exports = ExportPaths(places.run)
        self._vms = {vm.name: _VmState(vm, number) for number, vm in enumerate(scenario.vms)}
        self._inventory: Inventory | None = None
        for vm in scenario.vms:
            if vm.running:
                self.arrive(vm.name)

    def namespace_of(self, name: str) -> int | None:
        """Number of the namespace of a VM; None: it is not running."""
        return self._vms[name].namespace

    def arrive(self, name: str, namespace: int | None = None) -> bool:
        """Start a VM; False if it is already running, or another VM uses the namespace."""
        state = self._vms[name]
        wanted = state.vm.namespace if namespace is None else namespace
        taken = {other.namespace for other in self._vms.values()}
        if state.namespace is not None or wanted in taken:
            return False
        state.namespace = wanted
        state.starts += 1
        seed = (state.number, state.starts)
        self._drive.occupy(namespace_name(wanted), state.vm.load, seed)
        self._inventory = None
        self._apply_pause(state)
        return True

    def leave(self, name: str) -> bool:
        """Shut down a VM; False if it is not running."""
        state = self._vms[name]
        if state.namespace is None:
            return False
        self._drive.vacate(namespace_name(state.namespace))
        state.namespace = None
        self._inventory = None
        return True

    def migrate(self, name: str, namespace: int) -> bool:
        """Move a VM to another namespace; False if that is impossible."""
        taken = {other.namespace for other in self._vms.values()}
        return namespace not in taken and self.leave(name) and self.arrive(name, namespace)

    def sleep(self, name: str, *, asleep: bool) -> None:
        """Let a VM sleep or wake up, by an event."""
        self._vms[name].asleep = asleep
        self._apply_pause(self._vms[name])

    def rest(self, name: str, *, resting: bool) -> None:
        """Let a VM sleep or wake up, as its load prescribes."""
        self._vms[name].resting = resting
        self._apply_pause(self._vms[name])

    def _apply_pause(self, state: _VmState) -> None:
        if state.namespace is not None:
            paused = state.asleep or state.resting
            self._drive.pause(namespace_name(state.namespace), paused=paused)

    def inventory(self) -> Inventory:
        """The inventory that libvirt would report; the same object until a VM comes or goes."""
        if self._inventory is None:
            running = [state for state in self._vms.values() if state.namespace is not None]
            vms = sorted((self._vm_of(state) for state in running), key=lambda vm: vm.name)
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

    def _vm_of(self, state: _VmState) -> Vm:
        namespace = namespace_name(state.namespace or 0)
        export = self._places.run_of(DEVICE).export(namespace)
        return Vm(
            state.vm.name,
            FoundBy.LIBVIRT,
            VmState.RUNNING,
            uuid=f"{state.number:032x}",
            libvirt_id=state.number * 1000 + state.starts,
            disks=(Disk("vda", "network", nbd_uri(export, namespace)),),
        )


class SimulatedObserver(HostObserver):
    """The simulated host as the daemon sees it."""

    def __init__(self, host: SimulatedHost) -> None:
        self._host = host

    def observe(self) -> Inventory:
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
