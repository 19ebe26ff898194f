"""`[hooks]`: a program and a webhook for changes of verdicts, each with a queue and a thread of its own."""

from __future__ import annotations

import http.client
import json
import logging
import math
import os
import platform
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from slo_ctl import tool_version
from slo_ctl.base.files import why_not_run
from slo_ctl.base.text import printable
from slo_ctl.config.settings import HooksConfig
from slo_ctl.daemon.status import VerdictChange

log = logging.getLogger("slo_ctl.daemon")

MAX_WAITING = 1000
"""Length of a queue; the oldest change is dropped from a full one."""
DONE, FAILED, KILLED, LEFT_OUT = RESULTS = ("done", "failed", "killed", "left-out")
"""Results of a change, as in metrics. Left out: the queue was full, the daemon stopped, or another change of
the same VM replaced it."""

STOP_S = 1.0
"""Time that hooks may run after a stop has begun."""
_KILL_S = 0.3
"""Time that a stop waits for a killed hook."""


class Hook(Protocol):
    """An action for a change of a verdict."""

    @property
    def name(self) -> str:
        """Name in the log."""

    def run(self, change: VerdictChange, end_s: Callable[[], float]) -> tuple[str, str]:
        """The result, and the reason if it is not `DONE`.

        Returns by `end_s()` in monotonic time, which decreases when the daemon stops.
        """


class HookQueue:
    """A queue of changes for a hook, and the thread that runs it."""

    def __init__(self) -> None:
        self._hook: Hook | None = None
        """None: changes are discarded."""
        self._waiting: dict[tuple[str, str], VerdictChange] = {}
        """Changes in the queue by VM and device, the oldest first."""
        self._woken = threading.Condition()
        """Its lock protects `_hook`, `_waiting`, `_results` and `_end_s`."""
        self._results: Counter[str] = Counter(dict.fromkeys(RESULTS, 0))
        self._end_s = math.inf
        """Monotonic time by which hooks must have ended."""
        self._thread: threading.Thread | None = None
        self._failure = ""

    def configure(self, hook: Hook | None) -> None:
        with self._woken:
            self._hook = hook
            if hook is None:
                self._waiting.clear()

    def results(self) -> Counter[str]:
        """Number of changes by result."""
        with self._woken:
            return self._results.copy()

    def add(self, changes: Iterable[VerdictChange]) -> None:
        """Have the thread run the hook for these changes. Never blocks."""
        with self._woken:
            if self._hook is None or self._end_s < math.inf:
                return
            for change in changes:
                self._enqueue(change)
            if not self._waiting:
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._run_all, name="hooks", daemon=True)
                self._thread.start()
            self._woken.notify_all()

    def begin_stop(self) -> None:
        """Accept no more changes; a running hook has `STOP_S` left."""
        with self._woken:
            self._end_s = min(self._end_s, time.monotonic() + STOP_S)
            self._woken.notify_all()

    def close(self) -> None:
        """Wait until the hook has ended or was killed."""
        self.begin_stop()
        if self._thread is not None:
            # A program that survives SIGKILL must not block the daemon.
            self._thread.join(max(0.0, self._end_s - time.monotonic()) + _KILL_S)
        with self._woken:
            self._results[LEFT_OUT] += len(self._waiting)
            self._waiting.clear()

    def _enqueue(self, change: VerdictChange) -> None:
        """Add a change to the queue.

        It is combined with a waiting change of the same VM, and dropped if together they change nothing.
        """
        key = (change.vm, change.device)
        earlier = self._waiting.pop(key, None)
        if earlier is not None:
            self._results[LEFT_OUT] += 1
            change = replace(change, previous=earlier.previous)
            if change.verdict == change.previous:
                self._results[LEFT_OUT] += 1
                return
        self._waiting[key] = change
        if len(self._waiting) > MAX_WAITING:
            del self._waiting[next(iter(self._waiting))]
            self._results[LEFT_OUT] += 1

    def _run_all(self) -> None:
        while (entry := self._take()) is not None:
            hook, change = entry
            try:
                result, problem = hook.run(change, lambda: self._end_s)
            except Exception as error:  # without the thread, no later change would be run
                result, problem = FAILED, f"failed: unexpected {type(error).__name__}: {error}"
            if problem and problem != self._failure:
                log.warning("[hooks] %s %s", hook.name, problem)
            self._failure = problem
            with self._woken:
                self._results[result] += 1

    def _take(self) -> tuple[Hook, VerdictChange] | None:
        """Wait for a change: the hook and the oldest change; None: the thread must end."""
        with self._woken:
            self._woken.wait_for(lambda: self._waiting or self._end_s < math.inf)
            if self._hook is None or not self._waiting or time.monotonic() >= self._end_s:
                return None
            return self._hook, self._waiting.pop(next(iter(self._waiting)))


# The program of `on_verdict`, which is run for each change.

PROGRAM_LIMIT_S = 10.0
"""Time after which the program is killed."""

_PROGRAM_POLL_S = 0.02
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_STDERR = 2
_EXIT = os.WEXITED | os.WNOWAIT | os.WNOHANG


class HookProgram:
    """A hook that runs a program with arguments."""

    def __init__(self, command: tuple[str, ...]) -> None:
        self._command = command

    @property
    def name(self) -> str:
        return f"on_verdict: {self._command[0]}"

    def run(self, change: VerdictChange, end_s: Callable[[], float]) -> tuple[str, str]:
        problem = why_not_run(Path(self._command[0]), as_root=os.geteuid() == 0)
        if problem:
            return FAILED, problem
        try:
            process = subprocess.Popen(  # noqa: S603 - the administrator's own program, without a shell
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=_STDERR,
                env=environment(change),
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            return FAILED, f"cannot be run: {error.strerror}"
        in_time = self._wait(process.pid, end_s)
        # Ends its background processes as well. The process ID stays valid until `wait`.
        # Those of another user, as of sudo, cannot be ended.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        status = process.wait()
        if not in_time:
            return KILLED, f"was killed: it had not ended after {PROGRAM_LIMIT_S:g} s, or the daemon stopped"
        return (FAILED, f"ended with status {status}") if status else (DONE, "")

    def _wait(self, pid: int, end_s: Callable[[], float]) -> bool:
        """Whether the process has ended in time."""
        deadline_s = time.monotonic() + PROGRAM_LIMIT_S
        while os.waitid(os.P_PID, pid, _EXIT) is None:
            if time.monotonic() >= min(deadline_s, end_s()):
                return False
            time.sleep(_PROGRAM_POLL_S)
        return True


def environment(change: VerdictChange) -> dict[str, str]:
    """The environment of the program. Each value is one line of printable text, whatever the names are."""
    values = {
        "SLO_CTL_VM": change.vm,
        "SLO_CTL_DEVICE": change.device,
        "SLO_CTL_VERDICT": change.verdict.value,
        "SLO_CTL_PREVIOUS": change.previous.value if change.previous else "",
        "SLO_CTL_REASON": change.reason,
    }
    return {"PATH": _PATH, **{name: printable(value) for name, value in values.items()}}


# The address of `webhook`, to which each change is sent by HTTP POST.

REQUEST_LIMIT_S = 5.0
FORMAT_VERSION = 1

_REQUEST_POLL_S = 0.05
_Address = tuple[socket.AddressFamily, Any]
_SUCCESS, _REDIRECT = 2, 3
"""First digits of statuses."""


class _Lookup:
    """Looks up the addresses of a host in a thread, because a lookup has no timeout."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._running: Future[list[_Address]] | None = None

    def addresses(self, deadline_s: Callable[[], float]) -> list[_Address]:
        """The addresses. Raises OSError if there are none by `deadline_s()`, and what the lookup raises."""
        # One that hangs is waited for again, so that there is never more than one thread.
        if self._running is None or self._running.done():
            self._running = Future()
            threading.Thread(
                target=self._look_up, args=(self._running,), name="webhook-lookup", daemon=True
            ).start()
        while not self._running.done():
            if time.monotonic() >= deadline_s():
                raise TimeoutError(f"no address of {self._host} in time")
            wait([self._running], _REQUEST_POLL_S)
        return self._running.result()

    def _look_up(self, answer: Future[list[_Address]]) -> None:
        try:
            found = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
            answer.set_result([(family, address) for family, _, _, _, address in found])
        except Exception as error:
            answer.set_exception(error)


class Webhook:
    """A hook that sends changes by HTTP or HTTPS, without redirects and proxies."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        tls = parts.scheme == "https"
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if tls else 80)
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._tls = ssl.create_default_context() if tls else None
        self._lookup = _Lookup(self._host, self._port)
        # Without the path, which may contain a secret.
        self.name = f"webhook: {parts.scheme}://{parts.netloc}"

    def run(self, change: VerdictChange, end_s: Callable[[], float]) -> tuple[str, str]:
        """Send a change, and wait for the status of the reply."""
        limit_s = time.monotonic() + REQUEST_LIMIT_S

        def deadline_s() -> float:
            return min(limit_s, end_s())

        connection = _Connection(self._host, self._port, self._tls, self._lookup, deadline_s)
        try:
            with _shutdown_at(connection, deadline_s):
                problem = self._post(connection, payload(change))
        finally:
            connection.close()
        if problem and time.monotonic() >= deadline_s():
            return KILLED, f"did not answer within {REQUEST_LIMIT_S:g} s, or the daemon stopped"
        return (FAILED, problem) if problem else (DONE, "")

    def _post(self, connection: _Connection, body: bytes) -> str:
        """Send a request. Returns why it failed, or an empty string."""
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"slo-ctl/{tool_version()}",
            "Connection": "close",
        }
        try:
            connection.request("POST", self._target, body, headers)
            status = connection.getresponse().status
        except OSError as error:
            return f"cannot be reached: {error.strerror or error}"
        except (http.client.HTTPException, UnicodeError) as error:
            return f"did not answer in HTTP: {type(error).__name__}"
        kind = status // 100
        if kind == _SUCCESS:
            return ""
        answered = f"answered {status} {http.client.responses.get(status, '')}".rstrip()
        return f"{answered}, and redirects are not followed" if kind == _REDIRECT else answered


def payload(change: VerdictChange) -> bytes:
    """The body of the request."""
    return json.dumps(
        {
            "format_version": FORMAT_VERSION,
            "event": "verdict",
            "host": platform.node(),
            "at": change.at,
            "vm": printable(change.vm),
            "device": printable(change.device),
            "verdict": change.verdict.value,
            "previous": change.previous.value if change.previous else None,
            "degraded": change.is_degraded,
            "reason": printable(change.reason),
        }
    ).encode()


class _Connection(http.client.HTTPConnection):
    """A connection that sets `sock` before the TLS handshake, so that the handshake can be interrupted."""

    def __init__(
        self,
        host: str,
        port: int,
        tls: ssl.SSLContext | None,
        lookup: _Lookup,
        deadline_s: Callable[[], float],
    ) -> None:
        super().__init__(host, port)
        self._tls = tls
        self._lookup = lookup
        self._deadline_s = deadline_s

    def connect(self) -> None:
        """Connect by `deadline_s()`, and with TLS verify the server."""
        self.sock = self._connected()
        self.sock.settimeout(REQUEST_LIMIT_S)
        if self._tls is not None:
            secured = self._tls.wrap_socket(
                self.sock, server_hostname=self.host, do_handshake_on_connect=False
            )
            self.sock = secured
            secured.do_handshake()

    def _connected(self) -> socket.socket:
        """A connection to the first address that answers in its part of the time that is left."""
        addresses = self._lookup.addresses(self._deadline_s)
        problem = OSError("no address")
        for tried, (family, address) in enumerate(addresses):
            opened = socket.socket(family, socket.SOCK_STREAM)
            try:
                left_s = max(0.0, self._deadline_s() - time.monotonic())
                opened.settimeout(left_s / (len(addresses) - tried) or _REQUEST_POLL_S)
                opened.connect(address)
            except OSError as error:
                opened.close()
                problem = error
            else:
                return opened
        raise problem


@contextmanager
def _shutdown_at(connection: _Connection, deadline_s: Callable[[], float]) -> Iterator[None]:
    """Shut the connection down at `deadline_s()`, because its own timeout applies to each read separately."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_REQUEST_POLL_S):
            opened = connection.sock
            if opened is not None and time.monotonic() >= deadline_s():
                with suppress(OSError):
                    opened.shutdown(socket.SHUT_RDWR)

    watcher = threading.Thread(target=watch, name="webhook-limit", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


# All hooks of the configuration.

PROGRAM, WEBHOOK = "program", "webhook"
"""Kinds of hooks, as in metrics."""


class Hooks:
    """All hooks of the configuration; each has a queue and a thread of its own."""

    def __init__(self, config: HooksConfig) -> None:
        self._queues = {kind: HookQueue() for kind in (PROGRAM, WEBHOOK)}
        self.configure(config)

    def configure(self, config: HooksConfig) -> None:
        self._queues[PROGRAM].configure(HookProgram(config.on_verdict) if config.on_verdict else None)
        self._queues[WEBHOOK].configure(Webhook(config.webhook) if config.webhook else None)

    def results(self) -> Counter[tuple[str, str]]:
        """Number of changes by kind of hook and result."""
        return Counter(
            {
                (kind, result): count
                for kind, queue in self._queues.items()
                for result, count in queue.results().items()
            }
        )

    def add(self, changes: Sequence[VerdictChange]) -> None:
        """Add changes to all queues. Never blocks."""
        for queue in self._queues.values():
            queue.add(changes)

    def begin_stop(self) -> None:
        """Accept no more changes."""
        for queue in self._queues.values():
            queue.begin_stop()

    def close(self) -> None:
        """Wait until all hooks have ended or were killed."""
        # First, so that the time that they have left is the same for all.
        self.begin_stop()
        for queue in self._queues.values():
            queue.close()
