"""Fits and Student's t: lines are found, outliers do not affect Theil-Sen, quantiles match tables."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slo_ctl.decide.profile_fit import Fit, fit, half_width, t_cdf, t_quantile

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


@pytest.mark.parametrize(
    ("probability", "freedom", "t"),
    [
        (0.95, 1, 6.3138),
        (0.95, 2, 2.9200),
        (0.95, 5, 2.0150),
        (0.95, 19, 1.7291),
        (0.95, 20, 1.7247),
        (0.975, 4, 2.7764),
        (0.975, 120, 1.9799),
        (0.95, 100_000, 1.6449),
    ],
)
def test_quantiles_match_published_tables(probability: float, freedom: int, t: float) -> None:
    assert t_quantile(probability, freedom) == pytest.approx(t, abs=5e-5)
    assert t_cdf(t, freedom) == pytest.approx(probability, abs=2e-5)


def test_half_width_by_hand() -> None:
    # Mean 2, s = 1, n = 3: t(0.95, 2) / sqrt(3).
    assert half_width([1, 2, 3]) == pytest.approx(2.9200 / math.sqrt(3), abs=1e-4)
    assert half_width([1]) == math.inf


def test_quantile_without_degrees_of_freedom_is_refused() -> None:
    with pytest.raises(ValueError, match="no quantile"):
        t_quantile(0.95, 0)
