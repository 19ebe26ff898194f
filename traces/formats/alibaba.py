"""Alibaba Cloud block traces (2020): ``device,R|W,offset,length,us``, no header; bytes and microseconds."""

from __future__ import annotations

import re

from traces.batch import Op
from traces.formats.format import TraceFormat
from traces.formats.screen import Units
from traces.formats.text import Column, Layout, line_reader, words

LAYOUT = Layout(
    separator=",",
    fields=5,
    volume=(Column("device", 0),),
    op=Column("op", 1),
    op_word=words({"R": Op.READ, "r": Op.READ, "W": Op.WRITE, "w": Op.WRITE}),
    offset=Column("offset", 2),
    length=Column("length", 3),
    time=Column("timestamp", 4),
    units=Units(time_ns=1000, time_name="timestamp", length_name="length"),
)

_LINE = re.compile(r"\d+,\s*[RWrw],\s*\d+,\s*\d+,\s*\d+")

FORMAT = TraceFormat(
    name="alibaba",
    description="Alibaba Cloud: device,R/W,offset,length,us",
    extensions=(".csv",),
    sniff=lambda head: 0.95 * head.share_of_lines(_LINE.fullmatch),
    read=line_reader(LAYOUT),
)
