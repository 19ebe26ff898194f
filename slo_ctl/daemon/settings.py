"""The settings that SLOs need, for VMs and whole devices, worked out again only when their basis changed, and
the actuators that set them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slo_ctl.act.cgroup import CgroupActuator
from slo_ctl.act.journal import Journal
from slo_ctl.act.keeper import Actuator
from slo_ctl.act.libvirt import LatencyHistogramActuator, LibvirtActuator
from slo_ctl.act.nvme_ops import nvme_ops_actuator
from slo_ctl.act.queue import BlockQueueActuator, find_named_problem
from slo_ctl.act.systemd import SystemdActuator
from slo_ctl.base.errors import UserError
from slo_ctl.daemon.ssd import EmulatedDevice
from slo_ctl.decide.device_use import HostState, did_io
from slo_ctl.decide.levers import ManagedDevices, Wanted, settings_for
from slo_ctl.decide.scheduler import (
    Believed,
    DeviceFacts,
    Needs,
    Weights,
    believe,
    needs_on,
    tenant_scheduler_knob,
    vms_on,
)
from slo_ctl.drives.places import Places
from slo_ctl.host.block_device import has_io_cost_on, systemd_maps_weights
from slo_ctl.host.cgroup import CgroupTree
from slo_ctl.model import DeviceNumber, Lever, Setting
from slo_ctl.model.decision import ActError
from slo_ctl.profile.identity import IdentitySources, block_facts, has_io_cost
from slo_ctl.profile.scheduler_advice import SchedulerAdvice, advise_scheduler
from slo_ctl.profile.store import Found, ProfileStore


class WantedSettings:
    """`decide.levers.settings_for`, which of counters knows only whether there was I/O, remembered."""

    def __init__(self) -> None:
        self._basis: tuple[object, ...] | None = None
        self._wanted = Wanted()

    @property
    def limitable(self) -> Mapping[tuple[str, str], float]:
        """By VM and device, the steps of IOPS limits that could be set in the last epoch."""
        return self._wanted.limitable

    def of(self, host: HostState, managed: ManagedDevices) -> Wanted:
        """As `settings_for`; the same object as before when nothing has changed."""
        routes = [(stream.vm, stream.device, stream.tenant, did_io(stream)) for stream in host.streams]
        # A mix is smoothed all the time; what is in force changes seldom.
        shares = {key: (s.iops.read_share, s.bytes_s.read_share) for key, s in managed.splits.items()}
        basis = (
            *(tuple(host.vms), dict(host.slos), set(host.with_slo), routes),
            *(replace(managed, splits={}), shares),
        )
        if basis != self._basis:
            self._basis = basis
            self._wanted = settings_for(host, managed)
        return self._wanted


# What managed block devices are to be set to, decided again only when something that decides has changed.

AUTO, KEEP = "auto", "keep"


@dataclass(slots=True)
class _Device:
    """State of one device between epochs."""

    number: DeviceNumber
    believed: Believed | None = None
    stamp: int | None = None
    """Modification time of the directory of profiles when last read."""
    found: Found | None = None
    damage: str = ""
    """Why the profile on disk is not the one in force."""
    basis: tuple[object, ...] = ()
    decided: SchedulerAdvice | None = None
    needs_bfq: bool = False
    """VMs there have unequal weights, or had them within the last minute, and no io.cost keeps them."""


@dataclass(frozen=True, slots=True)
class ConfiguredScheduler:
    """Configuration of a device."""

    path: str
    scheduler: str
    """`auto`, `keep` or a scheduler."""


class DevicePolicies:
    """One decision for each device, by `[[device]] scheduler`."""

    def __init__(self, places: Places, sys: Path) -> None:
        self.reasons: dict[str, tuple[str, ...]] = {}
        """The decision for each device and the reasons, or why there is none."""
        self.schedulers: dict[str, str] = {}
        """By device: the scheduler it is to have; none for those that stay as they are."""
        self._around = IdentitySources(places, sys)
        self._store = ProfileStore(places.state / "profiles")
        self._devices: dict[str, _Device] = {}

    def settings(
        self,
        wishes: Mapping[str, ConfiguredScheduler],
        numbers: Mapping[str, DeviceNumber],
        tree: CgroupTree | None,
        host_state: HostState,
        now_s: float,
    ) -> list[Setting]:
        """Settings of every present device. `now_s` is monotonic time."""
        self.reasons, self.schedulers = {}, {}
        self._devices = {
            name: device for name, device in self._devices.items() if numbers.get(name) == device.number
        }
        io_cost = tree is not None and tree.version == 2 and tree.io and has_io_cost(tree.root)
        found: list[Setting] = []
        for name, number in numbers.items():
            device = self._devices.setdefault(name, _Device(number))
            wish = wishes[name]
            on = vms_on(number, host_state.vms, host_state.streams, host_state.with_slo)
            device.believed = believe(device.believed, needs_on(on, host_state.slos), now_s)
            weights = {host_state.slos[vm].weight for vm in on if vm in host_state.slos}
            device.needs_bfq = (
                device.believed.needs.weights
                and (device.needs_bfq or len(weights) > 1)
                and not (tree is not None and has_io_cost_on(tree, number))
            )
            try:
                found += self._of(name, device, wish, device.believed.needs, io_cost)
            except UserError as error:
                self.reasons[name] = (f"scheduler unchanged: {error}",)
        return found

    def label(self, name: str) -> str:
        """The policy of a device in a word or two."""
        scheduler = self.schedulers.get(name)
        return f"scheduler {scheduler}" if scheduler else ""

    def _of(
        self, name: str, device: _Device, wish: ConfiguredScheduler, needs: Needs, io_cost: bool
    ) -> tuple[Setting, ...]:
        if wish.scheduler == KEEP:
            self.reasons[name] = ("scheduler unchanged: the configuration says keep",)
            return ()
        problem = find_named_problem(wish.path, str(device.number), self._around.sys)
        if problem is not None:
            self.reasons[name] = (f"scheduler unchanged: {problem}",)
            return ()
        self._look_for_profile(device)
        facts = block_facts(device.number, self._around, io_cost)
        decided = self._decided(device, facts, needs, None if wish.scheduler == AUTO else wish.scheduler)
        damage = [f"stored profile ignored: {device.damage}"] if device.damage else []
        # bfq keeps weights whatever the device is like; every other choice depends on that.
        by_bfq = device.needs_bfq and decided.choice.weights is Weights.BFQ and not device.damage
        if wish.scheduler == AUTO and not decided.profiled and not by_bfq:
            stale = device.found.stale if device.found is not None else "there is none"
            why = device.damage or f"no valid profile: {stale}"
            hint = f"`slo-ctl device profile /dev/{facts.name}` makes one"
            self.reasons[name] = (f"scheduler unchanged: {why} ({hint})",)
            return ()
        self.schedulers[name] = decided.choice.scheduler
        texts = [f"{each.what} {each.value}: {each.reason}" for each in decided.choice.choices]
        self.reasons[name] = (*texts, *decided.choice.cautions, *damage)
        return decided.settings

    @staticmethod
    def _decided(device: _Device, facts: DeviceFacts, needs: Needs, given: str | None) -> SchedulerAdvice:
        updated = (device.found.path, device.found.record.updated) if device.found is not None else None
        # What is in force decides nothing, or every choice would be looked at once more after it was made.
        basis = (replace(facts, current=""), needs, given, updated)
        if device.decided is None or basis != device.basis:
            device.basis, device.decided = basis, advise_scheduler(facts, needs, device.found, given)
        return device.decided

    def _look_for_profile(self, device: _Device) -> None:
        """The stored profile, when anything was stored since; a damaged one leaves that in force."""
        try:
            stamp = self._store.folder.stat().st_mtime_ns
        except OSError:
            stamp = 0
        if stamp == device.stamp:
            return
        device.stamp = stamp
        try:
            device.found, device.damage = self._store.of_device(device.number, self._around), ""
        except UserError as error:
            device.damage = str(error)


# The actuators that answer at the moment.

log = logging.getLogger("slo_ctl.daemon")


class Actuators:
    """Chosen again every epoch; connections are kept as long as they are to the same thing."""

    def __init__(self, sys: Path, run: Path) -> None:
        """Kernel and systemd are looked for below `sys` and `run`."""
        self.chosen: list[Actuator[Any]] = []
        """Always the same list."""
        self.libvirt: LibvirtActuator | None = None
        self._histograms: LatencyHistogramActuator | None = None
        self._sys = sys
        self._run = run
        self._cgroup_tree: CgroupTree | None = None
        self._cgroups: CgroupActuator | None = None
        self._systemd: SystemdActuator | None = None

    def choose(self, tree: CgroupTree | None, uri: str | None, emulated: Iterable[EmulatedDevice]) -> None:
        """Use the actuators whose servers answer: a hanging server must not be waited for once per knob."""
        if tree != self._cgroup_tree:
            self._cgroup_tree = tree
            self._cgroups = CgroupActuator(tree, self._sys) if tree is not None and tree.io else None
            if self._systemd is not None:
                self._systemd.close()
            self._systemd = SystemdActuator(self._cgroups, self._sys) if self._cgroups is not None else None
        if uri is not None and self.libvirt is None:
            self.libvirt = LibvirtActuator(uri, sys=self._sys)
            self._histograms = LatencyHistogramActuator(uri)
        if self.libvirt is not None:
            # Schedulers may be changed at any time.
            self.libvirt.systemd_maps_weights = systemd_maps_weights(tree, self._sys, self._run)
        here = (self._cgroups, self._systemd, self.libvirt, self._histograms)
        hosts: list[Actuator[Any]] = [each for each in here if each is not None]
        served = [device for device in emulated if device.sample is not None]
        cgroup_v2 = tree.root if tree is not None and tree.version == 2 and tree.io else None
        self.chosen[:] = [*hosts, BlockQueueActuator(self._sys, cgroup_v2)]
        for device in served:
            self.chosen.append(device.actuator)

    def add_device(self, device: EmulatedDevice) -> None:
        """Use one whose server did not answer in the last epoch, if it answers now."""
        with suppress(ActError):
            device.actuator.read(tenant_scheduler_knob(device.name))
            self.chosen.append(device.actuator)

    def add_drives(self, journal: Journal) -> None:
        """Use the NVMe drives whose OPS was moved, too: it is restored only."""
        places = (knob.place for knob in journal.originals() if knob.lever is Lever.NVME_OPS)
        for drive in sorted({place.rpartition("/")[0] for place in places}):
            try:
                found = nvme_ops_actuator(drive, self._sys)
            except UserError as error:
                log.warning("OPS of drive %s: %s", drive, error)
            else:
                self.chosen.append(found)

    def wait_longer(self) -> None:
        """Wait longer for the calls that restore settings."""
        if self._systemd is not None:
            self._systemd.wait_longer()

    def drop_libvirt(self) -> None:
        """Hang up: it is another libvirt now."""
        if self.libvirt is not None:
            self.libvirt.close()
            self.libvirt = None
        if self._histograms is not None:
            self._histograms.close()
            self._histograms = None

    def close(self) -> None:
        """Hang up everywhere."""
        self.drop_libvirt()
        if self._systemd is not None:
            self._systemd.close()
