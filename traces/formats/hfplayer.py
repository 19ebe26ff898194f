"""hfplayer's CSV, whose header gives every column a name and a type: ``#NAME.TYPE,...``.

Used are ELAPSED_USECS (time), CMD, LBA and NBLKS (512-byte blocks) and, for the volume, LUN_SSID.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from traces.batch import Op
from traces.formats.format import Head, ReadOptions, TraceFormat
from traces.formats.screen import Screen, Units
from traces.formats.text import Column, Layout, TextDecoder, words

if TYPE_CHECKING:
    from traces.batch import Batch
    from traces.compression import Source

BLOCK_BYTES = 512
_HEADER = re.compile(r"#\s*\w+\.[A-Z](\s*,\s*\w+\.[A-Z])+")
_NEEDED = ("ELAPSED_USECS", "CMD", "LBA", "NBLKS")
_COMMANDS: dict[str, Op | str] = {
    **dict.fromkeys(("RD_IN", "RD", "READ"), Op.READ),
    **dict.fromkeys(("WR_IN", "WR", "WRITE"), Op.WRITE),
}


def layout(header: str, screen: Screen) -> Layout:
    """The layout that a header line describes."""
    names = [name.strip().rpartition(".")[0] for name in header.strip().lstrip("#").split(",")]
    lacking = [name for name in _NEEDED if name not in names]
    if lacking:
        screen.fail(
            f"the header has no column {lacking[0]}",
            hint="a header like #ELAPSED_USECS.D,CMD.S,LBA.I,NBLKS.I",
        )
    return Layout(
        separator=",",
        time=Column("ELAPSED_USECS", names.index("ELAPSED_USECS")),
        time_decimals=3,
        op=Column("CMD", names.index("CMD")),
        op_word=words(_COMMANDS, "command other than read or write"),
        offset=Column("LBA", names.index("LBA")),
        length=Column("NBLKS", names.index("NBLKS")),
        volume=(Column("LUN_SSID", names.index("LUN_SSID")),) if "LUN_SSID" in names else (),
        units=Units(
            time_ns=1,
            offset_bytes=BLOCK_BYTES,
            length_bytes=BLOCK_BYTES,
            time_name="ELAPSED_USECS",
            offset_name="LBA",
            length_name="NBLKS",
        ),
    )


def _sniff(head: Head) -> float:
    return 0.95 if head.lines and _HEADER.fullmatch(head.lines[0]) else 0.0


def _read(source: Source, screen: Screen, options: ReadOptions) -> Iterator[Batch]:
    del options
    first, _, _ = source.peek(1 << 16).removeprefix(b"\xef\xbb\xbf").partition(b"\n")
    header = first.decode("utf-8", "replace")
    if not _HEADER.fullmatch(header.strip()):
        screen.fail(
            "the first line is not a #NAME.TYPE,... header", hint="name the right format with --format"
        )
    return TextDecoder(layout(header, screen), screen, 1).batches(source)


FORMAT = TraceFormat(
    name="hfplayer",
    description="hfplayer CSV with a typed header (#ELAPSED_USECS.D,...)",
    extensions=(".csv",),
    sniff=_sniff,
    read=_read,
)
