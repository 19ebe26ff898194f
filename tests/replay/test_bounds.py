"""A minimum and a p99 are judged under every policy as by the daemon, with a reason."""

import pytest

from slo_ctl.base import numbers
from slo_ctl.base.progress import Silent
from slo_ctl.decide.policies import POLICIES
from slo_ctl.model.status import Verdict
from slo_ctl.replay import run as engine
from slo_ctl.replay.result import RunResult
from slo_ctl.replay.scenario_build import build_scenario
from slo_ctl.replay.scenario_text import ScenarioText
from slo_ctl.show.replay_table import notes_of

UNREACHABLE = ("name=a,workload=uniform,qd=1,p99=1ms", "name=b,workload=uniform,qd=8")
LIGHT = "name=light,workload=uniform,mode=open,iops=100"


def replay(*vms: str, policy: str = "proportional", duration: str = "8x") -> RunResult:
    text = ScenarioText()
    text.add_device("preset=fast15,size=256MiB,op=15%")
    for vm in vms:
        text.add_vm(vm)
    for key, value in {"alone": "no", "policy": policy, "duration": duration}.items():
        text.set(key, value)
    (run,) = engine.run(build_scenario(text), Silent()).runs
    return run


@pytest.mark.parametrize("policy", POLICIES)
def test_a_p99_out_of_reach_is_insufficient_under_every_policy(policy: str) -> None:
    run = replay(*UNREACHABLE, policy=policy)
    judged = run.vms[0].judged()
    assert judged.verdict is Verdict.INSUFFICIENT
    measured_us = run.vms[0].latency_us.write.p99
    assert measured_us is not None
    assert judged.reason.startswith(f"p99 of writes {numbers.latency(measured_us)}, above its 1 ms; ")
    assert any(note == f"a is insufficient: {judged.reason}" for note in notes_of(run))
    if POLICIES[policy].keeps_p99:
        assert "limits on other VMs did not help: p99 at least " in judged.reason
        assert "ms with b limited to " in judged.reason
    else:
        assert f"policy {policy} has no lever for a p99" in judged.reason


def test_neighbours_are_not_limited_for_long_for_a_p99_out_of_reach() -> None:
    # One trial of 12 windows is in the measured half.
    run = replay(*UNREACHABLE, duration="16x")
    without = replay("name=a,workload=uniform,qd=1", UNREACHABLE[1], duration="16x")
    assert run.vms[1].limit_iops is None
    assert (run.vms[1].iops or 0.0) > 0.85 * (without.vms[1].iops or 0.0)


def test_a_p99_is_reached_by_limits_on_others() -> None:
    others = ("name=b,workload=uniform,qd=16", "name=c,workload=uniform,qd=16")
    missed = replay("name=a,workload=uniform,qd=16", *others).vms[0]
    assert (missed.latency_us.write.p99 or 0.0) > 15_000
    run = replay("name=a,workload=uniform,qd=16,p99=15ms", *others)
    assert run.vms[0].judged().verdict is Verdict.OK
    assert run.vms[0].judged().reason.startswith("p99 ")
    assert all(vm.limit_iops is not None for vm in run.vms[1:])


@pytest.mark.parametrize("policy", ["shared", "static"])
def test_minimum_without_a_lever_is_reported(policy: str) -> None:
    run = replay("name=a,workload=uniform,qd=1,min=1500", "name=b,workload=uniform,qd=8", policy=policy)
    judged = run.vms[0].judged()
    assert judged.verdict is Verdict.INSUFFICIENT
    assert "below its minimum of 1,500" in judged.reason
    assert f"policy {policy} has no lever for a minimum" in judged.reason


@pytest.mark.parametrize("policy", ["shared", "proportional"])
def test_vm_that_asks_for_less_than_its_minimum_is_ok(policy: str) -> None:
    run = replay(f"{LIGHT},min=300", "name=b,workload=uniform,qd=8", policy=policy)
    assert run.vms[0].judged().verdict is Verdict.OK
