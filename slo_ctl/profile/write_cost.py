"""Response times of writes to a target or an emulated drive: what the paper's figure 1 is drawn from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from slo_ctl.base.errors import UserError
from slo_ctl.base.progress import ProgressSink
from slo_ctl.base.quantity import format_bytes_exact
from slo_ctl.decide.write_size import WriteCost, fit_write_cost
from slo_ctl.model.measurement import Order
from traces.batch import Op
from traces.formats.registry import FORMATS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from traces.reader import TraceReader

    Times = NDArray[np.float64]

# Response times of writes from a trace, by request size.

LEAST_REQUESTS = 100
"""Of a size: with fewer neither band nor spikes can be determined."""
MOST_SIZES = 6
_SHOWN_VOLUMES = 20
MOST_REQUESTS = 1 << 20
"""Kept of each size: the first ones."""


def require_responses(reader: TraceReader) -> None:
    """Raise UserError for a format without response times."""
    if not reader.has_responses:
        having = ", ".join(name for name, row in FORMATS.items() if row.has_responses)
        raise UserError(
            f"{reader.path}: {reader.format} traces have no response times",
            f"formats that do: {having}",
        )


def collect(reader: TraceReader, wanted: str | None, sizes_bytes: Sequence[int]) -> dict[int, Times]:
    """Response times in us, in trace order, of writes of these sizes (none given: the most frequent ones).

    `wanted` chooses one volume. Raises UserError when too few writes have a response time.
    """
    kept: dict[int, list[Times]] = defaultdict(list)
    counts: dict[int, int] = defaultdict(int)
    noted = False
    for batch in reader:
        if batch.response_ns is None:
            continue
        noted = True
        chosen = (batch.op == Op.WRITE) & (batch.response_ns > 0)
        if wanted is not None:
            index = reader.volumes.index(wanted) if wanted in reader.volumes else -1
            chosen &= batch.volume == index
        lengths, times = batch.length_bytes[chosen], batch.response_ns[chosen] / 1e3
        for size in np.unique(lengths).tolist():
            if sizes_bytes and size not in sizes_bytes:
                continue
            own = times[lengths == size][: MOST_REQUESTS - min(counts[size], MOST_REQUESTS)]
            if len(own):
                kept[size].append(own)
                counts[size] += len(own)
    if not noted:
        raise UserError(
            f"{reader.path}: this {reader.format} trace has no response times",
            "vscsi traces do from version 2 on",
        )
    if wanted is not None and wanted not in reader.volumes:
        there = ", ".join(reader.volumes[:_SHOWN_VOLUMES])
        raise UserError(f"--volume: there is no volume '{wanted}'", f"there are {there}")
    return _chosen(kept, counts, sizes_bytes)


def _chosen(
    kept: dict[int, list[Times]], counts: dict[int, int], sizes_bytes: Sequence[int]
) -> dict[int, Times]:
    frequent = sorted((size for size in counts if counts[size] >= LEAST_REQUESTS), key=lambda s: -counts[s])
    few = [size for size in sizes_bytes if size not in frequent]
    if few or not frequent:
        what = f"writes of {few[0]} bytes" if few else "writes of any one size"
        raise UserError(
            f"fewer than {LEAST_REQUESTS} {what} with a response time are in the trace",
            "`slo-ctl trace info` shows its contents",
        )
    sizes = sorted(frequent if sizes_bytes else frequent[:MOST_SIZES])
    return {size: np.concatenate(kept[size]) for size in sizes}


MIN_SIZE_REQUESTS = 16
MAX_SIZE_REQUESTS = 1 << 18
"""In a pass: each is timed, kept in memory and drawn."""


class TimedWriter(Protocol):
    """Something that writes the whole span and times each request."""

    def response_times_us(self, order: Order, request_bytes: int, number: int) -> Times:
        """Write every request of the span once, in that order; response times in that order."""


@dataclass(frozen=True, slots=True)
class TimedPass:
    """One pass over the span."""

    order: Order
    request_bytes: int
    response_us: Times


def measure(writer: TimedWriter, sizes_bytes: Sequence[int], progress: ProgressSink) -> list[TimedPass]:
    """A sequential and a random pass at each size, after a random one that is not kept."""
    phase = progress.phase("timing writes", 3 * len(sizes_bytes), "passes")
    passes = []
    for index, size in enumerate(sizes_bytes):
        orders = (Order.RANDOM, Order.SEQUENTIAL, Order.RANDOM)
        for number, order in enumerate(orders, 1 + len(orders) * index):
            times = writer.response_times_us(order, size, number)
            phase.advance(1)
            if number > 1 + len(orders) * index:
                passes.append(TimedPass(order, size, times))
    phase.done()
    return passes


def fit_passes(passes: Sequence[TimedPass]) -> WriteCost:
    """The model through both orders together: where each random write meets a merge, sequential ones still
    show the band. Raises UserError when nothing can be fitted."""
    sizes = sorted({each.request_bytes for each in passes})
    times = {
        size: np.concatenate([each.response_us for each in passes if each.request_bytes == size])
        for size in sizes
    }
    return fit_or_refuse(times)


def fit_or_refuse(times_us: dict[int, Times]) -> WriteCost:
    """Fit response times by request size. Raises UserError when they say nothing."""
    try:
        return fit_write_cost(times_us)
    except ValueError as error:
        sizes = ", ".join(format_bytes_exact(size) for size in times_us) or "none"
        raise UserError(
            f"no write cost can be fitted: {error}", f"sizes: {sizes}; choose others with --size"
        ) from None
