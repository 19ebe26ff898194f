"""Minimums kept by holding others back: invariants, and the whole loop on a simulated device."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slo_ctl.decide.deliverable import Deliverable
from slo_ctl.decide.dues import Contender, dues
from slo_ctl.decide.protection import Protection, step
from slo_ctl.model import Slo

from .contended_plant import Loop, Plant, PlantVm

UNPROMISED = Slo()


def noisy_pair(minimum: float = 300, **of_web: float) -> dict[str, PlantVm]:
    return {
        "web": PlantVm(Slo(min_iops=minimum), of_web.get("queue", 4), of_web.get("demand", float("inf"))),
        "x": PlantVm(UNPROMISED, 32),
        "y": PlantVm(UNPROMISED, 64),
    }


@st.composite
def contenders(draw: st.DrawFn) -> list[Contender]:
    vms = []
    for index in range(draw(st.integers(1, 6))):
        minimum = draw(st.none() | st.floats(1, 2000))
        slo = Slo(draw(st.floats(0.1, 10)), minimum, draw(st.none() | st.floats(minimum or 1, 5000)))
        iops = draw(st.floats(0, 3000))
        flags = draw(st.booleans()), draw(st.booleans())
        vms.append(Contender(f"v{index}", slo, iops, *flags, draw(st.none() | st.floats(1, 1e6))))
    return vms


@given(st.lists(contenders(), min_size=1, max_size=8), st.floats(10, 10_000))
def test_nobody_is_held_below_its_own_minimum_or_due(looks: list[list[Contender]], total: float) -> None:
    state = Protection()
    for vms in looks:
        before = state
        due = dues(vms, before.limits, total)
        state = step(before, vms, total, 2.0, 1.0)
        by_name = {vm.vm: vm for vm in vms}
        assert set(state.limits) <= set(by_name)
        for vm, limit in state.limits.items():
            if limit == before.limits.get(vm):
                continue
            # What was taken left everybody what it is due, and its minimum, as far as those can be kept.
            if limit < before.limits.get(vm, float("inf")):
                assert by_name[vm].limitable
                assert limit >= due.due[vm] * (1 - 1e-9)
                assert limit >= (by_name[vm].slo.min_iops or 0) * due.part * (1 - 1e-9)
                # And one step takes 40 % at the most.
                assert limit >= 0.6 * min(before.limits.get(vm, float("inf")), by_name[vm].iops) * (1 - 1e-9)


@given(contenders(), st.floats(10, 10_000))
def test_dues_add_up_to_what_there_is(vms: list[Contender], total: float) -> None:
    due = dues(vms, {}, total)
    assert sum(due.owed[v.vm] for v in vms if v.vm in due.owed and v.wants_more) <= total * (1 + 1e-6)
    for vm in vms:
        assert due.owed.get(vm.vm, 0.0) <= due.due[vm.vm]
        assert due.owed.get(vm.vm, 0.0) <= (vm.slo.min_iops or 0.0)


@given(contenders(), st.floats(10, 10_000))
def test_nobody_is_held_back_while_nobody_is_short(vms: list[Contender], total: float) -> None:
    happy = [replace(vm, iops=max(vm.iops, 2.0 * (vm.slo.min_iops or 0))) for vm in vms]
    state = Protection()
    for _ in range(5):
        state = step(state, [replace(vm, p99_us=None) for vm in happy], total, 2.0, 1.0)
    assert not state.limits


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.floats(0, 0.03), st.floats(100, 900), st.floats(500, 50_000))
@example(seed=0, noise=0.0, minimum=100.0, beyond=1751.0)  # the last step was too small to be written
def test_simulated_a_minimum_is_kept_without_oscillation(
    seed: int, noise: float, minimum: float, beyond: float
) -> None:
    plant = Plant(noisy_pair(minimum), minimum + beyond, noise, seed)
    loop = Loop(plant).run(150)
    assert loop.mean("web", 60) >= 0.97 * minimum
    # Constant demand: it comes to rest, but for a probe now and then where the minimum is comfortably kept.
    assert loop.changes(60) <= 6
    # What is left goes to the others, and is used.
    total = sum(loop.mean(vm, 60) for vm in plant.vms)
    assert total >= 0.9 * (minimum + beyond)


def test_simulated_three_vms_with_and_without() -> None:
    plant = Plant(noisy_pair(), 2000, noise=0.01)
    alone = plant.iops()
    assert alone["web"] < 100
    loop = Loop(plant).run(60)
    assert loop.mean("web", 20) == pytest.approx(320, rel=0.1)
    # By equal weights the others are left about the same.
    assert loop.mean("x", 20) > 600
    assert loop.mean("y", 20) < 1000
    assert loop.protection.served == ("web",)
    # The first who was held back was the one furthest above its share, alone.
    first = next(limits for _, limits in loop.history if limits)
    assert set(first) == {"y"}


def test_simulated_recovery_is_monotone_and_complete() -> None:
    plant = Plant(noisy_pair(), 2000, noise=0.0)
    loop = Loop(plant).run(40)
    assert set(loop.protection.limits) == {"x", "y"}
    held = len(loop.history)
    plant.vms["web"].demand = 1.0
    loop.run(60)
    assert loop.protection.limits == {}
    assert loop.protection.served == ()
    after = [limits for _, limits in loop.history[held:]]
    # Not at once.
    assert after[4] == after[0]
    for vm in ("x", "y"):
        limits = [each.get(vm, float("inf")) for each in after]
        assert limits == sorted(limits)


def test_simulated_giving_back_too_soon_takes_longer_the_next_time() -> None:
    # With 250 it has all that it wants, but only as long as others are held back.
    plant = Plant(noisy_pair(demand=250), 2000, noise=0.0)
    loop = Loop(plant).run(120)
    early = loop.changes(100)
    loop.run(1000)
    assert loop.protection.dwell_s > 40
    assert loop.changes(100) < early
    assert loop.mean("web", 500) > 220


def test_simulated_minimums_beyond_the_device_shrink_alike_and_that_is_told() -> None:
    vms = {
        "a": PlantVm(Slo(min_iops=900), 40),
        "b": PlantVm(Slo(min_iops=600), 10),
        "c": PlantVm(UNPROMISED, 50),
    }
    loop = Loop(Plant(vms, 1000)).run(150)
    a, b, c = (loop.mean(vm, 20) for vm in "abc")
    assert a / b == pytest.approx(1.5, rel=0.1)
    # Even then nobody starves.
    assert 0.9 * 0.05 / 3 * 1000 <= c < 100
    assert any("each is owed" in told for told in loop.told)


def test_minimums_beyond_the_device_are_told() -> None:
    vms = [Contender("a", Slo(min_iops=900), 700, True), Contender("b", Slo(min_iops=600), 300, True)]
    (told,) = step(Protection(), vms, 1000, 1.0, 1.0).told
    assert told == (
        "the minimums of the VMs that want so much are 1,500 IOPS together, and the device delivers 1,000: "
        "each is owed 67% of its own"
    )


def test_simulated_holding_back_in_vain_is_given_up_and_told() -> None:
    # Nothing makes it do more than 100, though it looks as if it wanted more.
    plant = Plant(noisy_pair(queue=40, demand=100), 2000)
    loop = Loop(plant, guessing=True).run(10)
    assert loop.protection.limits
    loop.run(50)
    assert not loop.protection.limits
    assert any("web got no more when others were held back for it" in told for told in loop.protection.told)
    # It is tried again later, and ever more seldom.
    loop.run(1000)
    tries = [bool(limits) for _, limits in loop.history]
    assert sum(tries[:500]) > sum(tries[-500:])


def test_simulated_a_rising_waf_lowers_limits_before_anybody_is_short() -> None:
    plant = Plant(noisy_pair(), 2000, waf=1.0)
    loop = Loop(plant).run(60)
    before = dict(loop.protection.limits)
    for tenth in range(1, 11):
        plant.waf = 1.0 + 0.05 * tenth
        loop.run(4)
        assert loop.history[-1][0]["web"] >= 0.9 * 300
    after = loop.protection.limits
    assert sum(after.values()) < 0.8 * sum(before.values())
    assert loop.mean("web", 3) >= 0.95 * 300


def test_who_was_owed_less_before_is_let_have_its_minimum() -> None:
    state = Protection(limits={"a": 500.0}, unchanged_s=10.0, short_s={"a": 5.0})
    vms = [Contender("a", Slo(min_iops=600), 500, True), Contender("b", UNPROMISED, 1500, True)]
    assert step(state, vms, 2000, 1.0, 1.0).limits["a"] == pytest.approx(636)


def test_a_p99_that_is_measured_is_kept_by_the_same_means() -> None:
    web = Contender("web", Slo(p99_latency_us=5000), 100.0, True, p99_us=10_000)
    others = [Contender("x", UNPROMISED, 2000.0, True), Contender("y", UNPROMISED, 500.0, True)]
    state = Protection()
    for _ in range(3):
        state = step(state, [web, *others], 2600, 1.0, 1.0)
    assert set(state.limits) == {"x"}
    assert step(Protection(), [replace(web, p99_us=None), *others], 2600, 1.0, 1.0).limits == {}


def test_vms_that_cannot_be_limited_are_not() -> None:
    vms = [
        Contender("web", Slo(min_iops=300), 50.0, True),
        Contender("x", UNPROMISED, 1950.0, True, limitable=False),
    ]
    state = Protection()
    for _ in range(5):
        state = step(state, vms, 2000, 1.0, 1.0)
    assert state.limits == {}
    assert state.at_due


@given(st.floats(1, 1e5), st.floats(1, 10), st.floats(1, 10), st.floats(0, 1))
def test_deliverable_falls_with_waf_and_comes_back(
    iops: float, waf: float, later: float, writes: float
) -> None:
    known = Deliverable().after(iops, 1.0, wanted_more=True, held=False, short=False, waf=waf)
    promised = known.at(later, writes)
    assert promised is not None
    assert promised <= iops * (1 + 1e-9) if later >= waf else promised >= iops * (1 - 1e-9)
    assert known.at(waf, writes) == pytest.approx(iops)
    assert known.at(None, writes) == iops


def test_deliverable_follows_only_what_means_something() -> None:
    known = Deliverable().after(1000, 1.0, wanted_more=True, held=False, short=False)
    assert Deliverable().after(1000, 1.0, wanted_more=False, held=False, short=False).iops is None
    assert known.after(100, 60.0, wanted_more=False, held=False, short=False) == known
    assert known.after(100, 60.0, wanted_more=True, held=True, short=False) == known
    less = known.after(100, 10.0, wanted_more=True, held=False, short=False)
    assert less.iops == less.free_iops == pytest.approx(100 + 900 / 2.71828, rel=1e-4)
    more = known.after(2000, 10.0, wanted_more=True, held=True, short=False)
    assert more.iops == pytest.approx(2000 - 1000 / 2.71828, rel=1e-4)
    assert more.free_iops == 1000


@given(st.lists(st.tuples(st.floats(0, 5000), st.booleans()), max_size=60))
def test_deliverable_gives_way_by_half_at_the_most(looks: list[tuple[float, bool]]) -> None:
    held = Deliverable().after(1000, 1.0, wanted_more=True, held=False, short=False)
    for total, short in looks:
        before, held = held, held.after(total, 2.0, wanted_more=True, held=True, short=short)
        assert held.iops is not None
        assert held.iops >= 500
        if short:
            assert held.iops <= (before.iops or 0)
