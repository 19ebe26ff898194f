"""Synthetic workloads: endless streams of batches, made from a seed.

Requests are made in blocks of a fixed size, so a workload is the same whatever batches it is read in. Their
times are those of a steady arrival rate (`iops`); a closed-loop replay does not look at them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from traces.batch import MAX_END_BYTES, PAGE_BYTES, Batch
from traces.workload_kinds import WORKLOADS, WorkloadKind

if TYPE_CHECKING:
    from traces.parameters import Value

BLOCK_REQUESTS = 1 << 16
DEFAULT_BATCH_RECORDS = 1 << 16


@dataclass(frozen=True)
class Workload:
    """A synthetic workload, iterable as often as wanted, with the same requests every time.

    Endless unless the parameters `requests` or `total` end it.
    """

    kind: WorkloadKind
    parameters: Mapping[str, Value]
    span_bytes: int
    """Requests stay within 0 .. span_bytes-1."""
    seed: int = 0
    batch_records: int = DEFAULT_BATCH_RECORDS

    def __iter__(self) -> Iterator[Batch]:
        """Batches of `batch_records` requests, the last one shorter where there is an end."""
        waiting: list[Batch] = []
        held = 0
        for block in self._blocks():
            waiting.append(block)
            held += len(block)
            if held < self.batch_records:
                continue
            ready = Batch.concat(waiting)
            whole = held // self.batch_records * self.batch_records
            for start in range(0, whole, self.batch_records):
                yield ready.slice(start, start + self.batch_records)
            waiting, held = [ready.slice(whole, held)], held - whole
        if held:
            yield Batch.concat(waiting)

    def _blocks(self) -> Iterator[Batch]:
        rng = np.random.default_rng(self.seed)
        make = self.kind.make(self.parameters, self.span_bytes)
        requests, total = int(self.parameters["requests"]), int(self.parameters["total"])
        gap_ns = 1e9 / float(self.parameters["iops"])
        made, made_bytes = 0, 0
        while not requests or made < requests:
            op, offset, length = make(rng, BLOCK_REQUESTS)
            count = min(BLOCK_REQUESTS, requests - made) if requests else BLOCK_REQUESTS
            ended = False
            if total:
                reached = made_bytes + np.cumsum(length)
                count = min(count, int(np.searchsorted(reached, total)) + 1)
                made_bytes = int(reached[-1])
                ended = made_bytes >= total
            yield Batch(
                ((made + np.arange(count)) * gap_ns).astype(np.int64),
                op[:count],
                offset[:count].astype(np.uint64),
                length[:count].astype(np.uint64),
                np.zeros(count, np.int32),
            )
            made += count
            if ended:
                return


def workload(
    name: str,
    *,
    span_bytes: int,
    seed: int = 0,
    batch_records: int = DEFAULT_BATCH_RECORDS,
    parameters: Mapping[str, object] | None = None,
) -> Workload:
    """The workload `name` over `span_bytes`, with `parameters` as numbers or strings.

    Raises ValueError, one line naming the parameter, for anything unknown, not a number or out of range.
    """
    kind = WORKLOADS.get(name)
    if kind is None:
        raise ValueError(f"workload '{name}' is unknown; known are {', '.join(WORKLOADS)}")
    if not PAGE_BYTES <= span_bytes < MAX_END_BYTES:
        raise ValueError(f"span_bytes is {span_bytes}, not in {PAGE_BYTES} .. 2^63-1")
    if seed < 0:
        raise ValueError(f"seed is {seed}, negative")
    if batch_records < 1:
        raise ValueError(f"batch_records is {batch_records}, not positive")
    parsed = kind.parse(parameters or {})
    span_bytes = span_bytes // PAGE_BYTES * PAGE_BYTES
    kind.make(
        parsed, span_bytes
    )  # What only shows there (sizes, mixes) is refused now, not at the first batch.
    return Workload(kind, parsed, span_bytes, seed, batch_records)
