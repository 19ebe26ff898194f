"""Lines: what is straight is found exactly, and outliers leave Theil-Sen alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slo_ctl.decide.profile_fit import Fit, fit

X = np.array([8, 16, 24, 32, 40, 48, 56, 64], dtype=np.float64) * 1024


@pytest.mark.parametrize("method", list(Fit))
@given(slope=st.floats(1e-11, 1e-7), intercept=st.floats(0, 1e-2))
def test_a_straight_line_is_found(method: Fit, slope: float, intercept: float) -> None:
    line = fit(method, X, slope * X + intercept)
    assert line.at_s(20480) == pytest.approx(slope * 20480 + intercept, rel=1e-6)


def test_least_squares_against_numpy() -> None:
    y = np.array([3, 1, 4, 1, 5, 9, 2, 6], dtype=np.float64)
    slope, intercept = np.polyfit(X, y, 1)
    line = fit(Fit.LEAST_SQUARES, X, y)
    assert line.slope_s_per_byte == pytest.approx(slope)
    assert line.intercept_s == pytest.approx(intercept)


def test_an_outlier_bends_least_squares_only() -> None:
    y = 1e-8 * X + 1e-4
    y[3] *= 50
    assert fit(Fit.THEIL_SEN, X, y).at_s(32768) == pytest.approx(1e-8 * 32768 + 1e-4, rel=0.02)
    assert fit(Fit.LEAST_SQUARES, X, y).at_s(32768) > 2 * (1e-8 * 32768 + 1e-4)


@pytest.mark.parametrize("method", list(Fit))
def test_one_size_gives_no_line(method: Fit) -> None:
    with pytest.raises(ValueError, match="two different sizes"):
        fit(method, np.array([8.0, 8.0]), np.array([1.0, 2.0]))
