"""Invariants of remapping, time warping and merging for any trace."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_samples import Request, batch_of

from traces import Batch, Op
from traces.merge import merge_in_time
from traces.remap import Align, Compact, Modulo, OnlyVolumes, Partition, Remap, Scale, Shift, apply
from traces.summary import summarise
from traces.timewarp import GapCap, Monotonic, OnlyOps, TimeScale, Window, loop

PAGE = 4096
requests = st.lists(
    st.tuples(
        st.integers(0, 50),
        st.sampled_from(list(Op)),
        st.integers(0, 1 << 40),
        st.integers(1, 1 << 20),
        st.integers(0, 3),
    ),
    max_size=40,
)


def cut(batch: Batch, size: int) -> list[Batch]:
    return [batch.slice(start, start + size) for start in range(0, len(batch), size)]


def rows_of(batch: Batch) -> list[Request]:
    columns = (batch.time_ns, batch.op, batch.offset_bytes, batch.length_bytes, batch.volume)
    return list(zip(*(column.tolist() for column in columns), strict=True))


@given(requests)
def test_page_span_is_floor_arithmetic(rows: list[Request]) -> None:
    first, count = batch_of(rows).page_span()
    for (_, _, offset, length, _), page, pages in zip(rows, first.tolist(), count.tolist(), strict=True):
        assert page == offset // PAGE
        assert page + pages - 1 == (offset + length - 1) // PAGE


@given(requests, st.integers(1, 1 << 41))
def test_remaps_with_a_size_stay_inside(rows: list[Request], size: int) -> None:
    batch = batch_of(rows)
    span = int(batch.end_bytes.max(initial=1))
    remaps: list[Remap] = [Modulo(size), Scale(size, span)]
    if size >= 4 * PAGE:
        remaps.append(Partition.equal(size, 4))
    for remap in remaps:
        moved = remap(batch)
        assert len(moved) == len(batch)
        assert (moved.end_bytes <= size).all()
        assert (moved.length_bytes == np.minimum(batch.length_bytes, moved.length_bytes)).all()
        assert (moved.length_bytes > 0).all()


@given(requests, st.integers(1, 8))
def test_partition_keeps_volumes_apart(rows: list[Request], chunk: int) -> None:
    batch = batch_of(rows)
    summary = summarise([batch])
    ends = {volume.name: volume.end_bytes for volume in summary.volumes}
    partition = Partition(tuple(ends.get(str(number), 1) for number in range(4)))
    packed = Batch.concat(list(apply(cut(batch, chunk), partition)))
    assert summarise([packed]).footprint_pages == summary.footprint_pages
    assert (packed.length_bytes == batch.length_bytes).all()
    assert (packed.end_bytes <= partition.device_bytes).all()


@given(requests, st.sampled_from(["sorted", "first-touch"]), st.integers(1, 8))
def test_compact_is_dense_and_keeps_requests_whole(rows: list[Request], order: str, chunk: int) -> None:
    batch = batch_of(rows)
    compact = Compact(cut(batch, chunk), order)  # type: ignore[arg-type]
    packed = Batch.concat(list(apply(cut(batch, chunk), compact)))
    before, after = summarise([batch]), summarise([packed])
    assert after.footprint_pages == before.footprint_pages == compact.pages
    assert after.written_pages == before.written_pages
    assert (packed.length_bytes == batch.length_bytes).all()
    first, count = packed.page_span()
    assert int((first + count).max(initial=0)) == compact.pages
    if rows and order == "first-touch":
        assert (packed.page_span()[0][0] < before.footprint_pages).all()


def test_compact_orders_pages_as_requested() -> None:
    batch = batch_of([(0, 1, 100 * PAGE, PAGE, 1), (1, 1, 5 * PAGE + 7, PAGE, 0), (2, 1, 101 * PAGE, 1, 1)])
    assert Compact([batch])(batch).offset_bytes.tolist() == [2 * PAGE, 7, 3 * PAGE]
    # Pages 100 and 101 of volume 1 adjoin, so they move together, and first.
    assert Compact([batch], "first-touch")(batch).offset_bytes.tolist() == [0, 2 * PAGE + 7, PAGE]


@given(requests, st.sampled_from([512, 4096, 65536]))
def test_align_covers_the_request(rows: list[Request], unit: int) -> None:
    batch = batch_of(rows)
    aligned = Align(unit)(batch)
    assert not (aligned.offset_bytes % unit).any()
    assert not (aligned.length_bytes % unit).any()
    assert (aligned.offset_bytes <= batch.offset_bytes).all()
    assert (aligned.end_bytes >= batch.end_bytes).all()
    assert (aligned.length_bytes < batch.length_bytes + 2 * unit).all()


def test_remaps_refuse_the_impossible() -> None:
    for make in (
        lambda: Modulo(0),
        lambda: Scale(-1, 1),
        lambda: Align(3000),
        lambda: Shift(-1),
        lambda: Partition(()),
        lambda: Partition.equal(4095, 1),
        lambda: OnlyVolumes((), list),
        lambda: TimeScale(float("nan")),
        lambda: TimeScale(0),
        lambda: GapCap(-1),
        lambda: Window(5, 5),
        lambda: OnlyOps(frozenset()),
        lambda: list(loop([], 0)),
    ):
        with pytest.raises(ValueError, match=r"^[^\n]+$"):
            make()
    with pytest.raises(ValueError, match="beyond"):
        Shift(2**63 - 1)(batch_of([(0, 1, 5, 5, 0)]))


@given(st.lists(requests, min_size=1, max_size=4), st.lists(st.integers(1, 7), min_size=4, max_size=4))
def test_merge_keeps_every_record_in_order(traces: list[list[Request]], chunks: list[int]) -> None:
    sources = [batch_of(sorted(rows, key=lambda row: row[0])) for rows in traces]
    merged = list(merge_in_time([cut(source, chunk) for source, chunk in zip(sources, chunks, strict=False)]))
    found = [
        (row, int(who)) for batch, tenant in merged for row, who in zip(rows_of(batch), tenant, strict=True)
    ]
    # A stable sort by time of the concatenated sources is the definition.
    expected = [(row, number) for number, source in enumerate(sources) for row in rows_of(source)]
    assert found == sorted(expected, key=lambda pair: pair[0][0])


@given(requests, st.integers(1, 7))
def test_merge_raises_times_that_go_back(rows: list[Request], chunk: int) -> None:
    merged = Batch.concat([batch for batch, _ in merge_in_time([cut(batch_of(rows), chunk)])])
    assert merged.time_ns.tolist() == list(itertools.accumulate((row[0] for row in rows), max))
    assert merged.offset_bytes.tolist() == [row[2] for row in rows]
    raising = Monotonic()
    clamped = Batch.concat(list(apply(cut(batch_of(rows), chunk), raising)))
    assert clamped.time_ns.tolist() == merged.time_ns.tolist()
    late_ns = [raised - row[0] for raised, row in zip(clamped.time_ns.tolist(), rows, strict=True)]
    assert (raising.raised_records, raising.most_raised_ns) == (
        sum(ns > 0 for ns in late_ns),
        max(late_ns, default=0),
    )


def test_merge_streams_endless_sources() -> None:
    def endless(step: int) -> itertools.chain[Batch]:
        return itertools.chain.from_iterable(
            [batch_of([(k * step, 1, 0, 1, 0) for k in range(n, n + 10)])] for n in itertools.count(0, 10)
        )

    merged = merge_in_time([endless(3), endless(5)])
    first = Batch.concat([batch for batch, _ in itertools.islice(merged, 20)])
    assert (np.diff(first.time_ns) >= 0).all()
    assert len(first) >= 100


@given(requests, st.integers(1, 7), st.integers(0, 20))
def test_gap_cap_is_the_same_whatever_the_batches(rows: list[Request], chunk: int, cap: int) -> None:
    batch = batch_of(sorted(rows, key=lambda row: row[0]))
    whole = Batch.concat(list(apply([batch], GapCap(cap))))
    pieces = Batch.concat(list(apply(cut(batch, chunk), GapCap(cap))))
    assert whole.time_ns.tolist() == pieces.time_ns.tolist()
    gaps = np.diff(batch.time_ns)
    assert np.diff(whole.time_ns).tolist() == np.minimum(gaps, cap).tolist()


def test_window_filter_and_scale() -> None:
    batch = batch_of([(t, op, 0, 1, 0) for t, op in zip(range(10), [0, 1] * 5, strict=True)])
    assert Window(3, 6)(batch).time_ns.tolist() == [0, 1, 2]
    assert OnlyOps(frozenset({Op.WRITE}))(batch).time_ns.tolist() == [1, 3, 5, 7, 9]
    assert TimeScale(2.5)(batch).time_ns.tolist()[:3] == [0, 2, 5]


def test_loop_continues_time() -> None:
    trace = [batch_of([(0, 1, 0, 1, 0), (10, 1, 0, 1, 0)]), batch_of([(20, 1, 0, 1, 0)])]
    times = Batch.concat(list(loop(trace, 3))).time_ns.tolist()
    assert times == [0, 10, 20, 30, 40, 50, 60, 70, 80]
    assert sum(map(len, itertools.islice(loop(trace), 100))) == 150
    assert list(loop([], None)) == []


def test_loop_starts_again_after_its_period() -> None:
    trace = [batch_of([(0, 1, 0, 1, 0), (10, 1, 0, 1, 0)])]
    assert Batch.concat(list(loop(trace, 3, period_ns=50))).time_ns.tolist() == [0, 10, 50, 60, 100, 110]
    assert Batch.concat(list(loop(trace, 2, period_ns=5))).time_ns.tolist() == [0, 10, 20, 30]


def test_only_volumes_renumbers_volumes() -> None:
    batch = batch_of([(0, 1, 0, 1, 0), (1, 1, 0, 1, 2), (2, 1, 0, 1, 1)])
    kept = OnlyVolumes(["c", "a"], lambda: ["a", "b", "c"])(batch)
    assert kept.time_ns.tolist() == [0, 1]
    assert kept.volume.tolist() == [1, 0]


@given(requests, st.integers(1, 9))
def test_summary_agrees_with_counting(rows: list[Request], chunk: int) -> None:
    summary = summarise(cut(batch_of(rows), chunk))
    touched = {(v, page) for _, _, a, n, v in rows for page in range(a // PAGE, (a + n - 1) // PAGE + 1)}
    written = {
        (v, page)
        for _, op, a, n, v in rows
        if op == Op.WRITE
        for page in range(a // PAGE, (a + n - 1) // PAGE + 1)
    }
    assert summary.records == len(rows)
    assert summary.footprint_pages == len(touched)
    assert summary.written_pages == len(written)
    assert summary.written_bytes == sum(n for _, op, _, n, _ in rows if op == Op.WRITE)
    assert summary.read_bytes == sum(n for _, op, _, n, _ in rows if op == Op.READ)
    ends: dict[int, int] = {}
    sequential = 0
    for _, _, a, n, v in rows:
        sequential += ends.get(v) == a
        ends[v] = a + n
    assert summary.sequential_records == sequential
    assert summary.backward_records == sum(b[0] < a[0] for a, b in itertools.pairwise(rows))
    if rows:
        times = [row[0] for row in rows]
        assert summary.duration_ns == max(times) - min(times)
    assert {volume.name: volume.records for volume in summary.volumes} == {
        str(v): sum(row[4] == v for row in rows) for v in {row[4] for row in rows}
    }


def test_summary_of_a_request_across_segments_and_at_the_far_end() -> None:
    far = 2**63 - 2 * PAGE
    across = (1 << 31) * PAGE - PAGE
    batch = batch_of([(0, 1, far, 2 * PAGE, 0), (1, 1, across, 2 * PAGE, 0), (2, 0, across, PAGE, 5)])
    summary = summarise([batch])
    assert summary.footprint_pages == 5
    assert summary.volumes[0].footprint_pages == 4
    assert Compact([batch])(batch).offset_bytes.tolist() == [2 * PAGE, 0, 4 * PAGE]


def test_summary_counts_beyond_64_bits() -> None:
    huge = [(0, 1, 0, 2**62, 0), (0, 1, 0, 2**62, 1), (0, 0, 0, 2**62, 1)] * 5
    for rows in (huge, [row for row in huge if row[4] == 0]):
        summary = summarise([batch_of(rows)])
        assert summary.written_bytes == 2**62 * sum(row[1] for row in rows)
        assert summary.written_page_count == 2**50 * sum(row[1] for row in rows)
