"""Our own format, what `trace convert` writes: exact, complete and easy to read with anything.

Line 1 is ``#slo-ctl-trace 1`` (the version), line 2 names the columns
``time_ns,op,offset_bytes,length_bytes,volume``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from traces.batch import Batch, Op
from traces.formats.format import Head, ReadOptions, TraceFormat
from traces.formats.lines import Labels, join_columns, plain_name, refuse_same
from traces.formats.screen import Place, Screen, Units
from traces.formats.text import Column, Layout, TextDecoder, words

if TYPE_CHECKING:
    from traces.compression import Source

VERSION = 1
_COLUMNS = "time_ns,op,offset_bytes,length_bytes,volume"
_OP_NAMES = {
    "read": Op.READ,
    "write": Op.WRITE,
    "trim": Op.TRIM,
    "write-zeroes": Op.WRITE_ZEROES,
    "flush": Op.FLUSH,
}
_FIRST = re.compile(r"#slo-ctl-trace (\d+)")

LAYOUT = Layout(
    separator=",",
    fields=5,
    time=Column("time_ns", 0),
    op=Column("op", 1),
    op_word=words(dict(_OP_NAMES)),
    offset=Column("offset_bytes", 2),
    length=Column("length_bytes", 3),
    volume=(Column("volume", 4),),
    units=Units(
        time_ns=1,
        time_name="time_ns",
        offset_name="offset_bytes",
        length_name="length_bytes",
        signed_time=True,
    ),
)


class CanonicalWriter:
    """Writes every operation and time exactly; names of volumes lose commas and blanks."""

    def header(self) -> bytes:
        """The version and the columns."""
        return f"#slo-ctl-trace {VERSION}\n{_COLUMNS}\n".encode()

    def encode(self, batch: Batch, volumes: Sequence[str]) -> bytes:
        """One line a request."""
        names = [plain_name(name) for name in volumes]
        refuse_same(volumes, names, "slo-ctl")
        return join_columns(
            ",",
            batch.time_ns,
            Labels(tuple(_OP_NAMES), batch.op),
            batch.offset_bytes,
            batch.length_bytes,
            Labels(names, batch.volume),
        )

    def footer(self) -> bytes:
        return b""


def _sniff(head: Head) -> float:
    return 1.0 if head.lines and (_FIRST.fullmatch(head.lines[0]) or head.lines[0] == _COLUMNS) else 0.0


def _read(source: Source, screen: Screen, options: ReadOptions) -> Iterator[Batch]:
    del options
    lines = source.peek(4096).removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace").splitlines()
    match = _FIRST.fullmatch(lines[0].strip()) if lines else None
    if not match:
        screen.fail(
            f"the first line is not '#slo-ctl-trace {VERSION}'",
            Place(1),
            hint="add it before the line with the columns, or name another format with --format",
        )
    if int(match[1]) != VERSION:
        screen.fail(f"version {match[1]} is unknown", Place(1), hint=f"this slo-ctl reads version {VERSION}")
    if len(lines) < 2 or lines[1].strip() != _COLUMNS:
        screen.fail(f"the columns are not {_COLUMNS}", Place(2), hint="convert the trace again")
    return TextDecoder(LAYOUT, screen, 2).batches(source)


FORMAT = TraceFormat(
    name="slo-ctl",
    description="slo-ctl's own CSV: time_ns,op,offset_bytes,length_bytes,volume",
    extensions=(".csv", ".trace.csv"),
    sniff=_sniff,
    read=_read,
    write=CanonicalWriter,
)
