"""Merging several traces in time order, streaming."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from traces.batch import Batch

if TYPE_CHECKING:
    from numpy.typing import NDArray


def merge_in_time(sources: Sequence[Iterable[Batch]]) -> Iterator[tuple[Batch, NDArray[np.int32]]]:
    """Yield all requests of `sources` in time order, each batch with the source's number of every request.

    Requests with equal times keep the order of the sources, and within a source its own order. A source whose
    times decrease is merged as if time stood still: its order is kept and its times are raised to the running
    maximum, as a device would see it. Sources may be endless; one batch of each is held in memory.
    """
    streams = [_Stream(source) for source in sources]
    while True:
        live = [number for number, stream in enumerate(streams) if stream.fill()]
        if not live:
            return
        # Every source's next requests are known up to `horizon`. At the horizon itself, only up to the first
        # source that may have more requests of that time in its next batch.
        horizon = min(streams[number].last_ns for number in live)
        first_to_end = next(number for number in live if streams[number].last_ns == horizon)
        parts: list[Batch] = []
        tenants: list[NDArray[np.int32]] = []
        for number in live:
            part = streams[number].take_until(horizon, inclusive=number <= first_to_end)
            if len(part):
                parts.append(part)
                tenants.append(np.full(len(part), number, np.int32))
        batch, tenant = Batch.concat(parts), np.concatenate(tenants)
        if len(parts) > 1:
            order = np.argsort(batch.time_ns, kind="stable")
            batch, tenant = batch.take(order), tenant[order]
        yield batch, tenant


class _Stream:
    """The part of one source that is not merged yet."""

    def __init__(self, source: Iterable[Batch]) -> None:
        self._batches = iter(source)
        self._now: Batch = Batch.empty()
        self._latest_ns = np.iinfo(np.int64).min

    def fill(self) -> bool:
        """Ensure that a request is waiting; False at the end of the source."""
        while not len(self._now):
            batch = next(self._batches, None)
            if batch is None:
                return False
            if len(batch):
                times = np.maximum.accumulate(np.maximum(batch.time_ns, self._latest_ns))
                self._latest_ns = int(times[-1])
                self._now = batch.at(times)
        return True

    @property
    def last_ns(self) -> int:
        return int(self._now.time_ns[-1])

    def take_until(self, horizon_ns: int, *, inclusive: bool) -> Batch:
        cut = int(np.searchsorted(self._now.time_ns, horizon_ns, side="right" if inclusive else "left"))
        taken = self._now.slice(0, cut)
        self._now = self._now.slice(cut, len(self._now))
        return taken
