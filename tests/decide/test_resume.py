"""Taking over a drive whose split and limits are in force."""

from __future__ import annotations

from typing import Any

import pytest

from slo_ctl.decide.policies import POLICIES, make_policy
from slo_ctl.model.sample import DeviceSample, TimingModel

from .plant import FULL, Loop, Plant, PlantVm


def settled(policy: str, slow: float = 0.0, **plant: Any) -> Loop:
    """Weights 1:3:6; `slow` makes the heaviest one the bottleneck, so that the others are paced."""
    deep: dict[str, Any] = {"outstanding": 4} if slow else {}
    vms = [
        PlantVm("a", 1.0, **deep),
        PlantVm("b", 3.0, **deep),
        PlantVm("c", 6.0, read_us_per_request=slow, **deep),
    ]
    loop = Loop(Plant(vms, 450, timing=FULL, noise=0.005, **plant), make_policy(policy))
    loop.run(12)
    return loop


def take_over(loop: Loop, policy: str) -> None:
    loop.policy = make_policy(policy)
    loop.state, decision = loop.policy.resume(loop.plant.window())
    loop.plant.apply(decision)
    loop.decisions.append(decision)


@pytest.mark.parametrize("policy", POLICIES)
def test_nothing_moves_right_after_taking_over(policy: str) -> None:
    loop = settled(policy)
    blocks = [v.ops_blocks for v in loop.plant.vms]
    limits = [v.limit_iops for v in loop.plant.vms]
    take_over(loop, policy)
    assert loop.decisions[-1].moves == ()
    assert [v.ops_blocks for v in loop.plant.vms] == blocks
    assert [v.limit_iops for v in loop.plant.vms] == limits


def test_static_completes_its_split_after_taking_over() -> None:
    loop = settled("min_waf")
    take_over(loop, "static")
    loop.run(1 / 12)
    assert [v.ops_blocks for v in loop.plant.vms] == [45, 135, 270]


@pytest.mark.parametrize("slow", [0.0, 20000.0])
@pytest.mark.parametrize("measured", [False, True])
def test_proportional_continues_after_taking_over(slow: float, measured: bool) -> None:
    loop = settled("proportional-strict", slow, measures_outstanding=measured)
    assert loop.worst_error(2) < 0.03
    before = loop.plant.iops()
    moved = loop.plant.blocks_moved
    take_over(loop, "proportional-strict")
    for _ in range(36):
        loop.run(1 / 12)
        now = loop.plant.iops()
        assert all(now[vm] == pytest.approx(before[vm], rel=0.25) for vm in now), (now, before)
    # Without the number of requests that limits throttle, the models have to be learned anew.
    assert loop.plant.blocks_moved - moved < (0.1 if measured else 0.2) * 450
    assert loop.worst_error(4) < 0.03


def test_proportional_answers_events_after_taking_over() -> None:
    loop = settled("proportional-strict")
    take_over(loop, "proportional-strict")
    a, _, c = loop.plant.vms
    a.weight, c.weight = 6.0, 1.0
    loop.run(4)
    assert loop.worst_error(2) < 0.05


@pytest.mark.parametrize("policy", ["static", "shared", "algorithm1", "min_waf"])
def test_limits_of_another_policy_are_lifted(policy: str) -> None:
    loop = settled("proportional-strict", 20000.0)
    assert any(v.limit_iops is not None for v in loop.plant.vms)
    loop.plant.vm("a").slo["max_iops"] = 1000.0
    take_over(loop, policy)
    assert [v.limit_iops for v in loop.plant.vms] in ([1000.0, None, None], [None, None, None])


@pytest.mark.parametrize("policy", POLICIES)
def test_device_without_vms_or_clock_is_taken_over(policy: str) -> None:
    for timing in (FULL, FULL.__class__(128, 60, 800, 1500, 102, TimingModel.NONE)):
        state, decision = make_policy(policy).resume(DeviceSample(timing, ()))
        assert not decision.moves
        assert not decision.limits_iops
        make_policy(policy).step(state, DeviceSample(timing, ()))
