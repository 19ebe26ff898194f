"""Shares by weight between namespaces of a drive, enforced by limits: invariants, and closed loop."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from slo_ctl.decide.protection import split_limit
from slo_ctl.model.host import DeviceNumber
from slo_ctl.model.slo import Slo

from .contended_plant import Loop, Plant, PlantVm

ONE, TWO, THREE = (DeviceNumber(259, minor) for minor in range(3))


def weighted(queues: tuple[float, ...], **weights: float) -> dict[str, PlantVm]:
    pairs = zip(weights.items(), queues, strict=True)
    return {vm: PlantVm(Slo(weight=weight), queue) for (vm, weight), queue in pairs}


@settings(max_examples=60)
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
    for before, after in pairwise(limits for _, limits in loop.history[-60:]):
        assert all(0.75 < after[vm] / before[vm] < 1.3 for vm in before.keys() & after.keys())


@settings(max_examples=60)
@given(
    st.integers(0, 10**6),
    st.permutations([1, 8, 32]),
    st.sampled_from([(1.0, 3.0, 6.0), (1.0, 1.0, 1.0), (1.0, 2.0, 2.0)]),
    st.floats(50, 1000),
)
# Because of noise, limits that could not be lower looked ineffective.
@example(seed=0, queues=[1, 8, 32], weights=(1.0, 1.0, 1.0), capacity=199.0)
def test_simulated_weights_on_a_slow_drive_are_kept_within_half_a_step(
    seed: int, queues: list[float], weights: tuple[float, float, float], capacity: float
) -> None:
    """The kernel's limits act in steps of 10 IOPS."""
    vms = weighted(tuple(queues), **dict(zip("abc", weights, strict=True)))
    loop = Loop(Plant(vms, capacity, 0.02, seed, limit_step=10.0), by_weight=True).run(200)
    for vm, weight in zip("abc", weights, strict=True):
        due = weight / sum(weights) * capacity
        # A VM without a limit gets the remaining half steps of both others.
        assert loop.mean(vm, 100) == pytest.approx(due, abs=2 * 5.0 + 0.15 * due)
    assert sum(loop.mean(vm, 100) for vm in vms) >= 0.95 * capacity
    assert loop.changes(100) <= 10


def test_shares_are_right_only_if_the_controller_knows_the_steps_of_limits() -> None:
    """Limits grant less than was set. A controller that does not know the steps assumes that a throttled VM
    wants no more, repeatedly raises its limit, and weights 1:3:6 become 26:28:46."""

    def shares(*, knows_steps: bool) -> list[float]:
        plant = Plant(weighted((8, 8, 8), a=1, b=3, c=6), 92, 0.02, limit_step=10.0)
        loop = Loop(plant, by_weight=True, knows_steps=knows_steps).run(200)
        assert (loop.changes(100) > 50) is not knows_steps
        return [loop.mean(vm, 100) / 92 for vm in "abc"]

    assert shares(knows_steps=False)[0] > 0.2
    assert shares(knows_steps=True) == [pytest.approx(each, abs=0.05) for each in (0.1, 0.3, 0.6)]


def test_simulated_equal_queues_settle_within_ten_seconds_and_stay() -> None:
    loop = Loop(Plant(weighted((8, 8, 8), a=1, b=3, c=6), 1000), by_weight=True).run(60)
    first = next(at for at, (iops, _) in enumerate(loop.history) if iops["a"] == pytest.approx(100, rel=0.15))
    assert first < 10
    assert loop.changes(45) == 0
    # A VM that uses spare capacity is not limited.
    assert set(loop.protection.limits) == {"a", "b"}


def test_simulated_idle_vm_releases_others_and_regains_its_share() -> None:
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
    assert not loop.notes


def test_simulated_a_share_that_a_vm_cannot_use_goes_to_the_others_and_that_is_reported() -> None:
    vms = weighted((8, 8, 8), a=1, b=3, c=6)
    vms["c"].demand = 200  # limited by too few requests: it seems to want more
    loop = Loop(Plant(vms, 1000), by_weight=True, guessing=True).run(60)
    assert any(note.startswith("c: limits on other VMs did not help: ") for note in loop.notes)
    loop.run(600)
    # Others are throttled again from time to time, to see whether that has changed.
    assert sum(loop.mean(vm, 500) for vm in "abc") > 950
    assert loop.mean("c", 500) == pytest.approx(200)


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.03])
def test_simulated_unused_share_goes_to_the_others(noise: float) -> None:
    # Whenever it has a little less than it wants, it seems to want all of its share.
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
    # If the limit is reached, or for noise, nothing is written.
    assert split_limit(400, {ONE: 290.0, TWO: 99.0}, parts) == parts
    # Throttled on one namespace and idle on the other: divided anew, and the idle one keeps a little.
    assert split_limit(400, {ONE: 5.0, TWO: 100.0}, parts) == {
        ONE: pytest.approx(20, rel=0.05),
        TWO: pytest.approx(380, rel=0.05),
    }
    # It also counts as throttled if the limit grants less than its value.
    assert split_limit(400, {ONE: 5.0, TWO: 60.0}, parts) == parts
    assert split_limit(400, {ONE: 5.0, TWO: 60.0}, parts, {ONE: 300.0, TWO: 60.0}) != parts
    # The proportion is kept when the limit changes.
    assert split_limit(200, {ONE: 290.0, TWO: 99.0}, parts) == {ONE: 150.0, TWO: 50.0}
    assert split_limit(200, {ONE: 290.0, TWO: 0.0}, {}) == {ONE: 200.0}
