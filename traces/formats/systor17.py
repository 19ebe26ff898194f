"""SYSTOR '17 (Fujitsu VDI) traces: ``Timestamp,Response,IOType,LUN,Offset,Size`` with a header line.

Times in seconds since 1970, offset and size in bytes. Rows with a blank IOType are not requests: counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from traces.batch import Op
from traces.formats.format import Head, ReadOptions, TraceFormat
from traces.formats.screen import Screen, Units
from traces.formats.text import Column, Layout, TextDecoder, without_response, words

if TYPE_CHECKING:
    from traces.batch import Batch
    from traces.compression import Source

BLANK = "blank IOType"

LAYOUT = Layout(
    separator=",",
    fields=6,
    time=Column("Timestamp", 0),
    time_decimals=9,
    op=Column("IOType", 2),
    op_word=words({"R": Op.READ, "r": Op.READ, "W": Op.WRITE, "w": Op.WRITE, "": BLANK}),
    volume=(Column("LUN", 3),),
    offset=Column("Offset", 4),
    length=Column("Size", 5),
    response=Column("Response", 1),
    response_decimals=9,
    units=Units(time_ns=1, time_name="Timestamp", offset_name="Offset", length_name="Size"),
)

_HEADER = "timestamp,response,iotype,lun,offset,size"
_LINE = re.compile(r"\d+(\.\d*)?,\s*[\d.]*,\s*[RWrw]?,\s*\d+,\s*\d*,\s*\d*")


def _has_header(first_line: str) -> bool:
    return first_line.replace(" ", "").lower().startswith(_HEADER)


def _sniff(head: Head) -> float:
    if head.lines and _has_header(head.lines[0]):
        return 1.0
    return 0.9 * head.share_of_lines(_LINE.fullmatch)


def _read(source: Source, screen: Screen, options: ReadOptions) -> Iterator[Batch]:
    layout = LAYOUT if options.responses else without_response(LAYOUT)
    first, _, _ = source.peek(4096).removeprefix(b"\xef\xbb\xbf").partition(b"\n")
    header_lines = 1 if _has_header(first.decode("utf-8", "replace")) else 0
    return TextDecoder(layout, screen, header_lines).batches(source)


FORMAT = TraceFormat(
    name="systor17",
    description="SYSTOR '17 VDI: Timestamp,Response,IOType,LUN,Offset,Size",
    extensions=(".csv",),
    sniff=_sniff,
    read=_read,
    has_responses=True,
)
