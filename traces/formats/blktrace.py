"""blktrace's binary events, of either byte order; the files of several CPUs are merged by time.

An event is 48 bytes (magic with version 7, sequence, time in ns, sector, bytes, action, pid, device, cpu,
error, payload length) and its payload; with version 8, of newer kernels, 64 bytes, with a wider action. One
action stands for a request: Q (queued), or D (issued) or C (completed) where it is asked for or there is none
before it, never two. Source: Linux,
include/uapi/linux/blktrace_api.h.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from traces.batch import Batch, Op
from traces.compression import Source
from traces.formats.format import Head, ReadOptions, TraceFormat
from traces.formats.screen import Place, RawRecords, Screen, Units
from traces.merge import merge_in_time

if TYPE_CHECKING:
    from numpy.typing import NDArray

SECTOR_BYTES = 512
MAGIC = 0x65617400
_CHUNK_BYTES = 4 << 20

_ACTIONS = {"Q": 1, "D": 7, "C": 8}
_CATEGORY_SHIFT = 16
_READ, _WRITE, _FLUSH, _PACKET, _NOTIFY, _DISCARD = (
    1 << (_CATEGORY_SHIFT + bit) for bit in (0, 1, 2, 9, 10, 13)
)
_ACTION_MASK = 0xFEFF
"""The action without the bit of events that have the cgroup's number before the payload (`blk_cgroup`)."""
_UNITS = Units(time_ns=1, offset_bytes=SECTOR_BYTES, offset_name="sector", length_name="bytes")
_ZONE_MANAGEMENT = 0x1F << (_CATEGORY_SHIFT + 17)
"""Reset, finish, open and close of zones, which version 7 does not distinguish from other requests."""
NOTIFY = "notify event"
PACKET = "packet command"
ZONE_MANAGEMENT = "management of a zone"

_HEAD = [("magic", "u4"), ("sequence", "u4"), ("time", "u8"), ("sector", "u8"), ("bytes", "u4")]
_TAIL = [("device", "u4"), ("cpu", "u4"), ("error", "u2")]
_LENGTH = ("pdu_len", "u2")
_FIELDS = {
    7: [*_HEAD, ("action", "u4"), ("pid", "u4"), *_TAIL],
    8: [*_HEAD, ("pid", "u4"), ("action", "u8"), *_TAIL],
}
"""Fields of an event before its payload length, by version."""
_PADDING = {7: [], 8: [("padding", "V12")]}


class _Layout:
    """Layout of the events of a file."""

    def __init__(self, version: int, order: str) -> None:
        """`order`: `<` or `>`."""
        self.magic = MAGIC | version
        self.magic_bytes = struct.pack(f"{order}I", self.magic)
        fields = _FIELDS[version]
        self.event = np.dtype([(name, order + kind) for name, kind in (*fields, _LENGTH, *_PADDING[version])])
        self.unpack = struct.Struct(f"{order}I{np.dtype(fields[1:]).itemsize}xH").unpack_from
        """Magic and payload length."""


def byte_order(head: bytes) -> str | None:
    """`<` or `>` if the file starts with an event of that byte order."""
    if len(head) < 4:
        return None
    for order in "<>":
        if struct.unpack_from(order + "I", head)[0] & 0xFFFFFF00 == MAGIC:
            return order
    return None


def _sniff(head: Head) -> float:
    return 1.0 if byte_order(head.data) else 0.0


def _read(source: Source, screen: Screen, options: ReadOptions) -> Iterator[Batch]:
    more = [Source(path) for path in options.more_paths]
    try:
        # A CPU without events leaves an empty file.
        sources = [one for one in (source, *more) if one.peek(1)] or [source]
        streams = [_requests(one, screen, options.action) for one in sources]
        heads = [next(stream, None) for stream in streams]
        found = [(head, stream) for head, stream in zip(heads, streams, strict=True) if head is not None]
        if not found:
            return
        # Times count from the earliest request of any CPU.
        screen.start_at(min(int(head.raw.time.min()) for head, _ in found))
        per_cpu = [_admitted(itertools.chain([head], stream), screen) for head, stream in found]
        if len(per_cpu) == 1:
            yield from per_cpu[0]
        else:
            for batch, _ in merge_in_time(per_cpu):
                yield batch
    finally:
        for one in more:
            one.close()


class _Requests:
    """The selected events of a chunk and their positions."""

    def __init__(
        self, raw: RawRecords, path: Path, first_record: int, numbers: NDArray[Any], starts: NDArray[Any]
    ) -> None:
        self.raw = raw
        self._path = path
        self._first_record = first_record
        self._numbers = numbers
        self._starts = starts

    def place(self, index: int) -> Place:
        return Place(
            record=self._first_record + int(self._numbers[index]),
            byte_offset=int(self._starts[index]),
            path=self._path,
        )


def _admitted(chunks: Iterator[_Requests], screen: Screen) -> Iterator[Batch]:
    for chunk in chunks:
        yield screen.admit(chunk.raw, _UNITS, chunk.place)


def _requests(source: Source, screen: Screen, action: str) -> Iterator[_Requests]:
    order = byte_order(source.peek(4))
    if order is None:
        screen.fail(
            "no blktrace event (its magic number is missing)",
            Place(record=0, byte_offset=0, path=source.path),
            hint="name the right format with --format",
        )
    (magic,) = struct.unpack(f"{order}I", source.peek(4)[:4])
    # Of an unknown version the first event is refused, by its number.
    layout = _Layout(version if (version := magic & 0xFF) in _FIELDS else min(_FIELDS), order)
    rest = b""
    base = 0
    first_record = 0
    while True:
        data = source.read(_CHUNK_BYTES)
        at_end = len(data) < _CHUNK_BYTES
        data = rest + data
        starts, stop = _walk(data, layout, base, first_record, screen, source.path, at_end)
        if starts:
            chunk = _chosen(
                data, np.array(starts, np.int64), layout, action, screen, source.path, base, first_record
            )
            if len(chunk.raw.time):
                yield chunk
        first_record += len(starts)
        rest = data[stop:]
        base += stop
        if at_end:
            return


def _walk(
    data: bytes, layout: _Layout, base: int, first_record: int, screen: Screen, path: Path, at_end: bool
) -> tuple[list[int], int]:
    """Starts of the complete events in `data`, and the start of the first incomplete one."""
    starts: list[int] = []
    at = 0
    size = len(data)
    unpack, magic, event_bytes = layout.unpack, layout.magic, layout.event.itemsize
    while at + event_bytes <= size:
        found, payload = unpack(data, at)
        if found != magic:
            place = Place(record=first_record + len(starts), byte_offset=base + at, path=path)
            if found & 0xFFFFFF00 == MAGIC:
                version = found & 0xFF
                is_known = version in _FIELDS
                screen.fail(
                    f"blktrace version {version} {'follows another version' if is_known else 'is unknown'}",
                    place,
                    "magic",
                    "versions 7 and 8 are read, one in a file",
                )
            screen.bad(
                place,
                "no event here (its magic number is missing)",
                "magic",
                kind="lost the sequence of events",
            )
            following = data.find(layout.magic_bytes, at + 1)
            at = following if following >= 0 else size
            continue
        end = at + event_bytes + payload
        if end > size:
            break
        starts.append(at)
        at = end
    if at_end and at < size:
        place = Place(record=first_record + len(starts), byte_offset=base + at, path=path)
        screen.bad(
            place, f"the file ends inside an event, {size - at} bytes after its start", kind="cut short"
        )
        at = size
    return starts, at


def _chosen(
    data: bytes,
    starts: NDArray[np.int64],
    layout: _Layout,
    action: str,
    screen: Screen,
    path: Path,
    base: int,
    first_record: int,
) -> _Requests:
    bytes_ = np.frombuffer(data, np.uint8)
    whole = np.lib.stride_tricks.sliding_window_view(bytes_, layout.event.itemsize)[starts]
    events = whole.view(layout.event)[:, 0]
    what = events["action"].astype(np.uint64)
    notify = (what & _NOTIFY) != 0
    wanted = ~notify & ((what & _ACTION_MASK) == _ACTIONS[action])
    screen.ignore(NOTIFY, int(notify.sum()))
    screen.ignore(f"event other than {action}", int((~notify & ~wanted).sum()))
    # As in blkparse: commands that pass through, such as SMART's, have no sector.
    packet = wanted & ((what & _PACKET) != 0)
    screen.ignore(PACKET, int(packet.sum()))
    wanted &= ~packet
    management = wanted & ((what & _ZONE_MANAGEMENT) != 0)
    screen.ignore(ZONE_MANAGEMENT, int(management.sum()))
    wanted &= ~management
    empty = events["bytes"] == 0
    is_flush = empty & ((what & (_FLUSH | _WRITE)) != 0)
    nothing = wanted & empty & ~is_flush
    screen.ignore("request without data", int(nothing.sum()))
    wanted &= ~nothing
    numbers = np.flatnonzero(wanted)
    events, is_flush, what = events[numbers], is_flush[numbers], what[numbers]
    op = np.where(what & _WRITE, np.uint8(Op.WRITE), np.uint8(Op.READ))
    op[(what & _DISCARD) != 0] = Op.TRIM
    op[is_flush] = Op.FLUSH
    raw = RawRecords(
        np.minimum(events["time"], np.uint64(2**63 - 1)).astype(np.int64),
        op,
        np.where(is_flush, np.uint64(0), events["sector"]).astype(np.uint64),
        events["bytes"].astype(np.uint64),
        _volumes(events["device"], screen),
    )
    return _Requests(raw, path, first_record, numbers, base + starts[numbers])


def _volumes(devices: NDArray[Any], screen: Screen) -> NDArray[np.int32]:
    distinct, which = np.unique(devices, return_inverse=True)
    # The kernel's dev_t: 12 bits of major number, 20 of minor.
    numbers = [screen.volume(f"{device >> 20}:{device & 0xFFFFF}") for device in distinct.tolist()]
    return np.array(numbers, np.int32)[which]


FORMAT = TraceFormat(
    name="blktrace",
    description="blktrace binary, either byte order, per-CPU files merged",
    extensions=(".blktrace",),
    sniff=_sniff,
    read=_read,
    is_text=False,
)
