"""What one VM did on one device over the last seconds, for people."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

from slo_ctl.model import ShareBy

Reading = TypeVar("Reading")


@dataclass(frozen=True, slots=True)
class StreamWindow:
    """One VM on one device over a sliding window. None: not known there."""

    vm: str
    """Key of the stream, as in `VmSample.vm`."""
    window_s: float
    """What was covered: shorter than asked for in the beginning; 0 before the second reading. Modelled time
    on
    an emulated SSD with latency, else real time."""
    iops: float | None = None
    read_iops: float | None = None
    write_iops: float | None = None
    bandwidth_bytes_s: float | None = None
    """Reads and writes."""
    p99_read_us: float | None = None
    p99_write_us: float | None = None
    throttle_wait_us: float | None = None
    """Mean time that a request was held back by a limit."""
    host_page_writes: int | None = None
    gc_page_writes: int | None = None
    u: float | None = None
    waf: float | None = None
    size_bytes: int | None = None
    ops_blocks: int | None = None
    """Without those that are kept free for GC."""
    ops_bytes: int | None = None
    requests: int = 0
    pages: int = 0
    """Host pages read and written."""
    device_s: float = 0.0
    """Die and channel time spent on its requests."""
    queued_share: float = 1.0
    """Share of the time with a request waiting for its turn in the device's queue."""
    backlog_share: float = 1.0
    """Share of the time with a request outstanding."""

    def amount(self, share_by: ShareBy) -> float:
        """What the VM got, in the unit of shares."""
        return share_by.amount(self.pages, self.requests, self.device_s)


class Sliding(Generic[Reading]):
    """The last readings: enough to span a window, and no more."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._readings: deque[tuple[float, Reading]] = deque()

    def add(self, at_s: float, reading: Reading) -> None:
        """One more; `at_s` never goes back."""
        readings = self._readings
        readings.append((at_s, reading))
        while len(readings) > 2 and readings[1][0] <= at_s - self._window_s:
            readings.popleft()

    def clear(self) -> None:
        """Forget what was: it is not comparable with what comes."""
        self._readings.clear()

    @property
    def last(self) -> Reading | None:
        """The latest."""
        return self._readings[-1][1] if self._readings else None

    @property
    def first(self) -> Reading | None:
        """The one that the window begins with."""
        return self._readings[0][1] if self._readings else None

    @property
    def length_s(self) -> float:
        """From the first to the last."""
        return self._readings[-1][0] - self._readings[0][0] if self._readings else 0.0
