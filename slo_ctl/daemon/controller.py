"""The daemon's side of the API: results of the last epoch, changes of SLOs, and requests run by the loop."""

from __future__ import annotations

import logging
import os
import shlex
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field, fields
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

from slo_ctl import tool_version
from slo_ctl.api.messages import RefusalError
from slo_ctl.base.clock import wait_for
from slo_ctl.base.keyvalue import did_you_mean
from slo_ctl.base.termination import Waker
from slo_ctl.base.text import printable
from slo_ctl.config.settings import AccessConfig, Config
from slo_ctl.daemon.slos import slo_by_source
from slo_ctl.host.libvirt import DomainXmlError
from slo_ctl.model.slo import ResolvedSlo, SloEntry, SloError, SloFields, SloUpdate, update_text
from slo_ctl.model.status import Health, HostStatus, Plan, VmSlo
from slo_ctl.record.history_reader import SloChange, VmHistory, read_vm
from slo_ctl.record.metrics import Metrics
from slo_ctl.record.slo_store import SloStore, StoredSlos

log = logging.getLogger("slo_ctl.daemon")

Reply = TypeVar("Reply")

_TIMEOUT_S = 20.0
_MAX_WAITING = 16
_ANNOUNCE_S = 0.8
"""Longest time that libvirt waits before it starts a domain."""
_POLL_S = 0.01
MAX_ABSENT_VMS = 1000
"""VMs not on this host that may have an SLO of `vm set`, so that its file cannot grow without bound."""


@dataclass(frozen=True, slots=True)
class Published:
    """Results of the last epoch for other threads; replaced as a whole, never changed."""

    config: Config
    status: HostStatus | None = None
    names: frozenset[str] = frozenset()
    """Names of VMs on this host."""
    metadata: dict[str, SloFields] = field(default_factory=dict)
    started_at: float = 0.0
    epochs: int = 0
    missed: int = 0
    config_problem: str = ""


class DaemonController:
    """Implements `api.routes.Controller`."""

    def __init__(self, published: Published, store: SloStore, history: Path, waker: Waker) -> None:
        self.published = published
        """Set by the loop."""
        self.metrics_text: Metrics | None = None
        self.do_plan: Callable[[], Plan] | None = None
        """Called by the loop, like `do_reload`."""
        self.do_reload: Callable[[], str] | None = None
        self.do_announce: Callable[[str], str] | None = None
        """Thread-safe."""
        self._version = tool_version()
        """Of this process, also after the package was upgraded."""
        self._store = store
        self._history = history
        self._waker = waker
        self._requests: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._change_lock = threading.Lock()
        self._changed = threading.Event()
        self._slo_changes: deque[tuple[str, SloChange]] = deque()

    # Methods for the loop.

    def run_requests(self) -> None:
        """Run what other threads requested; they get the result or the exception."""
        while self._requests:
            action, future = self._requests.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(action())
            except Exception as error:
                future.set_exception(error)

    def take_changed(self) -> bool:
        """Whether `request_epoch` was called since the last call of this method."""
        if not self._changed.is_set():
            return False
        # Cleared before the epoch reads its input, so that no change is missed.
        self._changed.clear()
        return True

    def take_slo_changes(self) -> list[tuple[str, SloChange]]:
        """Changes of SLOs since the last call, with their VMs."""
        # Without the lock, which is held while the file of SLOs is written.
        return [self._slo_changes.popleft() for _ in range(len(self._slo_changes))]

    # Methods for the API.

    def access(self) -> AccessConfig:
        return self.published.config.access

    def status(self) -> HostStatus | None:
        return self.published.status

    def health(self) -> Health:
        published = self.published
        return Health(
            pid=os.getpid(),
            program_version=self._version,
            started_at=published.started_at,
            epochs=published.epochs,
            missed_epochs=published.missed,
            last_epoch_at=published.status.at if published.status else None,
            config_problem=published.config_problem,
        )

    def slo(self, vm: str) -> VmSlo:
        published, stored = self.published, self._store.read()
        if vm not in published.names and vm not in published.config.vms and vm not in stored:
            raise self._unknown_vm(vm)
        return self._vm_slo(vm, stored, ())

    def change_slos(
        self,
        vms: Sequence[str],
        change: SloUpdate,
        *,
        user: str = "",
        force: bool = False,
        dry_run: bool = False,
    ) -> tuple[VmSlo, ...]:
        notes: dict[str, list[str]] = {}
        changed: list[str] = []

        def check(before: StoredSlos, after: StoredSlos) -> None:
            notes.update((vm, self._check_change(vm, before, change, force=force)) for vm in vms)
            self._check_absent(before, after)
            for vm, note in [*self._overcommitted(vms, after, force=force), *self._unreachable(vms)]:
                notes[vm].append(note)
            changed[:] = [vm for vm in vms if before.get(vm) != after.get(vm)]

        with self._change_lock:
            after = self._store.change(vms, change, check, dry_run=dry_run)
            if changed and not dry_run:
                names, text = ", ".join(changed), update_text(change)
                if user:
                    log.info("VM %s: %s %s", printable(names), user, text, extra={"vm": tuple(changed)})
                event = SloChange(time.time(), user, text)
                self._slo_changes.extend((vm, event) for vm in changed)
        if not dry_run:
            self.request_epoch()
        return tuple(self._vm_slo(vm, after, tuple(notes[vm])) for vm in vms)

    def _check_change(self, vm: str, before: StoredSlos, change: SloUpdate, *, force: bool) -> list[str]:
        """Warnings about a change. Raises RefusalError."""
        published = self.published
        if not change.is_set and vm not in before:
            sources = f"`slo-ctl vm show {shlex.quote(vm)}` shows the source of each value"
            hint = did_you_mean(vm, before) if before else sources
            raise RefusalError(f"nothing was set for VM {vm} with `vm set`", hint, HTTPStatus.NOT_FOUND)
        try:
            published.config.check_chosen(change)
        except SloError as error:
            raise RefusalError(f"VM {vm}: {error.message}", error.hint) from None
        if not change.is_set or vm in published.names or vm in published.config.vms:
            return []
        if not force:
            unknown = self._unknown_vm(vm)
            hint = f"{unknown.hint} (or use --force to set it anyway)"
            raise RefusalError(unknown.message, hint, unknown.status)
        return [f"VM {vm} does not exist yet"]

    def _check_absent(self, before: StoredSlos, after: StoredSlos) -> None:
        """Refuse another VM that does not exist if there are too many. Raises RefusalError."""
        present = self.published.names | self.published.config.vms.keys()
        added = after.keys() - before.keys() - present
        if added and len(after.keys() - present) > MAX_ABSENT_VMS:
            raise RefusalError(
                f"VM {min(added)}: SLOs would be set for more than {MAX_ABSENT_VMS:,} VMs that are not on "
                "this host",
                "remove those that are not needed: slo-ctl vm unset --absent",
                HTTPStatus.CONFLICT,
            )

    def plan(self) -> Plan:
        return self._run_in_loop(self.do_plan)

    def reload(self) -> str:
        return self._run_in_loop(self.do_reload)

    def history(self, vm: str, since: float | None, until: float | None, limit: int) -> VmHistory:
        return read_vm(self._history, vm, since, until, limit)

    def announce(self, xml: str) -> tuple[str, bool]:
        try:
            name = self.do_announce(xml) if self.do_announce is not None else ""
        except DomainXmlError as error:
            raise RefusalError(
                f"the domain XML is not valid: {error}",
                "send the domain XML that libvirt passes to its hooks",
            ) from None
        self.request_epoch()
        return name, bool(name) and wait_for(lambda: name in self.published.names, _ANNOUNCE_S, _POLL_S)

    def metrics(self) -> bytes:
        return self.metrics_text.text() if self.metrics_text is not None else b""

    def request_epoch(self) -> None:
        """Have the loop start an epoch early. Never blocks."""
        self._changed.set()
        self._waker.wake()

    def _run_in_loop(self, action: Callable[[], Reply] | None) -> Reply:
        if action is None or len(self._requests) >= _MAX_WAITING:
            raise RefusalError("the daemon is busy", "try again", HTTPStatus.SERVICE_UNAVAILABLE)
        future: Future[Reply] = Future()
        self._requests.append((action, future))
        self._waker.wake()
        try:
            return future.result(_TIMEOUT_S)
        except FutureTimeoutError:
            future.cancel()
            raise RefusalError(
                "the daemon is busy with its epoch", "try again", HTTPStatus.SERVICE_UNAVAILABLE
            ) from None

    def _vm_slo(self, vm: str, stored: StoredSlos, notes: tuple[str, ...]) -> VmSlo:
        resolved, entry = self._resolve(vm, stored), stored.get(vm, SloEntry())
        return VmSlo(
            **{attribute.name: getattr(resolved, attribute.name) for attribute in fields(ResolvedSlo)},
            vm=vm,
            vm_set=entry.fields,
            vm_set_class=entry.class_name,
            vm_set_group=entry.group_name,
            notes=notes,
        )

    def _resolve(self, vm: str, stored: StoredSlos) -> ResolvedSlo:
        config = self.published.config
        return config.resolve(vm, slo_by_source(vm, stored, self.published.metadata, config))

    def _overcommitted(
        self, vms: Sequence[str], after: StoredSlos, *, force: bool
    ) -> Iterator[tuple[str, str]]:
        """A note, with its VM, for each device whose minimums would exceed its capacity.

        Without `force` raises RefusalError instead.
        """
        status = self.published.status
        if status is None:
            return
        minimums = {vm: self._resolve(vm, after).slo.min_iops or 0.0 for vm in vms}
        for device in status.devices:
            rows = [row for row in status.vms if row.device == device.name and row.vm in minimums]
            raised = [row.vm for row in rows if minimums[row.vm] > (row.slo.min_iops or 0.0)]
            measured, estimated = device.capacity_iops, device.estimated_iops
            capacity = estimated if measured is None else measured
            if capacity is None or not raised:
                continue
            total = device.sum_min_iops + sum(minimums[row.vm] - (row.slo.min_iops or 0.0) for row in rows)
            if total <= capacity:
                continue
            vm = raised[0]
            message = (
                f"VM {vm}: min_iops={minimums[vm]:,.0f}: the minimums on {device.name} would be {total:,.0f} "
                f"IOPS, above its capacity of {capacity:,.0f}"
            )
            if measured is None:
                message += " (estimated from timing and write amplification; nothing has been measured yet)"
            if not force:
                raise RefusalError(
                    message,
                    "lower it, or add --force: the largest minimums are then reduced",
                    HTTPStatus.CONFLICT,
                )
            yield vm, f"{message}: overcommitted"

    def _unreachable(self, vms: Sequence[str]) -> Iterator[tuple[str, str]]:
        """A note, with its VM, for each device of these VMs on which nothing can be set now."""
        status = self.published.status
        problems = {device.name: device.problem for device in status.devices} if status else {}
        for row in status.vms if status else ():
            if row.vm in vms and (problem := problems.get(row.device)):
                yield row.vm, f"VM {row.vm}: nothing can be set on {row.device} now: {problem}"

    def _unknown_vm(self, vm: str) -> RefusalError:
        names = sorted({*self.published.names, *self.published.config.vms})
        hint = did_you_mean(vm, names, "`slo-ctl vm list` shows them")
        return RefusalError(f"VM {vm} not found on this host", hint, HTTPStatus.NOT_FOUND)
