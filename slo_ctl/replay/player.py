"""Playing the VMs' requests on one drive, from boundary to boundary: with a clock or by counting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from slo_ctl.replay.scenario_parts import Mode

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ftl_emul import Device
    from slo_ctl.replay.scenario_parts import VmSpec
    from traces.batch import Batch

_NS_PER_S = 1_000_000_000
_COUNTED_CHUNK_REQUESTS = 4096


@dataclass(slots=True)
class PlayedVm:
    """A VM on the drive."""

    spec: VmSpec
    tenant: int
    requests: Iterator[Batch]
    weight: float
    running: bool
    finished: bool = False
    """Its requests are used up."""


class Player(Protocol):
    """Lets VMs issue requests until a boundary."""

    @property
    def host_page_writes(self) -> int:
        """Since the start."""

    def advance(self, until_s: float | None, until_writes: int | None) -> bool:
        """Play until a virtual time or a count of host page writes; False when no VM asks for anything."""

    def set_running(self, vm: PlayedVm, running: bool) -> None:
        """Start or stop a VM."""


class TimedPlayer:
    """In virtual time, each VM closed loop at its queue depth or open loop by time stamps."""

    def __init__(self, device: Device, vms: Sequence[PlayedVm]) -> None:
        self._device = device
        self._vms = {vm.tenant: vm for vm in vms}
        for vm in vms:
            closed = vm.spec.mode is Mode.CLOSED
            device.open_queue(vm.tenant, vm.spec.queue_depth if closed else None)
            if not vm.running:
                device.pause(vm.tenant, True)

    @property
    def host_page_writes(self) -> int:
        """Since the start."""
        return self._device.host_page_writes

    def advance(self, until_s: float | None, until_writes: int | None) -> bool:
        """Play; a boundary in time is reached even when nobody asks for anything."""
        until_ns = None if until_s is None else round(until_s * _NS_PER_S)
        while True:
            reason, starving = self._device.run(until_ns, until_writes)
            if reason != "starved":
                return reason != "idle"
            for tenant in starving:
                self._feed(self._vms[tenant])

    def set_running(self, vm: PlayedVm, running: bool) -> None:
        """Stop or resume arrivals; what is outstanding completes."""
        vm.running = running
        self._device.pause(vm.tenant, not running)

    def _feed(self, vm: PlayedVm) -> None:
        batch = next(vm.requests, None)
        if batch is None:
            vm.finished = True
            self._device.end_input(vm.tenant)
            return
        self._device.feed(
            vm.tenant,
            np.ascontiguousarray(batch.time_ns, np.int64),
            np.ascontiguousarray(batch.op, np.uint8),
            np.ascontiguousarray(batch.offset_bytes, np.uint64),
            np.ascontiguousarray(batch.length_bytes, np.uint64),
        )


class CountingPlayer:
    """Without a clock: requests of the running VMs interleaved in proportion to their weights."""

    def __init__(self, device: Device, vms: Sequence[PlayedVm]) -> None:
        self._device = device
        self._vms = vms
        self._batches: dict[int, Batch] = {}
        self._start = self._written()

    @property
    def host_page_writes(self) -> int:
        """Since the start."""
        return self._written() - self._start

    def advance(self, until_s: float | None, until_writes: int | None) -> bool:
        """Play; passes a boundary by part of a chunk of requests at most."""
        del until_s  # The scenario has refused boundaries in time.
        while until_writes is None or self.host_page_writes < until_writes:
            chunk = self._chunk()
            if chunk is None:
                return False
            self._device.apply(*chunk)
        return True

    def set_running(self, vm: PlayedVm, running: bool) -> None:
        """Start or stop a VM."""
        vm.running = running

    def _written(self) -> int:
        return sum(self._device.counters(vm.tenant).host_page_writes for vm in self._vms)

    def _chunk(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None:
        asking = [vm for vm in self._vms if vm.running and not vm.finished]
        total = sum(vm.weight for vm in asking)
        parts, places = [], []
        for vm in asking:
            wanted = max(1, round(_COUNTED_CHUNK_REQUESTS * vm.weight / total))
            for batch in self._take(vm, wanted):
                tenant = np.full(len(batch), vm.tenant, np.uint16)
                parts.append((tenant, batch.op, batch.offset_bytes, batch.length_bytes))
                places.append((np.arange(len(batch)) + 0.5) / len(batch))
        if not parts:
            return None
        order = np.argsort(np.concatenate(places), kind="stable")
        tenant, op, offset, length = (np.concatenate(column)[order] for column in zip(*parts, strict=True))
        return tenant, op.astype(np.uint8), offset.astype(np.uint64), length.astype(np.uint64)

    def _take(self, vm: PlayedVm, wanted: int) -> list[Batch]:
        """The VM's next `wanted` requests as one batch, or what is left of them; empty at the end."""
        from traces.batch import Batch

        taken: list[Batch] = []
        while wanted > 0:
            batch = self._batches.pop(vm.tenant, None) or next(vm.requests, None)
            if batch is None:
                vm.finished = True
                break
            taken.append(batch.slice(0, wanted))
            if len(batch) > wanted:
                self._batches[vm.tenant] = batch.slice(wanted, len(batch))
            wanted -= len(taken[-1])
        return [Batch.concat(taken)] if taken else []
