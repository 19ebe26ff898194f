"""Curves and ratios from two points of each interval."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made_up import measured, true_s

from slo_ctl.decide.profile_fit import Fit, analyse
from slo_ctl.decide.request_sizes import DEFAULT_INTERVALS, all_sizes, draw_points
from slo_ctl.model.measurement import ACCESSES, RAND_READ, SEQ_READ, Direction

TWO = draw_points(DEFAULT_INTERVALS, 2, 0)


@pytest.mark.parametrize("method", list(Fit))
def test_every_size_is_estimated_from_two_points(method: Fit) -> None:
    analysis = analyse(DEFAULT_INTERVALS, measured(TWO, 1), method)
    for size in all_sizes(DEFAULT_INTERVALS):
        for access in ACCESSES:
            assert analysis.time_s(access, size) == pytest.approx(true_s(access, size), rel=1e-6)
    summary = analysis.summary(Direction.READ)
    assert summary is not None
    assert len(summary.ratios) == 134
    expected = [true_s(RAND_READ, size) / true_s(SEQ_READ, size) for size in all_sizes(DEFAULT_INTERVALS)]
    assert summary.average == pytest.approx(sum(expected) / 134)
    assert summary.minimum == pytest.approx(min(expected))
    assert summary.maximum == pytest.approx(max(expected))
    assert summary.half_width is None, "one repetition says nothing about confidence"
    assert not analysis.misfits


def test_confidence_narrows_with_repetitions() -> None:
    few, many = (
        analyse(DEFAULT_INTERVALS, measured(TWO, count, noise=0.05)).summary(Direction.WRITE)
        for count in (4, 16)
    )
    assert few is not None
    assert many is not None
    assert few.half_width is not None
    assert many.half_width is not None
    assert 0 < many.half_width < few.half_width
    for ratio in many.ratios:
        assert ratio.low is not None
        assert ratio.value is not None
        assert ratio.high is not None
        assert ratio.low < ratio.value < ratio.high
    assert {ratio.repetitions for ratio in many.ratios} == {0, 16}


def test_bad_fit_is_flagged() -> None:
    bent = 2 << 20
    sizes = sorted({*TWO, bent})
    found = [
        replace(each, access_time_s=each.access_time_s * 1.5)
        if (each.access, each.size_bytes) == (RAND_READ, bent)
        else each
        for each in measured(sizes, 3)
    ]
    (curve,) = analyse(DEFAULT_INTERVALS, found).misfits
    assert curve.access == RAND_READ
    assert curve.misfit is not None
    assert curve.checked
    assert abs(curve.misfit.error) > 0.1


def test_noise_is_not_taken_for_a_bad_fit() -> None:
    sizes = draw_points(DEFAULT_INTERVALS, 4, 3)
    assert not analyse(DEFAULT_INTERVALS, measured(sizes, 4, noise=0.08)).misfits


def test_an_interval_without_two_sizes_is_left_out() -> None:
    # As when a profile is interrupted early.
    analysis = analyse(DEFAULT_INTERVALS, measured([4 << 20, 64 << 10], 1))
    summary = analysis.summary(Direction.READ)
    assert summary is not None
    assert {ratio.size_bytes for ratio in summary.ratios} == set(DEFAULT_INTERVALS[1].sizes())


def test_analysis_of_nothing_measured_is_empty() -> None:
    analysis = analyse(DEFAULT_INTERVALS, [])
    assert (analysis.curves, analysis.summaries) == ((), ())
    assert analysis.time_s(SEQ_READ, 8192) is None
