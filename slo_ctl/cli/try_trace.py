"""A trace as a log that fio replays, for the clients of `slo-ctl try`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from slo_ctl.base.errors import UserError
from traces.batch import PAGE_BYTES, Op
from traces.errors import TraceError
from traces.reader import open_trace
from traces.remap import Align, Compact, Modulo, apply

if TYPE_CHECKING:
    from traces.batch import Batch

_MIN_REQUESTS = 200_000
"""A shorter trace is repeated in the log: fio needs a moment to start again after its end."""
_MAX_REQUESTS = 1_000_000
"""Of a longer trace only the first are used: fio reads the whole log into memory."""
_MAX_REQUEST_BYTES = 1 << 20
"""Longer requests are cut: fio has a buffer of the longest for each outstanding request."""
_FILE = "nbd"
_ACTIONS = {Op.READ: "read", Op.WRITE: "write", Op.TRIM: "trim", Op.WRITE_ZEROES: "write"}


def write_fio_log(trace: Path, log: Path, size_bytes: int) -> int:
    """Write the first requests of a trace for a disk of this size: how many they are. Raises UserError.

    Its pages are numbered densely, and wrapped around the end of the disk. Flushes are left out.
    """
    try:
        reader = open_trace(trace)
        batches = apply(reader, Align(), Compact(reader), Modulo(size_bytes))
        lines = list(islice((line for batch in batches for line in _lines(batch)), _MAX_REQUESTS))
    except TraceError as error:
        raise UserError(error.message, "`slo-ctl trace info` must be able to read it") from None
    if not lines:
        raise UserError(f"{trace} has no requests", "name a trace with reads or writes")
    with log.open("w") as file:
        file.write(f"fio version 2 iolog\n{_FILE} add\n{_FILE} open\n")
        for _ in range(-(-_MIN_REQUESTS // len(lines))):
            file.writelines(lines)
        file.write(f"{_FILE} close\n")
    return len(lines)


def _lines(batch: Batch) -> Iterator[str]:
    lengths = np.minimum(batch.length_bytes, _MAX_REQUEST_BYTES)
    for op, offset, length in zip(
        batch.op.tolist(), batch.offset_bytes.tolist(), lengths.tolist(), strict=True
    ):
        if op in _ACTIONS and length >= PAGE_BYTES:
            yield f"{_FILE} {_ACTIONS[Op(op)]} {offset} {length}\n"
