"""Running the server of a device in the foreground: readiness, restarts, signals, clean stop."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from sdnotify import SystemdNotifier

from slo_ctl.base.errors import UserError
from slo_ctl.base.files import modified_ns
from slo_ctl.base.termination import stop_requests
from slo_ctl.base.text import printable
from slo_ctl.drives.control import find_server
from slo_ctl.drives.listening import (
    NamespaceSockets,
    NvmeTcp,
    listening,
    listening_for_nvme,
    listening_for_vhost_user,
)
from slo_ctl.drives.record import SETTINGS_FILE, DeviceRecord, read_settings
from slo_ctl.drives.store import DeviceStore, ServedError

_READY_POLL_S = 0.01
_WAIT_POLL_S = 0.1
_STOP_TIMEOUT_S = 30.0
"""Timeout of a clean stop, which completes requests in flight and saves the placement."""
_START_TRIES = 3
"""Consecutive starts that may fail once the device was served, such as for lack of memory."""
_START_PAUSE_S = 1.0
_ERROR = "slo-ctl: error: "
_HEAPS = {"MALLOC_ARENA_MAX": "2"}
"""Of the C library: heaps for all threads. With one for each of its many threads, each grows for hours to the
most that was ever in it.
"""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """How a device is served."""

    latency: str
    """`real`: requests complete when the modelled drive would complete them; `none`: at once."""
    time_scale: float
    """Real seconds per modelled second."""
    threads: int | None
    """Requests processed at a time on each NBD connection; None: depending on `latency`."""
    checkpoint_s: float
    group: str | None
    """Group that owns the sockets of the exports."""
    nvme_tcp: NvmeTcp | None
    """Address for NVMe hosts; None: no NVMe/TCP."""
    vhost_user: bool
    """Whether each namespace also has a vhost-user socket."""
    poll_us: int | None
    """How long clients are polled after a request; None: the server's default."""
    tls_certificates: Path | None
    """Directory of certificates, with which NBD clients must use TLS; None: no TLS."""
    tls_verify_peer: bool
    """Whether NBD clients need a certificate."""


def serve(store: DeviceStore, record: DeviceRecord, options: ServeOptions, ready: Callable[[], None]) -> int:
    """Serve until SIGTERM or SIGINT, and restart the server when it exits; returns the exit status.

    The sockets stay open during a restart, so that clients wait instead of being refused. `ready` is called
    when clients can connect. Raises UserError when the device cannot be served.
    """
    server = find_server()
    store.check_files(record.name)
    run = store.places.run_of(record.name)
    names = [namespace.name for namespace in record.namespace]
    try:
        with (
            store.locked(record.name) as lock,
            listening(run, names, options.group) as opened,
            listening_for_nvme(options.nvme_tcp) if options.nvme_tcp else nullcontext() as nvme,
            listening_for_vhost_user(run, names, options.group)
            if options.vhost_user
            else nullcontext() as vhost_user,
            _stop_pipe() as (stop_fd, stop),
            _AddedSockets(store, record.name, opened.exports, vhost_user) as added,
        ):

            def command() -> tuple[list[str], list[int]]:
                """The command line and its inherited descriptors, which change with the namespaces."""
                inherited = {
                    "nbd-fd": [
                        str(opened.all_exports.fileno()),
                        *(f"{s.fileno()}:{n}" for n, s in opened.exports.opened.items()),
                    ],
                    "lock-fd": [str(lock)],
                    "control-fd": [str(opened.control.fileno())],
                    "stop-fd": [str(stop_fd)],
                    "sockets-fd": [str(added.fileno())],
                }
                if nvme is not None:
                    inherited["nvme-tcp-fd"] = [str(nvme.subsystem.fileno())]
                    if nvme.discovery is not None:
                        inherited["nvme-discovery-fd"] = [str(nvme.discovery.fileno())]
                if vhost_user is not None:
                    found = vhost_user.opened.items()
                    inherited["vhost-user-fd"] = [f"{s.fileno()}:{n}" for n, s in found]
                words = [
                    *(str(server), f"device={store.places.device(record.name)}", f"pid-file={run.pid_file}"),
                    *(f"latency={options.latency}", f"time-scale={options.time_scale!r}"),
                    f"checkpoint-seconds={options.checkpoint_s!r}",
                    *([f"threads={options.threads}"] if options.threads else []),
                    *([f"poll-us={options.poll_us}"] if options.poll_us is not None else []),
                    *_tls_words(options),
                    *(f"{key}={value}" for key, values in inherited.items() for value in values),
                    *(f"nvme-host={host}" for host in (options.nvme_tcp.hosts if options.nvme_tcp else ())),
                    *(
                        f"nvme-allow={permission}"
                        for permission in (options.nvme_tcp.allow if options.nvme_tcp else ())
                    ),
                ]
                descriptors = [value.partition(":")[0] for values in inherited.values() for value in values]
                return words, list(map(int, descriptors))

            try:
                return _supervise(command, added.update, stop, run.pid_file, ready)
            finally:
                run.pid_file.unlink(missing_ok=True)
    except ServedError:
        raise UserError(
            f"device {record.name} is already being served",
            f"stop that server first; see `slo-ctl device show {record.name}`",
        ) from None


class _AddedSockets:
    """Opens sockets of namespaces that are added while the device is served, and sends them to the server.

    This process keeps them open, so that clients wait while the server restarts. Sockets of removed
    namespaces are removed.
    """

    def __init__(
        self, store: DeviceStore, name: str, exports: NamespaceSockets, vhost_user: NamespaceSockets | None
    ) -> None:
        self._folder = store.places.device(name)
        self._store = store
        self._name = name
        self._front_ends = {"nbd": exports} | ({"vhost-user": vhost_user} if vhost_user else {})
        self._own_end, self._server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._own_end.setblocking(False)
        self._settings_read_ns = modified_ns(self._folder / SETTINGS_FILE)
        self._created = self._read_created()
        self._unsent: list[tuple[str, str]] = []

    def __enter__(self) -> _AddedSockets:
        return self

    def __exit__(self, *_: object) -> None:
        self._own_end.close()
        self._server_end.close()

    def fileno(self) -> int:
        """Descriptor of the server's end."""
        return self._server_end.fileno()

    def update(self) -> None:
        """Open and remove sockets of namespaces that were added or removed since the last call."""
        mtime_ns = modified_ns(self._folder / SETTINGS_FILE)
        if mtime_ns != self._settings_read_ns:
            try:
                names = [namespace.name for namespace in self._store.load(self._name).namespace]
                created = self._read_created()
            except (OSError, UserError):
                return  # the server reports the error
            self._settings_read_ns = mtime_ns
            for front_end, sockets in self._front_ends.items():
                for name in list(sockets.opened):
                    if name not in names or created.get(name) != self._created.get(name):
                        sockets.close(name)
                self._unsent += [
                    (front_end, name)
                    for name in names
                    if name not in sockets.opened and self._open(sockets, name)
                ]
            self._created = created
        self._send()

    def _send(self) -> None:
        while self._unsent:
            front_end, name = self._unsent[0]
            opened = self._front_ends[front_end].opened.get(name)
            if opened is not None:
                try:
                    socket.send_fds(self._own_end, [f"{front_end} {name}".encode()], [opened.fileno()])
                except BlockingIOError:
                    return  # the server is busy or starting
            self._unsent.pop(0)

    @staticmethod
    def _open(sockets: NamespaceSockets, name: str) -> bool:
        try:
            sockets.open(name)
        except UserError as error:
            sys.stderr.write(f"slo-ctl: namespace {name}: {error}\n")
            return False
        return True

    def _read_created(self) -> dict[str, int]:
        """Creation times of added namespaces, by name."""
        return {item.namespace.name: item.created_ns for item in read_settings(self._folder).created}


def _tls_words(options: ServeOptions) -> list[str]:
    if options.tls_certificates is None:
        return []
    for name in ("server-cert.pem", "server-key.pem", *(("ca-cert.pem",) if options.tls_verify_peer else ())):
        if not os.access(options.tls_certificates / name, os.R_OK):
            raise UserError(
                f"--tls-certificates: {options.tls_certificates / name} cannot be read",
                "name a directory with server-cert.pem, server-key.pem and, to verify peers, ca-cert.pem",
            )
    key = options.tls_certificates / "server-key.pem"
    if key.stat().st_mode & stat.S_IROTH:
        sys.stderr.write(f"slo-ctl: {key} can be read by all users: chmod o= {shlex.quote(str(key))}\n")
    verify = "yes" if options.tls_verify_peer else "no"
    return [f"tls-certificates={options.tls_certificates.absolute()}", f"tls-verify-peer={verify}"]


@contextmanager
def _stop_pipe() -> Iterator[tuple[int, BinaryIO]]:
    """A pipe: the descriptor for the server, and the other end. The server stops when that is closed."""
    read_end, write_end = os.pipe()
    try:
        with os.fdopen(write_end, "wb", buffering=0) as stop:
            yield read_end, stop
    finally:
        os.close(read_end)


def _supervise(
    command: Callable[[], tuple[list[str], list[int]]],
    update: Callable[[], None],
    stop_pipe: BinaryIO,
    pid_file: Path,
    ready: Callable[[], None],
) -> int:
    notify = SystemdNotifier().notify
    tries, was_served = 0, False
    with stop_requests() as stop:
        while True:
            pid_file.unlink(missing_ok=True)
            update()
            words, inherited = command()
            process = subprocess.Popen(  # noqa: S603 - no shell
                words,
                pass_fds=inherited,
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
                env=_HEAPS | os.environ,
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
                update()
                stop.wait(_WAIT_POLL_S)
            if stop.made:
                notify("STOPPING=1")
                _stop_server(process, stop_pipe)
            relay.finish()
            problem = _exit_problem(process.returncode, relay)
            if problem is None:
                return 0
            tries += 1
            if stop.made or not was_served or tries > _START_TRIES:
                raise UserError(problem, "see the lines above; flushed data is not lost")
            sys.stderr.write(f"slo-ctl: {problem}; restarting it\n")
            if tries > 1:
                stop.wait(_START_PAUSE_S)


def _exit_problem(status: int, relay: _Relay) -> str | None:
    """Why the server exited; None after a clean stop."""
    if status == 0:
        return None
    if status < 0:
        return f"the server was killed by {signal.Signals(-status).name}"
    return relay.last_error or f"the server exited with status {status}"


def _stop_server(process: subprocess.Popen[bytes], stop: BinaryIO) -> None:
    if process.poll() is not None:
        return
    stop.close()
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        sys.stderr.write(f"slo-ctl: no clean stop within {_STOP_TIMEOUT_S:g} s; killing the server\n")
        process.kill()
        process.wait()


class _Relay:
    """Forwards the server's messages line by line to stderr, except errors, of which the last is kept."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.last_error = ""
        self._process = process
        self._thread = threading.Thread(target=self._forward, daemon=True)
        self._thread.start()

    def _forward(self) -> None:
        if self._process.stderr is None:
            return
        for raw in self._process.stderr:
            line = printable(raw.decode("utf-8", "replace").rstrip("\n"))
            if line.startswith(_ERROR):
                self.last_error = line.removeprefix(_ERROR)
                continue
            sys.stderr.write(line + "\n")
            sys.stderr.flush()

    def finish(self) -> None:
        """Wait until all lines are forwarded."""
        self._thread.join(5)
