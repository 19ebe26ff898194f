"""How `bench/optimum.py` judges its measurements."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ablation import off_weights
from optimum import Comparison, Figures, VmFigures, harmed, judged, p99_changes
from scenarios_table import Compared, VmRow, why_lower


def vm(name: str, rate: float, weight: float = 1.0, *, p99: float = 10.0, ops: int = 50) -> VmFigures:
    return VmFigures(name, weight, rate, rate, 0.5, 0.0, ops, 3.0, p99)


def figures(*vms: VmFigures, error: float = 0.0) -> Figures:
    total = sum(each.pages_per_s for each in vms)
    return Figures(total, total, error, 3.0, vms)


def comparison(run: Figures, best: Figures, best_of_all: Figures | None = None) -> Comparison:
    return Comparison("X", "two VMs", False, run, best, best_of_all or best, run, run, 1)


def test_no_bar_is_missed_without_a_better_split() -> None:
    run = figures(vm("a", 100), vm("b", 300, 3))
    found = judged(comparison(run, run))
    assert (found.missed, found.notes) == ((), ())
    assert found.ratio == 1
    assert found.p99_worse == 0


def test_a_total_below_the_best_is_missed_with_both_splits() -> None:
    run = figures(vm("a", 100, ops=20), vm("b", 300, 3, ops=80))
    best = figures(vm("a", 110, ops=40), vm("b", 330, 3, ops=60))
    (missed,) = judged(comparison(run, best)).missed
    assert "0.909 of the best: OPS 20/80, best 40/60" in missed


def test_split_that_harms_a_throttled_vm_is_only_noted() -> None:
    run = figures(vm("qd1", 100), vm("qd256", 900))
    bold = figures(vm("qd1", 40), vm("qd256", 1200))
    found = judged(comparison(run, run, bold))
    assert not found.missed
    assert "24.0% more" in found.notes[0]
    assert "qd1 0.40" in found.notes[0]


def test_vm_with_its_share_by_weight_is_not_harmed() -> None:
    before = figures(vm("a", 200), vm("b", 200), vm("c", 50))
    now = figures(vm("a", 160), vm("b", 250), vm("c", 45))
    assert harmed(now, before) == ["c"]
    assert harmed(now, before, kept=0.5) == []


def test_shares_and_p99_have_bars() -> None:
    run = figures(
        replace(vm("a", 100, p99=12.0, ops=30), share_error=-0.02, waf=4.0), vm("b", 300), error=0.02
    )
    static = figures(vm("a", 110, p99=10.0), vm("b", 290))
    assert p99_changes(run, static) == pytest.approx({"a": 0.2, "b": 0.0})
    found = judged(replace(comparison(run, run), static=static, strict=static))
    share, p99 = found.missed
    assert share == "share of a is off by -2.0%"
    assert p99.startswith(
        "p99 of a 10.0 -> 12.0 ms: OPS 50 -> 30, its WAF 3.00 -> 4.00, 110 -> 100 IOPS: its own GC"
    )


def test_a_p99_that_no_split_keeps_without_losing_total_is_a_conflict() -> None:
    run = figures(vm("a", 100, p99=12.0), vm("b", 300))
    static = figures(vm("a", 90, p99=10.0), vm("b", 280))
    found = replace(comparison(run, run), static=static, best_with_p99=figures(vm("a", 94), vm("b", 292)))
    assert judged(found).missed == ()
    assert judged(found).conflicts[-1] == "the best split that keeps p99, 50/50, has 0.965 of the total"
    nearly = replace(found, best_with_p99=figures(vm("a", 99), vm("b", 298)))
    (missed,) = judged(nearly).missed
    assert missed.startswith("p99 of a 10.0 -> 12.0 ms")


@pytest.mark.parametrize(("reach", "reachable"), [(1.03, False), (1.08, True)])
def test_a_share_that_no_weight_gives_is_a_conflict(reach: float, reachable: bool) -> None:
    run = figures(replace(vm("a", 100), share_error=-0.06), vm("b", 300), error=0.06)
    found = judged(replace(comparison(run, run), strict=figures(vm("a", 100)), reach={"a": reach}))
    (text,) = found.missed if reachable else found.conflicts
    assert "a lacks 6.0%, and with 1000 times its weight it gets +" in text
    assert len(found.missed) == reachable


def test_distance_from_exact_proportions() -> None:
    assert off_weights([10, 30, 60], [1, 3, 6]) == pytest.approx(0)
    assert off_weights([20, 20, 60], [1, 3, 6]) == pytest.approx(1)
    assert off_weights([0, 0], [1, 1]) == 0


def test_lower_total_is_reported_with_the_difference() -> None:
    rows = (
        VmRow("large", 1, None, "pages/s", 500, 500, 900, 1, 1, 50),
        VmRow("small", 1, None, "pages/s", 300, 300, 100, 1, 1, 50),
    )
    compared = Compared("x", 800, 1000, 3.0, 2.0, 1.5, 20.0, 1.0, 0.5, rows)
    assert why_lower(compared) == (
        "100% of the pages are writes in place of 50%; 1.5 pages per request in place of 20.0; "
        "WAF 3.00 in place of 2.00; large had more at the cost of small"
    )
    assert why_lower(replace(compared, total=1000)) == ""
    assert compared.missed == []
    assert replace(compared, vms=(replace(rows[0], got=490), rows[1])).missed == [
        "large gets 98.0% of its entitlement"
    ]
    assert why_lower(replace(compared, vms=(replace(rows[0], got=0), rows[1]))) == "large starved"
