"""Sample requests, as a batch and in the bytes of binary formats."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from traces import Batch

Request = tuple[int, int, int, int, int]
"""Time in ns, operation, offset and length in bytes, volume."""


def batch_of(rows: Sequence[Request]) -> Batch:
    """`rows` as columns."""
    columns = list(zip(*rows, strict=True)) if rows else [()] * 5
    kinds = (np.int64, np.uint8, np.uint64, np.uint64, np.int32)
    return Batch(*(np.array(column, kind) for column, kind in zip(columns, kinds, strict=True)))


def vscsi_v1(*records: tuple[int, int, int, int]) -> bytes:
    """Version 1 records of (length, command, block, us)."""
    return b"".join(struct.pack("<IIIHHQQ", 7, n, 1, cmd, 0x0100, lbn, ts) for n, cmd, lbn, ts in records)


def vscsi_v2(*records: tuple[int, int, int, int]) -> bytes:
    """Version 2 records of (length, command, block, us)."""
    return b"".join(struct.pack("<HHIIIQQQ", cmd, 0x0200, 7, n, 1, lbn, ts, 9) for n, cmd, lbn, ts in records)


def blktrace_event(
    time_ns: int, sector: int, size: int, action: int, order: str = "<", payload: bytes = b"", cpu: int = 0
) -> bytes:
    """One event of device 8:16."""
    fields = (0x65617407, 1, time_ns, sector, size, action, 1, (8 << 20) | 16, cpu, 0, len(payload))
    return struct.pack(order + "IIQQIIIIIHH", *fields) + payload


def blktrace_event_v8(
    time_ns: int, sector: int, size: int, action: int, order: str = "<", payload: bytes = b"", cpu: int = 0
) -> bytes:
    """The same of version 8."""
    fields = (0x65617408, 1, time_ns, sector, size, 1, action, (8 << 20) | 16, cpu, 0, len(payload))
    return struct.pack(order + "IIQQIIQIIHH12x", *fields) + payload
