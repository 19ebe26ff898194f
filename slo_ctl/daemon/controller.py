"""Where the API's threads meet the loop: what was published last, and work to be done between epochs."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

from slo_ctl.api.controller import RefusalError
from slo_ctl.base.keyvalue import did_you_mean
from slo_ctl.base.version import tool_version
from slo_ctl.config import Config
from slo_ctl.daemon.slos import said_about
from slo_ctl.decide.slo_sources import resolve
from slo_ctl.model import HostStatus
from slo_ctl.model.plan import Health, Plan, VmSlo
from slo_ctl.model.slo import SloFields
from slo_ctl.record.history_reader import VmHistory, read_vm
from slo_ctl.record.metrics import Metrics
from slo_ctl.record.slo_store import SloStore

Done = TypeVar("Done")

_PATIENCE_S = 20.0
_MAX_WAITING = 16


@dataclass(frozen=True, slots=True)
class Published:
    """What the last epoch left for others to read. Replaced as a whole, never changed."""

    config: Config
    status: HostStatus | None = None
    names: frozenset[str] = frozenset()
    """Of VMs that are here."""
    metadata: dict[str, SloFields] = field(default_factory=dict)
    started_at: float = 0.0
    epochs: int = 0
    missed: int = 0
    config_problem: str = ""


class Waker:
    """Wakes the loop from other threads and from signal handlers."""

    def __init__(self) -> None:
        self.reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def wake(self) -> None:
        """End the loop's wait, now or when it begins."""
        try:
            os.write(self._writer, b"\0")
        except BlockingIOError:
            # It is full of wake-ups already.
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
        os.close(self._writer)


class DaemonController:
    """The daemon as the API sees it (`api.controller.Controller`)."""

    def __init__(self, published: Published, store: SloStore, history: Path, waker: Waker) -> None:
        self.published = published
        """Set by the loop."""
        self.metrics_text: Metrics | None = None
        self.do_plan: Callable[[], Plan] | None = None
        """Run by the loop, as is the next."""
        self.do_reload: Callable[[], str] | None = None
        self._store = store
        self._history = history
        self._waker = waker
        self._work: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._changing = threading.Lock()
        self._changed = threading.Event()

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

    # What the API calls.

    def status(self) -> HostStatus | None:
        """As of the last epoch."""
        return self.published.status

    def health(self) -> Health:
        """Whether it gets on."""
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
        now = self.published
        given = self._store.all()
        if vm not in now.names and vm not in now.config.vms and vm not in given:
            raise self._unknown(vm)
        return self._vm_slo(vm, given, ())

    def set_slo(self, vm: str, fields: SloFields, *, force: bool) -> VmSlo:
        """Set fields of the SLO of a VM."""
        now = self.published
        with self._changing:
            given = self._store.all()
            notes = []
            if vm not in now.names and vm not in now.config.vms:
                if not force:
                    raise self._unknown(vm)
                notes.append(f"{vm} is a VM that is not here yet")
            notes += self._capacity_exceeded(vm, given, fields, force)
            self._store.set(vm, fields)
            given = self._store.all()
        self._act_soon()
        return self._vm_slo(vm, given, tuple(notes))

    def unset_slo(self, vm: str, names: Collection[str] | None) -> VmSlo:
        """Take fields back."""
        with self._changing:
            given = self._store.all()
            if vm not in given:
                hint = did_you_mean(vm, given) if given else f"`slo-ctl vm show {vm}` says who set what"
                raise RefusalError(f"nothing was set for VM {vm} with `vm set`", hint, HTTPStatus.NOT_FOUND)
            self._store.unset(vm, names)
            given = self._store.all()
        self._act_soon()
        return self._vm_slo(vm, given, ())

    def plan(self) -> Plan:
        """What the next epoch would change."""
        return self._by_the_loop(self.do_plan)

    def reload(self) -> str:
        """Read the configuration anew."""
        return self._by_the_loop(self.do_reload)

    def history(self, vm: str, since: float | None, until: float | None, limit: int) -> VmHistory:
        """The past of a VM."""
        return read_vm(self._history, vm, since, until, limit)

    def metrics(self) -> bytes:
        """In Prometheus's text format."""
        return self.metrics_text.text() if self.metrics_text is not None else b""

    def _act_soon(self) -> None:
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
            return future.result(_PATIENCE_S)
        except FutureTimeoutError:
            future.cancel()
            raise RefusalError(
                "the daemon is busy with its epoch", "try again", HTTPStatus.SERVICE_UNAVAILABLE
            ) from None

    def _vm_slo(self, vm: str, given: dict[str, SloFields], notes: tuple[str, ...]) -> VmSlo:
        now = self.published
        resolved = resolve(vm, said_about(vm, given, now.metadata, now.config), now.config.default_slo)
        return VmSlo(vm, resolved.slo, resolved.source, given.get(vm, {}), resolved.conflicts, notes)

    def _capacity_exceeded(
        self, vm: str, given: dict[str, SloFields], fields: SloFields, force: bool
    ) -> list[str]:
        """A note for each device whose minimums would exceed what it can do; a refusal without `force`."""
        now = self.published
        wanted = {**given, vm: {**given.get(vm, {}), **fields}}
        minimum = resolve(
            vm, said_about(vm, wanted, now.metadata, now.config), now.config.default_slo
        ).slo.min_iops
        if now.status is None or "min_iops" not in fields or minimum is None:
            return []
        notes = []
        devices = {device.name: device for device in now.status.devices}
        for row in now.status.vms:
            device = devices.get(row.device)
            if row.vm != vm or device is None:
                continue
            measured, estimated = device.capacity_iops, device.estimated_iops
            capacity = estimated if measured is None else measured
            if capacity is None:
                continue
            total = device.sum_min_iops - (row.slo.min_iops or 0.0) + minimum
            if total > capacity:
                message = (
                    f"VM {vm}: min_iops={minimum:g}: the minimums on {device.name} would be {total:,.0f} "
                    f"IOPS, and it can do {capacity:,.0f}"
                )
                if measured is None:
                    message += (
                        " at most, by its timing and write amplification; nothing has been measured yet"
                    )
                if not force:
                    raise RefusalError(
                        message, "ask for less, or force it: all then get less", HTTPStatus.CONFLICT
                    )
                notes.append(f"{message}: overcommitted")
        return notes

    def _unknown(self, vm: str) -> RefusalError:
        names = sorted({*self.published.names, *self.published.config.vms})
        hint = did_you_mean(vm, names, "`slo-ctl vm list` shows them; force sets it all the same")
        return RefusalError(f"there is no VM {vm} on this host", hint, HTTPStatus.NOT_FOUND)
