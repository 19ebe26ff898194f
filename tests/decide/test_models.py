"""Equation 1, the GC curve and the service model: each is invertible, and reproduces its data points."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from slo_ctl.decide import gc_model
from slo_ctl.decide.gc_model import GcCurve
from slo_ctl.decide.ops_for_speed import Need, Speed, highest_level
from slo_ctl.model.sample import FlashTiming, TimingModel

from .plant import FULL, PAPER


def test_equation_1_with_the_papers_timing() -> None:
    assert gc_model.write_time_us(PAPER, 0.5) == 102 + 800 + 800
    assert gc_model.iops(PAPER, 0.0) == pytest.approx(1e6 / 902)


def test_full_timing_pays_reads_and_erases() -> None:
    assert gc_model.gc_time_us(FULL, 0.5) == pytest.approx(60 + 800 + 1500 / (128 * 0.5))
    assert gc_model.gc_time_us(replace(FULL, copyback=False), 0.5) == pytest.approx(
        60 + 800 + 2 * 102 + 1500 / 64
    )


@given(st.floats(0.0, 0.99), st.sampled_from([PAPER, FULL, replace(FULL, copyback=False)]))
def test_iops_and_u_are_inverse(u: float, timing: FlashTiming) -> None:
    assert gc_model.u_at_iops(timing, gc_model.iops(timing, u)) == pytest.approx(u, abs=1e-9)


def test_model_without_timing_has_no_iops() -> None:
    with pytest.raises(ValueError, match="no clock"):
        gc_model.iops(replace(FULL, model=TimingModel.NONE), 0.5)
    with pytest.raises(ValueError, match="positive"):
        gc_model.u_at_iops(FULL, 0.0)
    assert gc_model.u_at_iops(FULL, 1e9) == 0.0


@given(st.integers(0, 2000), st.floats(0.02, 0.99))
def test_a_fitted_curve_passes_through_the_point(ops_blocks: int, u: float) -> None:
    curve = GcCurve.prior(1000, 128).fit(ops_blocks, u)
    assert curve.u_at(ops_blocks) == pytest.approx(u, abs=1e-6)
    assert curve.ops_at(u) == pytest.approx(ops_blocks, abs=1e-3)
    assert curve.u_at(ops_blocks + 50) < u


@given(st.integers(0, 2000), st.floats(0.05, 0.95), st.integers(1, 500), st.floats(0.01, 0.9))
def test_a_curve_fitted_to_two_measurements_passes_through_both(
    ops_blocks: int, u: float, more_blocks: int, of_u: float
) -> None:
    more, less_u = ops_blocks + more_blocks, of_u * u
    curve = GcCurve.prior(1000, 128).fit_two(ops_blocks, u, more, less_u)
    for blocks, expected in ((ops_blocks, u), (more, less_u)):
        assert curve.u_at(blocks) == pytest.approx(expected, abs=1e-6)
        assert curve.ops_at(expected) == pytest.approx(blocks, abs=1e-3)


def test_two_measurements_in_which_more_ops_did_not_help_give_the_curve_through_the_first() -> None:
    prior = GcCurve.prior(1000, 128)
    for other_u in (0.5, 0.6):
        assert prior.fit_two(100, 0.5, 150, other_u) == prior.fit(100, 0.5)


@given(st.integers(20, 1000), st.sampled_from([64, 128, 1024]))
def test_saved_gc_writes_are_the_slope(ops_blocks: int, pages_per_block: int) -> None:
    curve = GcCurve.prior(1000, pages_per_block)
    u = curve.u_at(ops_blocks)
    assume(u > 0.05)
    step = 0.01
    slope = (gc_model.gc_write_ratio(u) - gc_model.gc_write_ratio(curve.u_at(ops_blocks + step))) / step
    assert curve.gc_writes_saved(u) == pytest.approx(slope, rel=0.02)


def test_extreme_measurements_give_a_usable_curve() -> None:
    curve = GcCurve.prior(1000, 128)
    assert curve.fit(100, None) == curve
    for u in (0.0, 1.0):
        fitted = curve.fit(100, u)
        assert math.isfinite(fitted.live_blocks)
        assert 0.0 <= fitted.u_at(100) < 1.0


@given(
    time_us=st.floats(100.0, 1e6),
    pages=st.floats(0.0, 16.0),
    u=st.floats(0.0, 0.97),
    outstanding=st.sampled_from([1.0, 4.0, 32.0]),
    ops_blocks=st.integers(20, 400),
)
def test_a_measured_speed_reproduces_the_measured_rate(
    time_us: float, pages: float, u: float, outstanding: float, ops_blocks: int
) -> None:
    curve = GcCurve.prior(1000, 128).fit(ops_blocks, u)
    speed = Speed.measured(FULL, time_us, pages, outstanding, curve.u_at(ops_blocks))
    need = Need("a", 1.0, curve, speed, 2)
    assert need.level(FULL, ops_blocks) == pytest.approx(outstanding * 1e6 / time_us, rel=1e-6)
    assert need.blocks(FULL, 0.999 * need.level(FULL, ops_blocks)) <= ops_blocks + 1e-6


@given(
    weights=st.lists(st.floats(0.1, 10.0), min_size=1, max_size=6),
    bases=st.lists(st.floats(800.0, 5000.0), min_size=6, max_size=6),
    total=st.integers(200, 2000),
)
def test_needs_fit_and_give_every_vm_the_level(weights: list[float], bases: list[float], total: int) -> None:
    vms = [
        Need(f"v{i}", weight, GcCurve.prior(1000, 128), Speed(base), 2)
        for i, (weight, base) in enumerate(zip(weights, bases, strict=False))
    ]
    level, blocks = highest_level(FULL, vms, total)
    assert sum(blocks.values()) <= total
    more, _ = highest_level(FULL, vms, 2 * total)
    assert more >= level * (1 - 1e-9)
    for vm in vms:
        assert vm.level(FULL, blocks[vm.vm] + 1) >= level * (1 - 1e-9)


def test_minimums_that_ops_cannot_keep_all_shrink_alike() -> None:
    vms = [Need(f"v{i}", 1.0, GcCurve.prior(1000, 128), Speed(860.0), 2, min_iops=900.0) for i in range(3)]
    level, blocks = highest_level(FULL, vms, 300)
    assert level < 900
    assert max(blocks.values()) - min(blocks.values()) <= 1
    assert sum(blocks.values()) <= 300


def test_a_minimum_that_no_ops_can_keep_does_not_reduce_one_that_ops_can() -> None:
    def need(vm: str, minimum: float) -> Need:
        return Need(vm, 1.0, GcCurve.prior(1000, 128), Speed(860.0), 2, min_iops=minimum)

    _, blocks = highest_level(FULL, [need("reachable", 250.0), need("absurd", 1e6)], 300)
    assert need("reachable", 0.0).level(FULL, blocks["reachable"] + 1) >= 250.0
    assert sum(blocks.values()) <= 300


@pytest.mark.parametrize("units", [1.0, 8.0])
def test_vms_get_the_ops_for_their_maximums_whatever_the_unit_of_shares(units: float) -> None:
    vm = Need("a", 1.0, GcCurve.prior(1000, 128), Speed(860.0), 2, units, max_iops=300.0)
    level, blocks = highest_level(FULL, [vm], 400)
    assert level == pytest.approx(0.98 * 300.0 * units)
    assert blocks["a"] == math.floor(vm.blocks(FULL, level))
