"""Settings of VMs and of whole block devices, computed only after a change, and their actuators."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slo_ctl.act.cgroup import CgroupActuator
from slo_ctl.act.journal import Journal, JournalError, Original
from slo_ctl.act.keeper import Actuator
from slo_ctl.act.latency_histogram import LatencyHistogramActuator
from slo_ctl.act.libvirt import LibvirtActuator
from slo_ctl.act.nvme_ops import nvme_ops_actuator
from slo_ctl.act.queue import BlockQueueActuator, check_named
from slo_ctl.act.systemd import SystemdActuator
from slo_ctl.base.errors import UserError
from slo_ctl.base.files import modified_ns
from slo_ctl.base.text import printable
from slo_ctl.daemon.ssd import EmulatedDevice
from slo_ctl.decide import idle_waits
from slo_ctl.decide.device_use import HostState, did_io
from slo_ctl.decide.idle_waits import IdleWaits
from slo_ctl.decide.levers import ManagedDevices, Wanted, settings_for
from slo_ctl.decide.limit_split import Splits
from slo_ctl.decide.scheduler import (
    DeviceFacts,
    Needs,
    SettledNeeds,
    Weights,
    needs_on,
    settle,
    tenant_scheduler_knob,
    vms_on,
)
from slo_ctl.drives.places import Places
from slo_ctl.host.block_device import has_io_cost_on, systemd_maps_weights
from slo_ctl.host.cgroup import CgroupTree
from slo_ctl.host.libvirt import has_throttle_group
from slo_ctl.model.host import BFQ, IO_COST, DeviceNumber, FoundBy, Vm, VmState, WeightScale
from slo_ctl.model.setting import ActError, Lever, Setting, value_text
from slo_ctl.observe.streams import Inventory
from slo_ctl.profile.identity import IdentitySources, block_facts, has_io_cost
from slo_ctl.profile.store import Found, ProfileStore, SchedulerAdvice, advise_scheduler


class VmSettings:
    """Settings for VMs by `decide.levers.settings_for`, computed only after a change of its input."""

    def __init__(self) -> None:
        self._input: tuple[object, ...] | None = None
        self._splits: Mapping[tuple[str, DeviceNumber], Splits] = {}
        self._shares: dict[tuple[str, DeviceNumber], tuple[float, float]] = {}
        """Part of reads of each maximum in `_splits`."""
        self._wanted = Wanted()

    @property
    def limitable(self) -> Mapping[tuple[str, str], float]:
        """Steps of the IOPS limits that could be set in the last epoch, by VM and device."""
        return self._wanted.limitable

    def decide(self, host: HostState, managed: ManagedDevices) -> Wanted:
        """The settings; the same object as before if nothing has changed."""
        # Of the counters, decisions use only whether there was I/O, and of splits the parts in force.
        streams = [(stream.vm, stream.device, stream.tenant, did_io(stream)) for stream in host.streams]
        if managed.splits is not self._splits:  # which is another object after each change
            self._splits = managed.splits
            self._shares = {key: (s.iops.read_share, s.bytes_s.read_share) for key, s in self._splits.items()}
        new_input = (
            tuple(host.vms),
            dict(host.slos),
            set(host.with_slo),
            streams,
            dict(host.inner_groups),
            replace(managed, splits={}),
            self._shares,
        )
        if new_input != self._input:
            self._input = new_input
            self._wanted = settings_for(host, managed)
        return self._wanted


# Settings of whole block devices.

AUTO, KEEP = "auto", "keep"
_SCALES = {Weights.BFQ: BFQ, Weights.IO_COST: IO_COST}


@dataclass(frozen=True, slots=True)
class ConfiguredBlock:
    """A block device to manage."""

    path: str
    scheduler: str
    """`auto`, `keep` or a scheduler."""
    drive: str = ""
    """Name of the configured drive of which it is a namespace; empty: it is configured itself."""


@dataclass(slots=True)
class _DeviceState:
    """State of one device between epochs."""

    number: DeviceNumber
    settled: SettledNeeds | None = None
    profiles_changed_ns: int | None = None
    """Modification time of the directory of profiles when it was last read."""
    found: Found | None = None
    """The stored profile."""
    damage: str = ""
    """Error of the profile on disk, if `found` is an earlier one."""
    advice_input: tuple[object, ...] = ()
    advice: SchedulerAdvice | None = None
    settings: tuple[Setting, ...] = ()
    """Settings of `advice`; the same objects as long as it is, which the keeper compares first."""
    needs_bfq: bool = False
    """Whether its VMs have unequal weights, or had them in the last minute, and there is no io.cost."""
    waits: IdleWaits | None = None
    """Whether bfq waits for the next request of a VM; None: it always does, or is not used."""


class DevicePolicies:
    """Decides about the scheduler of each device, by `[[device]] scheduler`."""

    def __init__(self, places: Places, sys: Path) -> None:
        self.reasons: dict[str, tuple[str, ...]] = {}
        """By device: reasons for the decision, or why the device stays unchanged."""
        self.schedulers: dict[str, str] = {}
        """By device: the chosen scheduler; without devices that stay unchanged."""
        self.weights: dict[str, WeightScale] = {}
        """By device: the mechanism of weights that the settings activate."""
        self._sources = IdentitySources(places, sys)
        self._store = ProfileStore(places.state / "profiles")
        self._devices: dict[str, _DeviceState] = {}
        self._vms_input: tuple[object, ...] = ()
        self._vms: dict[DeviceNumber, tuple[str, ...]] = {}
        """Names of the VMs on each device with `_vms_input`."""

    def settings(
        self,
        configured: Mapping[str, ConfiguredBlock],
        numbers: Mapping[str, DeviceNumber],
        tree: CgroupTree | None,
        host_state: HostState,
        now_s: float,
        window_s: float,
        behind: Collection[str] = (),
    ) -> list[Setting]:
        """Settings of the devices in `numbers`. `now_s`: monotonic time; `window_s`: the status window.

        `behind`: devices with a VM that missed its share or minimum in that window, where bfq did not wait.
        """
        self.reasons, self.schedulers, self.weights = {}, {}, {}
        self._devices = {
            name: device for name, device in self._devices.items() if numbers.get(name) == device.number
        }
        io_cost = tree is not None and tree.version == 2 and tree.io and has_io_cost(tree.root)
        settings: list[Setting] = []
        for name, number in numbers.items():
            device = self._devices.setdefault(name, _DeviceState(number))
            vms = self._vms_on(number, host_state, numbers)
            device.settled = settle(device.settled, needs_on(vms, host_state.slos), now_s)
            weights = {host_state.slos[vm].weight for vm in vms if vm in host_state.slos}
            device.needs_bfq = (
                device.settled.needs.weights
                and (device.needs_bfq or len(weights) > 1)
                and not (tree is not None and has_io_cost_on(tree, number))
            )
            try:
                needs = _with_waits(device, device.settled.needs, now_s, window_s, is_behind=name in behind)
                settings += self._decide(name, device, configured[name], needs, io_cost)
            except UserError as error:
                self.reasons[name] = (f"scheduler unchanged: {error}",)
            if name not in self.schedulers:
                device.waits = None
        return settings

    def _vms_on(
        self, number: DeviceNumber, host: HostState, numbers: Mapping[str, DeviceNumber]
    ) -> tuple[str, ...]:
        """As `vms_on`; computed again only if its input has changed, as it does while VMs do I/O."""
        vms_input = (tuple(host.vms), tuple(host.streams), set(host.with_slo), dict(numbers))
        if vms_input != self._vms_input:
            self._vms_input, self._vms = vms_input, {}
        if number not in self._vms:
            self._vms[number] = vms_on(number, host.vms, host.streams, host.with_slo, numbers.values())
        return self._vms[number]

    def tries_without_waiting(self, name: str) -> bool:
        """Whether bfq does not wait on a device, so that it counts whether a VM is behind."""
        device = self._devices.get(name)
        return device is not None and device.waits is not None and not device.waits.on

    def recent_change(self, name: str, now_s: float, window_s: float) -> str:
        """A change in the last window that may explain a missed share on a device; else empty."""
        device = self._devices.get(name)
        if device is None or device.waits is None:
            return ""
        return device.waits.recent_change(now_s, window_s)

    def label(self, name: str) -> str:
        """The policy of a device for the status; empty if it stays unchanged."""
        scheduler = self.schedulers.get(name)
        return f"scheduler {scheduler}" if scheduler else ""

    def _decide(
        self, name: str, device: _DeviceState, configured: ConfiguredBlock, needs: Needs, io_cost: bool
    ) -> tuple[Setting, ...]:
        if configured.scheduler == KEEP:
            self.reasons[name] = ("scheduler unchanged: the configuration says keep",)
            return ()
        check_named(configured.path, str(device.number), self._sources.sys)
        self._load_profile(device)
        facts = block_facts(device.number, self._sources, io_cost)
        is_auto = configured.scheduler == AUTO
        advice = _advise(device, facts, needs, None if is_auto else configured.scheduler)
        damage = [f"stored profile ignored: {device.damage}"] if device.damage else []
        # bfq keeps weights on any device; every other choice depends on the profile.
        by_bfq = device.needs_bfq and advice.choice.weights is Weights.BFQ and not device.damage
        if is_auto and not advice.profiled and not by_bfq:
            stale = device.found.stale if device.found is not None else "there is none"
            why = device.damage or f"no valid profile: {stale}"
            hint = f"measure one with `slo-ctl device profile /dev/{facts.name}`"
            self.reasons[name] = (f"scheduler unchanged: {why} ({hint})",)
            return ()
        self.schedulers[name] = advice.choice.scheduler
        if (scale := _SCALES.get(advice.choice.weights)) is not None:
            self.weights[name] = scale
        texts = [f"{choice.what} {choice.value}: {choice.reason}" for choice in advice.choice.choices]
        self.reasons[name] = (*texts, *advice.choice.cautions, *damage)
        return device.settings

    def _load_profile(self, device: _DeviceState) -> None:
        """Load the stored profile if any was stored since; a damaged one is ignored."""
        changed_ns = modified_ns(self._store.folder)
        if changed_ns == device.profiles_changed_ns:
            return
        device.profiles_changed_ns = changed_ns
        try:
            device.found, device.damage = self._store.of_device(device.number, self._sources), ""
        except UserError as error:
            device.damage = str(error)


def _with_waits(
    device: _DeviceState, needs: Needs, now_s: float, window_s: float, *, is_behind: bool
) -> Needs:
    if device.advice is None or not device.advice.choice.waits_for_weights:
        device.waits = None
        return needs
    if device.waits is None:
        device.waits = idle_waits.begin(now_s, window_s)
    device.waits = idle_waits.step(device.waits, now_s, window_s, is_behind=is_behind)
    return replace(needs, waits=device.waits.on)


def _advise(device: _DeviceState, facts: DeviceFacts, needs: Needs, scheduler: str | None) -> SchedulerAdvice:
    """As `advise_scheduler`; the same object as before if nothing has changed."""
    profile = (device.found.path, device.found.record.updated) if device.found is not None else None
    # The scheduler in force does not affect the choice.
    new_input = (replace(facts, current=""), needs, scheduler, profile)
    if device.advice is None or new_input != device.advice_input:
        device.advice_input = new_input
        device.advice = advise_scheduler(facts, needs, device.found, scheduler)
        device.settings = device.advice.settings
    return device.advice


log = logging.getLogger("slo_ctl.daemon")


class Actuators:
    """The actuators of this epoch; connections are kept from one epoch to the next."""

    def __init__(self, sys: Path, run: Path) -> None:
        """`sys` and `run`: where the kernel's and systemd's files are."""
        self.active: list[Actuator[Any]] = []
        """Always the same list object."""
        self.cgroups: CgroupActuator | None = None
        """None on a host without block I/O in cgroups."""
        self.libvirt: LibvirtActuator | None = None
        self._histograms: LatencyHistogramActuator | None = None
        self._sys = sys
        self._run = run
        self._cgroup_tree: CgroupTree | None = None
        self._systemd: SystemdActuator | None = None

    def select(
        self,
        tree: CgroupTree | None,
        uri: str | None,
        emulated: Iterable[EmulatedDevice],
        devices: Iterable[DeviceNumber] = (),
        vms: Iterable[Vm] = (),
    ) -> None:
        """Select the actuators of an epoch; those of emulated devices only if their server answered.

        Otherwise a hanging server would cause a timeout for each knob. `devices`: managed block devices.
        """
        if tree != self._cgroup_tree:
            self._cgroup_tree = tree
            self.cgroups = CgroupActuator(tree, self._sys) if tree is not None and tree.io else None
            if self._systemd is not None:
                self._systemd.close()
            self._systemd = SystemdActuator(self.cgroups, self._sys) if self.cgroups is not None else None
        if uri is not None and self.libvirt is None:
            self.libvirt = LibvirtActuator(uri, sys=self._sys)
            self._histograms = LatencyHistogramActuator(uri)
        if self.libvirt is not None:
            # The answer depends on the schedulers in force.
            self.libvirt.systemd_maps_weights = systemd_maps_weights(tree, self._sys, self._run)
            self.libvirt.cgroups = self.cgroups
            self.libvirt.cgroup_of = {vm.uuid: vm.cgroup for vm in vms if vm.uuid and vm.cgroup}
        if self.cgroups is not None:
            self.cgroups.managed = frozenset(map(str, devices))
        optional = (self.cgroups, self._systemd, self.libvirt, self._histograms)
        cgroup_v2 = tree.root if tree is not None and tree.version == 2 and tree.io else None
        self.active[:] = [actuator for actuator in optional if actuator is not None]
        self.active.append(BlockQueueActuator(self._sys, cgroup_v2))
        self.active += [device.actuator for device in emulated if device.sample is not None]

    def add_device(self, device: EmulatedDevice) -> None:
        """Add a device whose server did not answer in the last epoch, if it answers now."""
        with suppress(ActError):
            device.actuator.read(tenant_scheduler_knob(device.name))
            self.active.append(device.actuator)

    def add_drives(self, journal: Journal) -> None:
        """Add the NVMe drives whose OPS was moved, so that it can be restored."""
        places = (knob.place for knob in journal.originals() if knob.lever is Lever.NVME_OPS)
        for drive in sorted({place.rpartition("/")[0] for place in places}):
            try:
                actuator = nvme_ops_actuator(drive, self._sys)
            except UserError as error:
                log.warning("OPS of drive %s: %s", drive, error)
            else:
                self.active.append(actuator)

    def wait_longer(self) -> None:
        """Use longer timeouts for the calls that restore settings."""
        if self._systemd is not None:
            self._systemd.wait_longer()

    def drop_libvirt(self) -> None:
        """Close the connections to libvirt, whose configuration changed."""
        for actuator in (self.libvirt, self._histograms):
            if actuator is not None:
                actuator.close()
        self.libvirt = self._histograms = None

    def close(self) -> None:
        self.drop_libvirt()
        if self._systemd is not None:
            self._systemd.close()


class InheritedSettings:
    """Settings from an earlier run of VMs that were restored from a file or migrated to this host.

    libvirt takes limits and weights of a running VM along, but the journal's entries about them are of the
    earlier run, which has ended, or of another host.
    """

    def __init__(self) -> None:
        self._inspected: set[tuple[str, int, bool]] = set()
        """UUIDs, numbers of runs, and whether these are known to be resumed: at first they are paused."""
        self._started_here: set[tuple[str, int]] = set()
        """UUIDs and numbers of runs that began on this host; they are paused, too, to migrate away."""
        self._identified: set[str] = set()
        """UUIDs of the VMs whose runs the journal has."""

    def add_to(
        self,
        journal: Journal,
        inventory: Inventory,
        libvirt: LibvirtActuator,
        devices: Collection[DeviceNumber],
    ) -> None:
        """Add those of VMs with a disk on these devices, with the values of the VMs' definitions."""
        running = {
            (vm.uuid, vm.libvirt_id, vm.resumed): vm
            for vm in inventory.vms
            if vm.found_by is FoundBy.LIBVIRT and vm.uuid is not None and vm.libvirt_id is not None
        }
        self._inspected &= running.keys()
        runs = {(uuid, number): vm for (uuid, number, _), vm in running.items()}
        self._started_here &= runs.keys()
        self._started_here |= {
            run for run, vm in runs.items() if vm.state is VmState.RUNNING and not vm.resumed
        }
        self._identify_runs(journal, runs)
        for run, vm in running.items():
            uuid = run[0]
            targets = {disk.target for disk in vm.disks if any(each in devices for each in disk.devices)}
            if run in self._inspected or not targets:
                continue
            known = [knob for knob in journal.originals() if knob.place == uuid]
            targets -= {target for knob in known for target in knob.device.split(",")}
            is_resumed = vm.resumed and run[:2] not in self._started_here
            weight = is_resumed and not any(knob.lever is Lever.LIBVIRT_WEIGHT for knob in known)
            limited = targets and has_throttle_group(inventory.domain_xml.get(uuid, ""))
            try:
                found = libvirt.inherited(uuid, sorted(targets), weight=weight) if weight or limited else {}
                journal.add({knob: Original(value, vm.name) for knob, value in found.items()})
            except (ActError, JournalError) as error:
                log.debug("VM %s: settings of its earlier run are not known yet: %s", vm.name, error)
                continue
            self._inspected.add(run)
            for knob, value in found.items():
                log.info(
                    "VM %s has %s of its earlier run; it was %s",
                    *(printable(vm.name), knob, value_text(value)),
                )

    def _identify_runs(self, journal: Journal, runs: Mapping[tuple[str, int], Vm]) -> None:
        """Pass the current run of each VM to the journal.

        One that has started anew has the settings of its definition: original values of the run before, as
        after a daemon that was killed, are not restored in it. One that was resumed has taken its own along.
        """
        started = {}
        for (uuid, number), vm in runs.items():
            run = f"run {number}"
            if not vm.resumed or (uuid, number) in self._started_here:
                started[uuid] = run
            elif vm.state is not VmState.PAUSED:  # one that starts anew is paused at first, too
                with suppress(JournalError):
                    journal.follow(uuid, run)
        journal.identify(started)
        identified = {uuid for uuid, _ in runs}
        journal.forget(self._identified - identified)
        self._identified = identified
