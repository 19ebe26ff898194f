"""What each VM asks of the device: its trace or workload, fitted into its namespace, as batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slo_ctl.cli.errors import UserError
from slo_ctl.replay.scenario import Mode, SyntheticSource, TraceSource, VmSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from traces import remap
    from traces.batch import Batch
    from traces.reader import TraceReader

_BATCH_RECORDS = 1 << 14


def requests_of(vm: VmSpec, size_bytes: int, seed: int) -> Iterator[Batch]:
    """The VM's requests, all within `size_bytes`; endless unless its trace is to be run so many times.

    Raises TraceError or UserError where the trace cannot be used, at once rather than at the first batch.
    """
    if isinstance(vm.source, SyntheticSource):
        return _synthetic(vm.source, size_bytes, seed)
    return _traced(vm, vm.source, size_bytes)


def _synthetic(source: SyntheticSource, size_bytes: int, seed: int) -> Iterator[Batch]:
    from traces.synth import workload

    made = workload(
        source.workload,
        span_bytes=size_bytes,
        seed=seed,
        batch_records=_BATCH_RECORDS,
        parameters=dict(source.parameters),
    )
    return iter(made)


def _traced(vm: VmSpec, source: TraceSource, size_bytes: int) -> Iterator[Batch]:
    from traces import remap
    from traces.reader import open_trace
    from traces.timewarp import Monotonic, TimeScale, loop

    reader = open_trace(source.path, format=source.format, batch_records=_BATCH_RECORDS)
    batches: Iterable[Batch] = _Remapped(reader, _remapping(vm, source, reader, size_bytes))
    steps: list[remap.Remap] = []
    if vm.mode is Mode.OPEN:
        if source.time_scale != 1.0:
            steps.append(TimeScale(1.0 / source.time_scale))
        steps.append(Monotonic())
    return remap.apply(loop(batches, source.loops), *steps)


def _remapping(vm: VmSpec, source: TraceSource, reader: TraceReader, size_bytes: int) -> list[remap.Remap]:
    from traces import remap
    from traces.summary import summarise

    name = source.remap or "compact"
    if name == "compact":
        return [remap.Compact(reader), remap.Modulo(size_bytes)]
    if name == "modulo":
        # Read once, so that an unreadable trace is refused before anything runs.
        summarise(reader, reader.volumes)
        return [remap.Modulo(size_bytes)]
    volumes = summarise(reader, reader.volumes).volumes
    if name == "scale":
        return [remap.Scale(size_bytes, max(volume.end_bytes for volume in volumes))]
    try:
        return [remap.Partition.equal(size_bytes, len(reader.volumes))]
    except ValueError as error:
        raise UserError(f"VM {vm.name}: remap=partition: {error}", "give the VM a larger size=") from error


class _Remapped:
    """A trace after remapping; iterable again and again, as looping needs."""

    def __init__(self, reader: TraceReader, steps: list[remap.Remap]) -> None:
        self._reader = reader
        self._steps = steps

    def __iter__(self) -> Iterator[Batch]:
        from traces import remap

        return remap.apply(self._reader, *self._steps)
