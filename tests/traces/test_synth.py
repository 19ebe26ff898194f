"""Synthetic workloads: distributions, determinism, parameters."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traces import Batch, Op
from traces.parameters import size_bytes
from traces.request_makers import Scatter, Zipf
from traces.summary import summarise
from traces.synth import FAST15, WORKLOADS, workload

GIB = 1 << 30
PAGE = 4096


def pages(name: str, span_pages: int, count: int = 400_000, **parameters: object) -> np.ndarray:
    made = workload(name, span_bytes=span_pages * PAGE, parameters={**parameters, "requests": count})
    return (Batch.concat(list(made)).offset_bytes // PAGE).astype(np.int64)


@pytest.mark.parametrize("name", WORKLOADS)
def test_same_seed_same_requests_whatever_the_batches(name: str) -> None:
    def made(seed: int, batch_records: int) -> Batch:
        endless = workload(name, span_bytes=GIB, seed=seed, batch_records=batch_records)
        some = itertools.islice(endless, -(-200_000 // batch_records))
        return Batch.concat(list(some)).slice(0, 200_000)

    one, other, another = made(7, 65_536), made(7, 1000), made(8, 65_536)
    for column in ("time_ns", "op", "offset_bytes", "length_bytes", "volume"):
        assert (getattr(one, column) == getattr(other, column)).all()
    assert name == "sequential" or (one.offset_bytes != another.offset_bytes).any()
    assert (np.diff(one.time_ns) >= 0).all()


@pytest.mark.parametrize("name", WORKLOADS)
@settings(max_examples=15)
@given(
    span=st.integers(PAGE, 1 << 22) | st.integers(PAGE, 2**62),
    bs=st.sampled_from(["512", "4k", "12KiB", "1MiB:1+512:3"]),
)
def test_requests_stay_within_the_span(name: str, span: int, bs: str) -> None:
    made = workload(name, span_bytes=span, parameters={"bs": bs, "requests": 1000, "read": 0.3})
    batch = Batch.concat(list(made))
    assert len(batch) == 1000
    assert (batch.end_bytes <= span).all()
    assert (batch.length_bytes > 0).all()


@pytest.mark.parametrize("name", FAST15)
def test_fast15_workloads_have_the_papers_parameters(name: str) -> None:
    row = FAST15[name]
    made = workload(name, span_bytes=8 * GIB, parameters={"total": row.total_bytes})
    summary = summarise(made)
    assert summary.read_bytes + summary.written_bytes == pytest.approx(row.total_bytes, rel=1e-4)
    assert summary.write_share == pytest.approx(row.write_ratio, abs=0.005)
    assert summary.average_write_bytes == pytest.approx(row.average_write_bytes, rel=0.01)
    assert "synthetic" in made.kind.description


@pytest.mark.parametrize("name", FAST15)
def test_fast15_workloads_touch_distinct_bands(name: str) -> None:
    touched = np.bincount(pages(name, 1_000_000, 200_000) // 10_000, minlength=100) > 0
    bands = int((np.diff(touched.astype(int), prepend=0) == 1).sum())
    assert bands >= 3
    assert not touched.all()


@pytest.mark.parametrize("theta", [0.0, 0.5, 0.99, 1.0, 1.3, 3.0])
def test_zipf_frequencies_follow_the_law(theta: float) -> None:
    n, draws = 1000, 400_000
    found = np.bincount(Zipf(n, theta).draw(np.random.default_rng(1), draws), minlength=n)
    expected = np.arange(1, n + 1) ** -theta
    expected *= draws / expected.sum()
    often = expected >= 5
    error = found[often] - expected[often]
    # Each count is binomial: within five standard deviations, and chi-square as expected for all of them.
    assert (np.abs(error) <= 5 * np.sqrt(expected[often]) + 1).all()
    chi_square = float((error**2 / expected[often]).sum())
    assert chi_square < often.sum() + 6 * np.sqrt(2 * often.sum())


@pytest.mark.parametrize(
    ("n", "theta"), [(1, 0.9), (1, 2.0), (2, 1.0), (1 << 33, 0.99), (1 << 40, 1.1), (10, 80.0)]
)
def test_zipf_works_at_its_limits(n: int, theta: float) -> None:
    ranks = Zipf(n, theta).draw(np.random.default_rng(1), 10_000)
    assert ((ranks >= 0) & (ranks < n)).all()
    assert ranks.min() == 0


@given(st.integers(1, 5000))
def test_scatter_is_a_permutation(n: int) -> None:
    scattered = Scatter(n)(np.arange(n))
    assert (np.sort(scattered) == np.arange(n)).all()


def test_scatter_puts_neighbours_apart() -> None:
    n = 1 << 33
    scattered = Scatter(n)(np.arange(100_000))
    assert (np.abs(np.diff(scattered)) > n // 10_000).mean() > 0.99
    assert abs(np.mean(scattered) / n - 0.5) < 0.02


def test_hotcold_requests_have_their_shares() -> None:
    found = pages("hotcold", 10_000, r=0.9, f=0.1)
    assert (found < 1000).mean() == pytest.approx(0.9, abs=0.005)
    for part in (found[found < 1000], found[found >= 1000]):
        counts = np.unique(part, return_counts=True)[1]
        assert counts.std() / counts.mean() < 1.5 / np.sqrt(counts.mean())


def test_uniform_touches_every_page() -> None:
    counts = np.bincount(pages("uniform", 1000), minlength=1000)
    assert counts.min() > 250


def test_sequential_wraps_around() -> None:
    assert pages("sequential", 10, 25).tolist() == [k % 10 for k in range(25)]
    made = workload("sequential", span_bytes=10 * PAGE, parameters={"bs": "12KiB", "requests": 5})
    assert Batch.concat(list(made)).offset_bytes.tolist() == [0, 3 * PAGE, 6 * PAGE, 0, 3 * PAGE]


def test_mixed_has_its_parts() -> None:
    made = workload(
        "mixed", span_bytes=GIB, parameters={"mix": "sequential:1+uniform:1", "requests": 100_000}
    )
    summary = summarise(made)
    assert summary.records == 100_000
    with pytest.raises(ValueError, match="mix: no workload 'mixed' to mix"):
        workload("mixed", span_bytes=GIB, parameters={"mix": "mixed:1"})


def test_workload_has_its_share_of_reads_and_its_sizes() -> None:
    made = workload(
        "uniform",
        span_bytes=GIB,
        parameters={"read": ".25", "bs": "4KiB:3+16KiB:1", "read_bs": "512", "requests": 200_000},
    )
    summary = summarise(made)
    assert summary.write_share == pytest.approx(0.75, abs=0.005)
    assert summary.average_read_bytes == 512
    assert summary.average_write_bytes == pytest.approx(7168, rel=0.01)
    assert summary.records_by_op.keys() == {"read", "write"}
    assert int(Op.READ) == 0


@pytest.mark.parametrize(
    ("name", "parameters", "reason"),
    [
        ("nosuch", {}, "workload 'nosuch' is unknown"),
        ("uniform", {"r": 0.5}, "uniform has no parameter 'r'"),
        ("hotcold", {"r": "nan"}, "r: 'nan' is not a finite number"),
        ("hotcold", {"f": 0}, "f: 0 is not in"),
        ("hotcold", {"f": "1"}, "f: 1 is not in"),
        ("hotcold", {"r": -0.1}, "r: -0.1 is not in 0 .. 1"),
        ("hotcold", {"r": "much"}, "r: 'much' is not a valid number"),
        ("hotcold", {"r": None}, "r: a NoneType is not a valid float"),
        ("zipf", {"theta": "inf"}, "theta: 'inf' is not a finite number"),
        ("zipf", {"theta": -1}, "theta: -1 is not in"),
        ("uniform", {"requests": 1.5}, "requests: '1.5' is not a whole number"),
        ("uniform", {"requests": "1e400"}, "requests: '1e400' is not a finite number"),
        ("uniform", {"bs": "0"}, "bs: '0' holds a size that is not in"),
        ("uniform", {"bs": "4KiB:0"}, "bs: the weight '0' of '4KiB' is not positive"),
        ("uniform", {"bs": "big"}, "bs: 'big' is not a valid size"),
        ("uniform", {"bs": "9" * 400}, "bs: "),
        ("uniform", {"total": "1.5"}, "total: '1.5' is not a whole number of bytes"),
        ("uniform", {"iops": 0}, "iops: 0 is not in"),
        ("mixed", {"mix": "+"}, "mix: '\\+' is not a list"),
    ],
)
def test_wrong_parameters_are_refused(name: str, parameters: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as caught:
        workload(name, span_bytes=GIB, parameters=parameters)
    assert "\n" not in str(caught.value)


def test_wrong_span_and_seed_are_refused() -> None:
    refused: tuple[dict[str, Any], ...] = (
        {"span_bytes": 4095},
        {"span_bytes": 2**63},
        {"span_bytes": GIB, "seed": -1},
    )
    for options in refused:
        with pytest.raises(ValueError, match=r"^[^\n]+$"):
            workload("uniform", **options)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ("4KiB", 4096),
        ("4k", 4096),
        ("4KB", 4000),
        ("1.5GiB", 3 << 29),
        (".5k", 512),
        ("8 GiB", 8 << 30),
    ],
)
def test_size_of_a_workload_is_parsed(text: str, size: int) -> None:
    assert size_bytes(text) == size
