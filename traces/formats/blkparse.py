"""blkparse's default text: ``dev cpu sequence s pid action rwbs sector + sectors [process]``.

One action stands for a request, Q (queued) unless D (issued to the driver) or C (completed) is asked for or
is all there is, never two: the same request shows up under each. Source: blkparse(1).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from traces.batch import Op
from traces.formats.blktrace import PACKET
from traces.formats.format import ReadOptions, TraceFormat
from traces.formats.screen import Screen, Units
from traces.formats.text import Column, Layout, TextDecoder, words

if TYPE_CHECKING:
    from traces.batch import Batch
    from traces.compression import Source

SECTOR_BYTES = 512


def rwbs_word(word: str) -> Op | str | None:
    """The operation of blkparse's RWBS letters."""
    if not word or not re.fullmatch("[A-Z]+", word):
        return None
    if "D" in word or "E" in word:
        return Op.TRIM
    if "W" in word:
        return Op.WRITE_ZEROES if "Z" in word else Op.WRITE
    if "R" in word:
        return Op.READ
    return Op.FLUSH if "F" in word else "request without data"


def layout(action: str) -> Layout:
    """Lines whose action is `action`."""
    return Layout(
        separator=" ",
        gates=(
            (Column("action", 5), words({action: Op.READ}, f"event other than {action}")),
            (Column("+", 8), lambda word: PACKET if word.startswith("(") else Op.READ),
        ),
        volume=(Column("device", 0),),
        time=Column("time", 3),
        time_decimals=9,
        op=Column("RWBS", 6),
        op_word=rwbs_word,
        offset=Column("sector", 7),
        length=Column("sectors", 9),
        units=Units(
            time_ns=1,
            offset_bytes=SECTOR_BYTES,
            length_bytes=SECTOR_BYTES,
            offset_name="sector",
            length_name="sectors",
        ),
        flush_without_extent=True,
        empty_write_is_flush=True,
    )


_LINE = re.compile(r"\d+,\d+\s+\d+\s+\d+\s+\d+\.\d+\s+\d+\s+[A-Za-z]+\s+.*")


def _read(source: Source, screen: Screen, options: ReadOptions) -> Iterator[Batch]:
    return TextDecoder(layout(options.action), screen).batches(source)


FORMAT = TraceFormat(
    name="blkparse",
    description="blkparse's text output, one action of it (Q)",
    extensions=(".txt", ".blkparse"),
    sniff=lambda head: 0.95 * head.share_of_lines(_LINE.fullmatch),
    read=_read,
)
