"""Running nbdkit with our plugin in the foreground: ready, signals, a clean stop."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from sdnotify import SystemdNotifier

from slo_ctl.base.errors import UserError
from slo_ctl.base.text import printable
from slo_ctl.drives.nbdkit import find_nbdkit, find_plugin, listening
from slo_ctl.drives.nvme_tcp import NvmeTcp
from slo_ctl.drives.nvme_tcp import listen as listen_nvme_tcp
from slo_ctl.drives.record import DeviceRecord, RunPlaces
from slo_ctl.drives.store import DeviceStore, ServedError
from slo_ctl.drives.vhost_user import listening_for_vhost_user

_FIRST_LISTEN_FD = 3
_READY_POLL_S = 0.01
_WAIT_POLL_S = 0.1
_STOP_TIMEOUT_S = 30.0
"""A clean stop answers what is under way and saves the placement; after so long it is cut short."""
_START_TRIES = 3
"""Starts that may fail one after the other once it was served, as where memory is short for a moment."""
_START_PAUSE_S = 1.0

# nbdkit takes listening sockets as systemd hands them over: from descriptor 3 on, with its own process number
# in the environment, which only the process itself knows beforehand. The plugin is preloaded as well: see
# ftl_emul/serve/src/transport.rs.
_LAUNCHER = """
import os, sys
count = int(sys.argv[2])
sources = [int(word) for word in sys.argv[3 : 3 + count]]
for number, source in enumerate(sources):
    os.dup2(source, 3 + number, inheritable=True)
os.environ.update(LISTEN_FDS=str(count), LISTEN_PID=str(os.getpid()), LD_PRELOAD=sys.argv[1])
command = sys.argv[3 + count :]
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
    nvme_tcp: NvmeTcp | None = None
    """Where NVMe hosts may connect as well."""
    vhost_user: bool = False
    """One more socket for each namespace."""
    nbdkit: tuple[str, ...] = ()
    """More arguments for nbdkit, such as those for TLS."""

    @property
    def worker_threads(self) -> int:
        """Waiting for the modelled drive takes a thread. Otherwise few are best: handing requests on from one
        to the next takes longer than serving them, but a flush must not hold up the rest.
        """
        return self.threads or (128 if self.latency == "real" else 4)


def serve(store: DeviceStore, record: DeviceRecord, options: ServeOptions, ready: Callable[[], None]) -> int:
    """Serve until SIGTERM or SIGINT, starting nbdkit again whenever it ends; returns the exit status.

    The sockets stay open meanwhile, so that clients wait instead of being refused. `ready` is called once
    clients can connect. Raises UserError when it cannot be served.
    """
    nbdkit, plugin = find_nbdkit(), find_plugin()
    store.check_files(record.name)
    run = store.places.run_of(record.name)
    names = [namespace.name for namespace in record.namespace]
    try:
        with (
            store.locked(record.name) as lock,
            listening(run, names, options.group) as (nbd, control),
            _listening_for_nvme(options.nvme_tcp) as nvme,
            _listening_for_vhost_user(options, run, names) as vhost_user,
            _handed_over(
                [each.fileno() for each in nbd],
                [lock, *(each.fileno() for each in (control, *vhost_user, *nvme))],
            ) as handover,
        ):
            run.pid_file.unlink(missing_ok=True)
            lock_fd, control_fd, *others, stop_fd = handover.others
            vhost_user_fds, nvme_fds = others[: len(vhost_user)], others[len(vhost_user) :]
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
                *(f"nvme-tcp-fd={descriptor}" for descriptor in nvme_fds),
                *(f"vhost-user-fd={fd}:{name}" for fd, name in zip(vhost_user_fds, names, strict=False)),
                *(f"nvme-host={host}" for host in (options.nvme_tcp.hosts if options.nvme_tcp else ())),
                *(f"nvme-allow={what}" for what in (options.nvme_tcp.allow if options.nvme_tcp else ())),
            ]
            try:
                return _supervise(command, str(plugin), handover, run.pid_file, ready)
            finally:
                run.pid_file.unlink(missing_ok=True)
    except ServedError:
        raise UserError(
            f"device {record.name} is being served already", "stop that server first; `device show` says more"
        ) from None


@contextmanager
def _listening_for_nvme(wanted: NvmeTcp | None) -> Iterator[list[socket.socket]]:
    if wanted is None:
        yield []
        return
    with listen_nvme_tcp(wanted) as opened:
        yield [opened]


@contextmanager
def _listening_for_vhost_user(
    options: ServeOptions, run: RunPlaces, namespaces: Sequence[str]
) -> Iterator[list[socket.socket]]:
    if not options.vhost_user:
        yield []
        return
    with listening_for_vhost_user(run, namespaces, options.group) as opened:
        yield opened


@dataclass(frozen=True, slots=True)
class _Handover:
    """Descriptors that nbdkit inherits."""

    listening: tuple[int, ...]
    others: tuple[int, ...]
    """Lock, control socket, that for NVMe hosts if any, and the end of a pipe that says when to stop."""
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


def _supervise(
    command: list[str], plugin: str, handover: _Handover, pid_file: Path, ready: Callable[[], None]
) -> int:
    notify = SystemdNotifier().notify
    sources = handover.listening
    launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, plugin, str(len(sources)), *map(str, sources)]
    tries, was_served = 0, False
    with _asked_to_stop() as stop:
        while True:
            pid_file.unlink(missing_ok=True)
            process = subprocess.Popen(  # noqa: S603 - no shell, and every word is ours or the operator's
                [*launcher, *command],
                pass_fds=(*sources, *handover.others),
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            relay = _Relay(process)
            while process.poll() is None and not pid_file.exists() and not stop.made:
                time.sleep(_READY_POLL_S)
            if process.poll() is None and not stop.made:
                if not was_served:
                    ready()
                    notify("READY=1")
                tries, was_served = 0, True
            while process.poll() is None and not stop.made:
                stop.wait(_WAIT_POLL_S)
            if stop.made:
                notify("STOPPING=1")
                _end(process, handover.stop)
            relay.finish()
            how = _how_it_ended(process.returncode, relay)
            if how is None:
                return 0
            tries += 1
            if stop.made or not was_served or tries > _START_TRIES:
                raise UserError(how, "see the lines above; what was flushed is there")
            sys.stderr.write(f"slo-ctl: {how}; starting it again\n")
            if tries > 1:
                stop.wait(_START_PAUSE_S)


def _how_it_ended(status: int, relay: _Relay) -> str | None:
    """None for the end that was asked for."""
    if status == 0:
        return None
    if status < 0:
        return f"nbdkit was ended by {signal.Signals(-status).name}"
    return relay.last_error or f"nbdkit ended with status {status}"


class _StopRequest:
    """SIGTERM or SIGINT. No `threading.Event`: a handler that sets it hangs if it interrupts the wait for it,
    as the main thread holds its lock for a moment.
    """

    def __init__(self) -> None:
        self.made = False
        self._reader, self._writer = os.pipe()

    def note(self, _number: int, _frame: FrameType | None) -> None:
        """The handler of both signals."""
        if not self.made:
            self.made = True
            os.write(self._writer, b"\0")

    def wait(self, seconds: float) -> None:
        """Until it is made, or for so long."""
        select.select([self._reader], [], [], seconds)

    def close(self) -> None:
        os.close(self._reader)
        os.close(self._writer)


@contextmanager
def _asked_to_stop() -> Iterator[_StopRequest]:
    """Requests by SIGTERM and SIGINT while it is entered."""
    request = _StopRequest()
    before = {number: signal.signal(number, request.note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        request.close()


def _end(process: subprocess.Popen[bytes], stop: BinaryIO) -> None:
    if process.poll() is not None:
        return
    # No new connections first, then the end of those there are.
    process.terminate()
    stop.close()
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        sys.stderr.write(f"slo-ctl: no clean stop within {_STOP_TIMEOUT_S:g} s; cutting it short\n")
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
