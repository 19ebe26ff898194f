"""Tencent CBS traces (2018): ``s,offset,size,op,volume``; 512-byte sectors, op 0 reads and 1 writes.

The clock ticks once a second. The n requests of a second are spread over it evenly, the k-th at k/n of it, so
the same file gives the same times however it is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from traces.batch import Batch, Op
from traces.formats.format import ReadOptions, TraceFormat
from traces.formats.screen import Screen, Units
from traces.formats.text import Column, Layout, TextDecoder, words

if TYPE_CHECKING:
    from traces.compression import Source

SECTOR_BYTES = 512
SECOND_NS = 1_000_000_000
# Requests of one second wait in memory until the next second begins; beyond this many they wait no longer.
_MAX_HELD = 1 << 22

LAYOUT = Layout(
    separator=",",
    fields=5,
    time=Column("timestamp", 0),
    offset=Column("offset", 1),
    length=Column("size", 2),
    op=Column("io_type", 3),
    op_word=words({"0": Op.READ, "1": Op.WRITE}),
    volume=(Column("volume", 4),),
    units=Units(
        time_ns=SECOND_NS, offset_bytes=SECTOR_BYTES, length_bytes=SECTOR_BYTES, time_name="timestamp"
    ),
)

_LINE = re.compile(r"\d{1,12},\s*\d+,\s*\d+,\s*[01],\s*\d+")


def spread_within_seconds(batches: Iterable[Batch], max_held: int = _MAX_HELD) -> Iterator[Batch]:
    """Spread runs of requests with the same second evenly over it.

    A run longer than `max_held` (4 Mi) is spread as far as it was held; what follows stands at its last
    moment.
    """
    held: list[Batch] = []
    overfull: int | None = None
    for batch in batches:
        if overfull is not None:
            run = (
                int(np.argmax(batch.time_ns != overfull)) if (batch.time_ns != overfull).any() else len(batch)
            )
            if run:
                yield batch.slice(0, run).at(np.full(run, overfull + SECOND_NS - 1, np.int64))
            batch = batch.slice(run, len(batch))
            if not len(batch):
                continue
            overfull = None
        last = batch.time_ns[-1]
        changes = np.flatnonzero(batch.time_ns != last)
        cut = int(changes[-1]) + 1 if len(changes) else 0
        if cut or (held and held[-1].time_ns[-1] != last):
            yield _spread(Batch.concat([*held, batch.slice(0, cut)]))
            held = []
        held.append(batch.slice(cut, len(batch)))
        if sum(map(len, held)) > max_held:
            yield _spread(Batch.concat(held))
            overfull, held = int(last), []
    if held:
        yield _spread(Batch.concat(held))


def _spread(batch: Batch) -> Batch:
    starts = np.flatnonzero(np.concatenate([[True], batch.time_ns[1:] != batch.time_ns[:-1]]))
    lengths = np.diff(np.append(starts, len(batch)))
    position = np.arange(len(batch)) - np.repeat(starts, lengths)
    return batch.at(batch.time_ns + position * SECOND_NS // np.repeat(lengths, lengths))


def _read(source: Source, screen: Screen, options: ReadOptions) -> Iterator[Batch]:
    del options
    return spread_within_seconds(TextDecoder(LAYOUT, screen).batches(source))


FORMAT = TraceFormat(
    name="tencent",
    description="Tencent CBS: s,offset,size,0=R/1=W,volume, in 512-byte sectors",
    extensions=(".csv",),
    sniff=lambda head: 0.9 * head.share_of_lines(_LINE.fullmatch),
    read=_read,
)
