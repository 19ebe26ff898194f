"""The daemon as a service: schedule, signals, systemd notifications, and the server of the API."""

from __future__ import annotations

import gc
import logging
import math
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FrameType

import sdnotify

from slo_ctl.api.server import ApiServer
from slo_ctl.base.text import counted
from slo_ctl.daemon.files import DaemonLock
from slo_ctl.daemon.loop import Daemon
from slo_ctl.model.setting import OutcomeState
from slo_ctl.model.status import DEGRADED, HostStatus

log = logging.getLogger("slo_ctl.daemon")

_COLLECT_S = 60.0
"""Interval of Python's garbage collection, between epochs: an epoch creates many objects and few cycles, and
automatic collections would take a tenth to a quarter of its time."""


MIN_INTERVAL_S = 0.2
"""Minimum time between epochs, so that each measures a window of this length."""


class Schedule:
    """Times of epochs, at fixed intervals of monotonic time. Late epochs are skipped, not accumulated."""

    def __init__(self, epoch_s: float, now_s: float) -> None:
        """The first epoch is due now."""
        self._epoch_s = epoch_s
        self._due_s = now_s
        self._started_s = -math.inf
        self.missed = 0
        """Epochs that were skipped because earlier ones took too long."""

    def wait_s(self, now_s: float) -> float:
        """Time until the next epoch is due; 0 if it is due."""
        return max(0.0, self._due_s - now_s)

    def start_epoch(self, now_s: float) -> int:
        """Start the epoch that is due, and schedule the next one. Returns the number of skipped epochs."""
        skipped = max(0, math.floor((now_s - self._due_s) / self._epoch_s))
        self._due_s += (skipped + 1) * self._epoch_s
        if self._due_s <= now_s:  # The division was rounded.
            self._due_s += self._epoch_s
            skipped += 1
        self.missed += skipped
        self._started_s = now_s
        return skipped

    def bring_forward(self, now_s: float) -> None:
        """After a change: schedule the next epoch for now, or `MIN_INTERVAL_S` after the last one.

        Later epochs follow at the usual interval, so a burst of changes costs at most five epochs per second.
        """
        self._due_s = min(self._due_s, max(now_s, self._started_s + MIN_INTERVAL_S))

    def set_interval(self, epoch_s: float, now_s: float) -> None:
        if epoch_s != self._epoch_s:
            self._epoch_s, self._due_s = epoch_s, now_s + epoch_s


class StoppedAtOnce(BaseException):
    """Raised by a second signal to stop without restoring settings."""


@dataclass(slots=True)
class _Signals:
    """Signals that were received."""

    stop: bool = False
    reload: bool = False


def serve(
    daemon: Daemon, lock: DaemonLock, *, epoch_s: float | None, keep: bool, say: Callable[[str], None]
) -> int:
    """Run epochs until SIGTERM or SIGINT, then stop cleanly. SIGHUP reloads the configuration.

    `lock`: held by this process. `epoch_s`: overrides the configuration. `keep`: do not restore settings.
    `say`: called with `ready` when the API answers and the first epoch is complete. Returns the number of
    settings that were not restored. Raises UserError if the API, metrics or page cannot listen, and
    StoppedAtOnce at a second signal.
    """
    notify = notifier()
    daemon.epoch_option_s = epoch_s
    with _handle_signals(daemon) as signals, ExitStack() as stack:
        daemon.metrics.listen(daemon.config.metrics.listen)
        daemon.page.listen(daemon.config.page.listen)
        api = ApiServer(daemon.controller, daemon.places.api_socket, daemon.config.api.group)
        stack.callback(api.close)
        at_once = False
        try:
            _run(daemon, signals, notify, lambda: say("ready"), _RunFiles(lock, api))
        except StoppedAtOnce:
            at_once = True
            raise
        finally:
            notify("STOPPING=1")
            undo = not (at_once or keep or daemon.config.daemon.keep_on_stop)
            not_restored = _stop(daemon, undo=undo)
    return not_restored


def notifier() -> Callable[[str], object]:
    """A function that sends text to systemd in ASCII.

    sdnotify drops messages that are not Latin-1, and the name of a VM must not suppress a watchdog message.
    """
    send = sdnotify.SystemdNotifier().notify
    return lambda text: send(text.encode("ascii", "backslashreplace").decode("ascii"))


def _run(
    daemon: Daemon,
    signals: _Signals,
    notify: Callable[[str], object],
    ready: Callable[[], None],
    files: _RunFiles,
) -> None:
    schedule = Schedule(daemon.epoch_s, time.monotonic())
    runner = _EpochRunner(notify, ready)
    gc.disable()
    collected_s = time.monotonic()
    while True:
        daemon.waker.wait(schedule.wait_s(time.monotonic()))
        if signals.stop:
            return
        if signals.reload:
            signals.reload = False
            notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
            daemon.reload()
            notify("READY=1")
        daemon.controller.run_requests()
        files.use_group(daemon.config.api.group)
        schedule.set_interval(daemon.epoch_s, time.monotonic())
        if daemon.controller.take_changed():
            schedule.bring_forward(time.monotonic())
        if schedule.wait_s(time.monotonic()) > 0:
            continue
        schedule.start_epoch(time.monotonic())
        daemon.missed_epochs = schedule.missed
        runner.run(daemon)
        files.restore()
        if time.monotonic() - collected_s >= _COLLECT_S:
            gc.collect()
            collected_s = time.monotonic()


class _RunFiles:
    """Lock and socket, without which nobody reaches the daemon, and a second one could start beside it."""

    def __init__(self, lock: DaemonLock, api: ApiServer) -> None:
        self._lock = lock
        self._api = api
        self._holder = ""

    def use_group(self, group: str) -> None:
        """Give the socket to the group of the configuration in force."""
        try:
            self._api.use_group(group)
        except OSError as error:
            log.error("[api] group: cannot give the socket to %s: %s", group, error.strerror)

    def restore(self) -> None:
        """Create those that were removed."""
        holder = self._lock.restore()
        if holder and holder != self._holder:
            log.error("the lock of this daemon was removed, and another one (%s) started: stop one", holder)
        self._holder = holder
        if self._api.restore():
            log.warning("the socket of the API had been removed, and was created again")


class _EpochRunner:
    """Runs epochs, and notifies systemd of those that were completed."""

    def __init__(self, notify: Callable[[str], object], ready: Callable[[], None]) -> None:
        self._notify = notify
        self._ready: Callable[[], None] | None = ready
        self._failure = ""
        self._missed = 0

    def run(self, daemon: Daemon) -> None:
        """Run an epoch. An error is reported once, and the watchdog is not notified."""
        try:
            status = daemon.epoch()
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
            if failure != self._failure:
                log.exception("epoch failed")
                self._notify(f"STATUS=epoch failed: {failure}".replace("\n", " "))
            self._failure = failure
            return
        if self._failure:
            log.info("epochs continue")
            self._failure = ""
        if daemon.missed_epochs > self._missed:
            skipped = counted(daemon.missed_epochs - self._missed, "epoch")
            log.warning("%s skipped: earlier ones took too long", skipped)
            self._missed = daemon.missed_epochs
        self._notify(f"WATCHDOG=1\nSTATUS={summary(status)}")
        if self._ready is not None:
            self._notify("READY=1")
            self._ready()
            self._ready = None


def summary(status: HostStatus) -> str:
    """The status as one line."""
    degraded = [row for row in status.vms if row.verdict in DEGRADED]
    vms, devices = len({row.vm for row in status.vms}), len(status.devices)
    text = f"{counted(vms, 'VM')}, {counted(devices, 'device')}"
    if degraded:
        text += f", {len(degraded)} degraded (first: {degraded[0].vm}: {degraded[0].verdict})"
    return text.replace("\n", " ")


def _stop(daemon: Daemon, *, undo: bool) -> int:
    """Stop the daemon. Returns the number of settings that could not be restored."""
    outcomes = daemon.stop(undo=undo)
    if not undo:
        log.info("stopped; settings stay in force")
        return 0
    count = Counter(outcome.state for outcome in outcomes)
    text = f"stopped; {counted(count[OutcomeState.RESTORED], 'setting')} restored"
    if restoring := count[OutcomeState.RESTORING]:
        text += f", {restoring} which the device restores by itself"
    if missing := count[OutcomeState.UNAPPLIED]:
        text += f", {missing} not restored"
    log.info("%s", text)
    return missing


@contextmanager
def _handle_signals(daemon: Daemon) -> Iterator[_Signals]:
    signals = _Signals()

    def stop(_number: int, _frame: FrameType | None) -> None:
        if signals.stop:
            raise StoppedAtOnce
        signals.stop = True
        daemon.waker.wake()

    def reload(_number: int, _frame: FrameType | None) -> None:
        signals.reload = True
        daemon.waker.wake()

    handlers = {signal.SIGTERM: stop, signal.SIGINT: stop, signal.SIGHUP: reload}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    # Python calls handlers only after the wait, so the signal itself has to wake it up.
    wakeup_fd = signal.set_wakeup_fd(daemon.waker.writer, warn_on_full_buffer=False)
    try:
        yield signals
    finally:
        signal.set_wakeup_fd(wakeup_fd)
        for number, handler in before.items():
            signal.signal(number, handler)
