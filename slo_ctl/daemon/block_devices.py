"""The block devices that are managed: an epoch of all of them, and what is to be set for the VMs on them."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from slo_ctl.act.journal import Journal
from slo_ctl.base.clock import SYSTEM_CLOCK, Clock
from slo_ctl.config import Config
from slo_ctl.config.settings import DeviceConfig
from slo_ctl.daemon import occupants
from slo_ctl.daemon.block import ManagedBlock, Pool
from slo_ctl.daemon.device_view import DeviceView, Observer, Problems, view_or_problem
from slo_ctl.daemon.drive_ops import DriveOpsControl
from slo_ctl.daemon.nvme import NvmeWatches
from slo_ctl.daemon.settings import ConfiguredScheduler, DevicePolicies, WantedSettings
from slo_ctl.decide.device_use import HostState
from slo_ctl.decide.levers import ManagedDevices, Throttle, Wanted, histograms_for
from slo_ctl.decide.limit_split import ReadWriteSplits
from slo_ctl.drives.places import Places
from slo_ctl.host.block_device import device_behind, probe
from slo_ctl.host.cgroup import CgroupTree
from slo_ctl.host.disk_latency import has_histogram
from slo_ctl.host.nvme.drive import Block, controller_at, namespaces
from slo_ctl.host.task_delay import BlockDelay
from slo_ctl.model import DeviceNumber, DiskLatency, Setting, Slo, Stream, Vm
from slo_ctl.model.status import DevicePlan
from slo_ctl.observe.block import StreamsByDevice
from slo_ctl.observe.cgroup_latency import CgroupLatencies
from slo_ctl.observe.streams import Inventory

log = logging.getLogger("slo_ctl.daemon")


# Which block devices the configuration means.


@dataclass(frozen=True, slots=True)
class BlockPlace:
    """A block device to manage."""

    path: str
    scheduler: str
    of_drive: str = ""
    """The device of the configuration that it is a namespace of; empty: it is listed itself."""


def block_places(devices: Iterable[DeviceConfig], sys: Path) -> tuple[dict[str, BlockPlace], tuple[str, ...]]:
    """The block devices by name, and a sentence for each drive that has none.

    A path to an NVMe controller means every namespace that it has now, each as `NAME-nNSID`. A namespace that
    is listed by itself, or comes with another drive already, keeps that name. Any other path is taken as it
    is: whether there is a block device is found out when it is looked at.
    """
    listed = [device for device in devices if device.path is not None]
    controllers = {each.name: controller_at(each.path or "", sys) for each in listed}
    found = {
        each.name: BlockPlace(each.path or "", each.scheduler)
        for each in listed
        if controllers[each.name] is None
    }
    taken = {number for place in found.values() if (number := _number(place.path, sys)) is not None}
    notes = []
    for drive in listed:
        controller, path = controllers[drive.name], drive.path
        if controller is None or path is None:
            continue
        blocks = namespaces(sys, controller)
        if not blocks:
            notes.append(f"device {drive.name} ({drive.source}): {path} has no attached namespace")
        for block in blocks:
            node = Path(path).resolve().parent / block.name
            number = _number(str(node), sys)
            # Without a number udev has yet to make the node.
            if number is not None and number not in taken:
                taken.add(number)
                name = _name(drive.name, block, found)
                found[name] = BlockPlace(str(node), drive.scheduler, of_drive=drive.name)
    return found, tuple(notes)


def _name(drive: str, block: Block, used: Iterable[str]) -> str:
    """A name without the kernel's number, which may change at a boot."""
    name = f"{drive}-n{block.nsid}"
    return name if block.nsid is not None and name not in used else f"{drive}-{block.name}"


def _number(path: str, sys: Path) -> DeviceNumber | None:
    try:
        return device_behind(path, sys) if Path(path).is_block_device() else None
    except OSError:
        return None


# An epoch of all of them.


class BlockDevices:
    """Every block device that the configuration lists, by itself or as a namespace of an NVMe drive."""

    def __init__(
        self, places: Places, sys: Path, run: Path, problems: Problems, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.devices: dict[str, ManagedBlock] = {}
        self.policies = DevicePolicies(places, sys)
        self.notes: tuple[str, ...] = ()
        """Configured devices that cannot be used."""
        self._sys = sys
        self._run = run
        self._problems = problems
        self._wanted_settings = WantedSettings()
        self._clock = clock
        self._splits = ReadWriteSplits()
        self._wishes: dict[str, ConfiguredScheduler] = {}
        self._pools: dict[str, Pool] = {}
        self._ops: dict[str, DriveOpsControl] = {}
        """Of drives that report OPS."""
        self._left_out: dict[str, tuple[str, ...]] = {}
        """Parts that a dry run omits, by device."""
        self._window_s = 0.0
        self._histograms = False
        self._cgroup_latencies = CgroupLatencies()
        self._trace = False
        """Latencies of cgroups are to be measured."""
        self._trace_problem = ""
        self._watches = NvmeWatches(sys, self._window_s)

    def refresh(self, config: Config) -> None:
        """Bring them up to date with what is configured, and which namespaces drives have now."""
        changed, self._window_s = config.daemon.window_s != self._window_s, config.daemon.window_s
        self._histograms = config.libvirt.latency_histograms
        self._trace = config.cgroup_latency_histograms
        found, self.notes = block_places(config.devices, self._sys)
        if self._trace and self._trace_problem:
            self.notes = (*self.notes, self._trace_problem)
        self._wishes = {
            name: ConfiguredScheduler(place.path, place.scheduler) for name, place in found.items()
        }
        for name, device in list(self.devices.items()):
            if changed or name not in self._wishes or self._wishes[name].path != str(device.path):
                self.devices.pop(name).close()
                if name not in self._wishes:
                    log.info("device %s (%s) is no longer managed", name, device.path)
        if changed:
            self._watches = NvmeWatches(self._sys, self._window_s)
        for name, place in found.items():
            if name not in self.devices:
                self.devices[name] = ManagedBlock(
                    *(name, Path(place.path), self._sys, self._window_s, self._watches),
                    self._clock.monotonic_s,
                )
                if place.of_drive:
                    log.info("device %s: %s is managed, a namespace of %s", name, place.path, place.of_drive)

    @property
    def numbers(self) -> dict[str, DeviceNumber]:
        """Numbers of the present devices."""
        return {device.name: device.number for device in self.devices.values() if device.number is not None}

    def observe(self, inventory: Inventory, observer: Observer) -> None:
        """Take an epoch into account."""
        devices = self.devices.values()
        # Of VMs that do nothing on any of them it does not matter what they wait for.
        active = set().union(*(device.active for device in devices))
        delays = observer.delays(inventory, active)[0] if active else {}
        latencies = self._latencies(inventory, observer)
        streams = defaultdict[DeviceNumber | None, list[Stream]](list)
        for stream in inventory.streams:
            streams[stream.device].append(stream)
        for device in devices:
            self._problems.guarded(device.name, partial(_look_at, device, streams, delays, latencies))
        self._form_pools()
        for pool in self._pools.values():
            self._problems.guarded(pool.name, partial(pool.observe, streams, delays))

    def _latencies(
        self, inventory: Inventory, observer: Observer
    ) -> dict[str, dict[DeviceNumber, list[DiskLatency]]]:
        """Those of disks on managed devices, by VM and device; of cgroups, where QEMU keeps no histogram."""
        found = self._cgroup_latencies.read(inventory, self.numbers.values() if self._trace else ())
        self._log_trace_problem(self._cgroup_latencies.problem)
        for vm, on in self._disk_latencies(inventory.vms, observer).items():
            for number, disks in on.items():
                if any(map(has_histogram, disks)) or number not in found.get(vm, {}):
                    found.setdefault(vm, {})[number] = disks
        return found

    def _log_trace_problem(self, problem: str) -> None:
        if problem and problem != self._trace_problem:
            log.warning("%s", problem)
        elif self._trace_problem and not problem:
            log.info("over: %s", self._trace_problem)
        self._trace_problem = problem

    def _disk_latencies(
        self, vms: Sequence[Vm], observer: Observer
    ) -> dict[str, dict[DeviceNumber, list[DiskLatency]]]:
        numbers = set(self.numbers.values())
        on_them = {
            vm.uuid: vm
            for vm in vms
            if vm.uuid is not None
            and vm.libvirt_id is not None
            and any(disk.device in numbers for disk in vm.disks)
        }
        found: dict[str, dict[DeviceNumber, list[DiskLatency]]] = {}
        read = observer.latencies(on_them)
        for uuid, vm in on_them.items():
            for disk in vm.disks:
                latency = read.get(uuid, {}).get(disk.target)
                if latency is not None and disk.device is not None and disk.device in numbers:
                    found.setdefault(vm.name, {}).setdefault(disk.device, []).append(latency)
        return found

    def _form_pools(self) -> None:
        members: dict[str, list[ManagedBlock]] = {}
        for device in self.devices.values():
            members.setdefault(_pool_of(device), []).append(device)
        self._pools = {key: self._pools.get(key) or Pool(self._clock.monotonic_s) for key in members}
        for key, devices in members.items():
            self._pools[key].devices = tuple(devices)

    def decide_ops(self, slos: Mapping[str, Slo], policy: str) -> None:
        """Decide about the OPS of drives that report it; after `observe`."""
        self._ops = {
            key: self._ops.get(key) or DriveOpsControl(key, self._window_s)
            for key, pool in self._pools.items()
            if key in self._ops or pool.reports_ops
        }
        for key, control in self._ops.items():
            pool = self._pools[key]
            on = {device.nsid: device.windows.keys() for device in pool.devices if device.nsid is not None}
            there = occupants.on_nvme(on, slos)
            self._problems.guarded(pool.name, partial(control.observe, pool.devices[0].seen, there, policy))

    def move_ops(self, journal: Journal) -> None:
        """Have the drives move what was decided."""
        for key, control in self._ops.items():
            self._pools[key].devices[0].move_ops(control.requests(journal))

    def wanted(
        self,
        tree: CgroupTree | None,
        host_state: HostState,
        default_weight: float,
        weighted: Set[str],
        *,
        dry_run: bool,
    ) -> Wanted:
        """Settings for the VMs; after `observe`. The weight of those in `weighted` was set."""
        slos, streams, numbers = host_state.slos, host_state.streams, self.numbers
        capabilities = probe(tree, self._sys, numbers.values(), self._run)
        # A dry run does not throttle: it would not see the effect.
        steps_iops = self._limit_steps_iops()
        throttles = {} if dry_run else self._throttles(host_state, weighted, steps_iops)
        self._left_out = self._pools_left_out(slos, weighted) if dry_run else {}
        throttle_iops = {key: each.iops for key, each in throttles.items()}
        self._splits.observe(
            streams, slos, set(numbers.values()), throttle_iops, self._clock.monotonic_s(), steps_iops
        )
        managed = ManagedDevices(
            *(numbers, capabilities, default_weight, self._splits.splits, throttles),
            drives={name: _pool_of(device) for name, device in self.devices.items()},
            by_limits={key for key, pool in self._pools.items() if pool.guard.by_weight},
            measured=self._measured(host_state.vms),
        )
        wanted = self._wanted_settings.of(host_state, managed)
        for pool in self._pools.values():
            pool.guard.granted_iops = wanted.granted_iops
        return wanted

    def _measured(self, vms: Sequence[Vm]) -> set[tuple[str, str]]:
        """VMs whose p99 is known, or will be once the histograms count, with the device."""
        known = {(vm, device.name) for device in self.devices.values() for vm in device.with_histogram}
        if self._histograms:
            for name, number in self.numbers.items():
                known |= {(setting.vm, name) for setting in histograms_for(vms, {number})}
        if self._trace and self._cgroup_latencies.expected:
            known |= {(vm.name, name) for vm in vms if vm.cgroup for name in self.numbers}
        return known

    def _limit_steps_iops(self) -> dict[tuple[str, DeviceNumber], float]:
        """Steps in which limits act, as of the last time."""
        numbers, limitable = self.numbers, self._wanted_settings.limitable
        return {(vm, numbers[name]): step for (vm, name), step in limitable.items() if name in numbers}

    def _throttles(
        self,
        host_state: HostState,
        weighted: Set[str],
        steps_iops: Mapping[tuple[str, DeviceNumber], float],
    ) -> dict[tuple[str, DeviceNumber], Throttle]:
        """Limits for others' sake, such as are granted completely; none below the VM's own minimum."""
        limitable = self._wanted_settings.limitable
        throttles = {}
        for pool in self._pools.values():
            self._problems.guarded(
                pool.name, partial(pool.protect, host_state.slos, limitable, weighted, host_state.unapplied)
            )
            throttles.update(pool.guard.throttles)
        there, slos = set(self.numbers.values()), host_state.slos
        return {
            (vm, number): each.rounded(steps_iops.get((vm, number), 0.0), slos[vm].min_iops or 0.0)
            for (vm, number), each in throttles.items()
            if number in there
        }

    def _pools_left_out(self, slos: Mapping[str, Slo], weighted: Set[str]) -> dict[str, tuple[str, ...]]:
        return {
            device.name: (sentence,)
            for pool in self._pools.values()
            if (sentence := pool.left_out(slos, weighted))
            for device in pool.devices
        }

    @property
    def plans(self) -> list[DevicePlan]:
        """Decisions about each device as a whole, if any."""
        reasons = {
            name: (*self.policies.reasons.get(name, ()), *self._left_out.get(name, ()))
            for name in self.devices
        }
        return [
            DevicePlan(name, self.policies.label(name), (), each) for name, each in reasons.items() if each
        ]

    def for_devices(self, tree: CgroupTree | None, host_state: HostState) -> list[Setting]:
        """Settings of the devices as a whole, and what has latencies measured on them."""
        settings = self.policies.settings(
            self._wishes, self.numbers, tree, host_state, self._clock.monotonic_s()
        )
        if self._histograms:
            settings += histograms_for(host_state.vms, set(self.numbers.values()))
        return settings

    def views(self, wanted: Wanted, vms: Sequence[Vm], slos: Mapping[str, Slo]) -> list[DeviceView]:
        """Views for the status."""
        views = []
        pools = {device.name: pool for pool in self._pools.values() for device in pool.devices}
        slos_on: dict[str, dict[str, Slo]] = {name: {} for name in self.devices}
        for pool in self._pools.values():
            pool.slos = {}
        for vm, on in wanted.backends:
            slos_on[on][vm] = pools[on].slos[vm] = slos[vm]
        disks_of = {vm.name: vm.disks for vm in vms}
        for device in self.devices.values():
            used = slos_on[device.name]
            disks = {
                vm: tuple([disk.target for disk in disks_of[vm] if disk.device == device.number])
                for vm in used
            }
            key = _pool_of(device)
            make = partial(device.view, used, disks, wanted, self._pools[key], self._ops.get(key))
            view = view_or_problem(device.name, device.kind, make, self._problems)
            reasons = (*self.policies.reasons.get(device.name, ()), *view.reasons)
            views.append(replace(view, policy=self.policies.label(device.name), reasons=reasons))
        return views

    def close(self) -> None:
        """Stop using all devices."""
        self._cgroup_latencies.close()
        for device in self.devices.values():
            device.close()


def _look_at(
    device: ManagedBlock,
    streams: StreamsByDevice,
    delays: Mapping[str, BlockDelay],
    latencies: Mapping[str, Mapping[DeviceNumber, Sequence[DiskLatency]]],
) -> None:
    device.find()
    device.observe(streams, delays, latencies)


def _pool_of(device: ManagedBlock) -> str:
    """The drive of a namespace; any other device is one by itself."""
    return device.drive or device.name
