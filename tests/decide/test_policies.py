"""Every policy in closed loop with the analytic plant."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slo_ctl.decide import gc_model
from slo_ctl.decide.policies import POLICIES, make_policy, without_lever
from slo_ctl.decide.policies.fast15 import Algorithm1, Algorithm1State
from slo_ctl.decide.policies.proportional import Activity, Proportional
from slo_ctl.model.sample import DeviceSample, Placement, ShareBy, TimingModel, VmSample
from slo_ctl.model.slo import Slo

from .plant import FULL, PAPER, Loop, Plant, PlantVm

WORKLOADS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "hotcold": {"hot": (0.8, 0.2)},
    "mixed": {"read_us_per_request": 300.0, "write_pages_per_request": 2.5},
}
QUIET = VmSample("a", 0.0, logical_blocks=100, ops_blocks=20, min_ops_blocks=2)


def three(**workload: Any) -> list[PlantVm]:
    return [PlantVm(name, weight, **workload) for name, weight in (("a", 1.0), ("b", 3.0), ("c", 6.0))]


def loop(policy: str, vms: list[PlantVm], ops_blocks: int = 450, **plant: Any) -> Loop:
    return Loop(Plant(vms, ops_blocks, **plant), make_policy(policy))


def ratios(shares: dict[str, float]) -> list[float]:
    return [round(share / shares["a"], 1) for share in shares.values()]


def test_table_has_every_policy_by_its_name() -> None:
    assert list(POLICIES) == [
        "shared",
        "static",
        "algorithm1",
        "proportional",
        "proportional-strict",
        "min_waf",
    ]
    for name, entry in POLICIES.items():
        assert entry.make().name == name
        assert entry.description
    assert make_policy("shared").placement is Placement.SHARED
    with pytest.raises(ValueError, match="no policy 'fair'; there are shared, static"):
        make_policy("fair")


def test_algorithm1_takes_the_iops_that_the_ssd_is_specified_with() -> None:
    assert make_policy("algorithm1:900") == Algorithm1(900.0, "algorithm1:900")
    assert make_policy("algorithm1") == Algorithm1(None, "algorithm1")
    vms = tuple(QUIET._replace(vm=n, active=True) for n in "ab")
    sample = DeviceSample(PAPER, vms)
    # The more IOPS are specified, the lower is the u that each VM needs for its share.
    low, high = (Algorithm1(iops).target_u(sample) for iops in (300.0, 900.5))
    assert all(high[vm] < low[vm] for vm in "ab")


def test_a_policy_with_an_argument_has_no_more_levers_than_without() -> None:
    for bound in (Slo(min_iops=100.0), Slo(p99_latency_us=5000.0)):
        assert "no lever" in without_lever("algorithm1:900", bound)


@pytest.mark.parametrize("name", ["algorithm1:", "algorithm1:0", "algorithm1:fast", "algorithm1:-3"])
def test_a_specification_is_a_number_above_zero(name: str) -> None:
    with pytest.raises(ValueError, match="IOPS must be a number above 0"):
        make_policy(name)


@pytest.mark.parametrize("name", ["static:900", "proportional:", ":900", ""])
def test_no_other_policy_has_a_specification(name: str) -> None:
    with pytest.raises(ValueError, match="no policy"):
        make_policy(name)


def test_shared_decides_nothing() -> None:
    run = loop("shared", three())
    run.run(2)
    assert all(d.moves == () and not d.limits_iops for d in run.decisions)


def test_static_splits_by_weight_and_misses_the_proportion() -> None:
    run = loop("static", three(), timing=PAPER, noise=0.0)
    assert [v.ops_blocks for v in run.plant.vms] == [45, 135, 270]
    run.run(10)
    a, b, c = ratios(run.run(10))
    assert a == 1.0
    assert b == pytest.approx(2.6, abs=0.15)
    assert c == pytest.approx(4.4, abs=0.3)


def test_algorithm1_starves_the_vm_with_the_highest_u() -> None:
    run = loop("algorithm1", three(), timing=PAPER, noise=0.0)
    run.run(10)
    low = run.plant.vm("a")
    assert low.ops_blocks == low.min_ops_blocks
    a, b, c = ratios(run.run(10))
    assert a == 1.0
    assert 15 < b < 35
    assert 25 < c < 50
    # It stays there although it alone is far above its target u: it is itself the maximum.
    u = low.u
    assert u > Algorithm1().target_u(run.plant.window())["a"] + 0.03
    assert not any(move.target == "a" for decision in run.decisions for move in decision.moves)


@pytest.mark.parametrize("name", ["static", "algorithm1"])
def test_initial_moves_that_a_busy_device_ignored_are_asked_for_again(name: str) -> None:
    plant, policy = Plant(three(), 450, timing=PAPER), make_policy(name)
    state, decision = policy.start(plant.window())
    wanted = decision.moves
    for _ in range(3):
        state, decision = policy.step(state, plant.window())
        assert decision.moves == wanted
    plant.apply(decision)
    assert [v.ops_blocks for v in plant.vms] == [45, 135, 270]
    state, decision = policy.step(state, plant.window())
    assert decision.moves != wanted


def test_algorithm1_moves_one_block_for_each_that_was_collected() -> None:
    split = {"a": 45, "b": 135, "c": 270}
    vms = [
        VmSample(
            *(name, 1.0),
            slo=Slo(weight=blocks),
            active=True,
            requests=100,
            host_page_writes=1000,
            gc_page_writes=1000,
            victim_pages=200,
            victim_valid_pages=100,
            logical_blocks=1000,
            ops_blocks=blocks,
            min_ops_blocks=2,
        )
        for name, blocks in split.items()
    ]
    policy = Algorithm1()
    for collected in (0, 1, 6):
        pages = collected * PAPER.pages_per_block
        used = vms[0]._replace(victim_pages=pages, victim_valid_pages=9 * pages // 10)
        others = [vm._replace(victim_pages=0, victim_valid_pages=0) for vm in vms[1:]]
        state = Algorithm1State({"a": 0.9, "b": 0.8, "c": 0.8})
        _, decision = policy.step(state, DeviceSample(PAPER, (used, *others)))
        assert sum(move.blocks for move in decision.moves) == max(1, collected)


@pytest.mark.parametrize(
    ("workload", "plant"),
    [
        *((workload, {}) for workload in WORKLOADS),
        ("uniform", {"noise": 0.03}),
        ("mixed", {"contention": 0.1}),
        ("hotcold", {"measures_outstanding": True}),
    ],
)
def test_proportional_holds_shares_and_recovers(workload: str, plant: dict[str, Any]) -> None:
    run = loop("proportional-strict", three(**WORKLOADS[workload]), timing=FULL, **plant)
    run.run(10)
    assert run.worst_error(10) < 0.03
    a, b, c = run.plant.vms

    a.weight, c.weight = 6.0, 1.0
    run.run(3)
    assert run.worst_error(1) < 0.05
    run.run(4)

    b.active = False
    run.run(3)
    assert run.worst_error(1) < 0.05
    assert b.ops_blocks == b.min_ops_blocks or c.limit_iops is not None
    run.run(4)

    b.active = True
    run.run(3)
    assert run.worst_error(1) < 0.05
    run.run(6)
    assert run.worst_error(10) < 0.03


def test_proportional_reaches_the_level_that_ops_can_give_all() -> None:
    run = loop("proportional-strict", three(), timing=FULL, noise=0.005)
    assert run.worst_error(20) < 0.01
    # By equation 1 it is 80 IOPS per unit of weight on this device.
    assert run.plant.iops()["a"] == pytest.approx(80, rel=0.03)


@pytest.mark.parametrize(
    ("outstanding_s", "waiting_s", "depends"),
    [(9.9, 0.0, True), (6.0, 1.0, True), (4.0, 0.0, False), (9.9, 6.0, False), (0.0, 0.0, False)],
)
def test_rate_of_a_client_that_mostly_waits_for_the_device_follows_its_latency(
    outstanding_s: float, waiting_s: float, depends: bool
) -> None:
    activity = Activity(seconds=10.0, backlog_s=outstanding_s, queued_s=waiting_s)
    assert activity.depends_on_latency is depends
    assert not Activity().depends_on_latency


def test_proportional_stops_moving_ops() -> None:
    run = loop("proportional-strict", three(), timing=FULL, noise=0.0)
    run.run(10)
    moved = run.plant.blocks_moved
    run.run(10)
    assert run.plant.blocks_moved - moved <= 3


@pytest.mark.parametrize("lag", [0.1, 1.0])
def test_proportional_tolerates_other_delays(lag: float) -> None:
    run = loop("proportional-strict", three(hot=(0.8, 0.2)), timing=FULL, lag=lag)
    run.run(10)
    assert run.worst_error(10) < 0.03


def test_pacing_follows_a_bottleneck_that_speeds_up_or_leaves() -> None:
    slow = PlantVm("slow", 6.0, read_us_per_request=20000.0)
    run = loop("proportional-strict", [slow, PlantVm("a", 1.0), PlantVm("b", 2.0)], timing=FULL)
    run.run(5)
    assert run.worst_error(2) < 0.03
    paced = run.plant.iops()["a"]
    slow.read_us_per_request = 1000.0
    run.run(6)
    assert run.worst_error(2) < 0.03
    assert run.plant.iops()["a"] > 2 * paced
    slow.active = False
    run.run(4)
    assert run.plant.iops()["a"] > 100
    assert run.worst_error(1) < 0.05


def test_a_vm_that_asks_for_little_does_not_hold_back_the_others() -> None:
    modest = PlantVm("modest", 6.0, demand_iops=20.0)
    run = loop("proportional-strict", [modest, PlantVm("a", 1.0), PlantVm("b", 2.0)], timing=FULL)
    run.run(8)
    iops = run.plant.iops()
    assert iops["modest"] == pytest.approx(20.0, rel=0.1)
    assert iops["b"] / iops["a"] == pytest.approx(2.0, rel=0.05)
    assert iops["a"] > 150


def test_max_iops_is_enforced_and_its_ops_go_to_the_others() -> None:
    vms = three()
    vms[2].slo = {"max_iops": 120.0}
    run = loop("proportional-strict", vms, timing=FULL)
    run.run(10)
    iops = run.plant.iops()
    assert iops["c"] <= 120.001
    assert iops["b"] / iops["a"] == pytest.approx(3.0, rel=0.05)
    assert iops["a"] > 90
    del vms[2].slo["max_iops"]
    run.run(10)
    assert run.worst_error(5) < 0.05


def test_a_vm_whose_pages_come_in_bursts_gets_its_share_and_no_more() -> None:
    """Three windows with a fifth of its share and one with the rest are no reason for another weight."""
    policy, plant = Proportional(), Plant([PlantVm("steady", 9.0), PlantVm("bursts", 1.0)], 300)
    window = plant.window()

    def sample(pages: int) -> DeviceSample:
        served = (4500, pages)
        vms = (
            v._replace(window_s=1.0, requests=n, host_page_writes=n, device_s=1e-4 * n, queued_share=1.0)
            for v, n in zip(window.vms, served, strict=True)
        )
        return replace(window, vms=tuple(vms))

    state, _ = policy.start(window)
    trims = []
    for number in range(100):
        state, _ = policy.step(state, sample(1700 if number % 4 == 3 else 100))
        trims.append(state.meters["bursts"].trim)
    assert abs(sum(trims[-20:]) / 20) < 0.25


def test_overcommitted_minimums_are_reported() -> None:
    vms = three()
    for vm in vms:
        vm.slo = {"min_iops": 600.0}
    run = loop("proportional-strict", vms, timing=FULL)
    run.run(1)
    assert any("overcommitted" in reason for reason in run.decisions[-1].reasons)


@pytest.mark.parametrize("pages", [1, 8])
def test_overcommitted_minimums_are_reported_whatever_the_unit_of_shares(pages: int) -> None:
    policy = make_policy("proportional-strict")
    window = Plant([PlantVm("a", 1.0, slo={"min_iops": 1200.0})], 300, FULL).window()
    (vm,) = window.vms
    vm = vm._replace(window_s=1.0, requests=400, host_page_writes=400 * pages, host_page_reads=0)
    vm = vm._replace(backlog_share=1.0, queued_share=0.0)
    window = replace(window, vms=(vm,), share_by=ShareBy.PAGES)
    state, _ = policy.resume(replace(window, vms=(vm._replace(host_page_writes=0),)))
    _, decision = policy.step(state, window)
    assert any("overcommitted" in reason for reason in decision.reasons)


@pytest.mark.parametrize(("backlog", "queued", "grows"), [(1.0, 0.8, True), (0.8, 0.8, False)])
def test_a_vm_earns_credit_while_it_waits_for_others_but_not_while_it_pauses(
    backlog: float, queued: float, grows: bool
) -> None:
    policy, plant = Proportional(), Plant([PlantVm("a", 1.0), PlantVm("b", 1.0)], 300)
    window = plant.window()
    short, more = (
        v._replace(window_s=1.0, requests=n, host_page_writes=n)
        for v, n in zip(window.vms, (300, 700), strict=True)
    )
    short = short._replace(backlog_share=backlog, queued_share=queued)
    state, _ = policy.start(window)
    for _ in range(40):
        state, _ = policy.step(state, replace(window, vms=(short, more)))
    assert (state.meters["a"].trim > 0.1) is grows
    assert state.meters["a"].trim == 0.0 or grows


def test_vms_may_come_and_go() -> None:
    run = loop("proportional-strict", three(), timing=FULL)
    run.run(6)
    run.plant.vms.pop(1)  # its blocks become spare
    run.run(4)
    assert sum(v.ops_blocks for v in run.plant.vms) == 450
    assert run.worst_error(1) < 0.05
    run.plant.vms.append(PlantVm("new", 2.0, ops_blocks=0, min_ops_blocks=0, u=0.99))
    run.run(4)
    assert run.worst_error(1) < 0.05
    assert run.plant.vm("new").ops_blocks > 20


@settings(max_examples=6, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), n=st.integers(2, 8), op=st.floats(0.1, 0.28), seed=st.integers(0, 1000))
def test_proportional_from_any_start(data: st.DataObject, n: int, op: float, seed: int) -> None:
    vms = [
        PlantVm(
            f"vm{i}",
            float(data.draw(st.integers(1, 10))),
            logical_blocks=data.draw(st.integers(300, 3000)),
            footprint=data.draw(st.sampled_from([1.0, 0.9, 0.8])),
            hot=data.draw(st.sampled_from([None, (0.8, 0.2), (0.9, 0.1)])),
            write_pages_per_request=data.draw(st.sampled_from([0.5, 1.0, 2.0, 6.0])),
            read_us_per_request=data.draw(st.sampled_from([0.0, 100.0, 400.0])),
        )
        for i in range(n)
    ]
    total = int(op * sum(v.logical_blocks for v in vms))
    run = loop("proportional-strict", vms, total, timing=FULL, seed=seed)

    def conserved() -> None:
        assert sum(v.ops_blocks for v in vms) == total
        assert all(v.ops_blocks >= v.min_ops_blocks for v in vms)

    run.run(10, conserved)
    assert run.worst_error(10) < 0.03


@pytest.mark.parametrize(("alpha", "best"), [(1.10, 3.743), (1.28, 1.839)])
def test_min_waf_finds_the_best_split(alpha: float, best: float) -> None:
    hot = PlantVm("hot", 1.0, logical_blocks=2000, demand_iops=8.0)
    cold = PlantVm("cold", 1.0, logical_blocks=8000, demand_iops=2.0)
    run = loop("min_waf", [hot, cold], round((alpha - 1.0) * 10000), timing=FULL)
    run.run(10)
    total = 0.8 * gc_model.waf(hot.u) + 0.2 * gc_model.waf(cold.u)
    assert total == pytest.approx(best, rel=0.03)


def test_min_waf_and_a_device_time_scheduler_give_the_shares_at_a_higher_total() -> None:
    run = loop("min_waf", three(), timing=FULL, scheduled=True)
    run.run(10)
    assert run.worst_error(10) < 0.03
    low_waf = sum(run.plant.iops().values())
    by_ops = loop("proportional-strict", three(), timing=FULL)
    by_ops.run(10)
    # The same scheduler over the split that proportional needs would serve less.
    by_ops.plant.scheduled = True
    for vm in by_ops.plant.vms:
        vm.scheduler_weight = vm.weight * gc_model.write_time_us(FULL, vm.u)
    assert low_waf > 1.05 * sum(by_ops.plant.iops().values())


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("timing", [FULL, PAPER, replace(FULL, model=TimingModel.NONE)])
def test_policies_survive_missing_measurements_and_vms(name: str, timing: Any) -> None:
    """Nothing measured yet, no VM active, no VM at all, a single VM."""
    policy = make_policy(name)
    quiet = [QUIET._replace(vm=n) for n in "ab"]
    sample = DeviceSample(timing, tuple(quiet))
    state, _ = policy.start(sample)
    for vms in (quiet, quiet[:1], [v._replace(active=True) for v in quiet], []):
        state, decision = policy.step(state, replace(sample, vms=tuple(vms)))
        assert not decision.limits_iops


def reader(vm: str, pages: int, device_s: float, backlog: float, queued: float) -> VmSample:
    """A VM that reads single pages for a second."""
    return QUIET._replace(
        vm=vm,
        window_s=1.0,
        active=True,
        requests=pages,
        host_page_reads=pages,
        device_s=device_s,
        backlog_share=backlog,
        queued_share=queued,
    )


@pytest.mark.parametrize("backlog", [1.0, 0.1])
def test_costly_pages_of_a_vm_with_few_requests_outstanding_are_reported(backlog: float) -> None:
    # It wants no more, but uses most of the device; a VM that is mostly idle slows nobody down.
    few = reader("few", 1000, 2.5, backlog, 0.3 * backlog)
    many = reader("many", 5000, 0.8, 1.0, 1.0)
    policy, sample = Proportional(), DeviceSample(FULL, (few, many))
    state, _ = policy.start(sample)
    _, decision = policy.step(state, sample)
    remarks = {"few": "each page takes 15.6 times the device time of one of many"} if backlog == 1.0 else {}
    assert decision.remarks == remarks
