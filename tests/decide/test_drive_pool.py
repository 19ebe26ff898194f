"""Shares by weight between namespaces of a drive, kept by limits: invariants, and the loop in simulation."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from slo_ctl.decide.drive_split import split_limit
from slo_ctl.decide.dues import Contender, dues
from slo_ctl.decide.protection import Protection, step
from slo_ctl.model import DeviceNumber, Slo

from .contended_plant import Loop, Plant, PlantVm

ONE, TWO, THREE = (DeviceNumber(259, minor) for minor in range(3))


def weighted(queues: tuple[float, ...], **weights: float) -> dict[str, PlantVm]:
    pairs = zip(weights.items(), queues, strict=True)
    return {vm: PlantVm(Slo(weight=weight), queue) for (vm, weight), queue in pairs}


@st.composite
def contenders(draw: st.DrawFn) -> list[Contender]:
    vms = []
    for index in range(draw(st.integers(2, 5))):
        minimum = draw(st.none() | st.floats(1, 1000))
        slo = Slo(draw(st.floats(0.1, 10)), minimum)
        flags = draw(st.booleans()), draw(st.booleans())
        vms.append(Contender(f"v{index}", slo, draw(st.floats(0, 3000)), *flags))
    return vms


@given(st.lists(contenders(), min_size=1, max_size=8), st.floats(10, 10_000))
def test_nobody_is_held_below_what_it_is_due(looks: list[list[Contender]], total: float) -> None:
    state = Protection()
    for vms in looks:
        before = state
        asking = [v if v.vm not in before.given_up_s else _wanting_no_more(v) for v in vms]
        due = dues(asking, before.limits, total, by_weight=True).due
        state = step(before, vms, total, 2.0, 1.0, by_weight=True)
        by_name = {vm.vm: vm for vm in vms}
        assert set(state.limits) <= set(by_name)
        for vm, limit in state.limits.items():
            if limit < before.limits.get(vm, math.inf):
                assert by_name[vm].limitable
                assert limit >= due[vm] * (1 - 1e-9)


def _wanting_no_more(each: Contender) -> Contender:
    return Contender(each.vm, each.slo, each.iops, False, each.limitable)


@given(contenders(), st.floats(10, 10_000))
def test_shares_are_dues_and_fit_the_drive(vms: list[Contender], total: float) -> None:
    look = dues(vms, {}, total, by_weight=True)
    assert sum(look.shares.values()) <= total * (1 + 1e-6)
    for vm, share in look.shares.items():
        assert look.owed[vm] <= look.due[vm] * (1 + 1e-9)
        assert share <= look.due[vm] * (1 + 1e-9)


@given(contenders(), st.floats(10, 10_000))
def test_limits_vanish_when_nothing_is_promised(vms: list[Contender], total: float) -> None:
    plain = [Contender(v.vm, Slo(v.slo.weight), v.iops, v.wants_more, v.limitable) for v in vms]
    state = Protection(limits={vms[0].vm: 100.0}, served=(vms[1].vm,), unchanged_s=10.0)
    for _ in range(60):
        state = step(state, plain, total, 2.0, 1.0)
    assert (state.limits, state.served) == ({}, ())
    assert not step(Protection(), plain, total, 2.0, 1.0).limits


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.floats(0, 0.03), st.permutations([1, 8, 32]), st.floats(300, 50_000))
def test_simulated_weights_settle_and_do_not_oscillate(
    seed: int, noise: float, queues: list[float], capacity: float
) -> None:
    weights = {"a": 1.0, "b": 3.0, "c": 6.0}
    loop = Loop(Plant(weighted(tuple(queues), **weights), capacity, noise, seed), by_weight=True).run(120)
    total = sum(loop.mean(vm, 60) for vm in weights)
    for vm, weight in weights.items():
        assert loop.mean(vm, 60) / total == pytest.approx(weight / 10, rel=0.15)
    assert total >= 0.95 * capacity
    assert loop.changes(60) <= 10


def test_simulated_equal_queues_settle_within_ten_seconds_and_stay() -> None:
    loop = Loop(Plant(weighted((8, 8, 8), a=1, b=3, c=6), 1000), by_weight=True).run(60)
    first = next(at for at, (iops, _) in enumerate(loop.history) if iops["a"] == pytest.approx(100, rel=0.15))
    assert first < 10
    assert loop.changes(45) == 0
    # Who takes what there is to spare is not limited.
    assert set(loop.protection.limits) == {"a", "b"}


def test_simulated_who_goes_idle_lets_the_others_go_and_has_its_share_again() -> None:
    loop = Loop(Plant(weighted((8, 8, 8), a=1, b=3, c=6), 1000), by_weight=True).run(40)
    loop.plant.vms["c"].demand = 0.0
    loop.run(20)
    assert loop.mean("a", 10) == pytest.approx(250, rel=0.15)
    assert loop.mean("b", 10) == pytest.approx(750, rel=0.15)
    loop.plant.vms["b"].demand = 0.0
    loop.run(30)
    assert loop.mean("a", 5) == pytest.approx(1000, rel=0.01)
    assert not loop.protection.limits
    for vm in ("b", "c"):
        loop.plant.vms[vm].demand = math.inf
    loop.run(30)
    assert [loop.mean(vm, 10) for vm in "abc"] == [pytest.approx(each, rel=0.15) for each in (100, 300, 600)]


@pytest.mark.parametrize("later", [200.0, 700.0, 5000.0])
def test_simulated_shares_follow_a_drive_that_becomes_slower_or_faster(later: float) -> None:
    loop = Loop(Plant(weighted((8, 8, 8), a=1, b=3, c=6), 1000), by_weight=True).run(40)
    loop.plant.capacity = later
    loop.run(90)
    for vm, part in (("a", 0.1), ("b", 0.3), ("c", 0.6)):
        assert loop.mean(vm, 20) == pytest.approx(part * later, rel=0.15)
    assert not loop.told


def test_simulated_a_share_that_a_vm_cannot_use_goes_to_the_others_and_that_is_told() -> None:
    vms = weighted((8, 8, 8), a=1, b=3, c=6)
    vms["c"].demand = 200  # by too few requests: it looks as if it wanted more
    loop = Loop(Plant(vms, 1000), by_weight=True, guessing=True).run(60)
    assert any("c got no more when others were held back for it" in told for told in loop.told)
    loop.run(600)
    # Others are held back again now and then, to see whether it is still so.
    assert sum(loop.mean(vm, 500) for vm in "abc") > 950
    assert loop.mean("c", 500) == pytest.approx(200)


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.03])
def test_simulated_who_wants_less_than_its_share_keeps_the_rest_from_nobody(noise: float) -> None:
    # Whenever it has a little less than it wants it looks as if it wanted all of its share.
    vms = weighted((64, 64, 4), a=1, b=4, c=8)
    vms["c"].demand = 25
    loop = Loop(Plant(vms, 500, noise, seed=117), by_weight=True).run(300)
    assert loop.mean("c", 200) >= 0.9 * 25
    assert loop.mean("b", 200) / loop.mean("a", 200) == pytest.approx(4, rel=0.15)
    assert sum(loop.mean(vm, 200) for vm in vms) > 0.95 * 500


def test_simulated_a_minimum_above_its_share_among_weights() -> None:
    vms = weighted((8, 32, 32), mail=1, a=1, b=3)
    vms["mail"].slo = Slo(min_iops=450)
    loop = Loop(Plant(vms, 1000, noise=0.01), by_weight=True).run(120)
    assert loop.mean("mail", 60) >= 0.97 * 450
    assert loop.mean("b", 60) / loop.mean("a", 60) == pytest.approx(3.0, rel=0.2)
    assert sum(loop.mean(vm, 60) for vm in vms) > 950


def test_who_is_held_back_by_its_own_limit_takes_nothing_from_others() -> None:
    # Limiters are not exact: 92 of 100 is what one lets through.
    a, b = Contender("a", Slo(1), 94.0, False), Contender("b", Slo(9), 850.0, True)
    state = Protection(limits={"a": 100.0}, served=("b",), unchanged_s=10.0, deliverable_iops=1000.0)
    for _ in range(5):
        state = step(state, [a, b], 1000, 2.0, 1.0, by_weight=True)
    assert state.limits == {"a": 100.0}
    # A limit that is too low is raised.
    more = Contender("b", Slo(9), 1400.0, True)
    later = step(state, [a, more], 1500, 2.0, 1.0, by_weight=True)
    later = step(later, [a, more], 1500, 2.0, 1.0, by_weight=True)
    assert later.limits["a"] == pytest.approx(151, rel=0.01)


_numbers = st.sampled_from((ONE, TWO, THREE))
_iops = st.dictionaries(_numbers, st.floats(0, 1e6), min_size=1)


@given(st.floats(1, 1e6), _iops, st.dictionaries(_numbers, st.floats(1, 1e6)))
def test_parts_of_a_limit_add_up_to_it(
    limit: float, iops: dict[DeviceNumber, float], before: dict[DeviceNumber, float]
) -> None:
    assume(any(iops.values()))
    parts = split_limit(limit, iops, before)
    assert sum(parts.values()) == pytest.approx(limit)
    assert all(parts[each] > 0 for each, done in iops.items() if done > 0)
    assert set(parts) <= set(iops)


def test_a_limit_is_divided_by_what_the_vm_does_and_stays_so() -> None:
    parts = split_limit(400, {ONE: 300.0, TWO: 100.0}, {})
    assert parts == {ONE: 300.0, TWO: 100.0}
    # In force it is filled, or noise: nothing is written.
    assert split_limit(400, {ONE: 290.0, TWO: 99.0}, parts) == parts
    # Held back on one and idle on the other: divided anew, and what is idle keeps a little.
    assert split_limit(400, {ONE: 5.0, TWO: 100.0}, parts) == {
        ONE: pytest.approx(20, rel=0.05),
        TWO: pytest.approx(380, rel=0.05),
    }
    # The proportion stays when the limit changes.
    assert split_limit(200, {ONE: 290.0, TWO: 99.0}, parts) == {ONE: 150.0, TWO: 50.0}
    assert split_limit(200, {ONE: 290.0, TWO: 0.0}, {}) == {ONE: 200.0}
