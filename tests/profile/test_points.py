"""Sizes: intervals, wrong intervals, and points chosen from them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slo_ctl.base.errors import UserError
from slo_ctl.decide.request_sizes import (
    DEFAULT_INTERVALS,
    Interval,
    all_sizes,
    check_intervals,
    draw_points,
    parse_interval,
)

KIB = 1024


def test_points_of_the_papers_example() -> None:
    # SAC'15, section 3: [8KB, 40KB] with 8KB gaps.
    assert list(parse_interval("8k-40k/8k").sizes()) == [8 * KIB, 16 * KIB, 24 * KIB, 32 * KIB, 40 * KIB]


def test_points_of_the_papers_intervals() -> None:
    # 8 sizes to 64 KiB (section 4.2) and 127 from there, 64 KiB once.
    assert [interval.count for interval in DEFAULT_INTERVALS] == [8, 127]
    assert len(all_sizes(DEFAULT_INTERVALS)) == 134
    assert check_intervals(DEFAULT_INTERVALS[::-1]) == DEFAULT_INTERVALS


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "no interval"),
        (["8k-64k"], "is not a valid interval"),
        (["8k-64x/8k"], "is not a size"),
        (["64k-64k/8k"], "is empty"),
        (["64k-8k/8k"], "is empty"),
        (["1000-9000/1000"], "not aligned"),
        (["8k-64k/12k"], "miss 64KiB"),
        (["8k-64k/8k", "32k-1m/32k"], "overlap"),
        (["512-8t/512"], "choose a larger gap"),
    ],
)
def test_bad_points_are_refused(texts: list[str], message: str) -> None:
    with pytest.raises(UserError) as error:
        check_intervals([parse_interval(text) for text in texts])
    assert message in str(error.value)
    assert error.value.hint


def test_a_4kn_device_takes_no_512_byte_steps() -> None:
    with pytest.raises(UserError, match="not aligned to the 4096 bytes"):
        check_intervals([parse_interval("512-4096/512")], 4096)


@given(st.integers(2, 200), st.integers(0, 10_000), st.integers(2, 60))
def test_smallest_and_largest_sizes_are_always_included(count: int, seed: int, per_interval: int) -> None:
    interval = Interval(4096, 4096 * count, 4096)
    points = draw_points([interval], per_interval, seed)
    assert {points[0], points[-1]} == {interval.low_bytes, interval.high_bytes}
    assert len(points) == min(per_interval, interval.count)
    assert set(points) <= set(interval.sizes())
    assert points == draw_points([interval], per_interval, seed)


@given(st.integers(0, 1000), st.integers(2, 20))
def test_more_points_include_the_fewer_ones(seed: int, per_interval: int) -> None:
    few = draw_points(DEFAULT_INTERVALS, per_interval, seed)
    assert set(few) <= set(draw_points(DEFAULT_INTERVALS, per_interval + 3, seed))


def test_a_line_needs_two_points() -> None:
    with pytest.raises(UserError, match="too few"):
        draw_points(DEFAULT_INTERVALS, 1, 0)
