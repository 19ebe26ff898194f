"""Where the API's threads meet the loop: what was published last, and work to be done between epochs."""

from __future__ import annotations

import os
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

from slo_ctl.api.messages import RefusalError
from slo_ctl.base.keyvalue import did_you_mean
from slo_ctl.base.version import tool_version
from slo_ctl.config import Config
from slo_ctl.config.settings import AccessConfig
from slo_ctl.daemon.slos import slo_by_source
from slo_ctl.decide.slo_sources import resolve
from slo_ctl.host.libvirt import DomainXmlError
from slo_ctl.model import HostStatus
from slo_ctl.model.slo import ResolvedSlo, SloEntry, SloError, SloFields, SloUpdate, update_text
from slo_ctl.model.status import Health, Plan, VmSlo
from slo_ctl.record.history_reader import SloChange, VmHistory, read_vm
from slo_ctl.record.metrics import Metrics
from slo_ctl.record.slo_store import SloStore, StoredSlos

Done = TypeVar("Done")

_TIMEOUT_S = 20.0
_MAX_WAITING = 16
_ANNOUNCE_S = 0.8
"""Libvirt's start of a domain waits for so long at most."""
_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class Published:
    """Results of the last epoch for other threads. Replaced as a whole, never changed."""

    config: Config
    status: HostStatus | None = None
    names: frozenset[str] = frozenset()
    """Names of VMs on this host."""
    metadata: dict[str, SloFields] = field(default_factory=dict)
    started_at: float = 0.0
    epochs: int = 0
    missed: int = 0
    config_problem: str = ""


class Waker:
    """Wakes up the loop from other threads and from signal handlers."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def wake(self) -> None:
        """End the loop's wait, now or when it begins."""
        try:
            os.write(self.writer, b"\0")
        except BlockingIOError:
            # The pipe is already full of wake-ups.
            return

    def clear(self) -> None:
        """Forget the wake-ups so far."""
        try:
            while os.read(self.reader, 4096):
                pass
        except BlockingIOError:
            return

    def close(self) -> None:
        """No waking after this."""
        os.close(self.reader)
        os.close(self.writer)


class DaemonController:
    """The daemon as the API sees it (`api.controller.Controller`)."""

    def __init__(self, published: Published, store: SloStore, history: Path, waker: Waker) -> None:
        self.published = published
        """Set by the loop."""
        self.metrics_text: Metrics | None = None
        self.do_plan: Callable[[], Plan] | None = None
        """Run by the loop, as is the next."""
        self.do_reload: Callable[[], str] | None = None
        self.do_announce: Callable[[str], str] | None = None
        """May be called by any thread."""
        self._store = store
        self._history = history
        self._waker = waker
        self._work: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._changing = threading.Lock()
        self._changed = threading.Event()
        self._slo_changes: deque[tuple[str, SloChange]] = deque()

    # What the loop calls.

    def work(self) -> None:
        """Do what others asked for; a failure is theirs."""
        while self._work:
            do, future = self._work.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(do())
            except Exception as error:
                future.set_exception(error)

    def take_changed(self) -> bool:
        """Whether an SLO was changed since this was asked last."""
        if not self._changed.is_set():
            return False
        # What changes from here on is seen by the epoch that follows, or asks for another.
        self._changed.clear()
        return True

    def take_slo_changes(self) -> list[tuple[str, SloChange]]:
        """Changes of SLOs since the last call, each with its VM."""
        # Without the lock, which is held while an SLO is brought to the disk.
        return [self._slo_changes.popleft() for _ in range(len(self._slo_changes))]

    # What the API calls.

    def access(self) -> AccessConfig:
        """Who may do what."""
        return self.published.config.access

    def status(self) -> HostStatus | None:
        """Status of the last epoch."""
        return self.published.status

    def health(self) -> Health:
        """Daemon health."""
        now = self.published
        return Health(
            pid=os.getpid(),
            program_version=tool_version(),
            started_at=now.started_at,
            epochs=now.epochs,
            missed_epochs=now.missed,
            last_epoch_at=now.status.at if now.status else None,
            config_problem=now.config_problem,
        )

    def slo(self, vm: str) -> VmSlo:
        """The SLO in force."""
        now, stored = self.published, self._store.read()
        if vm not in now.names and vm not in now.config.vms and vm not in stored:
            raise self._unknown(vm)
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
        """Change the SLOs of all these VMs, or of none."""
        notes: dict[str, list[str]] = {}

        def check(before: StoredSlos, after: StoredSlos) -> None:
            notes.update((vm, self._check_change(vm, before, change, force=force)) for vm in vms)
            for vm, note in self._overcommitted(vms, after, force=force):
                notes[vm].append(note)

        with self._changing:
            after = self._store.change(vms, change, check, dry_run=dry_run)
            if not dry_run:
                made = SloChange(time.time(), user, update_text(change))
                self._slo_changes.extend((vm, made) for vm in vms)
        if not dry_run:
            self.act_soon()
        return tuple(self._vm_slo(vm, after, tuple(notes[vm])) for vm in vms)

    def _check_change(self, vm: str, before: StoredSlos, change: SloUpdate, *, force: bool) -> list[str]:
        """Warnings. Raises RefusalError."""
        now = self.published
        if not change.is_set and vm not in before:
            sources = f"`slo-ctl vm show {vm}` shows the source of each value"
            hint = did_you_mean(vm, before) if before else sources
            raise RefusalError(f"nothing was set for VM {vm} with `vm set`", hint, HTTPStatus.NOT_FOUND)
        try:
            now.config.check_chosen(change)
        except SloError as error:
            raise RefusalError(f"VM {vm}: {error.message}", error.hint) from None
        if not change.is_set or vm in now.names or vm in now.config.vms:
            return []
        if not force:
            unknown = self._unknown(vm)
            hint = f"{unknown.hint} (or use --force to set it anyway)"
            raise RefusalError(unknown.message, hint, unknown.status)
        return [f"VM {vm} does not exist yet"]

    def plan(self) -> Plan:
        """Changes that the next epoch would make."""
        return self._by_the_loop(self.do_plan)

    def reload(self) -> str:
        """Reload the configuration."""
        return self._by_the_loop(self.do_reload)

    def history(self, vm: str, since: float | None, until: float | None, limit: int) -> VmHistory:
        """The past of a VM."""
        return read_vm(self._history, vm, since, until, limit)

    def announce(self, xml: str) -> tuple[str, bool]:
        """A domain that libvirt is about to start: its name, and whether an epoch has seen it."""
        try:
            name = self.do_announce(xml) if self.do_announce is not None else ""
        except DomainXmlError as error:
            raise RefusalError(
                f"the domain XML is not valid: {error}",
                "send the domain XML that libvirt passes to its hooks",
            ) from None
        self.act_soon()
        end_s = time.monotonic() + _ANNOUNCE_S
        while name and name not in self.published.names and time.monotonic() < end_s:
            time.sleep(_POLL_S)
        return name, name in self.published.names

    def metrics(self) -> bytes:
        """Metrics in Prometheus's text format."""
        return self.metrics_text.text() if self.metrics_text is not None else b""

    def act_soon(self) -> None:
        """Have an epoch that is not waited for."""
        self._changed.set()
        self._waker.wake()

    def _by_the_loop(self, do: Callable[[], Done] | None) -> Done:
        if do is None or len(self._work) >= _MAX_WAITING:
            raise RefusalError("the daemon is busy", "try again", HTTPStatus.SERVICE_UNAVAILABLE)
        future: Future[Done] = Future()
        self._work.append((do, future))
        self._waker.wake()
        try:
            return future.result(_TIMEOUT_S)
        except FutureTimeoutError:
            future.cancel()
            raise RefusalError(
                "the daemon is busy with its epoch", "try again", HTTPStatus.SERVICE_UNAVAILABLE
            ) from None

    def _vm_slo(self, vm: str, stored: StoredSlos, notes: tuple[str, ...]) -> VmSlo:
        resolved, own = self._resolved(vm, stored), stored.get(vm, SloEntry())
        return VmSlo(
            **{each.name: getattr(resolved, each.name) for each in fields(ResolvedSlo)},
            vm=vm,
            vm_set=own.fields,
            vm_set_class=own.class_name,
            vm_set_group=own.group_name,
            notes=notes,
        )

    def _resolved(self, vm: str, stored: StoredSlos) -> ResolvedSlo:
        now = self.published
        by_source = slo_by_source(vm, stored, now.metadata, now.config)
        return resolve(vm, by_source, now.config.default_slo, now.config.classes, now.config.groups)

    def _overcommitted(
        self, vms: Sequence[str], after: StoredSlos, *, force: bool
    ) -> Iterator[tuple[str, str]]:
        """A note, with its VM, for each device that cannot keep its minimums once they are raised.

        Raises RefusalError instead without `force`.
        """
        now = self.published
        if now.status is None:
            return
        minimums = {vm: self._resolved(vm, after).slo.min_iops or 0.0 for vm in vms}
        for device in now.status.devices:
            rows = [row for row in now.status.vms if row.device == device.name and row.vm in minimums]
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
                    message, "lower it, or add --force: all minimums are then reduced", HTTPStatus.CONFLICT
                )
            yield vm, f"{message}: overcommitted"

    def _unknown(self, vm: str) -> RefusalError:
        names = sorted({*self.published.names, *self.published.config.vms})
        hint = did_you_mean(vm, names, "`slo-ctl vm list` shows them")
        return RefusalError(f"VM {vm} not found on this host", hint, HTTPStatus.NOT_FOUND)
