"""Writing to an emulated drive in virtual time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from slo_ctl.base.errors import UserError
from slo_ctl.base.quantity import format_bytes_exact
from slo_ctl.drives.build import LOG_BLOCKS, PAPER_DRIVES, plan_whole
from slo_ctl.model.measurement import Order
from traces.batch import Op

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ftl_emul import Device

    Times = NDArray[np.float64]

_FILL_BYTES = 1 << 20
_QUEUE_DEPTH = 1
"""The paper writes synchronously."""


class EmulatedDrive:
    """A PassWriter: an emulated drive, written all over before, in virtual time. EMULATED."""

    def __init__(self, spec: str, span_bytes: int, seed: int = 1) -> None:
        """`spec`: a name of `PAPER_DRIVES`, or keys of `slo-ctl replay --device`.

        Raises UserError for an impossible drive, and one that is smaller than the span.
        """
        plan = plan_whole(
            PAPER_DRIVES.get(spec, spec),
            "drive",
            where="--emulated",
            too_large="is more than can be written all over before it is measured",
        )
        if spec in PAPER_DRIVES:
            plan = replace(plan, ops_blocks=(LOG_BLOCKS,))
        size = plan.total_pages * plan.config.page_bytes
        if size < span_bytes:
            raise UserError(
                f"--emulated {spec}: the drive has {format_bytes_exact(size)}, and "
                f"{format_bytes_exact(span_bytes)} are to be written",
                "lower --bytes, or give the drive a larger size=",
            )
        self.spec = PAPER_DRIVES.get(spec, spec)
        self.block_bytes = plan.block_pages * plan.config.page_bytes
        """A clustered block: what the search should find where blocks are merged."""
        self._span_bytes = span_bytes
        self._seed = seed
        self._device: Device
        self._device, tenants = plan.create(isolated=True)
        self._tenant = tenants[0]
        starts = np.arange(0, size, _FILL_BYTES, dtype=np.uint64)
        lengths = np.minimum(_FILL_BYTES, size - starts).astype(np.uint64)
        who = np.full(len(starts), self._tenant, dtype=np.uint16)
        self._device.apply(who, _writes(len(starts)), starts, lengths)

    @property
    def page_writes(self) -> int:
        """Pages written so far, without merges and GC."""
        return self._device.counters(self._tenant).host_page_writes

    def write_pass(self, order: Order, request_bytes: int, number: int) -> float:
        """Write every request of the span once, one after the other's end; returns bytes/s."""
        offsets = self._offsets(order, request_bytes, number)
        begun_ns = self._device.now_ns
        self._device.open_queue(self._tenant, _QUEUE_DEPTH)
        self._feed(offsets, request_bytes)
        self._device.end_input(self._tenant)
        self._device.run()
        return len(offsets) * request_bytes / ((self._device.now_ns - begun_ns) / 1e9)

    def response_times_us(self, order: Order, request_bytes: int, number: int) -> Times:
        """The same, with the response time of every request, in the order of the requests."""
        offsets = self._offsets(order, request_bytes, number)
        ended_ns = np.empty(len(offsets) + 1, dtype=np.int64)
        ended_ns[0] = self._device.now_ns
        self._device.open_queue(self._tenant, _QUEUE_DEPTH)
        for index in range(len(offsets)):
            self._feed(offsets[index : index + 1], request_bytes)
            self._device.run()
            ended_ns[index + 1] = self._device.now_ns
        self._device.end_input(self._tenant)
        self._device.run()
        return np.diff(ended_ns) / 1e3

    def _offsets(self, order: Order, request_bytes: int, number: int) -> NDArray[np.uint64]:
        count = self._span_bytes // request_bytes
        if order is Order.RANDOM:
            indices = np.random.default_rng([self._seed, number]).permutation(count)
        else:
            indices = np.arange(count)
        return indices.astype(np.uint64) * np.uint64(request_bytes)

    def _feed(self, offsets: NDArray[np.uint64], request_bytes: int) -> None:
        count = len(offsets)
        now = np.zeros(count, dtype=np.int64)
        lengths = np.full(count, request_bytes, dtype=np.uint64)
        self._device.feed(self._tenant, now, _writes(count), offsets, lengths)


def _writes(count: int) -> NDArray[np.uint8]:
    return np.full(count, int(Op.WRITE), dtype=np.uint8)
