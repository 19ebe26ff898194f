"""Response times of writes from a trace, by request size."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from slo_ctl.errors import UserError
from traces.batch import Op
from traces.formats.registry import FORMATS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from traces.reader import TraceReader

    Times = NDArray[np.float64]

LEAST_REQUESTS = 100
"""Of a size: with fewer neither band nor spikes can be told."""
MOST_SIZES = 6
_SHOWN_VOLUMES = 20
MOST_REQUESTS = 1 << 20
"""Kept of each size: the first ones."""


def require_responses(reader: TraceReader) -> None:
    """Raise UserError for a format without response times."""
    if not reader.has_responses:
        having = ", ".join(name for name, row in FORMATS.items() if row.has_responses)
        raise UserError(
            f"{reader.path}: {reader.format} traces do not say how long requests took",
            f"formats that do: {having}",
        )


def collect(reader: TraceReader, wanted: str | None, sizes_bytes: Sequence[int]) -> dict[int, Times]:
    """Response times in us, in trace order, of writes of these sizes (none given: the most frequent ones).

    `wanted` chooses one volume. Raises UserError when too few writes have a response time.
    """
    kept: dict[int, list[Times]] = defaultdict(list)
    counts: dict[int, int] = defaultdict(int)
    told = False
    for batch in reader:
        if batch.response_ns is None:
            continue
        told = True
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
    if not told:
        raise UserError(
            f"{reader.path}: this {reader.format} trace does not say how long requests took",
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
            "`slo-ctl trace info` says what is in it",
        )
    sizes = sorted(frequent if sizes_bytes else frequent[:MOST_SIZES])
    return {size: np.concatenate(kept[size]) for size in sizes}
