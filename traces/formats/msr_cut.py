"""The Heimdall cuts of MSR Cambridge: ``t_ms dev offset_B size_B rw`` with rw 1 for a read.

DiskSim's ascii format has the same shape, in 512-byte blocks; what tells them apart is that bytes come in
multiples of 512.
"""

from __future__ import annotations

import re

from traces.batch import Op
from traces.formats.format import Head, TraceFormat
from traces.formats.screen import Units
from traces.formats.text import Column, Layout, line_reader, words

LAYOUT = Layout(
    separator=" ",
    fields=5,
    time=Column("time", 0),
    time_decimals=6,
    volume=(Column("device", 1),),
    offset=Column("offset", 2),
    length=Column("size", 3),
    op=Column("rw", 4),
    op_word=words({"1": Op.READ, "0": Op.WRITE}),
    units=Units(time_ns=1),
)

_LINE = re.compile(r"\d+(\.\d*)?\s+\d+\s+(\d+)\s+(\d+)\s+[01]")


def in_bytes(head: Head) -> bool:
    """Offsets and sizes of the first lines are all multiples of 512: bytes, not blocks."""
    matches = [_LINE.fullmatch(line) for line in head.lines]
    return all(int(match[3]) % 512 == 0 and int(match[2]) % 512 == 0 for match in matches if match)


def _sniff(head: Head) -> float:
    share = head.share_of_lines(_LINE.fullmatch)
    return share * (0.85 if in_bytes(head) else 0.2)


FORMAT = TraceFormat(
    name="msr-cut",
    description="Heimdall's cut of MSR: ms device offset size rw(1=read), in bytes",
    extensions=(".trace",),
    sniff=_sniff,
    read=line_reader(LAYOUT),
)
