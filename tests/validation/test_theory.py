"""A fast part of bench/validate.py, with its limits: WAF against theory, policies against their targets."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
import validate
from validate_figure import Row
from validate_waf import best_split_rows, min_waf_rows, shared_rows, uniform_rows
from validate_weights import proportional_rows, starvation_rows, static_rows, three_vms


def within_the_bar(rows: Sequence[Row]) -> None:
    assert rows
    assert not [row for row in rows if not row.passed]


@pytest.mark.parametrize(
    ("pages_per_block", "alpha"), [(32, 1.05), (64, 1.20), (128, 1.10), (128, 2.0), (1024, 1.30)]
)
@pytest.mark.parametrize("victim", ["greedy", "fifo"])
def test_waf_of_uniform_writes_matches_theory(victim: str, pages_per_block: int, alpha: float) -> None:
    usable_blocks = {32: 16_000, 64: 8_000, 128: 4_000, 1024: 1_500}[pages_per_block]
    within_the_bar(uniform_rows(victim, alpha, pages_per_block, usable_blocks))


@pytest.mark.parametrize("victim", ["greedy", "fifo"])
def test_hot_and_cold_in_one_pool(victim: str) -> None:
    within_the_bar(shared_rows(victim, 1.28))


def test_isolation_with_the_best_split() -> None:
    within_the_bar(best_split_rows(1.28))


def test_min_waf_finds_the_best_split() -> None:
    within_the_bar(min_waf_rows(1.10))


def test_policies_with_weights_1_3_6() -> None:
    results = three_vms("static,algorithm1,proportional-strict", overwrites=12)
    within_the_bar(static_rows(results["static"]))
    within_the_bar(starvation_rows(results["algorithm1"]))
    within_the_bar(proportional_rows(results["proportional-strict"]))


def test_command_fails_if_a_bar_is_missed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = [1.0, 1.005]
    case = validate.Case("one", lambda: [Row("it", 1.0, "nowhere", m, 0.005) for m in measured], quick=True)
    monkeypatch.setattr(validate, "cases", lambda: iter([case]))
    assert validate.main(["--json"]) == 0
    assert json.loads(capsys.readouterr().out)["passed"]
    measured.append(1.006)
    assert validate.main([]) == 1
    assert "2 of 3 pass" in capsys.readouterr().out


def test_one_sided_bar_is_checked() -> None:
    assert Row("it", 0.5, "at most", 0.1, 0.0, at_most=True).passed
    assert not Row("it", 0.5, "at most", 0.51, 0.0, at_most=True).passed
    assert not Row("it", 0.5, "formula", float("nan"), 0.5).passed
