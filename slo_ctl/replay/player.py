"""Playing the requests of VMs on one drive, in virtual time or without a clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from slo_ctl.base import numbers
from slo_ctl.base.errors import UserError
from slo_ctl.base.progress import LatePhase, Phase, ProgressSink
from slo_ctl.base.text import counted
from slo_ctl.replay.scenario import Mode, SyntheticSource, TraceSource, VmSpec

if TYPE_CHECKING:
    from ftl_emul import Device
    from traces import remap
    from traces.batch import Batch
    from traces.formats.screen import OnError
    from traces.reader import TraceReader

# Requests of a VM: batches of its trace or workload, mapped into its namespace.

_BATCH_RECORDS = 1 << 14
_BULK_RECORDS = 1 << 12
_CACHED_RECORDS = 1 << 20
"""Longest trace that is cached in memory, about 33 MB."""


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests of a VM within its namespace."""

    play: Callable[[], Iterator[Batch]]
    """Returns the requests from the first one on."""
    notes: tuple[str, ...] = ()
    """Notes about the source for the result."""
    trace_records: int = 0
    """Length of the trace; 0: a synthetic workload, which does not repeat itself."""


def requests_of(
    vm: VmSpec, size_bytes: int, seed: int, on_error: OnError, progress: ProgressSink
) -> Requests:
    """Requests of a VM within `size_bytes`; endless unless its trace has a number of loops.

    A trace is read once completely, so that TraceError or UserError is raised before the run.
    """
    if isinstance(vm.source, SyntheticSource):
        return _synthetic(vm.source, size_bytes, seed)
    return _traced(vm, vm.source, size_bytes, on_error, progress)


def _synthetic(source: SyntheticSource, size_bytes: int, seed: int) -> Requests:
    from traces.synth import workload

    made = workload(
        source.workload,
        span_bytes=size_bytes,
        seed=seed,
        batch_records=_BATCH_RECORDS,
        parameters=dict(source.parameters),
    )
    return Requests(made.__iter__)


def _traced(
    vm: VmSpec, source: TraceSource, size_bytes: int, on_error: OnError, progress: ProgressSink
) -> Requests:
    from traces.reader import open_trace
    from traces.remap import apply
    from traces.timewarp import Monotonic, TimeScale, loop

    reader = open_trace(source.path, format=source.format, on_error=on_error, batch_records=_BATCH_RECORDS)
    notes: list[str] = []
    order = Monotonic()
    phase = LatePhase(progress, f"reading {reader.paths[0].name}", reader.size_bytes, "bytes")
    batches = apply(batches_of(reader, phase), order)
    trace = _Remapped(reader, _remapping(vm, source, reader, batches, size_bytes, notes))
    trace_records = reader.records
    notes += [f"VM {vm.name}: {source.path.name}: {note}" for note in reader.notes]
    if reader.bad_records:
        notes.append(f"VM {vm.name}: {counted(reader.bad_records, 'bad record')} of its trace skipped")
    if vm.mode is Mode.OPEN and order.raised_records:
        late_s = order.most_raised_ns / _NS_PER_S / source.time_scale
        notes.append(
            f"VM {vm.name}: its trace is not in order of time: {order.raised_records:,} of "
            f"{reader.records:,} requests are sent with earlier ones of the file, up to {late_s:.3g} s late"
        )
    period_ns = round((source.period_s or 0.0) * _NS_PER_S)

    def play() -> Iterator[Batch]:
        is_open = vm.mode is Mode.OPEN
        batches = loop(trace, source.loops, period_ns, timed=is_open)
        if is_open:
            batches = apply(batches, TimeScale(1.0 / source.time_scale), Monotonic())
        try:
            yield from _in_bulk(batches)
        except ValueError as error:
            problem, _, hint = str(error).partition("; ")
            raise UserError(f"VM {vm.name}: {source.path}: {problem}", hint) from None

    return Requests(play, tuple(notes), trace_records)


def batches_of(reader: TraceReader, phase: Phase) -> Iterator[Batch]:
    """All batches of a trace, with its stored bytes as progress."""
    before = 0
    for batch in reader:
        yield batch
        phase.advance(reader.consumed_bytes - before)
        before = reader.consumed_bytes
    phase.done()


def _remapping(
    vm: VmSpec,
    source: TraceSource,
    reader: TraceReader,
    batches: Iterable[Batch],
    size_bytes: int,
    notes: list[str],
) -> list[remap.Remap]:
    """Steps that map every request into the namespace; reads all `batches` of the reader."""
    from traces import remap
    from traces.batch import PAGE_BYTES
    from traces.summary import summarise

    if source.remap in (None, "compact"):
        compact = remap.Compact(batches)
        touched_bytes = compact.pages * PAGE_BYTES
        if touched_bytes > size_bytes:
            notes.append(
                f"VM {vm.name}: its trace touches {touched_bytes / 2**20:.0f} MiB, more than the VM has; "
                "requests beyond the end were wrapped around"
            )
        elif touched_bytes < size_bytes // 2:
            notes.append(
                f"VM {vm.name}: its trace touches {numbers.size(touched_bytes)} of its "
                f"{numbers.size(size_bytes)}; nothing is written to the rest during the run"
            )
        return [compact, remap.Modulo(size_bytes)]
    summary = summarise(batches, reader.volumes)
    if source.remap == "modulo":
        return [remap.Modulo(size_bytes)]
    if source.remap == "scale":
        # A trace of nothing but flushes has no end.
        return [remap.Scale(size_bytes, max([1, *(volume.end_bytes for volume in summary.volumes)]))]
    try:
        return [remap.Partition.equal(size_bytes, len(reader.volumes))]
    except ValueError as error:
        raise UserError(f"VM {vm.name}: remap=partition: {error}", "give the VM a larger size=") from error


class _Remapped:
    """A trace mapped into the namespace, which can be iterated repeatedly.

    A trace that is not too long is cached in memory, because most replays repeat it many times.
    """

    def __init__(self, reader: TraceReader, steps: list[remap.Remap]) -> None:
        self._reader = reader
        self._steps = steps
        self._cached: list[Batch] | None = None

    def __iter__(self) -> Iterator[Batch]:
        if self._cached is not None:
            yield from self._cached
            return
        from traces import remap

        cached: list[Batch] = []
        records = 0
        for batch in remap.apply(self._reader, *self._steps):
            records += len(batch)
            if records <= _CACHED_RECORDS:
                cached.append(batch)
            yield batch
        if records <= _CACHED_RECORDS:
            self._cached = cached


def _in_bulk(batches: Iterable[Batch]) -> Iterator[Batch]:
    """The same requests in batches of at least `_BULK_RECORDS`."""
    from traces.batch import Batch

    waiting: list[Batch] = []
    records = 0
    for batch in batches:
        waiting.append(batch)
        records += len(batch)
        if records >= _BULK_RECORDS:
            yield Batch.concat(waiting)
            waiting, records = [], 0
    if waiting:
        yield Batch.concat(waiting)


_NS_PER_S = 1_000_000_000
_COUNTED_CHUNK_REQUESTS = 4096


@dataclass(slots=True)
class PlayedVm:
    """A VM that runs on the drive."""

    spec: VmSpec
    tenant: int
    requests: Iterator[Batch]
    weight: float
    running: bool
    finished: bool = False
    """Whether it has no more requests."""


class WriteWatch:
    """Notices that a run whose end is counted in drive writes would not end, as its VMs only read."""

    def __init__(self, most_requests: int | None) -> None:
        """`most_requests`: requests without any write after which the run ends; None: any number."""
        self._most_requests = most_requests
        self._requests = 0
        self._host_page_writes = 0

    @property
    def gave_up(self) -> bool:
        """Whether so many requests were made without any write."""
        return self._most_requests is not None and self._requests > self._most_requests

    def add(self, requests: int, host_page_writes: int) -> None:
        """Count requests. `host_page_writes`: since the start."""
        if host_page_writes != self._host_page_writes:
            self._host_page_writes, self._requests = host_page_writes, 0
        self._requests += requests


class TimedPlayer:
    """Plays in virtual time: each VM in a closed loop at its queue depth, or an open loop by time stamps."""

    def __init__(self, device: Device, vms: Sequence[PlayedVm], watch: WriteWatch) -> None:
        self._device = device
        self._watch = watch
        self._vms = {vm.tenant: vm for vm in vms}
        for vm in vms:
            closed = vm.spec.mode is Mode.CLOSED
            device.open_queue(vm.tenant, vm.spec.queue_depth if closed else None)
            if not vm.running:
                device.pause(vm.tenant, True)

    @property
    def host_page_writes(self) -> int:
        """Host page writes since the start."""
        return self._device.host_page_writes

    def advance(self, until_s: float | None, until_writes: int | None) -> bool:
        """Play until a virtual time or a number of host page writes; False if no VM has requests.

        A boundary in time is reached even without requests.
        """
        until_ns = None if until_s is None else round(until_s * _NS_PER_S)
        while True:
            reason, starving = self._device.run(until_ns, until_writes)
            if reason != "starved":
                return reason != "idle"
            for tenant in starving:
                self._feed(self._vms[tenant])
            if self._watch.gave_up:
                return False

    def set_running(self, vm: PlayedVm, running: bool) -> None:
        """Stop or resume arrivals; outstanding requests complete."""
        vm.running = running
        self._device.pause(vm.tenant, not running)

    def _feed(self, vm: PlayedVm) -> None:
        batch = next(vm.requests, None)
        if batch is None:
            vm.finished = True
            self._device.end_input(vm.tenant)
            return
        self._watch.add(len(batch), self.host_page_writes)
        self._device.feed(
            vm.tenant,
            np.ascontiguousarray(batch.time_ns, np.int64),
            np.ascontiguousarray(batch.op, np.uint8),
            np.ascontiguousarray(batch.offset_bytes, np.uint64),
            np.ascontiguousarray(batch.length_bytes, np.uint64),
        )


class CountingPlayer:
    """Plays without a clock: requests of running VMs are interleaved in proportion to their weights."""

    def __init__(self, device: Device, vms: Sequence[PlayedVm], watch: WriteWatch) -> None:
        self._device = device
        self._vms = vms
        self._watch = watch
        self._batches: dict[int, Batch] = {}
        self._start = self._written()

    @property
    def host_page_writes(self) -> int:
        return self._written() - self._start

    def advance(self, until_s: float | None, until_writes: int | None) -> bool:
        """As `TimedPlayer`, but it may pass a boundary by a part of a chunk of requests."""
        del until_s  # the scenario has no boundaries in time
        while until_writes is None or self.host_page_writes < until_writes:
            chunk = self._chunk()
            if chunk is None:
                return False
            self._device.apply(*chunk)
            self._watch.add(len(chunk[0]), self.host_page_writes)
            if self._watch.gave_up:
                return False
        return True

    def set_running(self, vm: PlayedVm, running: bool) -> None:
        vm.running = running

    def _written(self) -> int:
        return sum(self._device.counters(vm.tenant).host_page_writes for vm in self._vms)

    def _chunk(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None:
        active = [vm for vm in self._vms if vm.running and not vm.finished]
        total = sum(vm.weight for vm in active)
        parts, places = [], []
        for vm in active:
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
        """The VM's next `wanted` requests, or as many as it has, as one batch; empty at the end."""
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
