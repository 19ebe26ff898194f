"""All managed block devices: which ones, their counters, and the settings for them and their VMs."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from slo_ctl.act.journal import Journal
from slo_ctl.base.clock import SYSTEM_CLOCK, Clock
from slo_ctl.config.settings import DEFAULTS, Config, DeviceConfig
from slo_ctl.daemon.block import ManagedBlock, Pool
from slo_ctl.daemon.device import DeviceView, Problems
from slo_ctl.daemon.files import DeviceClaims
from slo_ctl.daemon.foreign import ForeignLimits
from slo_ctl.daemon.nvme import DriveOpsControl, NvmeWatches
from slo_ctl.daemon.occupants import nvme_occupants
from slo_ctl.daemon.settings import ConfiguredBlock, DevicePolicies, VmSettings
from slo_ctl.decide.device_use import HostState, copied_to, slo_on
from slo_ctl.decide.levers import ManagedDevices, Throttle, Wanted, histograms_for
from slo_ctl.decide.limit_split import ReadWriteSplits
from slo_ctl.decide.verdict import is_behind
from slo_ctl.drives.places import Places
from slo_ctl.host.bio_latency import CgroupLatencies
from slo_ctl.host.block_device import device_behind, probe
from slo_ctl.host.cgroup import CgroupTree
from slo_ctl.host.disk_latency import has_histogram
from slo_ctl.host.nvme.drive import Block, controller_at, namespaces
from slo_ctl.model.host import DeviceNumber, DiskLatency, Stream, Vm, WeightScale
from slo_ctl.model.setting import Setting
from slo_ctl.model.slo import Slo
from slo_ctl.model.status import DevicePlan
from slo_ctl.observe.host import HostObserver
from slo_ctl.observe.streams import Inventory

log = logging.getLogger("slo_ctl.daemon")


# Block devices of the configuration.


def configured_blocks(
    devices: Iterable[DeviceConfig], sys: Path
) -> tuple[dict[str, ConfiguredBlock], tuple[str, ...]]:
    """The block devices by name, and a sentence for each drive without namespaces.

    The path of an NVMe controller means each of its present namespaces, named `NAME-nNSID`, except those that
    are configured themselves or belong to an earlier entry. Other paths are taken as they are;
    `ManagedBlock.find` checks them.
    """
    with_path = [device for device in devices if device.path is not None]
    controllers = {device.name: controller_at(device.path or "", sys) for device in with_path}
    blocks = {
        device.name: ConfiguredBlock(device.path or "", device.scheduler)
        for device in with_path
        if controllers[device.name] is None
    }
    known = {number for block in blocks.values() if (number := _number(block.path, sys)) is not None}
    notes = []
    for drive in with_path:
        controller, path = controllers[drive.name], drive.path
        if controller is None or path is None:
            continue
        attached = namespaces(sys, controller)
        if not attached:
            notes.append(f"device {drive.name} ({drive.source}): {path} has no attached namespace")
        for namespace in attached:
            node = Path(path).resolve().parent / namespace.name
            number = _number(str(node), sys)
            # Without a number, udev has not created the node yet.
            if number is not None and number not in known:
                known.add(number)
                name = _name(drive.name, namespace, blocks)
                blocks[name] = ConfiguredBlock(str(node), drive.scheduler, drive=drive.name)
    return blocks, tuple(notes)


def configured_numbers(devices: Iterable[DeviceConfig], sys: Path) -> set[DeviceNumber]:
    """Numbers of the configured block devices that exist."""
    blocks, _ = configured_blocks(devices, sys)
    return {number for block in blocks.values() if (number := _number(block.path, sys)) is not None}


def _name(drive: str, block: Block, used: Iterable[str]) -> str:
    """A name without the kernel's number, which may change at boot."""
    name = f"{drive}-n{block.nsid}"
    return name if block.nsid is not None and name not in used else f"{drive}-{block.name}"


def _number(path: str, sys: Path) -> DeviceNumber | None:
    try:
        return device_behind(path, sys) if Path(path).is_block_device() else None
    except OSError:
        return None


class BlockDevices:
    """All block devices of the configuration, by themselves or as namespaces of NVMe drives."""

    def __init__(
        self,
        places: Places,
        sys: Path,
        run: Path,
        problems: Problems,
        clock: Clock = SYSTEM_CLOCK,
        claims: DeviceClaims | None = None,
    ) -> None:
        """`claims`: of this daemon; None: it sets nothing."""
        self.devices: dict[str, ManagedBlock] = {}
        self.policies = DevicePolicies(places, sys)
        self.notes: tuple[str, ...] = ()
        """Configured devices that cannot be used."""
        self._sys = sys
        self._run = run
        self._problems = problems
        self._vm_settings = VmSettings()
        self._clock = clock
        self._splits = ReadWriteSplits()
        self._behind: set[str] = set()
        """Devices with a VM that missed its share or minimum in the last window, where bfq did not wait."""
        self._activated: dict[DeviceNumber, WeightScale] = {}
        """By device: the mechanism of weights that the settings of the last epoch activated."""
        self._configured: dict[str, ConfiguredBlock] = {}
        self._pools: dict[str, Pool] = {}
        """By drive, or by path of a device that is no namespace."""
        self._ops: dict[str, DriveOpsControl] = {}
        """By drive, of drives that report OPS."""
        self._unplanned: dict[str, str] = {}
        """By device: a sentence about limits that a dry run cannot plan."""
        self._config = DEFAULTS
        self._cgroup_latencies = CgroupLatencies()
        self._trace_problem = ""
        self._watches = NvmeWatches(sys, self._window_s)
        self._claims = claims

    @property
    def _window_s(self) -> float:
        return self._config.daemon.window_s

    def refresh(self, config: Config, emulated: Collection[str] = ()) -> None:
        """Follow the configuration and the present namespaces of drives.

        `emulated`: names of emulated devices, which no block device can have.
        """
        changed = config.daemon.window_s != self._window_s
        self._config = config
        self._configured, self.notes = configured_blocks(config.devices, self._sys)
        for name in sorted(self._configured.keys() & set(emulated)):
            path = self._configured.pop(name).path
            note = f"device {name}: an emulated device has this name, so {path} is not managed: rename it"
            self.notes = (*self.notes, note)
        if self._config.cgroup.latency_histograms and self._trace_problem:
            self.notes = (*self.notes, self._trace_problem)
        for name, device in list(self.devices.items()):
            configured = self._configured.get(name)
            if changed or configured is None or configured.path != str(device.path):
                self.devices.pop(name).close()
                if configured is None:
                    log.info("device %s (%s) is no longer managed", name, device.path)
        if changed:
            self._watches = NvmeWatches(self._sys, self._window_s)
        for name, block in self._configured.items():
            if name not in self.devices:
                self.devices[name] = ManagedBlock(
                    name,
                    Path(block.path),
                    self._sys,
                    self._window_s,
                    self._watches,
                    self._clock.monotonic_s,
                    self._claims,
                )
                if block.drive:
                    log.info("device %s: %s is managed, a namespace of %s", name, block.path, block.drive)

    @property
    def numbers(self) -> dict[str, DeviceNumber]:
        """Device numbers by name of the devices that exist."""
        return {device.name: device.number for device in self.devices.values() if device.number is not None}

    def observe(self, inventory: Inventory, observer: HostObserver) -> None:
        """Add the counters of an epoch."""
        devices = self.devices.values()
        active = set().union(*(device.active for device in devices))
        delays = observer.delays(inventory, active) if active else {}
        latencies = self._read_latencies(inventory, observer)
        streams = defaultdict[DeviceNumber | None, list[Stream]](list)
        for stream in inventory.streams:
            streams[stream.device].append(stream)
        name_of: dict[DeviceNumber | None, str] = {}
        for device in devices:
            with self._problems.guard(device.name):
                device.find()
                first = name_of.setdefault(device.number, device.name)
                if first != device.name:
                    why = f" is the block device of {first}, too: remove the [[device]] of one of them"
                    raise device.gone(why)
                device.observe(streams, delays, latencies)
        if self._claims is not None:
            self._claims.keep(self.numbers.values())
        self._form_pools()
        for pool in self._pools.values():
            with self._problems.guard(pool.name):
                pool.observe(streams, delays)

    def _read_latencies(
        self, inventory: Inventory, observer: HostObserver
    ) -> dict[str, dict[DeviceNumber, list[DiskLatency]]]:
        """Latencies by VM and managed device: QEMU's histograms, else those of cgroups, else QEMU's means."""
        traced = self.numbers.values() if self._config.cgroup.latency_histograms else ()
        latencies = self._cgroup_latencies.read(inventory.tree, inventory.vms, traced)
        self._log_trace_problem(self._cgroup_latencies.problem)
        for vm, by_device in self._disk_latencies(inventory.vms, observer).items():
            for number, disks in by_device.items():
                if any(map(has_histogram, disks)) or number not in latencies.get(vm, {}):
                    latencies.setdefault(vm, {})[number] = disks
        return latencies

    def _log_trace_problem(self, problem: str) -> None:
        if problem and problem != self._trace_problem:
            log.warning("%s", problem)
        elif self._trace_problem and not problem:
            log.info("over: %s", self._trace_problem)
        self._trace_problem = problem

    def _disk_latencies(
        self, vms: Sequence[Vm], observer: HostObserver
    ) -> dict[str, dict[DeviceNumber, list[DiskLatency]]]:
        """QEMU's latencies of the disks on managed devices, by VM and device."""
        numbers = set(self.numbers.values())
        by_uuid = {
            vm.uuid: vm
            for vm in vms
            if vm.uuid is not None
            and vm.libvirt_id is not None
            and any(not numbers.isdisjoint(disk.devices) for disk in vm.disks)
        }
        latest = observer.latencies(by_uuid)
        latencies: dict[str, dict[DeviceNumber, list[DiskLatency]]] = {}
        for uuid, vm in by_uuid.items():
            for disk in vm.disks:
                latency = latest.get(uuid, {}).get(disk.target)
                if latency is not None:
                    for number in numbers.intersection(disk.devices):
                        latencies.setdefault(vm.name, {}).setdefault(number, []).append(latency)
        return latencies

    def _form_pools(self) -> None:
        members: dict[str, list[ManagedBlock]] = {}
        for device in self.devices.values():
            members.setdefault(_pool_key(device), []).append(device)
        self._pools = {key: self._pools.get(key) or Pool(self._clock.monotonic_s) for key in members}
        for key, devices in members.items():
            self._pools[key].devices = tuple(devices)
            self._pools[key].changes.window_s = self._window_s

    def decide_ops(self, slos: Mapping[str, Slo], policy: str) -> None:
        """Decide about the OPS of drives that report it, after `observe`."""
        self._ops = {
            key: self._ops.get(key) or DriveOpsControl(key, self._window_s)
            for key, pool in self._pools.items()
            if key in self._ops or pool.reports_ops
        }
        for key, control in self._ops.items():
            pool = self._pools[key]
            vms = {device.nsid: device.windows.keys() for device in pool.devices if device.nsid is not None}
            occupants = nvme_occupants(vms, slos)
            with self._problems.guard(pool.name):
                control.observe(pool.devices[0].nvme, occupants, policy)

    def move_ops(self, journal: Journal) -> None:
        """Request the decided moves of OPS from the drives."""
        for key, control in self._ops.items():
            self._pools[key].devices[0].move_ops(control.requests(journal))

    def wanted(
        self,
        tree: CgroupTree | None,
        host_state: HostState,
        *,
        dry_run: bool,
    ) -> Wanted:
        """Settings for the VMs, after `device_settings`."""
        slos, numbers = host_state.slos, self.numbers
        planned = self._weights_to_activate(dry_run=dry_run)
        tuned = [numbers[name] for name in self.policies.schedulers]
        capabilities = probe(tree, self._sys, numbers.values(), self._run, planned=planned, tuned=tuned)
        steps_iops = self._limit_steps_iops()
        # A dry run does not throttle, because the effect of a limit determines the next one.
        throttles = {} if dry_run else self._throttles(host_state, steps_iops)
        self._unplanned = self._unplanned_limits(host_state) if dry_run else {}
        self._splits.observe(
            host_state.streams,
            slos,
            set(numbers.values()),
            {key: throttle.iops for key, throttle in throttles.items()},
            self._clock.monotonic_s(),
            steps_iops,
        )
        managed = ManagedDevices(
            numbers,
            capabilities,
            self._config.default_slo.weight,
            self._splits.splits,
            throttles,
            drives={name: _pool_key(device) for name, device in self.devices.items()},
            by_limits={key for key, pool in self._pools.items() if pool.throttler.by_weight},
            measured=self._vms_with_p99(host_state.vms),
        )
        wanted = self._vm_settings.decide(host_state, managed)
        for pool in self._pools.values():
            pool.throttler.granted_iops = wanted.granted_iops
        return wanted

    def _weights_to_activate(self, *, dry_run: bool) -> dict[DeviceNumber, WeightScale]:
        """Mechanisms of weights that settings of this epoch activate; later the kernel's report counts."""
        numbers = self.numbers
        before = self._activated
        self._activated = {numbers[name]: scale for name, scale in self.policies.weights.items()}
        return {
            number: scale
            for number, scale in self._activated.items()
            if dry_run or before.get(number) is not scale
        }

    def _vms_with_p99(self, vms: Sequence[Vm]) -> set[tuple[str, str]]:
        """VMs, with the device, whose p99 is known or will be once latencies are measured."""
        known = {(vm, device.name) for device in self.devices.values() for vm in device.vms_with_histogram}
        if self._config.libvirt.latency_histograms:
            for name, number in self.numbers.items():
                known |= {(setting.vm, name) for setting in histograms_for(vms, {number})}
        if self._config.cgroup.latency_histograms and self._cgroup_latencies.expected:
            known |= {(vm.name, name) for vm in vms if vm.cgroup for name in self.numbers}
        return known

    def _limit_steps_iops(self) -> dict[tuple[str, DeviceNumber], float]:
        """Steps of IOPS limits by VM and device, as of the last epoch."""
        numbers, limitable = self.numbers, self._vm_settings.limitable
        return {(vm, numbers[name]): step for (vm, name), step in limitable.items() if name in numbers}

    def _throttles(
        self,
        host_state: HostState,
        steps_iops: Mapping[tuple[str, DeviceNumber], float],
    ) -> dict[tuple[str, DeviceNumber], Throttle]:
        """Limits that protect other VMs, rounded to steps, and not below the VM's own minimum."""
        slos, limitable = host_state.slos, self._vm_settings.limitable
        throttles = {}
        for pool in self._pools.values():
            with self._problems.guard(pool.name):
                pool.protect(slos, limitable, host_state.weighted, host_state.unapplied)
            throttles.update(pool.throttler.throttles)
        present = set(self.numbers.values())
        return {
            (vm, number): throttle.rounded(steps_iops.get((vm, number), 0.0), slos[vm].min_iops or 0.0)
            for (vm, number), throttle in throttles.items()
            if number in present
        }

    def _unplanned_limits(self, host_state: HostState) -> dict[str, str]:
        return {
            device.name: sentence
            for pool in self._pools.values()
            if (sentence := pool.unplanned_limits(host_state.slos, host_state.weighted))
            for device in pool.devices
        }

    @property
    def plans(self) -> list[DevicePlan]:
        """Decisions about each device as a whole, if any."""
        plans = []
        for name in self.devices:
            reasons = self.policies.reasons.get(name, ())
            if name in self._unplanned:
                reasons = (*reasons, self._unplanned[name])
            if reasons:
                has_ops = _pool_key(self.devices[name]) in self._ops
                plans.append(DevicePlan(name, self.policies.label(name), (), reasons, has_ops))
        return plans

    def device_settings(self, tree: CgroupTree | None, host_state: HostState) -> list[Setting]:
        """Settings of whole devices, and those that make QEMU record latencies on them, after `observe`."""
        settings = self.policies.settings(
            self._configured,
            self.numbers,
            tree,
            host_state,
            self._clock.monotonic_s(),
            self._window_s,
            self._behind,
        )
        if self._config.libvirt.latency_histograms:
            settings += histograms_for(host_state.vms, set(self.numbers.values()))
        return settings

    def views(
        self,
        wanted: Wanted,
        vms: Sequence[Vm],
        slos: Mapping[str, Slo],
        own_slos: Mapping[str, Slo],
        foreign: ForeignLimits,
    ) -> list[DeviceView]:
        """Views for the status. `own_slos`: SLOs without the parts of groups."""
        pools = {device.name: pool for pool in self._pools.values() for device in pool.devices}
        slos_on: dict[str, dict[str, Slo]] = {name: {} for name in self.devices}
        for pool in self._pools.values():
            pool.slos = {}
        vm_of = {vm.name: vm for vm in vms}
        for vm, name in wanted.backends:
            slo = slo_on(vm_of[vm], self.devices[name].number, slos[vm])
            slos_on[name][vm] = pools[name].slos[vm] = slo
        for pool in self._pools.values():
            pool.detect_changes(own_slos)
        views, self._behind = [], set()
        for name, device in self.devices.items():
            with_disks = [vm_of[vm] for vm in slos_on[name] if vm_of[vm].disks]
            disks = {
                vm.name: tuple([disk.target for disk in vm.disks if device.number in disk.devices])
                for vm in with_disks
            }
            copied = {vm.name: copied_to(vm, device.number) for vm in with_disks}
            ops = self._ops.get(_pool_key(device))
            change = self.policies.recent_change(name, self._clock.monotonic_s(), self._window_s)
            view = DeviceView(name, device.kind, backend="", policy="", window_s=0.0)
            with self._problems.guard(name):
                view = device.view(slos_on[name], disks, copied, wanted, pools[name], ops, change)
            for vm, got in view.vms.items():
                if held := foreign.reached(vm, device.number, got.window):
                    view = replace(view, vms={**view.vms, vm: got._replace(held=held)})
            if self.policies.tries_without_waiting(name) and any(
                is_behind(delivered, slos_on[name][vm]) for vm, delivered in view.vms.items()
            ):
                self._behind.add(name)
            reasons = (*self.policies.reasons.get(name, ()), *view.reasons)
            problem = self._problems.by_device.get(name, "")
            views.append(replace(view, policy=self.policies.label(name), problem=problem, reasons=reasons))
        return views

    def close(self) -> None:
        self._cgroup_latencies.close()
        if self._claims is not None:
            self._claims.keep(())
        for device in self.devices.values():
            device.close()


def _pool_key(device: ManagedBlock) -> str:
    """The drive of a namespace; for any other device its path, as another one may get the name."""
    return device.drive or str(device.path)
