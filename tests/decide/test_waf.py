"""The closed formulas, compared with the tables of docs/validation.md and with their inverses."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slo_ctl.decide import gc_model
from slo_ctl.decide.gc_model import GcCurve, Writer, best_split


@pytest.mark.parametrize(
    ("alpha", "expected", "alpha_hot", "alpha_cold"),
    [(1.10, 3.743, 1.255, 1.061), (1.28, 1.839, 1.693, 1.177)],
)
def test_best_split_of_ops(alpha: float, expected: float, alpha_hot: float, alpha_cold: float) -> None:
    hot, cold = GcCurve(2000, 2000.0, 128), GcCurve(8000, 8000.0, 128)
    ops_hot, ops_cold = best_split([Writer(hot, 0.8), Writer(cold, 0.2)], (alpha - 1.0) * 10000)
    assert 1.0 + ops_hot / 2000 == pytest.approx(alpha_hot, abs=0.0006)
    assert 1.0 + ops_cold / 8000 == pytest.approx(alpha_cold, abs=0.0006)
    total = 0.8 * gc_model.waf(hot.u_at(ops_hot)) + 0.2 * gc_model.waf(cold.u_at(ops_cold))
    assert total == pytest.approx(expected, abs=0.0006)


def test_best_split_needs_no_numpy() -> None:
    """It takes 12 MB of the daemon, a fifth, where nothing else needs it."""
    split = "from slo_ctl.decide.gc_model import *; best_split([Writer(GcCurve.prior(10, 128), 1.0)], 4)"
    check = f"import sys; {split}; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


@given(st.floats(-1.0 / math.e, 0.0))
def test_lambert_w0_inverts(x: float) -> None:
    w = gc_model.lambert_w0(x)
    assert -1.0 <= w <= 0.0
    assert w * math.exp(w) == pytest.approx(x, abs=1e-14)


@given(st.floats(1.0005, 4.0), st.sampled_from([32, 128, 1024, gc_model.LRU]))
def test_alpha_and_u_are_inverse(alpha: float, pages_per_block: float) -> None:
    u = gc_model.u_at_alpha(alpha, pages_per_block)
    assert 0.0 <= u < 1.0
    if u > 0.0:
        assert gc_model.alpha_at_u(u, pages_per_block) == pytest.approx(alpha, rel=1e-6)


@given(st.floats(0.0, 0.999))
def test_waf_exceeds_the_gc_write_ratio_by_one(u: float) -> None:
    assert gc_model.waf(u) == pytest.approx(1.0 + gc_model.gc_write_ratio(u))
    assert gc_model.u_at_gc_write_ratio(gc_model.gc_write_ratio(u)) == pytest.approx(u, abs=1e-12)


@pytest.mark.parametrize("bad", [1.0, -0.1, math.nan])
def test_utilization_out_of_range_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="victim utilization"):
        gc_model.waf(bad)


def test_parameters_out_of_range_are_refused() -> None:
    for call in (
        lambda: gc_model.u_at_gc_write_ratio(-1.0),
        lambda: gc_model.u_at_alpha(1.0, gc_model.LRU),
        lambda: gc_model.u_at_alpha(math.nan, 128),
        lambda: gc_model.lambert_w0(-1.0),
        lambda: best_split([Writer(GcCurve(10, 10.0, 128), 1.0, 5)], 4),
    ):
        with pytest.raises(ValueError, match=r".+"):
            call()


@given(
    st.lists(st.tuples(st.integers(200, 5000), st.floats(0.01, 1.0)), min_size=2, max_size=6),
    st.floats(0.05, 0.5),
)
def test_best_split_cannot_be_bettered_by_moving_a_block(tenants: list[tuple[int, float]], op: float) -> None:
    writers = [Writer(GcCurve(size, float(size), 128), rate, 1.0) for size, rate in tenants]
    total = op * sum(size for size, _ in tenants)
    split = best_split(writers, total)
    assert sum(split) == pytest.approx(total)
    assert all(blocks >= 1.0 - 1e-9 for blocks in split)

    def gc_writes(blocks: list[float]) -> float:
        return sum(
            w.write_rate * gc_model.gc_write_ratio(w.curve.u_at(b))
            for w, b in zip(writers, blocks, strict=True)
        )

    for donor in range(len(split)):
        for receiver in range(len(split)):
            if donor != receiver and split[donor] >= 2.0:
                moved = list(split)
                moved[donor] -= 1.0
                moved[receiver] += 1.0
                assert gc_writes(moved) >= gc_writes(split) * (1.0 - 1e-9)
