"""Invariants of the solver and of whole-block allocation."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slo_ctl.decide.allocation import allocate, moves_between
from slo_ctl.decide.curve import GcCurve
from slo_ctl.decide.service import ServiceModel, VmModel
from slo_ctl.decide.targets import Claim, solve

from .plant import FULL

if TYPE_CHECKING:
    from random import Random


def claim(vm: str, weight: float, size: int = 1000, base_us: float = 902.0, pages: float = 1.0) -> Claim:
    return Claim(vm, weight, VmModel(GcCurve(size, float(size), 128), ServiceModel(FULL, base_us, pages)), 2)


claims = st.lists(
    st.builds(
        claim,
        vm=st.just(""),
        weight=st.floats(1.0, 10.0),
        size=st.integers(200, 4000),
        base_us=st.floats(500, 5000),
        pages=st.floats(0.0, 8.0),
    ),
    min_size=1,
    max_size=8,
).map(lambda cs: [replace(c, vm=str(i)) for i, c in enumerate(cs)])


@given(claims, st.integers(40, 3000), st.data())
def test_solution_adds_up_and_respects_minimums(cs: list[Claim], total: int, data: st.DataObject) -> None:
    cs = [replace(c, active=data.draw(st.booleans())) for c in cs]
    feasible = solve(cs, total)
    blocks = {vm: t.ops_blocks for vm, t in feasible.targets.items() if t.ops_blocks is not None}
    assert blocks.keys() == {c.vm for c in cs}
    assert sum(blocks.values()) == total
    assert all(blocks[c.vm] >= c.min_ops_blocks for c in cs)
    assert not feasible.overcommitted
    if any(c.active for c in cs):
        assert sum(t.share for t in feasible.targets.values()) == pytest.approx(1.0)
        assert all(blocks[c.vm] == c.min_ops_blocks for c in cs if not c.active)


@given(claims, st.integers(100, 3000))
def test_targets_are_in_proportion_to_weights(cs: list[Claim], total: int) -> None:
    feasible = solve(cs, total)
    for c in cs:
        assert feasible.targets[c.vm].iops == pytest.approx(feasible.level * c.weight, rel=1e-6)


@given(claims, st.integers(100, 3000), st.floats(1.05, 3.0))
def test_more_weight_never_means_fewer_iops_or_blocks(cs: list[Claim], total: int, factor: float) -> None:
    before = solve(cs, total).targets[cs[0].vm]
    after = solve([replace(cs[0], weight=cs[0].weight * factor), *cs[1:]], total).targets[cs[0].vm]
    assert (after.iops or 0) >= (before.iops or 0) * (1 - 1e-9)


@given(claims, st.integers(100, 3000))
def test_more_ops_never_lower_the_level(cs: list[Claim], total: int) -> None:
    assert solve(cs, total + 50).level >= solve(cs, total).level * (1 - 1e-9)


def test_minimum_comes_first_and_maximum_clips() -> None:
    a, b, c = claim("a", 1), claim("b", 1), claim("c", 1)
    plain = solve([a, b, c], 450)
    assert plain.ops_suffices
    raised = solve([replace(a, min_iops=400.0), b, c], 450)
    assert raised.targets["a"].iops == pytest.approx(400)
    assert raised.level < plain.level
    clipped = solve([replace(a, max_iops=100.0), b, c], 450)
    assert clipped.targets["a"].iops == pytest.approx(100)
    assert clipped.level > plain.level


def test_overcommitted_minimums_are_reported_with_what_is_missing() -> None:
    feasible = solve([replace(claim(n, 1), min_iops=700.0) for n in "ab"], 300)
    assert feasible.overcommitted.keys() == {"a", "b"}
    for vm, missing in feasible.overcommitted.items():
        assert (feasible.targets[vm].iops or 0) + missing == pytest.approx(700)


def test_a_slow_vm_bounds_the_level_and_limits_must_do_the_rest() -> None:
    feasible = solve([claim("slow", 6, base_us=20000), claim("fast", 1)], 300)
    assert not feasible.ops_suffices
    assert (feasible.targets["slow"].iops or 0) / 6 == pytest.approx(feasible.targets["fast"].iops)


def test_impossible_minimum_of_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="exceed the 3 OPS blocks by 1"):
        solve([claim("a", 1), claim("b", 1)], 3)


def test_idle_vms_lend_all_but_their_minimum() -> None:
    targets = solve([claim("a", 1), replace(claim("b", 5), active=False)], 300).targets
    assert (targets["a"].ops_blocks, targets["b"].ops_blocks) == (298, 2)
    assert targets["b"].share == 0.0


@given(
    st.lists(st.tuples(st.floats(0, 1000), st.integers(0, 20)), min_size=1, max_size=10),
    st.integers(200, 5000),
)
def test_allocation_adds_up(rows: list[tuple[float, int]], total: int) -> None:
    ideal = {str(i): blocks for i, (blocks, _) in enumerate(rows)}
    minimum = {str(i): least for i, (_, least) in enumerate(rows)}
    blocks = allocate(total, ideal, minimum)
    assert sum(blocks.values()) == total
    assert all(blocks[vm] >= minimum[vm] for vm in blocks)


@given(
    st.lists(st.integers(0, 100), min_size=2, max_size=8),
    st.randoms(use_true_random=False),
    st.integers(0, 50),
)
def test_moves_arrive_where_they_should(current: list[int], random: Random, spare: int) -> None:
    now = {str(i): blocks for i, blocks in enumerate(current)}
    weights = {vm: random.random() for vm in now}
    wanted = allocate(
        sum(current) + spare, {vm: 1000 * w for vm, w in weights.items()}, dict.fromkeys(now, 0)
    )
    after = dict(now)
    for move in moves_between(now, wanted, spare):
        assert move.blocks > 0
        after[str(move.target)] += move.blocks
        if move.source is not None:
            after[move.source] -= move.blocks
    assert after == wanted
    limited = moves_between(now, wanted, spare, max_move_blocks=5)
    assert sum(m.blocks for m in limited) <= 5
