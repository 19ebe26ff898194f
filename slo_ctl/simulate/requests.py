"""The requests of one simulated VM, a few at a time, made as they are needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from slo_ctl.simulate.scenario import Load
from traces.batch import PAGE_BYTES, Op
from traces.workload_kinds import WORKLOADS

if TYPE_CHECKING:
    from numpy.typing import NDArray

_DRAWN = 2048
"""Requests drawn at a time."""
_FED = 256
"""Requests that the drive is given at a time: what a VM changes takes effect after those."""
_HOT_SET_STEP = 0.37
"""Of the space: how far a hot set moves."""
_NS_PER_S = 1e9


@dataclass(frozen=True, slots=True)
class FedRequests:
    """Columns as `ftl_emul.Device.feed` takes them."""

    time_ns: NDArray[np.int64]
    op: NDArray[np.uint8]
    offset_bytes: NDArray[np.uint64]
    length_bytes: NDArray[np.uint64]


class RequestStream:
    """Endless, and the same for the same seed as far as hot sets stay where they are."""

    def __init__(self, load: Load, pages: int, page_bytes: int, seed: tuple[int, ...], now_ns: int) -> None:
        """Within a namespace of so many pages; `now_ns` is when an open loop begins."""
        kind = WORKLOADS[load.workload]
        self._load = load
        self._span_bytes = pages * PAGE_BYTES
        self._scale = page_bytes // PAGE_BYTES
        self._random = np.random.default_rng(seed)
        self._make = kind.make(kind.parse(dict(load.parameters)), self._span_bytes)
        self._arrived_ns = float(now_ns)
        self._drawn: FedRequests | None = None
        self._used = 0

    def next(self, now_ns: int) -> FedRequests:
        """The next requests, for a moment at which the VM has none left."""
        if self._drawn is None or self._used >= _DRAWN:
            self._drawn, self._used = self._draw(), 0
        part = slice(self._used, self._used + _FED)
        self._used += _FED
        drawn = self._drawn
        return FedRequests(
            drawn.time_ns[part], drawn.op[part], self._placed(drawn, part, now_ns), drawn.length_bytes[part]
        )

    def _draw(self) -> FedRequests:
        op, offset, length = self._make(self._random, _DRAWN)
        if self._load.trim_share:
            trimmed = (op == Op.WRITE) & (self._random.random(_DRAWN) < self._load.trim_share)
            op = np.where(trimmed, np.uint8(Op.TRIM), op)
        if self._load.rate_iops is None:
            time_ns = np.zeros(_DRAWN, np.int64)
        else:
            gaps_ns = self._random.exponential(_NS_PER_S / self._load.rate_iops, _DRAWN)
            times = self._arrived_ns + np.cumsum(gaps_ns)
            self._arrived_ns = float(times[-1])
            time_ns = times.astype(np.int64)
        return FedRequests(
            time_ns,
            op.astype(np.uint8),
            (offset * self._scale).astype(np.uint64),
            (length * self._scale).astype(np.uint64),
        )

    def _placed(self, drawn: FedRequests, part: slice, now_ns: int) -> NDArray[np.uint64]:
        """Where the requests are, with the hot set where it is by now."""
        offset = drawn.offset_bytes[part]
        if self._load.moves_every_s is None:
            return offset
        moved = int(now_ns / _NS_PER_S / self._load.moves_every_s)
        if moved == 0:
            return offset
        span_pages = self._span_bytes // PAGE_BYTES
        page_bytes = self._scale * PAGE_BYTES
        shift = int(moved * _HOT_SET_STEP * span_pages) % span_pages * page_bytes
        span = np.uint64(span_pages * page_bytes)
        placed: NDArray[np.uint64] = (offset + np.uint64(shift)) % span
        np.minimum(placed, span - drawn.length_bytes[part], out=placed)
        return placed
