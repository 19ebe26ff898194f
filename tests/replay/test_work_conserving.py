"""The default policy compared with none: unused service of one VM goes to others, at no cost to it."""

import pytest

from slo_ctl.base.progress import Silent
from slo_ctl.model.status import Verdict
from slo_ctl.replay import run as engine
from slo_ctl.replay.result import RunResult
from slo_ctl.replay.scenario_build import build_scenario
from slo_ctl.replay.scenario_text import ScenarioText

DEVICE = "preset=fast15,size=256MiB,op=15%"
UNIFORM = "workload=uniform"


def replay(
    *vms: str,
    policy: str = "proportional",
    compare: str = "shared",
    duration: str = "8x",
    device: str = DEVICE,
) -> list[RunResult]:
    text = ScenarioText()
    text.add_device(device)
    for vm in vms:
        text.add_vm(vm)
    settings = {"alone": "no", "policy": policy, "compare": compare, "duration": duration}
    for key, value in settings.items():
        text.set(key, value)
    return engine.run(build_scenario(text), Silent()).runs


def iops(run: RunResult) -> dict[str, float]:
    return {vm.name: vm.iops or 0.0 for vm in run.vms}


def errors(run: RunResult) -> list[float]:
    return [abs(vm.share_error or 0.0) for vm in run.vms]


def test_shallow_queue_beside_a_deep_one_loses_no_throughput() -> None:
    shared, run = replay(f"name=one,{UNIFORM},qd=1", f"name=many,{UNIFORM},qd=256")
    before, after = iops(shared), iops(run)
    assert sum(after.values()) > 0.98 * sum(before.values())
    assert after["one"] > 10 * before["one"]
    assert after["many"] > 0.85 * before["many"]


def test_large_requests_do_not_crowd_out_small_ones() -> None:
    shared, run = replay(f"name=large,{UNIFORM},bs=128KiB+1MiB,qd=4", f"name=small,{UNIFORM},qd=4")
    assert iops(run)["small"] > 10 * iops(shared)["small"]
    assert max(errors(run)) < 0.02


def test_a_vm_with_large_requests_takes_no_more_than_its_share_from_its_neighbours() -> None:
    neighbours = [f"name={n},{UNIFORM},qd=4,weight={w}" for n, w in (("a", 3), ("b", 1), ("c", 2))]
    (_, alone) = replay(*neighbours)
    (_, run) = replay(*neighbours, f"name=d,{UNIFORM},bs=1MiB,qd=1,weight=1")
    for vm in "abc":
        assert iops(run)[vm] > 0.9 * 6 / 7 * iops(alone)[vm], vm


@pytest.mark.parametrize("weights", [(1, 3, 6), (1, 1, 1)])
def test_shares_are_exact_if_every_vm_wants_more(weights: tuple[int, ...]) -> None:
    vms = [f"name={n},{UNIFORM},qd=8,weight={w}" for n, w in zip("abc", weights, strict=True)]
    shared, run = replay(*vms)
    assert max(errors(run)) < 0.01
    # Separate pools for the VMs cost 3 % if all do the same; otherwise they gain more than that.
    assert sum(iops(run).values()) > 0.965 * sum(iops(shared).values())
    total = sum(weights)
    assert [vm.target_share for vm in run.vms] == pytest.approx([w / total for w in weights], abs=0.01)


def test_readers_and_writers_keep_their_shares_without_limits_and_writers_get_the_ops() -> None:
    shared, run = replay(f"name=reader,{UNIFORM},read=0.95,qd=8,weight=3", f"name=writer,{UNIFORM},qd=8")
    assert max(errors(run)) < 0.02
    assert sum(iops(run).values()) > sum(iops(shared).values())
    assert all(vm.limit_iops is None for vm in run.vms)
    reader, writer = (vm.ops_blocks or 0 for vm in run.vms)
    assert writer > 2 * reader, "a VM that mostly reads keeps no OPS for its latency"


def test_few_reads_at_a_time_do_not_wait_for_programs_that_the_drive_can_suspend() -> None:
    vms = (f"name=reader,{UNIFORM},read=1,qd=1,weight=3", f"name=writer,{UNIFORM},qd=32")
    (_, waiting), (_, suspending) = (replay(*vms, device=DEVICE + more) for more in ("", ",suspend_us=20"))
    assert iops(suspending)["reader"] > 4 * iops(waiting)["reader"]
    assert sum(iops(suspending).values()) > 1.5 * sum(iops(waiting).values())
    p99_us = [run.vms[0].latency_us.read.p99 or 0.0 for run in (waiting, suspending)]
    assert p99_us[1] < p99_us[0] / 3


def test_fully_served_vm_misses_nothing() -> None:
    _, run = replay(f"name=light,{UNIFORM},mode=open,iops=100,weight=6", f"name=heavy,{UNIFORM},qd=8")
    light = run.vms[0]
    assert light.iops == pytest.approx(100, rel=0.05)
    assert abs(light.share_error or 0.0) < 0.01


def test_open_loop_is_judged_by_its_arrivals() -> None:
    """Even if each waits in a queue: all requests are served in the end."""
    served, _ = replay(f"name=light,{UNIFORM},mode=open,iops=100,weight=6", f"name=heavy,{UNIFORM},qd=32")
    light, heavy = served.vms
    assert light.demand_iops == pytest.approx(100, rel=0.02)
    assert heavy.demand_iops is None
    assert (light.latency_us.write.p99 or 0.0) > 10_000, "it waits"
    assert light.judged().verdict is Verdict.OK
    assert not served.notes
    demand_iops = 20_000
    flooded, _ = replay(f"name=a,{UNIFORM},mode=open,iops={demand_iops}", f"name=b,{UNIFORM},qd=8")
    flood, other = flooded.vms
    assert flood.demand_iops == pytest.approx(demand_iops, rel=0.02)
    assert other.judged().verdict is Verdict.INSUFFICIENT
    assert flood.target_share == pytest.approx(0.5, abs=0.01)
    assert flooded.notes == [
        f"VM a: {flood.iops:,.0f} of the {flood.demand_iops:,.0f} IOPS that arrived were served"
    ]


@pytest.mark.parametrize("policy", ["shared", "static", "algorithm1", "min_waf", "proportional"])
def test_a_maximum_holds_under_every_policy(policy: str) -> None:
    (run,) = replay(
        f"name=a,{UNIFORM},qd=8,max=100",
        f"name=b,{UNIFORM},qd=8",
        policy=policy,
        compare="",
        duration="4x",
    )
    assert iops(run)["a"] == pytest.approx(100, rel=0.02)


def test_a_minimum_is_kept_by_the_queue_without_limits() -> None:
    shared, run = replay(
        f"name=a,{UNIFORM},qd=8,weight=3", f"name=b,{UNIFORM},qd=8,min=700", f"name=c,{UNIFORM},qd=8,weight=2"
    )
    assert iops(run)["b"] > 0.98 * 700
    assert sum(iops(run).values()) > 0.97 * sum(iops(shared).values())
    assert all(vm.limit_iops is None for vm in run.vms)


def test_unreachable_minimum_does_not_starve_others() -> None:
    shared, run = replay(f"name=a,{UNIFORM},qd=1,min=1500", f"name=b,{UNIFORM},qd=16", duration="16x")
    assert iops(run)["a"] >= 0.9 * iops(shared)["a"]
    assert iops(run)["b"] > 0.7 * iops(shared)["b"]
    assert run.vms[0].iops is not None
    assert run.vms[0].iops < 1500
