"""Changes the times of requests, selects and repeats them; everything streams."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from traces.batch import Batch, Op

_MAX_TIME_NS = 2**62


@dataclass(frozen=True, slots=True)
class TimeScale:
    """Multiply times: 0.5 replays twice as fast."""

    factor: float

    def __post_init__(self) -> None:
        if not isfinite(self.factor) or self.factor <= 0:
            raise ValueError(f"time scale is {self.factor}, not a positive number")

    def __call__(self, batch: Batch) -> Batch:
        """Scale, rounding down to the nanosecond. Raises ValueError if 146 years are exceeded."""
        scaled = np.floor(batch.time_ns.astype(np.float64) * self.factor)
        if (np.abs(scaled) > _MAX_TIME_NS).any():
            raise ValueError(
                f"time scale {self.factor:g} stretches the trace beyond 146 years; give a smaller factor"
            )
        return batch.at(scaled.astype(np.int64))


class GapCap:
    """Shorten every gap between records to at most `max_gap_ns`; one instance per pass over a trace."""

    def __init__(self, max_gap_ns: int) -> None:
        if max_gap_ns < 0:
            raise ValueError(f"the longest gap is {max_gap_ns} ns, not positive")
        self._max_gap_ns = max_gap_ns
        self._before_ns: int | None = None
        self._after_ns = 0

    def __call__(self, batch: Batch) -> Batch:
        """Shorten the gaps; backward steps are kept."""
        if not len(batch):
            return batch
        if self._before_ns is None:
            self._before_ns = self._after_ns = int(batch.time_ns[0])
        gaps = np.minimum(np.diff(batch.time_ns, prepend=self._before_ns), self._max_gap_ns)
        times = self._after_ns + np.cumsum(gaps)
        self._before_ns, self._after_ns = int(batch.time_ns[-1]), int(times[-1])
        return batch.at(times)


class Monotonic:
    """Raise times that step backwards to the latest earlier time; one instance per pass over a trace."""

    def __init__(self) -> None:
        self._latest_ns = np.iinfo(np.int64).min
        self.raised_records = 0
        """Number of records whose times were raised."""
        self.most_raised_ns = 0
        """Maximum increase."""

    def __call__(self, batch: Batch) -> Batch:
        """The running maximum of the times."""
        if not len(batch):
            return batch
        times = np.maximum.accumulate(np.maximum(batch.time_ns, self._latest_ns))
        self._latest_ns = int(times[-1])
        raised_ns = times - batch.time_ns
        self.raised_records += int(np.count_nonzero(raised_ns))
        self.most_raised_ns = max(self.most_raised_ns, int(raised_ns.max()))
        return batch.at(times)


@dataclass(frozen=True, slots=True)
class Window:
    """Keep the records from `start_ns` up to `stop_ns`, exclusive; their times count from the start."""

    start_ns: int = 0
    stop_ns: int | None = None

    def __post_init__(self) -> None:
        if self.stop_ns is not None and self.stop_ns <= self.start_ns:
            raise ValueError(
                f"the window stops at {self.stop_ns} ns, not after its start at {self.start_ns} ns"
            )

    def __call__(self, batch: Batch) -> Batch:
        kept = batch.time_ns >= self.start_ns
        if self.stop_ns is not None:
            kept &= batch.time_ns < self.stop_ns
        inside = batch.take(kept)
        return inside.at(inside.time_ns - self.start_ns)


@dataclass(frozen=True, slots=True)
class OnlyOps:
    """Keep some operations."""

    ops: frozenset[Op]

    def __post_init__(self) -> None:
        if not self.ops:
            raise ValueError("no operation is left")

    def __call__(self, batch: Batch) -> Batch:
        return batch.take(np.isin(batch.op, [int(op) for op in self.ops]))


def loop(
    trace: Iterable[Batch], times: int | None = None, period_ns: int = 0, *, timed: bool = True
) -> Iterator[Batch]:
    """Repeat the trace `times` times, None for endlessly, with continuous time.

    `trace` is iterated each time (possible with a TraceReader, but not with a generator). Between two rounds
    is the trace's mean time between records; with `period_ns` a round takes this long unless its records take
    longer. Stops after a round without records. `timed`: False for requests that are not sent by their time:
    each round then has the times of the file.

    Raises ValueError if 146 years are exceeded, and if endless rounds take no time.
    """
    if times is not None and times < 1:
        raise ValueError(f"loops is {times}, not positive")
    base_ns = 0
    done = 0
    while times is None or done < times:
        if base_ns > _MAX_TIME_NS:
            raise ValueError(
                "the repeated trace is longer than 146 years; repeat it fewer times, or shorten its pauses "
                "with `slo-ctl trace convert --max-gap 1h`"
            )
        records = 0
        earliest_ns, latest_ns = _MAX_TIME_NS, 0
        for batch in trace:
            if len(batch):
                records += len(batch)
                earliest_ns = min(earliest_ns, int(batch.time_ns.min()))
                latest_ns = max(latest_ns, int(batch.time_ns.max()))
                yield batch.at(batch.time_ns + base_ns) if base_ns else batch
        if not records:
            return
        if timed:
            base_ns += max(period_ns, latest_ns + (latest_ns - earliest_ns) // max(records - 1, 1))
            if times is None and not base_ns:
                raise ValueError(
                    "all requests have the same time, so that its repetitions take no time; give the time "
                    "from one to the next, such as period=60s, or loops=1"
                )
        done += 1
