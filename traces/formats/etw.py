"""Event Tracing for Windows dumps, as of Microsoft's Exchange and MSN production servers.

A header between BeginHeader and EndHeader names the columns of every kind of row; requests are the DiskRead
and DiskWrite rows. Times in microseconds, offset and size in hex. Source: SNIA IOTTA, Microsoft production
traces.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from traces.batch import Op
from traces.formats.format import Head, ReadOptions, TraceFormat
from traces.formats.screen import Place, Screen, Units
from traces.formats.text import Column, Layout, TextDecoder, words

if TYPE_CHECKING:
    from traces.batch import Batch
    from traces.compression import Source

_BEGIN, _END = "BeginHeader", "EndHeader"
_MAX_HEADER_BYTES = 1 << 20
_NEEDED = ("TimeStamp", "ByteOffset", "IOSize", "DiskNum")
OTHER_ROW = "row other than DiskRead and DiskWrite"


def parse_header(text: str, screen: Screen) -> tuple[Layout, int]:
    """The layout that the header describes, and the number of lines up to its end."""
    lines = text.splitlines()
    if not lines or lines[0].strip() != _BEGIN:
        screen.fail("the first line is not BeginHeader", Place(1), hint="name the right format with --format")
    columns: dict[str, list[str]] = {}
    if lines[-1].strip() != _END:
        place = Place(len(lines))
        screen.fail("the header has no EndHeader", place, hint="the file is cut short, or of another format")
    for line in lines[1:-1]:
        names = [name.strip() for name in line.split(",")]
        columns[names[0]] = names
    return _layout(columns, screen), len(lines)


def _layout(columns: dict[str, list[str]], screen: Screen) -> Layout:
    indices: list[list[int]] = []
    for kind in ("DiskRead", "DiskWrite"):
        names = columns.get(kind)
        if names is None:
            continue
        for needed in _NEEDED:
            if needed not in names:
                screen.fail(
                    f"the header of {kind} has no column {needed}", hint="DiskIO events must be in the dump"
                )
        indices.append([names.index(needed) for needed in _NEEDED])
    if not indices:
        screen.fail(
            "the header describes neither DiskRead nor DiskWrite", hint="DiskIO events must be in the dump"
        )
    if indices[0] != indices[-1]:
        screen.fail("DiskRead and DiskWrite have different columns", hint="split the dump by kind of row")
    time, offset, size, disk = indices[0]
    return Layout(
        separator=",",
        op=Column("event", 0),
        op_word=words({"DiskRead": Op.READ, "DiskWrite": Op.WRITE}, OTHER_ROW),
        time=Column("TimeStamp", time),
        offset=Column("ByteOffset", offset),
        length=Column("IOSize", size),
        volume=(Column("DiskNum", disk),),
        units=Units(time_ns=1000, time_name="TimeStamp", offset_name="ByteOffset", length_name="IOSize"),
        hexadecimal=True,
        quoted=True,
    )


def _sniff(head: Head) -> float:
    return 1.0 if head.lines and head.lines[0] == _BEGIN else 0.0


def _read(source: Source, screen: Screen, options: ReadOptions) -> Iterator[Batch]:
    del options
    head = source.peek(_MAX_HEADER_BYTES).removeprefix(b"\xef\xbb\xbf")
    end = head.find(b"EndHeader")
    text = head[: end + len(b"EndHeader")] if end >= 0 else head
    layout, header_lines = parse_header(text.decode("utf-8", "replace"), screen)
    return TextDecoder(layout, screen, header_lines).batches(source)


FORMAT = TraceFormat(
    name="etw",
    description="Microsoft ETW dumps (Exchange, MSN): DiskRead/DiskWrite rows",
    extensions=(".csv",),
    sniff=_sniff,
    read=_read,
)
