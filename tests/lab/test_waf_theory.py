"""Closed forms of write amplification, compared with the tables of docs/validation.md."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from lab import waf_theory
from slo_ctl.decide.gc_model import lambert_w0

ALPHAS = (1.07, 1.10, 1.15, 1.20, 1.30, 1.50, 2.0)


@pytest.mark.parametrize(
    ("alpha", "expected"), list(zip(ALPHAS, (7.817, 5.678, 4.016, 3.188, 2.364, 1.716, 1.255), strict=True))
)
def test_lru_waf_matches_its_formula(alpha: float, expected: float) -> None:
    assert waf_theory.lru_waf(alpha) == pytest.approx(expected, abs=0.0011)


@pytest.mark.parametrize(
    ("alpha", "expected"), list(zip(ALPHAS, (7.386, 5.451, 3.904, 3.119, 2.328, 1.698, 1.247), strict=True))
)
def test_greedy_waf_matches_its_formula(alpha: float, expected: float) -> None:
    assert waf_theory.greedy_waf(alpha, 128) == pytest.approx(expected, abs=0.0006)


@pytest.mark.parametrize(("alpha", "expected"), [(1.10, 6.038), (1.28, 2.820)])
def test_hot_and_cold_in_one_lru_pool(alpha: float, expected: float) -> None:
    assert waf_theory.hotcold_lru_waf(alpha, 0.8, 0.2) == pytest.approx(expected, abs=0.0006)


def test_greedy_formula_as_validation_md_writes_it() -> None:
    alpha, pages = 1.15, 64
    k = 1.0 + 1.0 / (2 * pages)
    x0 = 0.5 - pages / alpha * lambert_w0(-k * alpha * math.exp(-k * alpha))
    assert waf_theory.greedy_waf(alpha, pages) == pytest.approx(pages / (pages - (x0 - 1.0)))


def test_parameters_out_of_range_are_refused() -> None:
    calls: list[Callable[[], float]] = [
        lambda: waf_theory.lru_waf(1.0),
        lambda: waf_theory.greedy_waf(math.nan, 128),
        lambda: waf_theory.hotcold_lru_waf(0.9, 0.8, 0.2),
        lambda: waf_theory.mixed_lru_waf(1.2, [(0.8, 0.2)]),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r".+"):
            call()
