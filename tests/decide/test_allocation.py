"""Fractional splits are rounded to whole blocks, and the moves that lead to them."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slo_ctl.decide.ops_plan import allocate, moves_between, split_to_restore


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
def test_moves_lead_to_the_wanted_allocation(current: list[int], random: Random, spare: int) -> None:
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


@pytest.mark.parametrize(
    ("growth", "available", "wanted"),
    [
        ({"web": 0, "db": 0}, 93, {"web": 47, "db": 46}),
        ({"web": 16, "db": 0}, 77, {"web": 31, "db": 46}),  # from its own OPS
        ({"web": 16, "db": 0}, 93, {"web": 47, "db": 46}),  # from unallocated blocks
        ({"web": 16, "db": 0}, 88, {"web": 42, "db": 46}),  # from both
        ({"web": -8, "db": 0}, 101, {"web": 55, "db": 46}),
        ({"web": 16, "db": -16}, 93, {"web": 31, "db": 62}),
        ({"web": 40, "db": 0}, 53, {"web": 10, "db": 46}),  # the least that it can have
    ],
)
def test_a_resized_namespace_alone_gets_other_ops_back(
    growth: dict[str, int], available: int, wanted: dict[str, int]
) -> None:
    least = {"web": 10, "db": 10}
    assert split_to_restore({"web": 47, "db": 46}, growth, available, least) == wanted
