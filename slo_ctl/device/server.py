"""Running nbdkit with our plugin in the foreground: ready, signals, a clean stop."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from sdnotify import SystemdNotifier

from slo_ctl.device.programs import find_nbdkit, find_plugin
from slo_ctl.device.sockets import listening
from slo_ctl.device.store import DeviceStore, ServedError
from slo_ctl.errors import UserError
from slo_ctl.show.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

    from slo_ctl.device.record import DeviceRecord

_FIRST_LISTEN_FD = 3
_READY_POLL_S = 0.01
_WAIT_POLL_S = 0.2
_STOP_PATIENCE_S = 30.0
"""A clean stop answers what is under way and saves the placement; after so long it is cut short."""

# nbdkit takes listening sockets as systemd hands them over: from descriptor 3 on, with its own process number
# in the environment, which only the process itself knows beforehand.
_LAUNCHER = """
import os, sys
count = int(sys.argv[1])
sources = [int(word) for word in sys.argv[2 : 2 + count]]
for number, source in enumerate(sources):
    os.dup2(source, 3 + number, inheritable=True)
os.environ.update(LISTEN_FDS=str(count), LISTEN_PID=str(os.getpid()))
command = sys.argv[2 + count :]
os.execv(command[0], command)
"""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """How a device is served."""

    latency: str = "none"
    """`real`: completions when the modelled drive would be done; `none`: as fast as it goes."""
    time_scale: float = 1.0
    """Real seconds for each modelled one."""
    threads: int | None = None
    """Requests in work at once on each connection."""
    checkpoint_s: float = 60.0
    group: str | None = None
    """Owns the sockets of the exports."""
    nbdkit: tuple[str, ...] = ()
    """More arguments for nbdkit, such as those for TLS."""

    @property
    def worker_threads(self) -> int:
        """Waiting for the modelled drive takes a thread. Otherwise few are best: handing requests on from one
        to the next takes longer than serving them, but a flush must not hold up the rest.
        """
        return self.threads or (128 if self.latency == "real" else 4)


def serve(store: DeviceStore, record: DeviceRecord, options: ServeOptions, ready: Callable[[], None]) -> int:
    """Serve until SIGTERM or SIGINT, or until nbdkit ends; returns the exit status.

    `ready` is called once clients can connect. Raises UserError when it cannot be served.
    """
    nbdkit, plugin = find_nbdkit(), find_plugin()
    store.check_files(record.name)
    run = store.places.run_of(record.name)
    names = [namespace.name for namespace in record.namespace]
    try:
        with (
            store.locked(record.name) as lock,
            listening(run, names, options.group) as (nbd, control),
            _handed_over([each.fileno() for each in nbd], [lock, control.fileno()]) as handover,
        ):
            run.pid_file.unlink(missing_ok=True)
            lock_fd, control_fd, stop_fd = handover.others
            command = [
                *(nbdkit, "--foreground", "--exit-with-parent", "--pidfile", str(run.pid_file)),
                *("--threads", str(options.worker_threads), *options.nbdkit, str(plugin)),
                f"device={store.places.device(record.name)}",
                f"sockets={run.exports}",
                f"latency={options.latency}",
                f"time-scale={options.time_scale!r}",
                f"checkpoint-seconds={options.checkpoint_s!r}",
                f"lock-fd={lock_fd}",
                f"control-fd={control_fd}",
                f"stop-fd={stop_fd}",
            ]
            try:
                return _run(command, handover, run.pid_file.exists, ready)
            finally:
                run.pid_file.unlink(missing_ok=True)
    except ServedError:
        raise UserError(
            f"device {record.name} is being served already", "stop that server first; `device show` says more"
        ) from None


@dataclass(frozen=True, slots=True)
class _Handover:
    """Descriptors that nbdkit inherits."""

    listening: tuple[int, ...]
    others: tuple[int, ...]
    """Lock, control socket, and the end of a pipe that says when to stop."""
    stop: BinaryIO
    """The other end of it: closing it makes the server end its connections."""


@contextmanager
def _handed_over(nbd: Sequence[int], others: Sequence[int]) -> Iterator[_Handover]:
    # Numbered so high that those nbdkit expects do not get in their way.
    above = _FIRST_LISTEN_FD + len(nbd)
    read_end, write_end = os.pipe()
    with os.fdopen(write_end, "wb", buffering=0) as stop:
        listening = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, above) for each in nbd]
        high = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, above) for each in (*others, read_end)]
        os.close(read_end)
        try:
            yield _Handover(tuple(listening), tuple(high), stop)
        finally:
            for descriptor in (*listening, *high):
                os.close(descriptor)


def _run(
    command: list[str], handover: _Handover, is_ready: Callable[[], bool], ready: Callable[[], None]
) -> int:
    sources = handover.listening
    notify = SystemdNotifier().notify
    launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(len(sources)), *map(str, sources), *command]
    with _asked_to_stop() as stop:
        process = subprocess.Popen(  # noqa: S603 - no shell, and every word is ours or the operator's
            launcher,
            pass_fds=(*sources, *handover.others),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        told = _Relay(process)
        while process.poll() is None and not is_ready() and not stop.is_set():
            time.sleep(_READY_POLL_S)
        if process.poll() is None and not stop.is_set():
            ready()
            notify("READY=1")
        while process.poll() is None and not stop.is_set():
            stop.wait(_WAIT_POLL_S)
        notify("STOPPING=1")
        _end(process, handover.stop)
        told.finish()
    if process.returncode == 0:
        return 0
    if process.returncode < 0:
        how = signal.Signals(-process.returncode).name
        raise UserError(f"nbdkit was ended by {how}", "start again: what was flushed is there")
    raise UserError(
        told.last_error or f"nbdkit ended with status {process.returncode}", "see the lines above"
    )


@contextmanager
def _asked_to_stop() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set, instead of what they did before."""
    asked = threading.Event()

    def note(_number: int, _frame: FrameType | None) -> None:
        asked.set()

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(process: subprocess.Popen[bytes], stop: BinaryIO) -> None:
    if process.poll() is not None:
        return
    # No new connections first, then the end of those there are.
    process.terminate()
    stop.close()
    try:
        process.wait(_STOP_PATIENCE_S)
    except subprocess.TimeoutExpired:
        sys.stderr.write(f"slo-ctl: no clean stop within {_STOP_PATIENCE_S:g} s; cutting it short\n")
        process.kill()
        process.wait()


class _Relay:
    """What nbdkit and the plugin say, passed on line by line, the last error remembered."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.last_error = ""
        self._process = process
        self._thread = threading.Thread(target=self._pass_on, daemon=True)
        self._thread.start()

    def _pass_on(self) -> None:
        if self._process.stderr is None:
            return
        for raw in self._process.stderr:
            line = printable(raw.decode("utf-8", "replace").rstrip("\n"))
            before, mark, what = line.partition("error: ")
            if mark and before.startswith("nbdkit: "):
                self.last_error = what
            sys.stderr.write(line + "\n")
            sys.stderr.flush()

    def finish(self) -> None:
        """Wait for the last line."""
        self._thread.join(5)
