"""Equation 1, the GC curve and the service model: each inverts, and reproduces what it was fitted to."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from slo_ctl.decide import iops as eq1
from slo_ctl.decide import waf
from slo_ctl.decide.curve import GcCurve
from slo_ctl.decide.evidence import Evidence
from slo_ctl.decide.service import VmModel
from slo_ctl.model import FlashTiming, Slo, TimingModel, VmSample

from .plant import FULL, PAPER

SAMPLE = VmSample("a", Slo(), True, 1.0, 300, 300, 900, 128 * 9, 880, 1000, 150, 2)


def test_equation_1_with_the_papers_timing() -> None:
    assert eq1.write_time_us(PAPER, 0.5) == 102 + 800 + 800
    assert eq1.iops(PAPER, 0.0) == pytest.approx(1e6 / 902)


def test_full_timing_pays_reads_and_erases() -> None:
    assert eq1.gc_time_us(FULL, 0.5) == pytest.approx(60 + 800 + 1500 / (128 * 0.5))
    assert eq1.gc_time_us(replace(FULL, copyback=False), 0.5) == pytest.approx(60 + 800 + 2 * 102 + 1500 / 64)


@given(st.floats(0.0, 0.99), st.sampled_from([PAPER, FULL, replace(FULL, copyback=False)]))
def test_iops_and_u_are_inverse(u: float, timing: FlashTiming) -> None:
    assert eq1.u_at_iops(timing, eq1.iops(timing, u)) == pytest.approx(u, abs=1e-9)


def test_no_clock_no_iops() -> None:
    with pytest.raises(ValueError, match="no clock"):
        eq1.iops(replace(FULL, model=TimingModel.NONE), 0.5)
    with pytest.raises(ValueError, match="positive"):
        eq1.u_at_iops(FULL, 0.0)
    assert eq1.u_at_iops(FULL, 1e9) == 0.0


@given(st.integers(0, 2000), st.floats(0.02, 0.99))
def test_a_fitted_curve_passes_through_the_point(ops_blocks: int, u: float) -> None:
    curve = GcCurve.prior(1000, 128).fit(ops_blocks, u)
    assert curve.u_at(ops_blocks) == pytest.approx(u, abs=1e-6)
    assert curve.ops_at(u) == pytest.approx(ops_blocks, abs=1e-3)
    assert curve.u_at(ops_blocks + 50) < u


@given(st.integers(20, 1000), st.sampled_from([64, 128, 1024]))
def test_saved_gc_writes_are_the_slope(ops_blocks: int, pages_per_block: int) -> None:
    curve = GcCurve.prior(1000, pages_per_block)
    u = curve.u_at(ops_blocks)
    assume(u > 0.05)
    step = 0.01
    slope = (waf.gc_write_ratio(u) - waf.gc_write_ratio(curve.u_at(ops_blocks + step))) / step
    assert curve.gc_writes_saved(u) == pytest.approx(slope, rel=0.02)


def test_extreme_measurements_give_a_usable_curve() -> None:
    curve = GcCurve.prior(1000, 128)
    assert curve.fit(100, None) == curve
    for u in (0.0, 1.0):
        fitted = curve.fit(100, u)
        assert math.isfinite(fitted.live_blocks)
        assert 0.0 <= fitted.u_at(100) < 1.0


@given(
    requests=st.integers(50, 5000),
    pages=st.floats(0.0, 16.0),
    u=st.floats(0.0, 0.97),
    outstanding=st.sampled_from([None, 1.0, 4.0, 32.0]),
)
def test_a_fitted_model_reproduces_the_measured_iops(
    requests: int, pages: float, u: float, outstanding: float | None
) -> None:
    sample = replace(
        SAMPLE,
        requests=requests,
        host_page_writes=round(pages * requests),
        victim_valid_pages=round(u * SAMPLE.victim_pages),
        outstanding=outstanding,
    )
    model = VmModel.prior(sample, FULL).fit(Evidence().add(sample, 8), sample.ops_blocks)
    assert model.iops_at(sample.ops_blocks) == pytest.approx(sample.iops, rel=1e-6)
    assert model.ceiling_iops >= sample.iops * (1 - 1e-9)
    needed = model.ops_at(sample.iops * 0.999)
    assert needed <= sample.ops_blocks + 1e-6
    assert math.isinf(model.ops_at(model.ceiling_iops * 1.01))


def test_a_limit_hides_the_service_time_unless_it_is_measured() -> None:
    free = VmModel.prior(SAMPLE, FULL).fit(Evidence().add(SAMPLE, 8), 150)
    limited = replace(SAMPLE, requests=100, host_page_writes=100, limit_iops=100.0)
    assert free.fit(Evidence().add(limited, 8), 150).service == free.service
    measured = replace(limited, outstanding=100 / 300)
    assert free.fit(Evidence().add(measured, 8), 150).iops_at(150) == pytest.approx(300, rel=1e-6)
