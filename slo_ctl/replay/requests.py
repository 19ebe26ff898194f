"""What each VM asks of the device: its trace or workload, fitted into its namespace, as batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slo_ctl.errors import UserError
from slo_ctl.replay.scenario_parts import Mode, SyntheticSource, TraceSource, VmSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from traces import remap
    from traces.batch import Batch
    from traces.formats.screen import OnError
    from traces.reader import TraceReader

_BATCH_RECORDS = 1 << 14
_BULK_RECORDS = 1 << 12
_KEPT_RECORDS = 1 << 20
"""About 33 MB."""


class Requests:
    """One VM's requests, all within its namespace; a new pass starts from the first one."""

    def __init__(self, batches: Iterable[Batch], notes: tuple[str, ...] = ()) -> None:
        self._batches = batches
        self.notes = notes
        """Sentences about the source that whoever reads the result should know."""

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._batches)


def requests_of(vm: VmSpec, size_bytes: int, seed: int, on_error: OnError) -> Requests:
    """The VM's requests, within `size_bytes`; endless unless its trace is to be run so many times.

    A trace is read through once, so that TraceError or UserError comes now and not in the middle of a run.
    """
    if isinstance(vm.source, SyntheticSource):
        return _synthetic(vm.source, size_bytes, seed)
    return _traced(vm, vm.source, size_bytes, on_error)


def _synthetic(source: SyntheticSource, size_bytes: int, seed: int) -> Requests:
    from traces.synth import workload

    made = workload(
        source.workload,
        span_bytes=size_bytes,
        seed=seed,
        batch_records=_BATCH_RECORDS,
        parameters=dict(source.parameters),
    )
    return Requests(made)


def _traced(vm: VmSpec, source: TraceSource, size_bytes: int, on_error: OnError) -> Requests:
    from traces.reader import open_trace
    from traces.timewarp import Monotonic, TimeScale

    reader = open_trace(source.path, format=source.format, on_error=on_error, batch_records=_BATCH_RECORDS)
    notes: list[str] = []
    steps = _remapping(vm, source, reader, size_bytes, notes)
    if reader.bad_records:
        notes.append(f"VM {vm.name}: {reader.bad_records} bad records of its trace were left out")
    warps: list[Callable[[], remap.Remap]] = []
    if vm.mode is Mode.OPEN:
        warps.append(lambda: TimeScale(1.0 / source.time_scale))
        warps.append(Monotonic)
    return Requests(_Replayed(reader, steps, source.loops, warps), tuple(notes))


def _remapping(
    vm: VmSpec, source: TraceSource, reader: TraceReader, size_bytes: int, notes: list[str]
) -> list[remap.Remap]:
    """Steps that bring every request into the namespace; reads the trace through."""
    from traces import remap
    from traces.batch import PAGE_BYTES
    from traces.summary import summarise

    if source.remap in (None, "compact"):
        compact = remap.Compact(reader)
        touched_bytes = compact.pages * PAGE_BYTES
        if touched_bytes > size_bytes:
            notes.append(
                f"VM {vm.name}: its trace touches {touched_bytes / 2**20:.0f} MiB, more than the VM has; "
                "what lies beyond the end was wrapped around"
            )
        return [compact, remap.Modulo(size_bytes)]
    summary = summarise(reader, reader.volumes)
    if source.remap == "modulo":
        return [remap.Modulo(size_bytes)]
    if source.remap == "scale":
        return [remap.Scale(size_bytes, max(volume.end_bytes for volume in summary.volumes))]
    try:
        return [remap.Partition.equal(size_bytes, len(reader.volumes))]
    except ValueError as error:
        raise UserError(f"VM {vm.name}: remap=partition: {error}", "give the VM a larger size=") from error


class _Remapped:
    """A trace within the namespace; iterable again and again, as looping needs.

    A trace that is not large is read once and kept, since most replays run through it many times.
    """

    def __init__(self, reader: TraceReader, steps: list[remap.Remap]) -> None:
        self._reader = reader
        self._steps = steps
        self._kept: list[Batch] | None = None

    def __iter__(self) -> Iterator[Batch]:
        if self._kept is not None:
            yield from self._kept
            return
        from traces import remap

        kept: list[Batch] = []
        records = 0
        for batch in remap.apply(self._reader, *self._steps):
            records += len(batch)
            if records <= _KEPT_RECORDS:
                kept.append(batch)
            yield batch
        if records <= _KEPT_RECORDS:
            self._kept = kept


class _Replayed:
    """A remapped trace, looped and warped; each pass has warps of its own, as they remember what they saw."""

    def __init__(
        self,
        reader: TraceReader,
        steps: list[remap.Remap],
        loops: int | None,
        warps: list[Callable[[], remap.Remap]],
    ) -> None:
        self._trace = _Remapped(reader, steps)
        self._loops = loops
        self._warps = warps

    def __iter__(self) -> Iterator[Batch]:
        from traces import remap
        from traces.timewarp import loop

        return _in_bulk(remap.apply(loop(self._trace, self._loops), *(make() for make in self._warps)))


def _in_bulk(batches: Iterable[Batch]) -> Iterator[Batch]:
    """The same requests in batches of at least `_BULK_RECORDS`: a short trace comes in tiny ones."""
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
