"""The domains of libvirt, kept up to date by its events, without blocking the caller.

There are two threads: libvirt's event loop, one per process, which also sends the keepalive; and one per
watch, which makes the calls. A hanging libvirtd blocks only the latter, until the keepalive closes the
connection.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from slo_ctl.host.calls import WatchThread
from slo_ctl.host.libvirt import (
    DEFAULT_URI,
    DomainReading,
    LibvirtError,
    LibvirtHost,
    load_module,
    read_domain,
    starting_domain,
)
from slo_ctl.model.host import Vm

_Resolve = Callable[[Vm, Callable[[str], None]], Vm]


REFRESH_S = 30.0
"""Interval of complete readings, independent of events."""
_POLL_S = 1.0
"""The same for drivers without events, and the first pause before a VM with a missing disk is read again."""
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 1.0
"""Longest pause between attempts to connect."""
_KEEPALIVE_S = 2
_KEEPALIVES = 3
_SLOW_S = 1.0
"""Time without an answer after which `domains` adds a note."""
_CLOSE_TIMEOUT_S = 1.0

_EVENTS = (
    "LIFECYCLE",
    "DEVICE_ADDED",
    "DEVICE_REMOVED",
    "METADATA_CHANGE",
    "BLOCK_JOB_2",
    "DISK_CHANGE",
    "TUNABLE",
)


@dataclass(frozen=True, slots=True)
class LatestDomains:
    """The latest readings of all domains of one libvirt."""

    uri: str
    by_uuid: Mapping[str, DomainReading] = field(default_factory=dict)
    has_local_vms: bool = True
    """Whether its VMs are processes of this host."""
    notes: tuple[str, ...] = ()
    """Notes about the connection, followed by those about domains."""
    version: int = 0
    """Increased by every change."""

    @property
    def vms(self) -> list[Vm]:
        """VMs without their cgroups."""
        return [reading.vm for reading in self.by_uuid.values()]


_FIX = 'start libvirtd, or correct uri = in [libvirt], where "none" is for a host without it'


class LibvirtWatch(WatchThread):
    """Follows one libvirt from the start of its thread to `close`, through restarts of libvirtd."""

    def __init__(
        self,
        uri: str = DEFAULT_URI,
        resolve: _Resolve | None = None,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        """`resolve` finds the devices of a VM's disks, which may be slow. After a note of it the VM is read
        again soon, as udev may be replacing the node of a device. It is called in the watch's thread, as is
        `on_change` after the domains have changed."""
        super().__init__("slo-ctl libvirt", _CLOSE_TIMEOUT_S)
        self.uri = uri
        self._resolve = resolve
        self._on_change = on_change or (lambda: None)
        self._domains = LatestDomains(uri)
        self._problem = "no connection yet"
        self._waiting_since_s: float | None = None
        self._answered_at_s: float | None = None
        self._answered = threading.Event()
        # Guarded by `_changed`, as callbacks come from the event loop's thread.
        self._changed_uuids: set[str] = set()
        self._tuned: set[str] = set()
        self._disconnect_reason = ""
        self._read_all = False
        # Only used by the watch's thread.
        self._unresolved: dict[str, tuple[float, float]] = {}
        """VMs with a note of `resolve`, by UUID: when to read them again, and the pause before that."""

    def wait(self, timeout_s: float) -> bool:
        """Wait for the first answer or failure; False after the timeout."""
        return self._answered.wait(timeout_s)

    def refresh(self) -> None:
        """Read all domains again, such as after a block device was added or removed."""
        with self._changed:
            self._read_all = True
            self._changed.notify()

    def read_again(self, uuid: str) -> None:
        """Read a domain again, such as after a change that libvirt has no event for."""
        with self._changed:
            self._changed_uuids.add(uuid)
            self._changed.notify()

    def domains(self) -> LatestDomains:
        """The latest readings; never blocks. Notes say how old they are when libvirt does not answer."""
        domains = self._domains
        notes = list(domains.notes)
        waiting_since_s, answered_at_s, problem = self._waiting_since_s, self._answered_at_s, self._problem
        now_s = time.monotonic()
        age = "" if answered_at_s is None else f"; its VMs were last read {now_s - answered_at_s:.0f} s ago"
        if problem:
            notes.insert(0, f"libvirt at {self.uri}: {problem}{age}")
        elif waiting_since_s is not None and now_s - waiting_since_s > _SLOW_S:
            notes.insert(0, f"libvirt has not answered for {now_s - waiting_since_s:.0f} s{age}")
        return replace(domains, notes=tuple(notes))

    def announce(self, xml: str) -> str:
        """Add a domain that libvirt is about to start, and return its name. Raises DomainXmlError.

        libvirt does not answer queries about a domain while it is starting.
        """
        found = starting_domain(xml)
        uuid = str(found.vm.uuid)
        if self._resolve is not None:
            found = replace(found, vm=self._resolve(found.vm, lambda _: None))
        with self._changed:
            now = self._domains
            if uuid not in now.by_uuid:
                self._domains = replace(now, by_uuid={**now.by_uuid, uuid: found}, version=now.version + 1)
            # Reading it from libvirt later replaces this entry, or removes it if the domain did not start.
            self._changed_uuids.add(uuid)
            self._changed.notify()
        return found.vm.name

    def take_tuned(self) -> set[str]:
        """UUIDs of the domains whose tuning (blkiotune, blkdeviotune) was changed since the last call."""
        with self._changed:
            tuned, self._tuned = self._tuned, set()
        return tuned

    def _run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._stopping:
            try:
                module = load_module()
            except LibvirtError as error:
                # This cannot change while the program runs.
                self._problem = f"{error.message}: {error.hint}"
                self._answered.set()
                return
            try:
                self._follow(module)
                pause_s = _FIRST_PAUSE_S
            except module.libvirtError as error:
                fix = "" if self._answered_at_s is not None else f" ({_FIX})"
                self._problem = f"{error}{fix}"
            self._waiting_since_s = None
            self._answered.set()
            self._pause(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _follow(self, module: Any) -> None:
        """Follow a connection to its end. Raises libvirt's error."""
        self._waiting_since_s = time.monotonic()
        connection = open_connection(module, self.uri, read_only=True)
        callbacks: dict[str, int] = {}
        try:
            with self._changed:
                self._changed_uuids.clear()
                self._disconnect_reason, self._read_all = "", True
            callbacks = self._subscribe(module, connection)
            self._follow_open(module, connection, REFRESH_S if "LIFECYCLE" in callbacks else _POLL_S)
        finally:
            self._waiting_since_s = None
            _close(module, connection, callbacks.values())

    def _subscribe(self, module: Any, connection: Any) -> dict[str, int]:
        """Register for events; returns the callbacks of those that the driver has, by name of the event."""
        with suppress(module.libvirtError):  # drivers without a connection do not support it
            connection.registerCloseCallback(self._on_close, None)
        # The regular refresh replaces events that a driver or an older libvirt lacks.
        callbacks = {}
        for name in _EVENTS:
            number = getattr(module, f"VIR_DOMAIN_EVENT_ID_{name}", None)
            callback = self._on_tunable if name == "TUNABLE" else self._on_event
            with suppress(module.libvirtError):
                if number is not None:
                    callbacks[name] = int(connection.domainEventRegisterAny(None, number, callback, None))
        return callbacks

    def _follow_open(self, module: Any, connection: Any, refresh_s: float) -> None:
        host = LibvirtHost(connection, module)
        has_local_vms = host.has_local_vms
        refreshed_s = 0.0
        while True:
            with self._changed:
                if self._stopping:
                    return
                if self._disconnect_reason:
                    self._problem = self._disconnect_reason
                    return
                now_s = time.monotonic()
                everything = self._read_all or now_s - refreshed_s >= refresh_s
                changed_uuids, self._changed_uuids, self._read_all = self._changed_uuids, set(), False
            for uuid, (due_s, pause_s) in self._unresolved.items():
                if due_s <= now_s:
                    changed_uuids.add(uuid)
                    self._unresolved[uuid] = (now_s + REFRESH_S, pause_s)  # in case it cannot be read now
            self._waiting_since_s = time.monotonic()
            if everything:
                found = self._read(module, connection.listAllDomains(), {})
                refreshed_s = time.monotonic()
                self._publish(found, has_local_vms=has_local_vms)
            elif changed_uuids:
                known = {u: k for u, k in self._domains.by_uuid.items() if u not in changed_uuids}
                self._publish(
                    self._read(module, _lookup_domains(module, connection, changed_uuids), known),
                    has_local_vms=has_local_vms,
                )
            self._waiting_since_s = None
            self._unresolved = {u: k for u, k in self._unresolved.items() if u in self._domains.by_uuid}
            due_at_s = [refreshed_s + refresh_s, *(due_s for due_s, _ in self._unresolved.values())]
            self._pause(
                max(0.0, min(due_at_s) - time.monotonic()),
                lambda: self._disconnect_reason or self._read_all or self._changed_uuids,
            )

    def _read(
        self, module: Any, domains: Iterable[Any], known: dict[str, DomainReading]
    ) -> dict[str, DomainReading]:
        """The readings `known`, updated with new ones of `domains`."""
        for domain in domains:
            uuid = str(domain.UUIDString())
            try:
                found = read_domain(domain, module, self._domains.by_uuid.get(uuid))
            except module.libvirtError as error:
                before = self._domains.by_uuid.get(uuid)
                if not connected(domain.connect(), module) or before is None:
                    raise
                known[uuid] = replace(before, notes=(f"VM {domain.name()} could not be read again: {error}",))
                continue
            if found is None:
                continue
            notes: list[str] = list(found.notes)
            if self._resolve is not None:
                found = replace(found, vm=self._resolve(found.vm, notes.append))
            if len(notes) > len(found.notes):
                _, pause_s = self._unresolved.get(uuid, (0.0, _POLL_S / 2))
                pause_s = min(2 * pause_s, REFRESH_S)
                self._unresolved[uuid] = (time.monotonic() + pause_s, pause_s)
            else:
                self._unresolved.pop(uuid, None)
            known[uuid] = replace(found, notes=tuple(dict.fromkeys(notes)))
        return known

    def _publish(self, found: dict[str, DomainReading], *, has_local_vms: bool) -> None:
        self._answered_at_s = time.monotonic()
        self._problem = ""
        with self._changed:
            before = self._domains
            # Those that were announced meanwhile are still to be read.
            announced = self._changed_uuids & before.by_uuid.keys() - found.keys()
            found |= {uuid: before.by_uuid[uuid] for uuid in announced}
            notes = tuple(note for reading in found.values() for note in reading.notes)
            changed = found != before.by_uuid
            self._domains = LatestDomains(self.uri, found, has_local_vms, notes, before.version + changed)
        self._answered.set()
        if changed:
            self._on_change()

    def _on_event(self, _connection: Any, domain: Any, *_details: Any) -> None:
        self.read_again(str(domain.UUIDString()))

    def _on_tunable(self, _connection: Any, domain: Any, *_details: Any) -> None:
        # No reading is necessary: Vm has no tuning parameters, and the daemon itself sets them.
        with self._changed:
            self._tuned.add(str(domain.UUIDString()))

    def _on_close(self, _connection: Any, reason: int, _opaque: Any) -> None:
        with self._changed:
            self._disconnect_reason = _REASONS.get(reason, "the connection was closed")
            self._changed.notify()


_REASONS = {
    0: "the connection was lost",
    1: "libvirtd closed the connection",
    2: "libvirtd does not answer",
    3: "the connection was closed",
}
"""Texts by virConnectCloseReason."""


def _close(module: Any, connection: Any, callbacks: Iterable[int]) -> None:
    """Close a connection, which its callbacks would keep open. Errors of one that was lost are ignored."""
    for callback in callbacks:
        with suppress(module.libvirtError):
            connection.domainEventDeregisterAny(callback)
    with suppress(module.libvirtError):  # drivers without a connection do not support it
        connection.unregisterCloseCallback()
    with suppress(module.libvirtError):
        connection.close()


def _lookup_domains(module: Any, connection: Any, uuids: Iterable[str]) -> Iterable[Any]:
    for uuid in uuids:
        try:
            yield connection.lookupByUUIDString(uuid)
        except module.libvirtError as error:
            if error.get_error_code() != module.VIR_ERR_NO_DOMAIN:
                raise


def connected(connection: Any, module: Any) -> bool:
    """Whether a connection is still open."""
    try:
        return bool(connection.isAlive())
    except module.libvirtError:
        return False


def open_connection(module: Any, uri: str, *, read_only: bool = False) -> Any:
    """A connection that is closed, together with its calls, if libvirtd does not respond."""
    _start_event_loop(module)
    connection = (module.openReadOnly if read_only else module.open)(uri)
    with suppress(module.libvirtError):  # drivers without a connection do not support it
        connection.setKeepAlive(_KEEPALIVE_S, _KEEPALIVES)
    return connection


_loop_lock = threading.Lock()
_loop: threading.Thread | None = None


def _start_event_loop(module: Any) -> None:
    """Run libvirt's own event loop in a thread, once in a process, before the first connection."""
    global _loop
    with _loop_lock:
        if _loop is None:
            module.virEventRegisterDefaultImpl()
            _loop = threading.Thread(target=_run_loop, args=(module,), name="libvirt events", daemon=True)
            _loop.start()


def _run_loop(module: Any) -> None:
    while True:
        try:
            module.virEventRunDefaultImpl()
        except module.libvirtError:
            # A temporary error, such as no free descriptors.
            time.sleep(_POLL_S)
