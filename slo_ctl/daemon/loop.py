"""One epoch after the other: observe, decide, act, record, publish."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from slo_ctl.act.block_queue import BlockQueueActuator
from slo_ctl.act.capabilities import probe, systemd_maps_weights
from slo_ctl.act.cgroup import CgroupActuator
from slo_ctl.act.journal import Journal
from slo_ctl.act.keeper import SettingKeeper
from slo_ctl.act.libvirt import LibvirtActuator
from slo_ctl.act.systemd import SystemdActuator
from slo_ctl.api.controller import DevicePlan, Plan
from slo_ctl.config import load
from slo_ctl.daemon.assembly import Moment, status_of
from slo_ctl.daemon.desk import Desk, Published, Waker
from slo_ctl.daemon.device_policies import DevicePolicies, Situation, Wish
from slo_ctl.daemon.devices import Devices
from slo_ctl.daemon.metadata import Metadata
from slo_ctl.daemon.mixes import Mixes
from slo_ctl.daemon.parts import DeviceView
from slo_ctl.daemon.promised import Resolver, VmSet, named_by
from slo_ctl.daemon.reasons import Reasons
from slo_ctl.daemon.seats import seats_on
from slo_ctl.daemon.told import decided, outcome_line
from slo_ctl.daemon.wanted import WantedSettings
from slo_ctl.decide.promises import DEFAULT
from slo_ctl.errors import UserError
from slo_ctl.model import Lever, OutcomeState
from slo_ctl.observe.gone import ObserveGone
from slo_ctl.observe.host import HostObserver
from slo_ctl.record.history import History
from slo_ctl.record.history_errors import HistoryError
from slo_ctl.record.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence, Set

    from slo_ctl.act.interface import Actuator
    from slo_ctl.config import Config
    from slo_ctl.daemon.blocks import BlockPart
    from slo_ctl.daemon.emulated import EmulatedDevice
    from slo_ctl.daemon.places import DaemonPlaces
    from slo_ctl.decide.levers import Wanted
    from slo_ctl.decide.limit_settings import HeldBack
    from slo_ctl.model import DeviceNumber, HostStatus, Outcome, Setting, Slo, Stream, Vm
    from slo_ctl.observe.cgroup import CgroupTree
    from slo_ctl.observe.inventory import Inventory
    from slo_ctl.observe.task_delay import BlockDelay

log = logging.getLogger("slo_ctl.daemon")

_FTL = frozenset({Lever.FTL_WEIGHT, Lever.FTL_LIMIT, Lever.FTL_OPS, Lever.FTL_SCHEDULER})
_MS_PER_S = 1e3
_REMEMBERED = 200


class Observer(Protocol):
    """Sees the host."""

    def look(self) -> Inventory:
        """What there is now; never fails, but says in notes what it could not see."""

    def configure(self, named: Mapping[str, str], namespaces: Mapping[str, Sequence[str]]) -> None:
        """From the next look on: cgroups, and namespaces of emulated devices, of VMs by name."""

    def delays(
        self, inventory: Inventory, names: Collection[str] | None = None
    ) -> tuple[dict[str, BlockDelay], str]:
        """What VMs waited for block I/O since the last call, and why that is not known."""

    def take_tuned(self) -> set[str]:
        """UUIDs of VMs whose tuning somebody changed in libvirt since the last call."""

    def close(self) -> None:
        """Let go of everything."""


class Daemon:
    """Everything but the waiting, so that tests can make it go as they like."""

    def __init__(
        self,
        config: Config,
        places: DaemonPlaces,
        *,
        make_observer: Callable[[Config, DaemonPlaces], Observer] | None = None,
        dry_run: bool = False,
        sys: Path = Path("/sys"),
        run: Path = Path("/run"),
    ) -> None:
        """`dry_run` plans and touches nothing; kernel and systemd are looked for below `sys` and `run`.

        Raises UserError when what was kept before is damaged.
        """
        self.config = config
        self.places = places
        self._dry_run = dry_run
        self.missed_epochs = 0
        """Set by whoever keeps the schedule."""
        self.outcomes: list[Outcome] = []
        """Of the last epoch."""
        self._make_observer = make_observer or host_observer
        self._observer = self._make_observer(config, places)
        self._metadata = Metadata()
        self._sys = sys
        self._run = run
        self._journal = Journal(places.journal)
        self._actuators: list[Actuator[Any]] = []
        self._keeper = SettingKeeper(self._actuators, self._journal)
        self._cgroups: CgroupActuator | None = None
        self._systemd: SystemdActuator | None = None
        self._cgroup_tree: CgroupTree | None = None
        self._libvirt: LibvirtActuator | None = None
        self._devices = Devices(places.devices, self._journal, sys)
        self._policies = DevicePolicies(places.devices, sys)
        self._problems: dict[str, str] = {}
        self._reasons: dict[str, Reasons] = {}
        self._said = Reasons(_REMEMBERED)
        self._traced: set[str] = set()
        self._vm_set = VmSet(places.promises)
        self._resolver = Resolver()
        self._wanted_settings = WantedSettings()
        self._mixes = Mixes()
        self._history = self._made_history()
        self._history_problem = ""
        self._config_problem = ""
        self._settings: list[Setting] = []
        self._epochs = 0
        self._started_at = time.time()
        self.waker = Waker()
        published = Published(config, started_at=self._started_at)
        self.desk = Desk(published, self._vm_set.store, places.history, self.waker)
        self.desk.do_plan, self.desk.do_reload = self.plan, self.reload
        self.metrics = Metrics(self.desk.status)
        self.desk.metrics_text = self.metrics

    def epoch(self) -> HostStatus:
        """Do everything once."""
        cpu_s = time.thread_time()
        self._vm_set.refresh()
        inventory = self._observer.look()
        vms, streams = inventory.vms, inventory.streams
        metadata = self._metadata.of(inventory)
        named = named_by(self._vm_set.fields, self.config)
        names = dict.fromkeys([*(vm.name for vm in vms), *named])
        promises = self._resolver.resolve(names, self._vm_set.fields, metadata, self.config)
        slos = {vm.name: promises[vm.name].slo for vm in vms}

        self._devices.refresh(self.config)
        notes = self._look(inventory, slos)
        promised = named.keys() | {vm for vm, promise in promises.items() if promise.source != DEFAULT}
        wanted = self._wanted(inventory.tree, vms, slos, streams, promised)
        for_devices = self._for_devices(inventory.tree, Situation(vms, streams, slos, promised))
        self._act(inventory.tree, wanted, for_devices)

        notes += [*wanted.notes, *inventory.notes, *self._standing_notes()]
        notes += [conflict for vm in names for conflict in promises[vm].conflicts]
        self._epochs += 1
        status = status_of(
            self._moment(notes),
            self._views(wanted, vms, slos),
            vms,
            promises,
            named,
            self.outcomes,
            wanted.backends,
        )
        status = replace(status, epoch_cpu_ms=_MS_PER_S * (time.thread_time() - cpu_s))
        self._record(status)
        self.desk.published = Published(
            config=self.config,
            status=status,
            names=frozenset(vm.name for vm in vms),
            metadata=metadata,
            started_at=self._started_at,
            epochs=self._epochs,
            missed=self.missed_epochs,
            config_problem=self._config_problem,
        )
        return status

    def reload(self) -> str:
        """Read the configuration again; why the one in force stays, or nothing."""
        try:
            config = load(self.places.config)
            self.metrics.listen(config.metrics_listen)
        except UserError as error:
            self._config_problem = str(error)
            log.error("configuration not taken: %s", error)
            return self._config_problem
        before, self.config, self._config_problem = self.config, config, ""
        if (config.libvirt, config.cgroup_root) != (before.libvirt, before.cgroup_root):
            self._observer.close()
            self._observer = self._make_observer(config, self.places)
        self._observer.configure(*_configured(config))
        if config.libvirt != before.libvirt and self._libvirt is not None:
            self._libvirt.close()
            self._libvirt = None
        if config.history != before.history:
            self._history.close()
            self._history = self._made_history()
        log.info("configuration read again")
        return ""

    def plan(self) -> Plan:
        """What would be changed now, as of the last epoch's observations."""
        devices = []
        for part in self._devices.emulated.values():
            # What was decided in an epoch is carried out in it: only a dry run leaves it to be done.
            left = decided(part.decision) if self._dry_run else part.refusals
            devices.append(DevicePlan(part.name, part.policy, tuple(left), part.decision.reasons))
        devices += [
            DevicePlan(name, self._policies.label(name), (), reasons)
            for name, reasons in self._policies.reasons.items()
        ]
        status = self.desk.status()
        outcomes = [each for each in self._keeper.plan(self._settings) if self._can_act_on(each.setting)]
        return Plan(tuple(outcomes), tuple(devices), status.notes if status else ())

    def stop(self, *, undo: bool) -> list[Outcome]:
        """Let go of everything, giving back what was changed if so wanted; what became of that."""
        outcomes = self._give_back() if undo and not self._dry_run else []
        self._close()
        return outcomes

    def undo(self) -> list[Outcome]:
        """Instead of any epoch: give back everything that was ever changed, then let go of everything.

        Looks at the host as an epoch does, for the devices and the libvirt that are to be given back to, and
        decides nothing that is carried out. Returns what became of everything.
        """
        self._dry_run = True
        try:
            self.epoch()
            return self._give_back()
        finally:
            self._close()

    def _give_back(self) -> list[Outcome]:
        if self._systemd is not None:
            self._systemd.take_time()
        outcomes = self._keeper.undo()
        for outcome in outcomes:
            if outcome.state is OutcomeState.UNAPPLIED:
                log.error("not given back: %s", outcome_line(outcome))
        return outcomes

    def _close(self) -> None:
        self.metrics.close()
        self._observer.close()
        self._devices.close()
        if self._libvirt is not None:
            self._libvirt.close()
        if self._systemd is not None:
            self._systemd.close()
        self._history.close()

    # Observing and deciding.

    def _look(self, inventory: Inventory, slos: Mapping[str, Slo]) -> list[str]:
        streams = inventory.streams
        now_s = time.monotonic()
        notes = list(self._devices.notes)
        self._problems = {}
        for part in self._devices.emulated.values():
            seats, taken = seats_on(part.name, streams, slos, part.seats)
            notes += taken
            self._guarded(part.name, partial(part.look, seats, now_s))
        blocks = self._devices.blocks.values()
        # Of VMs that do nothing on any of them it does not matter what they wait for.
        active = set().union(*(block.active for block in blocks))
        delays = self._observer.delays(inventory, active)[0] if active else {}
        for block in blocks:
            self._guarded(block.name, partial(_look_at, block, streams, delays))
        return notes

    def _guarded(self, name: str, do: Callable[[], None]) -> None:
        """One device's work: whatever goes wrong with it is its own problem."""
        try:
            do()
        except ObserveGone as gone:
            self._problems[name] = gone.reason
        except Exception as error:
            problem = f"unexpected {type(error).__name__}: {error}"
            if problem not in self._traced:
                self._traced.add(problem)
                log.exception("device %s", name)
            self._problems[name] = problem

    def _wanted(
        self,
        tree: CgroupTree | None,
        vms: Sequence[Vm],
        slos: Mapping[str, Slo],
        streams: Sequence[Stream],
        promised: Set[str],
    ) -> Wanted:
        numbers = {b.name: b.number for b in self._devices.blocks.values() if b.number is not None}
        capabilities = probe(tree, self._sys, numbers.values(), self._run)
        held = self._held(slos)
        self._mixes.look(streams, slos, set(numbers.values()), held)
        default_weight = self.config.default_slo.weight
        return self._wanted_settings.of(
            vms, slos, streams, numbers, capabilities, promised, default_weight, self._mixes.splits, held
        )

    def _held(self, slos: Mapping[str, Slo]) -> dict[tuple[str, DeviceNumber], HeldBack]:
        """Limits for others' sake. A dry run has none: it would see nothing come of them."""
        held = {}
        for block in self._devices.blocks.values():
            number = block.number
            if number is None or self._dry_run:
                continue
            limitable = self._wanted_settings.limitable(block.name)
            self._guarded(block.name, partial(block.protect, slos, limitable))
            held.update({(vm, number): limit for vm, limit in block.held.items()})
        return held

    def _for_devices(self, tree: CgroupTree | None, situation: Situation) -> list[Setting]:
        """What block devices as a whole are to be set to."""
        wishes = {each.name: Wish(each.path, each.scheduler) for each in self.config.devices if each.path}
        numbers = {b.name: b.number for b in self._devices.blocks.values() if b.number is not None}
        return self._policies.settings(wishes, numbers, tree, situation, time.monotonic())

    # Acting.

    def _act(self, tree: CgroupTree | None, wanted: Wanted, for_devices: Sequence[Setting]) -> None:
        self._choose_actuators(tree)
        settings = [*for_devices]
        settings += [setting for setting in wanted.settings if self._can_act_on(setting)]
        for part in self._devices.emulated.values():
            self._guarded(part.name, lambda part=part: settings.extend(part.settings()))  # type: ignore[misc]
        self._settings = settings
        if self._dry_run:
            outcomes = self._keeper.plan(settings)
        else:
            outcomes = self._keeper.apply(settings, verify_all=bool(self._observer.take_tuned()))
        self.outcomes = [outcome for outcome in outcomes if self._can_act_on(outcome.setting)]
        if not self._dry_run:
            for part in self._devices.emulated.values():
                self._guarded(part.name, part.move)
        self._tell()

    def _choose_actuators(self, tree: CgroupTree | None) -> None:
        """Those that answer. A server that hangs must not be waited for knob by knob."""
        if tree != self._cgroup_tree:
            self._cgroup_tree = tree
            self._cgroups = CgroupActuator(tree, self._sys) if tree is not None and tree.io else None
            if self._systemd is not None:
                self._systemd.close()
            self._systemd = SystemdActuator(self._cgroups, self._sys) if self._cgroups is not None else None
        uri = self.config.libvirt.uri
        if uri is not None and self._libvirt is None:
            self._libvirt = LibvirtActuator(uri, sys=self._sys)
        if self._libvirt is not None:
            # Schedulers may be changed at any time.
            self._libvirt.systemd_maps_weights = systemd_maps_weights(tree, self._sys, self._run)
        hosts = [each for each in (self._cgroups, self._systemd, self._libvirt) if each is not None]
        served = [part for part in self._devices.emulated.values() if part.sample is not None]
        answering = [actuator for part in served for actuator in (part.actuator, part.tenant_scheduler)]
        cgroup_v2 = tree.root if tree is not None and tree.version == 2 and tree.io else None
        self._actuators[:] = [*hosts, BlockQueueActuator(self._sys, cgroup_v2), *answering]

    def _can_act_on(self, setting: Setting) -> bool:
        """Whether a device is there, and has levers at all; its problem is told once, not for each knob."""
        knob = setting.knob
        if knob.lever not in _FTL:
            return True
        part = self._devices.emulated.get(knob.place.partition("/")[0])
        return part is not None and part.timed

    def _tell(self) -> None:
        """Log what is new."""
        told = [f"device {name}: {problem}" for name, problem in self._problems.items()]
        told += [outcome_line(each) for each in self.outcomes if each.state is OutcomeState.UNAPPLIED]
        for line in self._said.add(told):
            log.warning("%s", line)
        for line in self._said.ended:
            log.info("over: %s", line)
        for part in self._devices.emulated.values():
            reasons = self._reasons.setdefault(part.name, Reasons())
            for reason in reasons.add([*part.decision.reasons, *part.refusals]):
                log.info("device %s: %s", part.name, reason)
        for name, told_of in self._policies.reasons.items():
            for reason in self._reasons.setdefault(name, Reasons(_REMEMBERED)).add(told_of):
                log.info("device %s: %s", name, reason)

    # Recording and publishing.

    def _moment(self, notes: Sequence[str]) -> Moment:
        return Moment(
            at=time.time(),
            window_s=self.config.daemon.window_s,
            epoch_s=self.config.daemon.epoch_s,
            pid=os.getpid(),
            started_at=self._started_at,
            config_problem=self._config_problem,
            notes=tuple(notes),
        )

    def _views(self, wanted: Wanted, vms: Sequence[Vm], slos: Mapping[str, Slo]) -> list[DeviceView]:
        views: list[DeviceView] = []
        for part in self._devices.emulated.values():
            reasons = self._reasons.get(part.name)
            self._add_view(views, part, partial(part.view, reasons.lately if reasons else ()))
        for block in self._devices.blocks.values():
            used = {vm: slos[vm] for vm, device in wanted.backends if device == block.name}
            disks = {
                vm.name: tuple(disk.target for disk in vm.disks if disk.device == block.number)
                for vm in vms
                if vm.name in used
            }
            self._add_view(views, block, partial(block.view, used, disks, wanted))
            told_of = (*self._policies.reasons.get(block.name, ()), *views[-1].reasons)
            views[-1] = replace(views[-1], policy=self._policies.label(block.name), reasons=told_of)
        return sorted(views, key=lambda view: view.name)

    def _add_view(
        self, views: list[DeviceView], part: EmulatedDevice | BlockPart, view: Callable[[], DeviceView]
    ) -> None:
        self._guarded(part.name, lambda: views.append(view()))
        problem = self._problems.get(part.name, "")
        if not views or views[-1].name != part.name:
            views.append(DeviceView(part.name, part.kind, "", "", problem=problem))
        views[-1] = replace(views[-1], problem=problem)

    def _standing_notes(self) -> list[str]:
        notes = [*self.config.notes, *self._metadata.notes, self._vm_set.problem, self._history_problem]
        return [note for note in notes if note]

    def _record(self, status: HostStatus) -> None:
        if self._dry_run:
            return
        try:
            self._history.add(status, self.outcomes)
        except HistoryError as error:
            if str(error) != self._history_problem:
                log.warning("%s", error)
            self._history_problem = str(error)
        else:
            self._history_problem = ""

    def _made_history(self) -> History:
        keep = self.config.history
        return History(self.places.history, keep.keep_s, keep.max_bytes)


def _look_at(block: BlockPart, streams: Sequence[Stream], delays: Mapping[str, BlockDelay]) -> None:
    block.find()
    block.look(streams, delays)


def host_observer(config: Config, places: DaemonPlaces) -> HostObserver:
    """The real one."""
    named, namespaces = _configured(config)
    return HostObserver(
        cgroup_root=config.cgroup_root,
        libvirt_uri=config.libvirt.uri,
        run=places.devices.run,
        named=named,
        namespaces=namespaces,
    )


def _configured(config: Config) -> tuple[dict[str, str], dict[str, tuple[str, ...]]]:
    vms = config.vms.values()
    return (
        {vm.name: vm.cgroup for vm in vms if vm.cgroup is not None},
        {vm.name: vm.namespaces for vm in vms if vm.namespaces},
    )
