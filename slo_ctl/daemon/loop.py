"""The epochs of the daemon: observe, decide, act, record, publish."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from slo_ctl.act.journal import Journal
from slo_ctl.act.keeper import SettingKeeper
from slo_ctl.api.page import Page
from slo_ctl.base.clock import SYSTEM_CLOCK, Clock, ClockJumps
from slo_ctl.base.errors import UserError
from slo_ctl.base.files import remove_leftovers
from slo_ctl.base.numbers import duration
from slo_ctl.base.termination import Waker
from slo_ctl.base.text import counted, printable
from slo_ctl.config.load import has_files, load
from slo_ctl.config.settings import Config
from slo_ctl.daemon.block_devices import BlockDevices
from slo_ctl.daemon.controller import DaemonController, Published
from slo_ctl.daemon.device import DeviceView, Problems, with_applied_maximums
from slo_ctl.daemon.files import DaemonPlaces, DeviceClaims, daemon_of
from slo_ctl.daemon.foreign import ForeignLimits, InnerGroups, raised_limits
from slo_ctl.daemon.hooks import Hooks
from slo_ctl.daemon.log import MANY_SENTENCES, EpochLog, decision_lines, journal_fields, outcome_line
from slo_ctl.daemon.occupants import emulated_occupants
from slo_ctl.daemon.settings import Actuators, InheritedSettings
from slo_ctl.daemon.slos import EpochSlos, VmSlos
from slo_ctl.daemon.ssd_devices import EmulatedDevices
from slo_ctl.daemon.status import EventCounters, StatusRows, VerdictChanges, status_of
from slo_ctl.decide.device_use import HostState
from slo_ctl.decide.levers import Wanted
from slo_ctl.drives.control import Connect, ControlClient
from slo_ctl.host.bounded_server import listen_together
from slo_ctl.model.host import Vm
from slo_ctl.model.setting import CGROUP_LEVERS, FTL_LEVERS, LIBVIRT_LEVERS, Outcome, OutcomeState, Setting
from slo_ctl.model.slo import Slo
from slo_ctl.model.status import DevicePlan, HostStatus, Plan
from slo_ctl.observe.host import HostObserver
from slo_ctl.observe.streams import Inventory
from slo_ctl.record.history import Recorder
from slo_ctl.record.metrics import Metrics

log = logging.getLogger("slo_ctl.daemon")


def _counts_text(config: Config) -> str:
    devices, vms = counted(len(config.devices), "device"), counted(len(config.vms), "VM")
    return f"{devices}, {vms}"


_MS_PER_S = 1e3
_RESTORE_OPS_S = 1.5
"""Time that a stop waits for OPS to be restored; the device finishes moves by itself."""


def host_observer(
    config: Config, places: DaemonPlaces, on_change: Callable[[], None] | None = None
) -> HostObserver:
    """The observer of this host; another thread calls `on_change` after libvirt's domains have changed."""
    return HostObserver(
        cgroup_root=config.cgroup.root,
        libvirt_uri=config.libvirt.uri,
        run=places.devices.run,
        cgroups=config.cgroup_of,
        namespaces=config.namespaces_of,
        on_change=on_change,
        monitor=config.libvirt.latency_histograms,
    )


class Daemon:
    """The daemon without its schedule: `epoch` runs one epoch."""

    def __init__(
        self,
        config: Config,
        places: DaemonPlaces,
        *,
        make_observer: Callable[[Config, DaemonPlaces], HostObserver] | None = None,
        dry_run: bool = False,
        sys: Path = Path("/sys"),
        run: Path = Path("/run"),
        clock: Clock = SYSTEM_CLOCK,
        connect: Connect = ControlClient,
    ) -> None:
        """`dry_run`: plan, and change nothing. `sys` and `run`: where the kernel's and systemd's files are.
        `connect`: opens connections to servers of emulated devices.

        Raises UserError if the journal or the SLOs of `vm set` are damaged.
        """
        if not dry_run:
            remove_leftovers(places.state)
        self.config = config
        self.places = places
        self._dry_run = dry_run
        self._clock = clock
        self.missed_epochs = 0
        """Set by the owner of the schedule, like `epoch_option_s`."""
        self.epoch_option_s: float | None = None
        """Control interval that overrides the configuration, also after a reload."""
        self.outcomes: list[Outcome] = []
        """Outcomes of the last epoch."""
        self._changes: list[Outcome] = []
        """Outcomes of the last epoch without unchanged settings."""
        # First, because these raise errors, and nothing has to be closed yet.
        self._journal = Journal(places.journal)
        self._slos = VmSlos(places.slos)
        self.waker = Waker()
        self._jumps = ClockJumps(clock)
        self._started_at = clock.time_s()
        """In seconds since 1970, by the clock as it is set now."""
        published = Published(config, started_at=self._started_at)
        self.controller = DaemonController(published, self._slos.store, places.history, self.waker)
        self._make_observer = make_observer or partial(host_observer, on_change=self.controller.request_epoch)
        self._observer = self._make_observer(config, places)
        self._actuators = Actuators(sys, run)
        self._keeper = SettingKeeper(self._actuators.active, self._journal)
        self._inherited = InheritedSettings()
        self._inner_groups = InnerGroups()
        self._foreign_limits = ForeignLimits()
        self._problems = Problems()
        self._emulated = EmulatedDevices(places.devices, self._journal, clock, connect)
        self._claims = DeviceClaims(run / "slo-ctl")
        claims = None if dry_run else self._claims
        self._blocks = BlockDevices(places.devices, sys, run, self._problems, clock, claims)
        self._epoch_log = EpochLog()
        self._recorder = Recorder(places.history, config.history.keep_s, config.history.max_bytes, clock)
        self._rows = StatusRows()
        self._verdict_changes = VerdictChanges()
        self._hooks = Hooks(config.hooks)
        self._config_problem = ""
        self._settings: list[Setting] = []
        self._epochs = 0
        self.controller.do_plan, self.controller.do_reload = self.plan, self.reload
        self.controller.do_announce = lambda xml: self._observer.announce(xml)
        self._counters = EventCounters()
        self.metrics = Metrics(self.controller.status, lambda: self._counters.counts())
        self.controller.metrics_text = self.metrics
        self.page = Page(self.controller)

    @property
    def epoch_s(self) -> float:
        """Control interval in force."""
        return self.epoch_option_s or self.config.daemon.epoch_s

    def epoch(self) -> HostStatus:
        cpu_s = self._clock.cpu_s()
        self._follow_clock()
        inventory = self._observer.observe()
        slos = self._slos.update(inventory, self.config)
        self._emulated.refresh(self.config)
        self._blocks.refresh(self.config, self._emulated.names)
        notes = self._observe(inventory, slos.in_force)
        wanted, device_settings = self._decide(inventory, slos)
        self._act(inventory, wanted, device_settings)
        notes += [*wanted.notes, *inventory.notes, *self._standing_notes()]
        self._foreign_limits.update(self._actuators.cgroups, inventory, self._blocks.numbers, self._settings)
        notes += self._foreign_limits.notes(slos.set_for)
        notes += raised_limits(self._settings, self._journal.originals())
        notes += [conflict for resolved in slos.resolved.values() for conflict in resolved.conflicts]
        status = self._status(inventory, slos, wanted, notes)
        status = replace(status, epoch_cpu_ms=_MS_PER_S * (self._clock.cpu_s() - cpu_s))
        if not self._dry_run:
            self._record(status)
        self.controller.published = Published(
            config=self.config,
            status=status,
            names=frozenset(vm.name for vm in inventory.vms),
            metadata=slos.metadata,
            started_at=self._started_at,
            epochs=self._epochs,
            missed=self.missed_epochs,
            config_problem=self._config_problem,
        )
        return status

    def _follow_clock(self) -> None:
        """Notice that the clock was set."""
        jump_s = self._jumps.since_last()
        if jump_s:
            # The time since boot stands still while a virtual machine is paused.
            cause = "" if jump_s < 0 else ", or this host is a VM that was paused"
            direction = "back" if jump_s < 0 else "forward"
            log.warning("the clock was set %s by %s%s", direction, duration(abs(jump_s)), cause)
            self._started_at += jump_s
            self._recorder.clock_was_set(jump_s)

    def _observe(self, inventory: Inventory, slos: Mapping[str, Slo]) -> list[str]:
        """Observe all devices, and decide about their OPS. Returns notes for the status."""
        now_s = self._clock.monotonic_s()
        notes = [*self._emulated.notes, *self._blocks.notes]
        notes += [
            f"VM {stream.vm}: {stream.tenant}: there is no emulated device {stream.tenant.device}"
            for stream in inventory.streams
            if stream.tenant is not None and stream.tenant.device not in self._emulated.names
        ]
        self._problems.clear()
        for device in self._emulated.devices.values():
            namespaces = {namespace.name for namespace in device.record.namespace}
            before = device.remaining(inventory.streams, now_s)
            occupants, conflicts = emulated_occupants(
                device.name, inventory.streams, slos, before, namespaces
            )
            notes += conflicts
            with self._problems.guard(device.name):
                device.observe(occupants, now_s)
            if device.sample is None and not self._emulated.may_be_served(device.name):
                start = f"{self.places.to_serve(device.name)} starts it"
                if occupants:
                    self._problems.by_device[device.name] = f"not served; {start}"
                else:  # as after `systemctl stop`
                    self._problems.by_device.pop(device.name, None)
                    notes.append(f"device {device.name}: not served, and no VM uses it; {start}")
            notes += device.unknown_clients()
        self._blocks.observe(inventory, self._observer)
        self._blocks.decide_ops(slos, self.config.daemon.policy_or(None))
        return notes

    def _decide(self, inventory: Inventory, slos: EpochSlos) -> tuple[Wanted, list[Setting]]:
        """Settings for the VMs on block devices, and of whole block devices."""
        unapplied = {
            outcome.setting.vm
            for outcome in self._changes
            if outcome.state is OutcomeState.UNAPPLIED and outcome.setting.knob.name.endswith("_iops")
        }
        host_state = HostState(
            inventory.vms,
            inventory.streams,
            slos.in_force,
            slos.set_for,
            slos.weighted,
            unapplied,
            self._inner_groups.update(inventory.tree, inventory.vms),
        )
        device_settings = self._blocks.device_settings(inventory.tree, host_state)
        return self._blocks.wanted(inventory.tree, host_state, dry_run=self._dry_run), device_settings

    def _act(self, inventory: Inventory, wanted: Wanted, device_settings: Sequence[Setting]) -> None:
        emulated, devices = self._emulated.devices.values(), self._blocks.numbers.values()
        self._actuators.select(inventory.tree, self.config.libvirt.uri, emulated, devices, inventory.vms)
        settings = [*device_settings]
        settings += [setting for setting in wanted.settings if self._can_act_on(setting)]
        for device in self._emulated.devices.values():
            with self._problems.guard(device.name):
                settings += device.settings()
        self._settings = settings
        if self._dry_run:
            outcomes = self._keeper.plan(settings)
        else:
            self._add_inherited(inventory)
            outcomes = self._keeper.apply(settings, verify_all=bool(self._observer.take_tuned()))
        # Earlier epochs may have set knobs of a device that no longer exists.
        self.outcomes = [outcome for outcome in outcomes if self._can_act_on(outcome.setting)]
        self._changes = [each for each in self.outcomes if each.state is not OutcomeState.UNCHANGED]
        if not self._dry_run:
            for device in self._emulated.devices.values():
                with self._problems.guard(device.name):
                    device.move()
            self._blocks.move_ops(self._journal)
        self._log_epoch()

    def _add_inherited(self, inventory: Inventory) -> None:
        if self._actuators.libvirt is not None:
            devices = set(self._blocks.numbers.values())
            self._inherited.add_to(self._journal, inventory, self._actuators.libvirt, devices)

    def _can_act_on(self, setting: Setting) -> bool:
        """Whether the device of a setting exists and limits can act on it.

        A problem of the device is reported once, not for each knob.
        """
        knob = setting.knob
        if knob.lever not in FTL_LEVERS:
            return True
        device = self._emulated.devices.get(knob.emulated_device)
        return device is not None and device.timed

    def _log_epoch(self) -> None:
        self._epoch_log.log_problems(self._problems.by_device, self._changes)
        self._epoch_log.log_corrections(self._changes)
        for device in self._emulated.devices.values():
            self._epoch_log.log_decisions(device.name, [*device.decision.reasons, *device.refusals])
        for name, reasons in self._blocks.policies.reasons.items():
            self._epoch_log.log_decisions(name, reasons, MANY_SENTENCES)
        self._epoch_log.keep(self._emulated.devices.keys() | self._blocks.devices.keys())

    def _standing_notes(self) -> list[str]:
        notes = [*self.config.notes, *self._slos.notes, self._recorder.problem]
        return [note for note in notes if note]

    def _status(
        self, inventory: Inventory, slos: EpochSlos, wanted: Wanted, notes: Sequence[str]
    ) -> HostStatus:
        self._epochs += 1
        views = self._views(wanted, inventory.vms, slos)
        self._slos.observe(views, self._clock.monotonic_s())
        self._counters.add(
            self.outcomes,
            self._changes,
            views,
            self._blocks.numbers,
            epochs=self._epochs,
            missed_epochs=self.missed_epochs,
            hooks=self._hooks.results(),
        )
        host = HostStatus(
            at=self._clock.time_s(),
            window_s=self.config.daemon.window_s,
            epoch_s=self.epoch_s,
            daemon_pid=os.getpid(),
            started_at=self._started_at,
            config_problem=self._config_problem,
            notes=tuple(notes),
        )
        return status_of(
            host,
            views,
            inventory.vms,
            slos,
            self._changes,
            wanted.backends,
            self.config.groups,
            self._blocks.numbers,
            self._rows,
        )

    def _views(self, wanted: Wanted, vms: Sequence[Vm], slos: EpochSlos) -> list[DeviceView]:
        wanted = with_applied_maximums(wanted, self.outcomes)
        views = self._blocks.views(wanted, vms, slos.in_force, slos.own, self._foreign_limits)
        for device in self._emulated.devices.values():
            view = DeviceView(device.name, device.kind, backend="", policy="", window_s=0.0)
            with self._problems.guard(device.name):
                view = device.view(self._epoch_log.recent(device.name))
            views.append(replace(view, problem=self._problems.by_device.get(device.name, "")))
        return sorted(views, key=lambda view: view.name)

    def _record(self, status: HostStatus) -> None:
        self._recorder.add(status, self._changes, self.controller.take_slo_changes())
        changes = self._verdict_changes.update(status)
        self._epoch_log.log_verdicts(changes)
        self._hooks.add(changes)

    def plan(self) -> Plan:
        """Changes that would be made now, by the decisions of the last epoch."""
        devices = []
        for device in self._emulated.devices.values():
            # An epoch carries out its decisions, except in a dry run.
            if self._dry_run:
                changes = tuple(decision_lines(device.decision))
            else:
                changes = (*device.refusals, *map(str, device.moves))
            devices.append(DevicePlan(device.name, device.policy, changes, device.decision.reasons))
        devices += self._blocks.plans
        refused = {
            (outcome.setting.knob, outcome.before, outcome.setting.value): outcome
            for outcome in self.outcomes
            if outcome.state is OutcomeState.UNAPPLIED
        }
        # What was refused in the last epoch will be refused again.
        outcomes = [
            refused.get((outcome.setting.knob, outcome.before, outcome.setting.value), outcome)
            for outcome in self._keeper.plan(self._settings)
            if self._can_act_on(outcome.setting)
        ]
        notes = self._notes_about_others() if self._dry_run else []
        return Plan(tuple(outcomes), tuple(devices), (*self.device_problems, *notes, *self.notes))

    @property
    def device_problems(self) -> list[str]:
        """A sentence for each device that could not be used in the last epoch."""
        status = self.controller.status()
        devices = status.devices if status is not None else ()
        return [f"device {device.name}: {device.problem}" for device in devices if device.problem]

    @property
    def notes(self) -> Sequence[str]:
        status = self.controller.status()
        return status.notes if status is not None else ()

    def _notes_about_others(self) -> list[str]:
        """A sentence for each block device of another daemon, which a dry run does not compete with."""
        own = daemon_of(self.places.lock)
        holders = {name: self._claims.holder(number) for name, number in self._blocks.numbers.items()}
        return [
            f"device {name}: another daemon ({holder}) manages it: nothing is set until that one leaves it"
            for name, holder in holders.items()
            if holder and holder != own
        ]

    def reload(self) -> str:
        """Reload the configuration. Returns why it was rejected, or an empty text."""
        try:
            config = load(self.places.config)
            listen_together([(self.metrics, config.metrics.listen), (self.page, config.page.listen)])
        except UserError as error:
            self._config_problem = str(error)
            log.error("configuration rejected: %s", error)
        else:
            before = _counts_text(self.config)
            self._use(config)
            now = _counts_text(config)
            change = "" if now == before else f": {now} (before: {before})"
            if has_files(self.places.config):
                log.info("configuration reloaded%s", change)
            else:
                log.warning("no configuration in %s, the defaults are used%s", self.places.config, change)
        # The next request is checked with it, and the next epoch, at once, applies and reports it.
        self.controller.published = replace(
            self.controller.published, config=self.config, config_problem=self._config_problem
        )
        self.controller.request_epoch()
        return self._config_problem

    def _use(self, config: Config) -> None:
        self._restore_before(config)
        before, self.config, self._config_problem = self.config, config, ""
        if (config.libvirt, config.cgroup.root) != (before.libvirt, before.cgroup.root):
            self._observer.close()
            self._observer = self._make_observer(config, self.places)
        self._observer.configure(config.cgroup_of, config.namespaces_of)
        if config.libvirt != before.libvirt:
            self._actuators.drop_libvirt()
        self._recorder.configure(config.history.keep_s, config.history.max_bytes)
        self._hooks.configure(config.hooks)

    def _restore_before(self, config: Config) -> None:
        """Restore what cannot be found any more with another libvirt or another cgroup tree."""
        levers = LIBVIRT_LEVERS if config.libvirt.uri != self.config.libvirt.uri else frozenset()
        if config.cgroup.root != self.config.cgroup.root:
            levers |= CGROUP_LEVERS
        for outcome in self._keeper.undo(lambda knob: knob.lever in levers) if not self._dry_run else ():
            if outcome.state is OutcomeState.UNAPPLIED:
                log.error("not restored: %s", outcome_line(outcome), extra=journal_fields(outcome))

    def stop(self, *, undo: bool) -> list[Outcome]:
        """Close everything; `undo`: restore all settings before. Returns the outcomes of that."""
        # Hooks end while settings are restored.
        self._hooks.begin_stop()
        outcomes, _waiting = self._restore_all() if undo and not self._dry_run else ([], [])
        for outcome in outcomes:
            if outcome.state is OutcomeState.UNAPPLIED:
                log.error("not restored: %s", printable(outcome_line(outcome)), extra=journal_fields(outcome))
        self._close()
        return outcomes

    def undo(self) -> tuple[list[Outcome], list[Outcome]]:
        """Restore all settings that were ever changed, without running any epoch, and close everything.

        A dry epoch finds the devices and the libvirt whose settings to restore. Returns the outcomes, and
        those of devices that are not served, which the journal keeps until they are.
        """
        self._dry_run = True
        try:
            self.epoch()
            return self._restore_all()
        finally:
            self._close()

    def _restore_all(self) -> tuple[list[Outcome], list[Outcome]]:
        """Outcomes, and those of devices that are not served, which the journal keeps until they are."""
        self._actuators.wait_longer()
        # A VM may have been restored from a file, or migrated here, since the last epoch.
        try:
            self._add_inherited(self._observer.observe())
        except Exception:
            log.exception("VMs that were restored or migrated here just now are not known")
        self._emulated.forget_deleted()
        deadline_s = self._clock.monotonic_s() + _RESTORE_OPS_S
        for device in self._emulated.devices.values():
            device.actuator.wait_longer()
            if device.sample is None:
                self._actuators.add_device(device)
            with self._problems.guard(device.name):
                device.actuator.restore_ops(deadline_s)
        self._actuators.add_drives(self._journal)
        outcomes, waiting = [], []
        for outcome in self._keeper.undo():
            if outcome.state is OutcomeState.UNAPPLIED and not self._can_act_on(outcome.setting):
                name = outcome.setting.knob.emulated_device
                kept = replace(outcome, reason=f"kept until {name} is served: {self.places.to_serve(name)}")
                log.warning("%s", printable(outcome_line(kept)), extra=journal_fields(kept))
                waiting.append(kept)
            else:
                outcomes.append(outcome)
        self._recorder.add_restored(outcomes)
        return outcomes, waiting

    def _close(self) -> None:
        self._hooks.close()
        self.metrics.close()
        self.page.close()
        self._observer.close()
        self._emulated.close()
        self._blocks.close()
        self._actuators.close()
        self._recorder.close()
