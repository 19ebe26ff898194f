"""Student's t against tables."""

from __future__ import annotations

import math

import pytest

from slo_ctl.decide.profile_fit import half_width, t_cdf, t_quantile


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
