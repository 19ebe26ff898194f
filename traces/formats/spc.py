"""SPC (Storage Performance Council) traces, as UMass distributes Financial and WebSearch.

``ASU,LBA,size,op,time``: LBA in 512-byte blocks within its ASU, size in bytes, op r or w in any case, time in
seconds; further columns are optional. Source: SPC trace file format specification, revision 1.0.1.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from traces.batch import Batch, Op
from traces.formats.format import TraceFormat
from traces.formats.lines import Labels, Seconds, join_columns, refuse_ops, require_forward_time
from traces.formats.screen import Units
from traces.formats.text import Column, Layout, line_reader, words

SECTOR_BYTES = 512

LAYOUT = Layout(
    separator=",",
    fields=5,
    volume=(Column("ASU", 0),),
    offset=Column("LBA", 1),
    length=Column("size", 2),
    op=Column("op", 3),
    op_word=words({"r": Op.READ, "R": Op.READ, "w": Op.WRITE, "W": Op.WRITE}),
    time=Column("time", 4),
    time_decimals=9,
    units=Units(time_ns=1, offset_bytes=SECTOR_BYTES, offset_name="LBA"),
)

_LINE = re.compile(r"\d+,\s*\d+,\s*\d+,\s*[rRwW],\s*\d+(\.\d*)?(,.*)?")


class SpcWriter:
    """Writes volumes as ASU numbers and times to the nanosecond."""

    def header(self) -> bytes:
        """Nothing: the format has no header."""
        return b""

    def encode(self, batch: Batch, volumes: Sequence[str]) -> bytes:
        """Lines of reads and writes that start at whole 512-byte blocks."""
        del volumes
        refuse_ops(batch, {Op.READ, Op.WRITE}, "spc")
        require_forward_time(batch, "spc")
        if (batch.offset_bytes % np.uint64(SECTOR_BYTES)).any():
            raise ValueError(
                "spc: offsets must be multiples of 512 bytes; add --align 512 or write another format"
            )
        return join_columns(
            ",",
            batch.volume,
            batch.offset_bytes // np.uint64(SECTOR_BYTES),
            batch.length_bytes,
            Labels(("r", "w"), batch.op),
            Seconds(batch.time_ns),
        )

    def footer(self) -> bytes:
        return b""


FORMAT = TraceFormat(
    name="spc",
    description="SPC: ASU,LBA,size,r/w,seconds (UMass Financial, WebSearch)",
    extensions=(".spc",),
    sniff=lambda head: 0.95 * head.share_of_lines(_LINE.fullmatch),
    read=line_reader(LAYOUT),
    write=SpcWriter,
)
