"""btrecord's binary, btreplay's input: a header, then bunches of packets with one time each.

Header of four u64 (version, genesis, bunches, packets); bunch of two (packets, time in ns); packet of u64
sector (512 bytes), u64 bytes, u32 rw (1 reads) and four bytes of padding. Little-endian. Source: blktrace's
btrecord.h.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from traces.batch import Batch, Op
from traces.formats.format import Head, ReadOptions, TraceFormat
from traces.formats.screen import Place, RawRecords, Screen, Units

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from traces.compression import Source

SECTOR_BYTES = 512
MAX_PACKETS = 512
_HEADER = struct.Struct("<4Q")
_BUNCH = struct.Struct("<2Q")
PACKET = np.dtype([("sector", "<u8"), ("bytes", "<u8"), ("rw", "<u4"), ("padding", "<u4")])
_CHUNK_BYTES = 2 << 20
_UNITS = Units(time_ns=1, offset_bytes=SECTOR_BYTES, offset_name="sector", length_name="bytes")


def _plausible(head: bytes) -> bool:
    """Version 1.x.y, no more bunches than packets, and a first bunch of 1 to 512 packets."""
    if len(head) < _HEADER.size + _BUNCH.size:
        return False
    version, _, bunches, packets = _HEADER.unpack_from(head)
    first, _ = _BUNCH.unpack_from(head, _HEADER.size)
    return bool(version >> 16 == 1 and 0 < bunches <= packets and 0 < first <= MAX_PACKETS)


def _sniff(head: Head) -> float:
    return 0.95 if not head.is_text and _plausible(head.data) else 0.0


def _read(source: Source, screen: Screen, options: ReadOptions) -> Iterator[Batch]:
    del options
    head = source.peek(_HEADER.size + _BUNCH.size)
    if not _plausible(head):
        screen.fail(
            "no btrecord header",
            Place(byte_offset=0),
            hint="cut short, or another format: name it with --format",
        )
    _, _, _, promised = _HEADER.unpack(source.read(_HEADER.size))
    screen.volume("0")
    seen = 0
    rest = b""
    base = _HEADER.size
    while True:
        data = source.read(_CHUNK_BYTES)
        at_end = len(data) < _CHUNK_BYTES
        data = rest + data
        starts, times, stop = _walk(data, base, seen, screen, at_end)
        batch = _requests(data, np.array(starts, np.int64), np.array(times, np.uint64), base, seen, screen)
        if len(batch):
            yield batch
        seen += len(starts)
        rest = data[stop:]
        base += stop
        if at_end:
            break
    if seen != promised:
        # btrecord fills the header in at the end; a recording that was interrupted is off: no error.
        screen.notes.append(f"the header promises {promised} packets, the file holds {seen}")


def _walk(
    data: bytes, base: int, seen: int, screen: Screen, at_end: bool
) -> tuple[list[int], list[int], int]:
    """Starts and times of the packets of all whole bunches, and where the first that is not whole starts."""
    starts: list[int] = []
    times: list[int] = []
    at = 0
    while at + _BUNCH.size <= len(data):
        packets, time = _BUNCH.unpack_from(data, at)
        if not 0 < packets <= MAX_PACKETS:
            screen.fail(
                f"a bunch of {packets} packets (1 to {MAX_PACKETS} are possible)",
                Place(record=seen + len(starts), byte_offset=base + at),
                hint="the file is damaged",
            )
        end = at + _BUNCH.size + packets * PACKET.itemsize
        if end > len(data):
            break
        starts.extend(range(at + _BUNCH.size, end, PACKET.itemsize))
        times.extend([time] * packets)
        at = end
    if at_end and at < len(data):
        place = Place(record=seen + len(starts), byte_offset=base + at)
        screen.bad(place, "the file ends inside a bunch", kind="cut short")
        at = len(data)
    return starts, times, at


def _requests(
    data: bytes, starts: NDArray[np.int64], times: NDArray[np.uint64], base: int, seen: int, screen: Screen
) -> Batch:
    if not len(starts):
        return Batch.empty()
    window = np.lib.stride_tricks.sliding_window_view(np.frombuffer(data, np.uint8), PACKET.itemsize)
    packets = window[starts].view(PACKET)[:, 0]
    raw = RawRecords(
        np.minimum(times, np.uint64(2**63 - 1)).astype(np.int64),
        np.where(packets["rw"] & 1, np.uint8(Op.READ), np.uint8(Op.WRITE)),
        packets["sector"].astype(np.uint64),
        packets["bytes"].astype(np.uint64),
        np.zeros(len(packets), np.int32),
    )
    return screen.admit(
        raw, _UNITS, lambda index: Place(record=seen + index, byte_offset=base + int(starts[index]))
    )


FORMAT = TraceFormat(
    name="btrecord",
    description="btrecord binary (btreplay's input)",
    extensions=(".replay",),
    sniff=_sniff,
    read=_read,
    is_text=False,
)
