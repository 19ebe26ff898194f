"""A batch of made-up requests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from traces import Batch

Request = tuple[int, int, int, int, int]
"""Time in ns, operation, offset and length in bytes, volume."""


def batch_of(rows: Sequence[Request]) -> Batch:
    """`rows` as columns."""
    columns = list(zip(*rows, strict=True)) if rows else [()] * 5
    kinds = (np.int64, np.uint8, np.uint64, np.uint64, np.int32)
    return Batch(*(np.array(column, kind) for column, kind in zip(columns, kinds, strict=True)))
