"""Running a scenario: virtual time, the daemon's epochs when they are due, and events in between."""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from daemon_sim.control import DaemonKilled, SimulatedServer
from daemon_sim.drive import NS_PER_S, SimulatedDrive
from daemon_sim.host import SimulatedHost, SimulatedObserver
from daemon_sim.result import Command, Epoch, Recorder, Result, SloChange
from daemon_sim.scenario import DEVICE, Event, EventKind, Fields, Load, Scenario, slo_of
from slo_ctl.base.clock import Clock
from slo_ctl.config.settings import Config, DaemonConfig, DeviceConfig, LibvirtConfig
from slo_ctl.daemon.files import DaemonPlaces
from slo_ctl.daemon.loop import Daemon
from slo_ctl.daemon.service import Schedule
from slo_ctl.drives.record import RECORD_FILE, to_toml
from slo_ctl.model.slo import SLO_KEYS, SloError, SloUpdate, check_fields

_MEMORY = Path("/dev/shm")  # noqa: S108 - a directory of its own is made in it
_SINCE_1970_S = 1_767_225_600.0
"""Start of every simulation, in 2026."""
_SINCE_BOOT_S = 1000.0
_LONGEST_RESTORE_S = 3600.0
"""Longest time in which a drive may move all OPS back after a clean stop."""
_LATE_S = 5.0
"""Time past the end of a scenario that a clean stop may take."""
_ANSWERED = frozenset({EventKind.SET_SLO, EventKind.UNSET_SLO, EventKind.SET_POLICY, EventKind.STOP_DAEMON})
"""Events that wait until a daemon without CPU has it again."""


def simulate(scenario: Scenario, *, daemon: bool = True) -> Result:
    """Run a scenario; without the daemon, weights are set by hand according to the SLOs, and nothing else is.

    Both runs have the same events at the same moments.
    """
    memory = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="slo-ctl-simulate-", dir=memory) as root, _quiet():
        return _Simulation(scenario, Path(root), with_daemon=daemon).run()


class _Simulation:
    def __init__(self, scenario: Scenario, root: Path, *, with_daemon: bool) -> None:
        self._scenario = scenario
        self._with_daemon = with_daemon
        self._places = DaemonPlaces(root)
        record = scenario.drive.record()
        folder = self._places.devices.device(DEVICE)
        folder.mkdir(parents=True)
        (folder / RECORD_FILE).write_text(to_toml(record))
        self._nothing = root / "nothing"
        self._nothing.mkdir()
        self._recorder = Recorder(tuple(vm.name for vm in scenario.vms))
        self._drive = SimulatedDrive(scenario, record, self._second)
        self._host = SimulatedHost(scenario, self._drive, self._places.devices)
        self._server = SimulatedServer(self._drive)
        self._clock = Clock(
            monotonic_s=lambda: _SINCE_BOOT_S + self._now_s,
            suspended_s=lambda: 0.0,
            time_s=lambda: _SINCE_1970_S + self._now_s,
            cpu_s=lambda: 0.0,
            sleep=self._server.wait,
        )
        self._policy = scenario.policy
        self._daemon: Daemon | None = None
        self._schedule = Schedule(scenario.epoch_s, self._clock.monotonic_s())
        self._ahead: list[tuple[int, int, Callable[[], None]]] = []
        """Pending events: time (ns), a number that keeps the order, and the action."""
        self._number = itertools.count()
        self._fields: dict[str, dict[str, float]] = {}
        self._killed_in_s: float | None = None
        self._stalled_until_ns = 0
        self._before: dict[str, float] = {}
        self._epochs: list[Epoch] = []
        self._happened: list[tuple[float, Event]] = []
        self._slo_changes: list[SloChange] = []
        self._failures: list[tuple[float, str]] = []
        self._missed = 0
        self._stop_s = 0.0
        self._daemon_s = 0.0
        self._epochs_s = 0.0

    @property
    def _now_s(self) -> float:
        return self._drive.now_ns / NS_PER_S

    def run(self) -> Result:
        began_s = time.process_time()
        self._begin()
        end_ns = _ns(self._scenario.length_s)
        while self._drive.now_ns < end_ns:
            event_ns = self._ahead[0][0] if self._ahead else end_ns
            self._drive.run_to(min(event_ns, self._next_epoch_ns(end_ns), end_ns))
            while self._ahead and self._ahead[0][0] <= self._drive.now_ns:
                heapq.heappop(self._ahead)[2]()
            if self._next_epoch_ns(end_ns) <= self._drive.now_ns < end_ns:
                self._epoch()
        commands = len(self._server.commands)
        not_restored = self._end()
        by_second = self._recorder.by_second()
        seconds = math.floor(self._scenario.length_s)
        return Result(
            scenario=self._scenario,
            vms=tuple(vm.name for vm in self._scenario.vms),
            by_second={name: table[:, :seconds] for name, table in by_second.items()},
            running=self._recorder.running()[:, :seconds],
            moves_ns=self._recorder.moves_ns(),
            epochs=self._epochs,
            commands=[
                Command(at_ns / NS_PER_S, op, fields)
                for at_ns, op, fields in self._server.commands[:commands]
            ],
            happened=self._happened,
            slo_changes=self._slo_changes,
            failures=self._failures,
            not_restored=not_restored,
            stop_s=self._stop_s,
            missed_epochs=self._missed,
            statistics_calls=self._server.statistics_calls,
            drive_s=time.process_time() - began_s - self._daemon_s,
            daemon_s=self._daemon_s,
            epochs_s=self._epochs_s,
        )

    # Time.

    def _next_epoch_ns(self, otherwise_ns: int) -> int:
        if self._daemon is None:
            return otherwise_ns
        next_ns = self._drive.now_ns + _ns(self._schedule.wait_s(self._clock.monotonic_s()))
        return max(next_ns, self._stalled_until_ns)

    def _at(self, at_s: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._ahead, (_ns(at_s), next(self._number), do))

    def _second(self, _number: int) -> None:
        self._recorder.second(self._drive, self._host)

    def _begin(self) -> None:
        for vm in self._scenario.vms:
            if vm.slo_fields:
                self._set_slo(vm.name, vm.slo_fields)
            if vm.load.asleep_s > 0:
                self._at(vm.load.awake_s, self._rest(vm.name, vm.load, vm.load.awake_s))
        for event in self._scenario.events:
            self._at(event.at_s, lambda event=event: self._carry_out(event))  # type: ignore[misc]
        self._recorder.begin(self._drive, self._host)
        self._before = self._in_force()
        if self._with_daemon:
            self._start_daemon()

    def _rest(self, vm: str, load: Load, asleep_from_s: float) -> Callable[[], None]:
        """Let a VM become idle and active again, endlessly, at moments that do not depend on the daemon."""
        awake_from_s = asleep_from_s + load.asleep_s

        def fall_asleep() -> None:
            self._host.rest(vm, resting=True)
            self._at(awake_from_s, wake)

        def wake() -> None:
            self._host.rest(vm, resting=False)
            again_s = awake_from_s + load.awake_s
            self._at(again_s, self._rest(vm, load, again_s))

        return fall_asleep

    # The daemon.

    def _start_daemon(self) -> None:
        config = Config(
            daemon=DaemonConfig(self._scenario.epoch_s, self._scenario.window_s, self._policy),
            libvirt=LibvirtConfig(None),
            devices=(DeviceConfig(DEVICE, None, None),),
        )
        self._daemon = Daemon(
            config,
            self._places,
            make_observer=lambda _config, _places: SimulatedObserver(self._host),
            sys=self._nothing,
            run=self._nothing,
            clock=self._clock,
            connect=self._server.connect,
        )
        self._schedule = Schedule(self._scenario.epoch_s, self._clock.monotonic_s())

    def _epoch(self) -> None:
        daemon = self._daemon
        if daemon is None:
            return
        self._missed += self._schedule.start_epoch(self._clock.monotonic_s())
        daemon.missed_epochs = self._schedule.missed
        at_s, before_s = self._now_s, self._daemon_s
        with self._timed():
            try:
                self._epochs.append(Epoch(at_s, daemon.epoch()))
            except DaemonKilled:
                self._disconnect(self._killed_in_s or 0.0)
            except Exception as error:
                self._failures.append((at_s, f"epoch: {type(error).__name__}: {error}"))
        self._epochs_s += self._daemon_s - before_s
        if self._server.kill_at is not None:
            # The epoch had fewer commands: the daemon is killed after it.
            self._server.kill_at = None
            self._disconnect(self._killed_in_s or 0.0)

    def _disconnect(self, down_s: float) -> None:
        """End the daemon's process without restoring anything; a new one is started later."""
        daemon, self._daemon = self._daemon, None
        if daemon is not None:
            daemon.stop(undo=False)
            daemon.waker.close()
            self._at(self._now_s + down_s, self._start_daemon)

    def _end(self) -> tuple[str, ...]:
        """Stop the daemon cleanly and record settings that were not restored."""
        if self._daemon is None:
            return ()
        if not self._scenario.stops:
            self._disconnect(0.0)
            return ()
        began_s = self._now_s
        self._server.silent, self._server.delay_s, self._server.kill_at = False, 0.0, None
        with self._timed():
            try:
                self._daemon.stop(undo=True)
            except Exception as error:
                self._failures.append((self._now_s, f"stop: {type(error).__name__}: {error}"))
            self._daemon.waker.close()
        self._stop_s = self._now_s - began_s
        self._server.wait(_LATE_S)
        # The drive finishes moves by itself, within its budget.
        while self._drive.device.moves().pending and self._now_s < began_s + _LONGEST_RESTORE_S:
            self._server.wait(_LATE_S)
        now = self._in_force()
        return tuple(
            f"{name}: {was:g} before, {now[name]:g} now"
            for name, was in self._before.items()
            if now[name] != was
        )

    def _in_force(self) -> dict[str, float]:
        """The settings of the drive that the daemon may change."""
        settings: dict[str, float] = {}
        for name, namespace in self._drive.namespaces.items():
            limit_iops = math.inf if namespace.limit_iops is None else namespace.limit_iops
            settings[f"{name} weight"] = namespace.weight
            settings[f"{name} limit_iops"] = limit_iops
            settings[f"{name} ops_blocks"] = self._drive.device.space(namespace.tenant).ops_blocks
        return settings

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began_s, answers_s = time.process_time(), self._server.statistics_s
        yield
        self._daemon_s += time.process_time() - began_s - (self._server.statistics_s - answers_s)

    # Events.

    def _carry_out(self, event: Event) -> None:
        if event.kind in _ANSWERED and self._drive.now_ns < self._stalled_until_ns:
            self._at(self._stalled_until_ns / NS_PER_S, lambda: self._carry_out(event))
            return
        at_s = self._now_s
        match event.kind:
            case EventKind.SET_SLO:
                took_place = self._set_slo(event.vm, event.fields)
            case EventKind.UNSET_SLO:
                took_place = self._unset_slo(event.vm)
            case EventKind.SLEEP | EventKind.WAKE:
                self._host.sleep(event.vm, asleep=event.kind is EventKind.SLEEP)
                took_place = True
            case EventKind.ARRIVE:
                took_place = self._host.arrive(event.vm, event.namespace)
            case EventKind.LEAVE:
                took_place = self._host.leave(event.vm)
            case EventKind.MIGRATE:
                took_place = event.namespace is not None and self._host.migrate(event.vm, event.namespace)
            case EventKind.SET_POLICY:
                took_place = self._set_policy(event.policy)
            case _:
                took_place = self._disturb(event)
        if took_place:
            self._happened.append((at_s, event))
            if not self._with_daemon:
                self._set_weights_by_hand()

    def _set_slo(self, vm: str, fields: Fields) -> bool:
        """Set an SLO; False if it is refused, such as a minimum above the maximum."""
        merged = self._fields.get(vm, {}) | dict(fields)
        try:
            check_fields(merged)
        except SloError:
            return False
        self._fields[vm] = merged
        self._record_slo(vm)
        if not self._with_daemon:
            self._set_weights_by_hand()
            return True
        with self._timed():
            change = SloUpdate(dict(fields))
            self._with_store(lambda daemon: daemon.controller.change_slos([vm], change, force=True))
        return True

    def _unset_slo(self, vm: str) -> bool:
        if not self._fields.pop(vm, {}):
            return False
        self._record_slo(vm)
        if self._with_daemon:
            with self._timed():
                change = SloUpdate(unset=frozenset(SLO_KEYS))
                self._with_store(lambda daemon: daemon.controller.change_slos([vm], change))
        return True

    def _with_store(self, do: Callable[[Daemon], object]) -> None:
        """Run `vm set` through the daemon's API; without a daemon, through one that runs no epoch."""
        daemon, temporary = self._daemon, self._daemon is None
        if daemon is None:
            self._start_daemon()
            daemon, self._daemon = self._daemon, None
        if daemon is None:
            return
        try:
            do(daemon)
        except Exception as error:
            self._failures.append((self._now_s, f"vm set: {type(error).__name__}: {error}"))
        if temporary:
            daemon.stop(undo=False)
            daemon.waker.close()
        # Files of one moment and of one size are distinguished by their time of creation.
        at_ns = round(self._clock.time_s() * NS_PER_S) + next(self._number)
        os.utime(self._places.slos, ns=(at_ns, at_ns))

    def _record_slo(self, vm: str) -> None:
        slo = slo_of(tuple(self._fields.get(vm, {}).items()))
        self._slo_changes.append(SloChange(self._now_s, vm, slo))

    def _set_weights_by_hand(self) -> None:
        for vm in self._scenario.vms:
            where = self._host.namespace_of(vm.name)
            if where is not None:
                namespace = list(self._drive.namespaces.values())[where]
                weight = self._fields.get(vm.name, {}).get("weight", 1.0)
                if namespace.weight != weight:
                    self._drive.set_weight(namespace, weight)

    def _set_policy(self, policy: str) -> bool:
        """Change the policy, as a reload of the configuration does."""
        self._policy = policy
        if self._daemon is not None:
            config = self._daemon.config
            self._daemon.config = replace(config, daemon=replace(config.daemon, policy=policy))
        return self._daemon is not None

    def _disturb(self, event: Event) -> bool:
        """Start a disturbance, which keeps the daemon from its work."""
        if self._daemon is None:
            return False
        over_s = self._now_s + event.lasts_s
        match event.kind:
            case EventKind.STALL:
                # No epoch begins before the end of the disturbance.
                self._stalled_until_ns = max(self._stalled_until_ns, _ns(over_s))
            case EventKind.HANG_UP:
                self._server.connection += 1
            case EventKind.SILENCE:
                self._server.silent = True
                self._at(over_s, self._answer_again)
            case EventKind.DELAY:
                self._server.delay_s = event.delay_s
                self._at(over_s, self._answer_again)
            case EventKind.KILL_DAEMON:
                self._server.kill_at, self._killed_in_s = event.command, event.lasts_s
            case EventKind.STOP_DAEMON:
                self._server.kill_at = None
                with self._timed():
                    self._daemon.stop(undo=True)
                self._daemon.waker.close()
                self._daemon = None
                self._at(over_s, self._start_daemon)
            case _:
                raise ValueError(f"{event.kind} is not a valid disturbance")
        return True

    def _answer_again(self) -> None:
        self._server.silent, self._server.delay_s = False, 0.0


def _ns(time_s: float) -> int:
    return round(time_s * NS_PER_S)


@contextmanager
def _quiet() -> Iterator[None]:
    """Discard the daemon's log: its messages are in its status too."""
    logger = logging.getLogger("slo_ctl.daemon")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
