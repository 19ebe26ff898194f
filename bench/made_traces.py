"""Traces written for a benchmark: requests at given pages, and a moving hot set."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lab.parts import PAGE_BYTES
from traces.batch import Batch, Op
from traces.writing import TraceWriter


def write_trace(path: Path, ops: Sequence[Op], pages: np.ndarray[Any, np.dtype[np.int64]]) -> None:
    """A trace of single-page requests at the given page numbers; `ops` is repeated."""
    count = len(pages)
    batch = Batch(
        time_ns=np.arange(count, dtype=np.int64) * 1000,
        op=np.resize(np.array([int(op) for op in ops], np.uint8), count),
        offset_bytes=(pages * PAGE_BYTES).astype(np.uint64),
        length_bytes=np.full(count, PAGE_BYTES, np.uint64),
        volume=np.zeros(count, np.int32),
    )
    with TraceWriter(path, overwrite=True) as writer:
        writer.write(batch, ["0"])


def moving_hot_set(path: Path, pages: int, moves: int = 10) -> None:
    """90 % of the writes go to a tenth of the pages, which moves after every half of the pages' writes."""
    rng = np.random.default_rng(1)
    steps = []
    for step in range(moves):
        hot = rng.integers(0, pages // 10, pages // 2) + step * pages // moves
        cold = rng.integers(0, pages, pages // 2)
        steps.append(np.where(rng.random(pages // 2) < 0.9, hot, cold) % pages)
    write_trace(path, [Op.WRITE], np.concatenate(steps).astype(np.int64))
