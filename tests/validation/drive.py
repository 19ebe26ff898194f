"""Small drives and requests for the tests of this folder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ftl_emul import Config

if TYPE_CHECKING:
    from ftl_emul import Device

READ, WRITE, TRIM, WRITE_ZEROES, FLUSH = range(5)
PAGE = 4096

Columns = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Operation, offset and length, as taken by apply() and feed()."""


def config(**overrides: Any) -> Config:
    """One die, 16 pages per block, 200 blocks and FAST '15 latencies by default."""
    return Config(
        **{
            "page_bytes": PAGE,
            "pages_per_block": 16,
            "blocks_per_die": 200,
            "channels": 1,
            "dies_per_channel": 1,
            "planes": 1,
            "read_ns": 60_000,
            "program_ns": 800_000,
            "erase_ns": 1_500_000,
            "transfer_ns": 102_000,
            **overrides,
        }
    )


def columns(requests: Sequence[tuple[int, int, int]]) -> Columns:
    """Requests (operation, offset, length) as columns."""
    op, offset, length = zip(*requests, strict=True) if requests else ((), (), ())
    return np.array(op, np.uint8), np.array(offset, np.uint64), np.array(length, np.uint64)


def apply(device: Device, tenant: int, requests: Sequence[tuple[int, int, int]]) -> None:
    """Apply the requests of one tenant in order."""
    op, offset, length = columns(requests)
    device.apply(np.full(len(op), tenant, np.uint16), op, offset, length)


def feed(device: Device, tenant: int, requests: Sequence[tuple[int, int, int]], time_ns: Any = None) -> None:
    """Append requests to a tenant's queue; all at time 0 unless `time_ns` is given."""
    op, offset, length = columns(requests)
    times = np.zeros(len(op), np.int64) if time_ns is None else np.asarray(time_ns, np.int64)
    device.feed(tenant, times, op, offset, length)


def plain(record: object) -> dict[str, Any]:
    """The fields of a record, to compare."""
    return {name: getattr(record, name) for name in dir(record) if not name.startswith("_")}


def state(device: Device, queues: bool = False) -> dict[str, Any]:
    """The complete visible state of a drive."""
    tenants = device.tenants()
    state: dict[str, Any] = {
        "drive": (device.blocks, device.spare_blocks, device.now_ns, device.host_page_writes),
        "counters": {t: plain(device.counters(t)) for t in tenants},
        "space": {t: plain(device.space(t)) for t in tenants},
    }
    if queues:
        state["queues"] = {t: (plain(device.queue_counters(t)), device.outstanding(t)) for t in tenants}
    return state
