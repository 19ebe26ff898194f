"""QEMU's log of the trace events blk_co_preadv and blk_co_pwritev, with time stamps (``-msg timestamp=on``).

``pid@seconds.us:event blk 0x.. bs 0x.. offset bytes bytes length flags 0x..``; each ``blk`` is a disk. There
is no such event of a discard or flush. Source: QEMU's documentation, "Tracing", and block/trace-events.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from traces.batch import Op
from traces.formats.format import ReadOptions, TraceFormat
from traces.formats.screen import Screen, Units
from traces.formats.text import Column, Layout, TextDecoder, words

if TYPE_CHECKING:
    from traces.batch import Batch
    from traces.compression import Source

LAYOUT = Layout(
    separator=" ",
    time=Column("time", 1),
    time_decimals=6,
    op=Column("event", 2),
    op_word=words({"blk_co_preadv": Op.READ, "blk_co_pwritev": Op.WRITE}, "event other than a read or write"),
    volume=(Column("blk", 4),),
    offset=Column("offset", 8),
    length=Column("bytes", 10),
    units=Units(time_ns=1000, length_name="bytes"),
)
_BLANKS = bytes.maketrans(b"@:", b"  ")
_LINE = re.compile(
    r"\d+@\d+\.\d{6}:blk_co_p\w+ blk 0x[0-9a-f]+ bs 0x[0-9a-f]+ offset \d+ bytes \d+ flags \S+"
)


class _Separated:
    """A source in which pid, time and event are separate columns."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def read(self, size: int) -> bytes:
        return self._source.read(size).translate(_BLANKS)

    def peek(self, size: int) -> bytes:
        """The next bytes, which are read again."""
        return self._source.peek(size).translate(_BLANKS)


def _read(source: Source, screen: Screen, options: ReadOptions) -> Iterator[Batch]:
    del options
    return TextDecoder(LAYOUT, screen).batches(cast("Source", _Separated(source)))


FORMAT = TraceFormat(
    name="qemu",
    description="QEMU's log of the trace events blk_co_preadv and blk_co_pwritev",
    extensions=(".log", ".qemu"),
    sniff=lambda head: 0.95 * head.share_of_lines(_LINE.fullmatch),
    read=_read,
)
