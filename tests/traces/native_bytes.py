"""Native bytes of the binary formats, written out."""

from __future__ import annotations

import struct


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
