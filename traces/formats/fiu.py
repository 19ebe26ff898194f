"""FIU traces: ``ns pid process lba blocks R|W major minor md5``, 512-byte blocks.

Source: SNIA IOTTA, FIU readme.
"""

from __future__ import annotations

import re

from traces.batch import Op
from traces.formats.format import TraceFormat
from traces.formats.screen import Units
from traces.formats.text import Column, Layout, line_reader, words

BLOCK_BYTES = 512

LAYOUT = Layout(
    separator=" ",
    fields=9,
    time=Column("time", 0),
    offset=Column("lba", 3),
    length=Column("size", 4),
    op=Column("op", 5),
    op_word=words({"R": Op.READ, "r": Op.READ, "W": Op.WRITE, "w": Op.WRITE}),
    volume=(Column("major", 6), Column("minor", 7)),
    volume_separator=":",
    units=Units(time_ns=1, offset_bytes=BLOCK_BYTES, length_bytes=BLOCK_BYTES, offset_name="lba"),
)

_LINE = re.compile(r"\d+\s+\d+\s+\S+\s+\d+\s+\d+\s+[RWrw]\s+\d+\s+\d+(\s+\S+)?")

FORMAT = TraceFormat(
    name="fiu",
    description="FIU: ns pid process lba blocks R/W major minor md5, 512-byte blocks",
    extensions=(".blkparse",),
    sniff=lambda head: 0.95 * head.share_of_lines(_LINE.fullmatch),
    read=line_reader(LAYOUT),
)
