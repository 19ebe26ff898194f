"""fio I/O logs, versions 2 and 3.

Version 3: ``us file action offset length``. Version 2 has no times but ``file wait us`` lines, each relative
to the one before. Source: fio's HOWTO, "Trace file format".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from traces.batch import Batch, Op
from traces.formats.format import Head, ReadOptions, TraceFormat
from traces.formats.lines import (
    Labels,
    join_columns,
    plain_name,
    refuse_ops,
    refuse_same,
    require_forward_time,
)
from traces.formats.screen import Screen, Units
from traces.formats.text import Column, Layout, TextDecoder, words

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

    from traces.compression import Source

_BOOKKEEPING = "file add, open or close"
_WAIT = "wait"
_ACTIONS: dict[str, Op | str] = {
    "read": Op.READ,
    "write": Op.WRITE,
    "trim": Op.TRIM,
    "sync": Op.FLUSH,
    "datasync": Op.FLUSH,
    "sync_file_range": Op.FLUSH,
    "syncfs": Op.FLUSH,
    "add": _BOOKKEEPING,
    "open": _BOOKKEEPING,
    "close": _BOOKKEEPING,
}

V3 = Layout(
    separator=" ",
    time=Column("timestamp", 0),
    volume=(Column("file", 1),),
    op=Column("action", 2),
    op_word=words(_ACTIONS),
    offset=Column("offset", 3),
    length=Column("length", 4),
    units=Units(time_ns=1000, time_name="timestamp", length_name="length"),
    flush_without_extent=True,
)
V2 = replace(
    V3,
    time=None,
    volume=(Column("file", 0),),
    op=Column("action", 1),
    op_word=words({**_ACTIONS, "wait": _WAIT}),
    offset=Column("offset", 2),
    length=Column("length", 3),
)

_HEADER = re.compile(r"fio version (\d+) iolog")


class _WaitingDecoder(TextDecoder):
    """Version 2: the time is the sum of the waits so far."""

    _now_us = 0

    def times(
        self, frame: pl.DataFrame, kept: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Microseconds waited before each line."""
        del kept
        is_wait = (frame.get_column("f1").fill_null("") == "wait").to_numpy()
        # A century is beyond any wait; without the bound hostile sums would wrap.
        waits = np.where(is_wait, frame.get_column("f2").fill_null(0).clip(0, 10**14).to_numpy(), 0)
        times = np.minimum(self._now_us + np.cumsum(waits.astype(np.float64)), 2.0**61).astype(np.int64)
        self._now_us = int(times[-1]) if len(times) else self._now_us
        return times, np.zeros(len(times), bool)


def _version(first_line: str) -> int | None:
    match = _HEADER.fullmatch(first_line.strip())
    return int(match[1]) if match else None


def _sniff(head: Head) -> float:
    return 1.0 if head.lines and _version(head.lines[0]) is not None else 0.0


def _read(source: Source, screen: Screen, options: ReadOptions) -> Iterator[Batch]:
    del options
    first, _, _ = source.peek(4096).removeprefix(b"\xef\xbb\xbf").partition(b"\n")
    version = _version(first.decode("utf-8", "replace"))
    if version is None:
        screen.fail("the first line is not 'fio version 3 iolog'", hint="name the right format with --format")
    if version not in (2, 3):
        screen.fail(f"iolog version {version} is unknown", hint="write it with fio's versions 2 or 3")
    decoder = TextDecoder(V3, screen, 1) if version == 3 else _WaitingDecoder(V2, screen, 1)
    return decoder.batches(source)


class IologWriter:
    """Writes version 3, times rounded down to the microsecond; a volume becomes a file of its name."""

    def __init__(self) -> None:
        self._open: list[str] = []
        self._last_us = 0

    def header(self) -> bytes:
        """The version line."""
        return b"fio version 3 iolog\n"

    def encode(self, batch: Batch, volumes: Sequence[str]) -> bytes:
        """Lines of requests, after those that add and open the files they use for the first time."""
        refuse_ops(batch, {Op.READ, Op.WRITE, Op.TRIM, Op.FLUSH}, "iolog")
        require_forward_time(batch, "iolog")
        names = [plain_name(name) for name in volumes]
        refuse_same(volumes, names, "iolog")
        time_us = batch.time_ns // 1000
        opened = ""
        for name in names[len(self._open) :]:
            at = int(time_us[0]) if len(batch) else 0
            opened += f"{at} {name} add\n{at} {name} open\n"
            self._open.append(name)
        if len(batch):
            self._last_us = int(time_us[-1])
        actions = Labels(("read", "write", "trim", "", "sync"), batch.op)
        files = Labels(names, batch.volume)
        lines = join_columns(" ", time_us, files, actions, batch.offset_bytes, batch.length_bytes)
        return opened.encode() + lines

    def footer(self) -> bytes:
        """The lines that close the files."""
        return "".join(f"{self._last_us} {name} close\n" for name in self._open).encode()


FORMAT = TraceFormat(
    name="iolog",
    description="fio iolog versions 2 and 3",
    extensions=(".iolog", ".log"),
    sniff=_sniff,
    read=_read,
    write=IologWriter,
)
