"""DiskSim ascii traces: ``ms device block blocks flags``.

Blocks are of 512 bytes; bit 0 of the hex flags is 1 for a read. Source: DiskSim 4.0 reference manual, section
3.2.
"""

from __future__ import annotations

import re

from traces.batch import Op
from traces.formats import msr_cut
from traces.formats.format import Head, TraceFormat
from traces.formats.screen import Units
from traces.formats.text import Column, Layout, line_reader

BLOCK_BYTES = 512


def flags_word(word: str) -> Op | None:
    """The operation that DiskSim's hex flags mean."""
    try:
        flags = int(word, 16)
    except ValueError:
        return None
    return Op.READ if flags & 1 else Op.WRITE


LAYOUT = Layout(
    separator=" ",
    fields=5,
    time=Column("time", 0),
    time_decimals=6,
    volume=(Column("device", 1),),
    offset=Column("block", 2),
    length=Column("blocks", 3),
    op=Column("flags", 4),
    op_word=flags_word,
    units=Units(
        time_ns=1,
        offset_bytes=BLOCK_BYTES,
        length_bytes=BLOCK_BYTES,
        offset_name="block",
        length_name="blocks",
    ),
)

_LINE = re.compile(r"\d+\.\d*\s+\d+\s+\d+\s+\d+\s+[0-9a-fA-F]{1,8}")


def _sniff(head: Head) -> float:
    return head.share_of_lines(_LINE.fullmatch) * (0.4 if msr_cut.in_bytes(head) else 0.85)


FORMAT = TraceFormat(
    name="disksim",
    description="DiskSim ascii: ms device block blocks flags(bit 0: read), 512-byte blocks",
    extensions=(".ascii", ".dis"),
    sniff=_sniff,
    read=line_reader(LAYOUT),
)
