"""SSDSim and MQSim traces: DiskSim's ascii line with whole nanoseconds, ``ns device block blocks flags``."""

from __future__ import annotations

import re
from dataclasses import replace

from traces.formats import disksim
from traces.formats.format import TraceFormat
from traces.formats.text import line_reader

LAYOUT = replace(disksim.LAYOUT, time_decimals=0)

_LINE = re.compile(r"\d+\s+\d+\s+\d+\s+\d+\s+[01]")

FORMAT = TraceFormat(
    name="ssdsim",
    description="SSDSim, MQSim: ns device block blocks flags(1=read), 512-byte blocks",
    extensions=(".ssdsim",),
    sniff=lambda head: 0.9 * head.share_of_lines(_LINE.fullmatch),
    read=line_reader(LAYOUT),
)
