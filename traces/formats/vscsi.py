"""VMware vscsiStats traces (CloudPhysics), versions 1 and 2: fixed little-endian records.

Version 1, 32 bytes: u32 serial, length in bytes, scatter-gather entries; u16 command, version; u64 block (512
bytes), time in us. Version 2, 40 bytes: u16 command, version; u32 serial, length, entries; u64 block, time,
response time. The version is the high byte of the version field.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from traces.batch import Batch, Op
from traces.formats.format import Head, ReadOptions, TraceFormat
from traces.formats.screen import Place, RawRecords, Screen, Units

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from traces.compression import Source

BLOCK_BYTES = 512
_RECORDS_PER_CHUNK = 1 << 17
_MAX_RESPONSE_US = 3600 * 10**6
"""Longer than an hour: an error of the tracer."""

V1 = np.dtype(
    [
        ("sn", "<u4"),
        ("length", "<u4"),
        ("nsg", "<u4"),
        ("cmd", "<u2"),
        ("ver", "<u2"),
        ("lbn", "<u8"),
        ("ts", "<u8"),
    ]
)
V2 = np.dtype(
    [
        ("cmd", "<u2"),
        ("ver", "<u2"),
        ("sn", "<u4"),
        ("length", "<u4"),
        ("nsg", "<u4"),
        ("lbn", "<u8"),
        ("ts", "<u8"),
        ("rt", "<u8"),
    ]
)
_DTYPES = {1: V1, 2: V2}
_READS = (0x28, 0x88, 0x08, 0xA8)
_WRITES = (0x2A, 0x8A, 0x0A, 0xAA)
_FLUSHES = (0x35, 0x91)
_UNITS = Units(time_ns=1000, offset_bytes=BLOCK_BYTES, time_name="ts", offset_name="lbn", length_name="len")
OTHER_COMMAND = "SCSI command other than read, write or flush"


def version_of(head: bytes) -> int | None:
    """1 or 2 if all of the first (at most 64) complete records have that version."""
    for version, dtype in _DTYPES.items():
        records = np.frombuffer(
            head[: len(head) // dtype.itemsize * dtype.itemsize][: 64 * dtype.itemsize], dtype
        )
        if len(records) and (records["ver"] >> 8 == version).all() and (records["cmd"] < 0x100).all():
            return version
    return None


def _sniff(head: Head) -> float:
    return 0.9 if not head.is_text and version_of(head.data) else 0.0


def _read(source: Source, screen: Screen, options: ReadOptions) -> Iterator[Batch]:
    version = version_of(source.peek(64 * V2.itemsize))
    if version is None:
        head = source.peek(V2.itemsize)
        if 0 < len(head) < V1.itemsize:
            screen.fail(
                "the file ends inside the first record", Place(record=0, byte_offset=0), hint="cut short?"
            )
        screen.fail(
            "no vscsi record of version 1 or 2", Place(record=0), hint="name the right format with --format"
        )
    return _decode(source, screen, version, options.responses)


def _decode(source: Source, screen: Screen, version: int, responses: bool) -> Iterator[Batch]:
    dtype = _DTYPES[version]
    size = dtype.itemsize
    first_record = 0
    while data := source.read(_RECORDS_PER_CHUNK * size):
        whole = len(data) // size
        records = np.frombuffer(data, dtype, count=whole)
        batch = _requests(records, screen, version, first_record, responses)
        if len(batch):
            yield batch
        first_record += whole
        if len(data) % size:
            place = Place(record=first_record, byte_offset=first_record * size)
            screen.bad(
                place,
                f"the file ends inside a record, after {len(data) % size} of {size} bytes",
                kind="cut short",
            )


def _requests(
    records: NDArray[Any], screen: Screen, version: int, first_record: int, responses: bool
) -> Batch:
    size = records.dtype.itemsize

    def place(index: int) -> Place:
        return Place(record=first_record + index, byte_offset=(first_record + index) * size)

    kept = records["ver"] >> 8 == version
    if not kept.all():
        row = int(np.argmin(kept))
        if screen.on_error == "raise" and row:
            # Errors before this record are reported first.
            _requests(records[:row], screen, version, first_record, responses)
        value = int(records["ver"][row])
        screen.bad(
            place(row),
            f"{value:#x} is not of version {version}",
            "ver",
            kind="is of another version",
            count=int((~kept).sum()),
        )
    command = records["cmd"]
    op = np.full(len(records), 255, np.uint8)
    for value, commands in ((Op.READ, _READS), (Op.WRITE, _WRITES), (Op.FLUSH, _FLUSHES)):
        op[np.isin(command, commands)] = value
    other = kept & (op == 255)
    screen.ignore(OTHER_COMMAND, int(other.sum()))
    numbers = np.flatnonzero(kept & ~other)
    records, op = records[numbers], op[numbers]
    screen.volume("0")
    flush = op == Op.FLUSH
    raw = RawRecords(
        np.minimum(records["ts"], np.uint64(2**63 - 1)).astype(np.int64),
        op,
        np.where(flush, np.uint64(0), records["lbn"]),
        np.where(flush, np.uint64(0), records["length"].astype(np.uint64)),
        np.zeros(len(records), np.int32),
        _response_ns(records) if responses and version == 2 else None,
    )
    return screen.admit(raw, _UNITS, lambda index: place(int(numbers[index])))


def _response_ns(records: NDArray[Any]) -> NDArray[np.int64]:
    """Converted from us; 0 if it is invalid."""
    response = records["rt"]
    known = response < np.uint64(_MAX_RESPONSE_US)
    return np.where(known, response, 0).astype(np.int64) * 1000


FORMAT = TraceFormat(
    name="vscsi",
    description="VMware vscsiStats binary, versions 1 and 2 (CloudPhysics)",
    extensions=(".vscsi", ".vscsitrace"),
    sniff=_sniff,
    read=_read,
    is_text=False,
    has_responses=True,
)
