"""MSR Cambridge traces: ``filetime,host,disk,Read|Write,offset,size,response``, no header.

Times are Windows file times (100 ns ticks since 1601), offset and size in bytes, disk numbers repeat across
hosts. Source: SNIA IOTTA, MSR Cambridge readme.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from traces.batch import Batch, Op
from traces.formats.format import TraceFormat
from traces.formats.lines import Labels, join_columns, plain_name, refuse_ops, refuse_same
from traces.formats.screen import Units
from traces.formats.text import Column, Layout, line_reader, words

TICK_NS = 100
# Any origin will do for times that have none; this is the start of the week the MSR traces were taken in.
_ORIGIN_TICKS = 128_166_372_000_000_000

LAYOUT = Layout(
    separator=",",
    fields=7,
    time=Column("timestamp", 0),
    volume=(Column("host", 1), Column("disk", 2)),
    op=Column("type", 3),
    op_word=words(
        {
            "Read": Op.READ,
            "read": Op.READ,
            "READ": Op.READ,
            "Write": Op.WRITE,
            "write": Op.WRITE,
            "WRITE": Op.WRITE,
        }
    ),
    offset=Column("offset", 4),
    length=Column("size", 5),
    response=Column("response", 6),
    response_unit_ns=TICK_NS,
    units=Units(time_ns=TICK_NS, time_name="timestamp"),
)

_LINE = re.compile(r"\d{16,19},[^,]*,\d+,(?i:read|write),\d+,\d+(,.*)?")


class MsrWriter:
    """Writes times to the tick (100 ns, rounded down) and a response time of 0."""

    def header(self) -> bytes:
        """Nothing: the format has no header."""
        return b""

    def encode(self, batch: Batch, volumes: Sequence[str]) -> bytes:
        """Lines of reads and writes; a volume named host.number becomes that host and disk."""
        refuse_ops(batch, {Op.READ, Op.WRITE}, "msr")
        names = [_host_and_disk(name, index) for index, name in enumerate(volumes)]
        refuse_same(volumes, names, "msr")
        return join_columns(
            ",",
            _ORIGIN_TICKS + batch.time_ns // TICK_NS,
            Labels([host for host, _ in names], batch.volume),
            Labels([disk for _, disk in names], batch.volume),
            Labels(("Read", "Write"), batch.op),
            batch.offset_bytes,
            batch.length_bytes,
            np.zeros(len(batch), np.int64),
        )

    def footer(self) -> bytes:
        return b""


def _host_and_disk(name: str, index: int) -> tuple[str, str]:
    host, _, disk = name.rpartition(".")
    return (plain_name(host), disk) if host and disk.isdecimal() else (plain_name(name), str(index))


FORMAT = TraceFormat(
    name="msr",
    description="MSR Cambridge: filetime,host,disk,Read/Write,offset,size,response",
    extensions=(".csv",),
    sniff=lambda head: 0.95 * head.share_of_lines(_LINE.fullmatch),
    read=line_reader(LAYOUT),
    write=MsrWriter,
    has_responses=True,
)
