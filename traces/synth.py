"""Synthetic workloads: their kinds, and endless streams of batches generated from a seed.

Requests are generated in blocks of a fixed size, so a workload is independent of the batch size. Their times
have a constant arrival rate (`iops`); a closed-loop replay ignores them.

`financial`, `msn` and `exchange` are synthetic too. They match the rows of table 1 in "Towards SLO Complying
SSDs Through OPS Isolation" (FAST '15) in write ratio and average write size, and its figure 3 in that each
accesses distinct bands of its space; the traces behind that table are not redistributed, and values that the
paper does not state (sizes of reads, widths and skew of the bands) are our choice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from traces.batch import MAX_END_BYTES, PAGE_BYTES, Batch
from traces.parameters import Parameter, Value, weighted
from traces.request_makers import (
    Band,
    Maker,
    Offsets,
    Sizes,
    banded,
    mixed,
    requests,
    sequential,
    uniform,
    zipf,
)


@dataclass(frozen=True, slots=True)
class Fast15Row:
    """A row of table 1 of the FAST '15 paper."""

    name: str
    total_bytes: int
    write_ratio: float
    average_write_bytes: int


FAST15: dict[str, Fast15Row] = {
    "financial": Fast15Row("Financial", 7_100_000_000, 0.76, 14 * 1024),
    "msn": Fast15Row("MSN", 14_600_000_000, 0.96, 27 * 1024),
    "exchange": Fast15Row("Exchange", 9_800_000_000, 0.67, 17 * 1024),
}
"""The paper's Financial, MSN and Exchange."""


_BANDS = {
    "financial": (
        Band(0.02, 0.04, 35, 2.0),
        Band(0.20, 0.06, 30, 1.5),
        Band(0.45, 0.10, 20, 1.2),
        Band(0.70, 0.15, 15),
    ),
    "msn": (Band(0.05, 0.10, 30, 1.5), Band(0.30, 0.15, 30), Band(0.60, 0.30, 40)),
    "exchange": (Band(0.00, 0.08, 25, 1.5), Band(0.15, 0.20, 25), Band(0.40, 0.20, 25), Band(0.65, 0.30, 25)),
}
# The means are the paper's: 14, 27 and 17 KiB.
_WRITE_SIZES = {
    "financial": "4KiB:36+8KiB:25+16KiB:22+32KiB:12+64KiB:5",
    "msn": "4KiB:182+8KiB:180+16KiB:200+32KiB:200+64KiB:238",
    "exchange": "4KiB:50+8KiB:450+16KiB:275+32KiB:175+64KiB:50",
}
_READ_SIZES = {"financial": "4KiB:3+8KiB:1", "msn": "8KiB:1+64KiB:1", "exchange": "8KiB:3+32KiB:1"}


@dataclass(frozen=True, slots=True)
class WorkloadKind:
    """One row of the table of workloads."""

    name: str
    description: str
    parameters: tuple[Parameter, ...]
    make: Callable[[Mapping[str, Value], int], Maker]
    """Called with parsed parameters and the span in bytes, for every pass."""

    def parse(self, given: Mapping[str, object]) -> dict[str, Value]:
        """All parameters, with defaults. Raises ValueError for a wrong name or value."""
        known = {parameter.name: parameter for parameter in self.parameters}
        for name in given:
            if name not in known:
                raise ValueError(f"{self.name} has no parameter '{name}'; it has {', '.join(known)}")
        return {
            name: parameter.parse(given.get(name, parameter.default)) for name, parameter in known.items()
        }


def _common(bs: str = "4KiB", read: float = 0.0, read_bs: str = "") -> tuple[Parameter, ...]:
    return (
        Parameter("read", "float", read, "share of reads among the requests", 0, 1),
        Parameter("bs", "sizes", bs, "request size, or sizes with weights (4KiB:3+64KiB:1)"),
        Parameter("read_bs", "sizes", read_bs, "sizes of reads, where other than `bs`"),
        Parameter("iops", "float", 10_000.0, "arrivals per second, for the times of requests", 1e-6, 1e9),
        Parameter("requests", "int", 0, "end after so many requests; 0: never", 0, 2**62),
        Parameter("total", "bytes", 0, "end when so many bytes are requested; 0: never", 0, 2**62),
    )


def _sizes(given: Mapping[str, Value], name: str = "bs") -> Sizes:
    try:
        return Sizes.parse(str(given[name]))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _with_requests(offsets: Offsets, given: Mapping[str, Value], span_bytes: int) -> Maker:
    write_sizes = _sizes(given)
    read_sizes = _sizes(given, "read_bs") if given["read_bs"] else write_sizes
    return requests(offsets, float(given["read"]), write_sizes, read_sizes, span_bytes)


def _make_uniform(given: Mapping[str, Value], span_bytes: int) -> Maker:
    return _with_requests(uniform(span_bytes // PAGE_BYTES), given, span_bytes)


def _make_zipf(given: Mapping[str, Value], span_bytes: int) -> Maker:
    return _with_requests(zipf(span_bytes // PAGE_BYTES, float(given["theta"])), given, span_bytes)


def _make_hotcold(given: Mapping[str, Value], span_bytes: int) -> Maker:
    r, f = float(given["r"]), float(given["f"])
    bands = (Band(0.0, f, r), Band(f, 1.0 - f, 1.0 - r))
    return _with_requests(banded(span_bytes // PAGE_BYTES, bands), given, span_bytes)


def _make_sequential(given: Mapping[str, Value], span_bytes: int) -> Maker:
    sizes = _sizes(given).bytes_
    single = int(sizes[0]) if len(sizes) == 1 and not given["read_bs"] else None
    return _with_requests(sequential(span_bytes, single), given, span_bytes)


def _make_mixed(given: Mapping[str, Value], span_bytes: int) -> Maker:
    parts: list[tuple[Maker, float]] = []
    try:
        names = weighted(str(given["mix"]), "workloads")
    except ValueError as error:
        raise ValueError(f"mix: {error}") from None
    for name, weight in names:
        kind = WORKLOADS.get(name)
        if kind is None or kind.name == "mixed":
            raise ValueError(f"mix: no workload '{name}' to mix")
        # Financial, MSN and Exchange keep their own sizes and shares, which define them.
        own = set() if name in FAST15 else {parameter.name for parameter in kind.parameters}
        parts.append(
            (kind.make(kind.parse({k: v for k, v in given.items() if k in own}), span_bytes), weight)
        )
    return mixed(parts)


def _make_banded(name: str) -> Callable[[Mapping[str, Value], int], Maker]:
    return lambda given, span: _with_requests(banded(span // PAGE_BYTES, _BANDS[name]), given, span)


def _fast15(name: str) -> WorkloadKind:
    row = FAST15[name]
    share = f"{row.write_ratio:.2f}".lstrip("0")
    return WorkloadKind(
        name,
        f"synthetic, after {row.name} of the FAST '15 paper: writes {share} of the "
        f"requests, {row.average_write_bytes // 1024} KiB each on average, in distinct bands of the space",
        _common(_WRITE_SIZES[name], round(1 - row.write_ratio, 2), _READ_SIZES[name]),
        _make_banded(name),
    )


_THETA = Parameter("theta", "float", 0.99, "skew: 0 is uniform, 1 the classic law", 0, 100)
_HOT_SHARE = Parameter("r", "float", 0.8, "share of the requests that go to the hot pages", 0, 1)
_HOT_PAGES = Parameter("f", "float", 0.2, "share of the pages that are hot (the first ones)", 1e-9, 1 - 1e-9)

WORKLOADS: dict[str, WorkloadKind] = {
    kind.name: kind
    for kind in (
        WorkloadKind("uniform", "every page alike", _common(), _make_uniform),
        WorkloadKind(
            "zipf", "page popularity k^-theta, popular pages scattered", (_THETA, *_common()), _make_zipf
        ),
        WorkloadKind(
            "hotcold",
            "share r of requests to share f of the pages",
            (_HOT_SHARE, _HOT_PAGES, *_common()),
            _make_hotcold,
        ),
        WorkloadKind(
            "sequential", "one request after the other, round and round", _common(), _make_sequential
        ),
        WorkloadKind(
            "mixed",
            "several of the others by weight",
            (
                Parameter("mix", "mix", "hotcold:3+sequential:1", "workloads and weights"),
                _THETA,
                _HOT_SHARE,
                _HOT_PAGES,
                *_common(),
            ),
            _make_mixed,
        ),
        _fast15("financial"),
        _fast15("msn"),
        _fast15("exchange"),
    )
}
"""Every workload by name."""


# Streams of requests.

BLOCK_REQUESTS = 1 << 16
DEFAULT_BATCH_RECORDS = 1 << 16


@dataclass(frozen=True)
class Workload:
    """A synthetic workload, which can be iterated repeatedly, with the same requests every time.

    Endless unless the parameters `requests` or `total` end it.
    """

    kind: WorkloadKind
    parameters: Mapping[str, Value]
    span_bytes: int
    """Requests stay within 0 .. span_bytes-1."""
    seed: int = 0
    batch_records: int = DEFAULT_BATCH_RECORDS

    def __iter__(self) -> Iterator[Batch]:
        """Batches of `batch_records` requests; the last one may be shorter if the workload ends."""
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

    Raises ValueError, one line that names the parameter, for an unknown, non-numeric or out-of-range value.
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
    )  # errors that are detected only there (sizes, mixes) are raised now, not at the first batch
    return Workload(kind, parsed, span_bytes, seed, batch_records)
