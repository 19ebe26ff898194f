"""The daemon as a service: signals, the schedule, systemd's notifications, the API's server."""

from __future__ import annotations

import gc
import logging
import select
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
from slo_ctl.daemon.loop import Daemon, Schedule
from slo_ctl.model import DEGRADED, HostStatus, OutcomeState

log = logging.getLogger("slo_ctl.daemon")

_COLLECT_S = 60.0
"""Time from one garbage collection to the next, between epochs: an epoch makes many objects and hardly any
cycle, and looking for some in the middle of it takes a tenth to a quarter of its time."""


class StoppedAtOnce(BaseException):
    """A second signal: leave everything as it is."""


@dataclass(slots=True)
class _Asked:
    """Requests by signal."""

    stop: bool = False
    reload: bool = False


def serve(daemon: Daemon, *, epoch_s: float | None, keep: bool, say: Callable[[str], None]) -> int:
    """Epoch after epoch until SIGTERM or SIGINT, then a clean stop. SIGHUP reads the configuration again.

    `epoch_s` overrides the configuration; `keep` leaves in force what was set. `say` is called with `ready`
    once the API answers and the first epoch is over. Returns how many settings could not be restored.
    Raises UserError when the API, metrics or page cannot listen, and StoppedAtOnce at a second signal.
    """
    notify = notifier()
    with _signals(daemon) as asked, ExitStack() as stack:
        daemon.metrics.listen(daemon.config.metrics_listen)
        daemon.page.listen(daemon.config.page_listen)
        api = ApiServer(daemon.controller, daemon.places.api_socket, daemon.config.api_group)
        stack.callback(api.close)
        try:
            _run(daemon, asked, epoch_s, notify, lambda: say("ready"))
        finally:
            notify("STOPPING=1")
            undo = not (keep or daemon.config.daemon.keep_on_stop)
            not_restored = _stop(daemon, undo=undo)
    return not_restored


def notifier() -> Callable[[str], object]:
    """Sends to systemd. sdnotify encodes as Latin-1 and drops what cannot be: the name of a VM must not keep
    the watchdog unfed.
    """
    send = sdnotify.SystemdNotifier().notify
    return lambda text: send(text.encode("ascii", "backslashreplace").decode("ascii"))


def _run(
    daemon: Daemon,
    asked: _Asked,
    epoch_s: float | None,
    notify: Callable[[str], object],
    ready: Callable[[], None],
) -> None:
    schedule = Schedule(epoch_s or daemon.config.daemon.epoch_s, time.monotonic())
    systemd = _SystemdStatus(notify, ready)
    gc.disable()
    collected_s = time.monotonic()
    while True:
        select.select([daemon.waker.reader], [], [], schedule.wait_s(time.monotonic()))
        daemon.waker.clear()
        if asked.stop:
            return
        if asked.reload:
            asked.reload = False
            notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
            daemon.reload()
            notify("READY=1")
        daemon.controller.work()
        if daemon.controller.take_changed():
            schedule.bring_forward(time.monotonic())
        schedule.change(epoch_s or daemon.config.daemon.epoch_s, time.monotonic())
        if schedule.wait_s(time.monotonic()) > 0:
            continue
        schedule.take(time.monotonic())
        daemon.missed_epochs = schedule.missed
        systemd.epoch(daemon)
        if time.monotonic() - collected_s >= _COLLECT_S:
            gc.collect()
            collected_s = time.monotonic()


class _SystemdStatus:
    """Runs epochs and notifies systemd of those that were completed."""

    def __init__(self, notify: Callable[[str], object], ready: Callable[[], None]) -> None:
        self._notify = notify
        self._ready: Callable[[], None] | None = ready
        self._failure = ""
        self._missed = 0

    def epoch(self, daemon: Daemon) -> None:
        """One epoch. One that fails is reported once, and leaves the watchdog unfed."""
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
            log.warning("%d epochs skipped: earlier ones took too long", daemon.missed_epochs - self._missed)
            self._missed = daemon.missed_epochs
        self._notify(f"WATCHDOG=1\nSTATUS={summary(status)}")
        if self._ready is not None:
            self._notify("READY=1")
            self._ready()
            self._ready = None


def summary(status: HostStatus) -> str:
    """The status in a line."""
    bad = [row for row in status.vms if row.verdict in DEGRADED]
    vms, devices = len({row.vm for row in status.vms}), len(status.devices)
    text = f"{counted(vms, 'VM')}, {counted(devices, 'device')}"
    if bad:
        text += f", {len(bad)} degraded (first: {bad[0].vm}: {bad[0].verdict})"
    return text.replace("\n", " ")


def _stop(daemon: Daemon, *, undo: bool) -> int:
    """How many settings could not be restored."""
    outcomes = daemon.stop(undo=undo)
    if not undo:
        log.info("stopped; settings stay in force")
        return 0
    count = Counter(outcome.state for outcome in outcomes)
    text = f"stopped; {counted(count[OutcomeState.RESTORED], 'setting')} restored"
    if under_way := count[OutcomeState.RESTORING]:
        text += f", {under_way} which the device restores by itself"
    if missing := count[OutcomeState.UNAPPLIED]:
        text += f", {missing} not restored"
    log.info("%s", text)
    return missing


@contextmanager
def _signals(daemon: Daemon) -> Iterator[_Asked]:
    asked = _Asked()

    def stop(_number: int, _frame: FrameType | None) -> None:
        if asked.stop:
            raise StoppedAtOnce
        asked.stop = True
        daemon.waker.wake()

    def reload(_number: int, _frame: FrameType | None) -> None:
        asked.reload = True
        daemon.waker.wake()

    handlers = {signal.SIGTERM: stop, signal.SIGINT: stop, signal.SIGHUP: reload}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    # Handlers in Python run only once a wait that has just begun is over: the signal itself has to end it.
    wakeup_fd = signal.set_wakeup_fd(daemon.waker.writer, warn_on_full_buffer=False)
    try:
        yield asked
    finally:
        signal.set_wakeup_fd(wakeup_fd)
        for number, handler in before.items():
            signal.signal(number, handler)
