"""Acceptance limits for shares on small emulated drives; `bench/acceptance.py` has the whole matrix."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slo_ctl.base.progress import Silent
from slo_ctl.replay import run as engine
from slo_ctl.replay.result import RunResult, VmResult
from slo_ctl.replay.scenario_build import build_scenario
from slo_ctl.replay.scenario_text import ScenarioText

pytestmark = pytest.mark.slow

SHARE_BAR = 0.03
EVENT_BAR = 0.05
BOUND_BAR = 0.02
TRACES = Path(os.environ.get("SLO_CTL_TRACES", Path(__file__).resolve().parents[3] / "shared" / "traces"))
UNIFORM = ("workload=uniform",) * 3
SKEWED = ("workload=zipf", "workload=hotcold", "workload=zipf")
MIXED = ("workload=uniform", "workload=hotcold", "workload=uniform,read=.5")
FAST15 = ("workload=financial", "workload=msn", "workload=exchange")


def trio(sources: tuple[str, ...], *extra: str) -> list[str]:
    """VMs a, b, c of weights 1, 3, 6; `extra` keys are for each in turn."""
    extras = (*extra, "", "", "")
    return [
        f"name={name},weight={weight},{source}" + (f",{more}" if more else "")
        for name, weight, source, more in zip("abc", (1, 3, 6), sources, extras, strict=False)
    ]


def replay(
    vms: list[str], device: str = "size=256MiB,dies=4", events: tuple[str, ...] = (), **settings: str
) -> list[RunResult]:
    text = ScenarioText()
    text.add_device(f"preset=fast15,op=15%,{device}")
    for vm in vms:
        text.add_vm(vm)
    for event in events:
        text.add_event(event)
    for key, value in {"alone": "no", "policy": "proportional-strict", **settings}.items():
        text.set(key, value)
    return engine.run(build_scenario(text), Silent()).runs


def worst(run: RunResult) -> float:
    return max(abs(vm.share_error) for vm in run.vms if vm.share_error is not None)


def vm_of(run: RunResult, name: str) -> VmResult:
    return next(vm for vm in run.vms if vm.name == name)


@pytest.mark.parametrize("timing", ["full", "paper"])
@pytest.mark.parametrize("sources", [UNIFORM, SKEWED, MIXED, FAST15], ids=lambda s: s[0][9:])
def test_proportional_holds_shares(sources: tuple[str, ...], timing: str) -> None:
    (run,) = replay(trio(sources), timing=timing)
    assert worst(run) < SHARE_BAR


def test_shares_do_not_depend_on_sizes() -> None:
    (run,) = replay(trio(MIXED, "size=112MiB", "size=48MiB", "size=96MiB"))
    assert worst(run) < SHARE_BAR


@pytest.mark.parametrize(
    "names",
    [
        (
            "vscsi/cloudPhysicsIO.vscsi.zst",
            "spc/Financial1_10k_reconstructed.spc.zst",
            "msr/heimdall_msr_rw_20_80.105.trace.zst",
        ),
        (
            "msprod/DTRS100M.ssdsim.zst",
            "disksim/disksim_iozone_100K.ascii.zst",
            "disksim/disksim_postmark.ascii.zst",
        ),
    ],
    ids=["vscsi-spc-msr", "dtrs-iozone-postmark"],
)
def test_real_traces_of_different_footprints_hold_shares(names: tuple[str, ...]) -> None:
    missing = [name for name in names if not (TRACES / name).exists()]
    if missing:
        pytest.skip(
            f"no real traces {', '.join(missing)}: set SLO_CTL_TRACES to the directory that holds them"
        )
    (run,) = replay(trio(tuple(f"trace={TRACES / name}" for name in names)), device="size=512MiB,dies=4")
    assert worst(run) < SHARE_BAR


@pytest.mark.parametrize("sources", [UNIFORM, FAST15], ids=lambda s: s[0][9:])
@pytest.mark.parametrize("event", ["vm=a,action=weight,weight=6", "vm=b,action=stop", "vm=c,action=start"])
def test_shares_are_back_three_drive_writes_after_an_event(sources: tuple[str, ...], event: str) -> None:
    starting = ("", "", "start=stopped") if event.endswith("start") else ()
    (run,) = replay(trio(sources, *starting), events=(f"at=6x,{event}",), duration="11x", window="9x..11x")
    assert worst(run) < EVENT_BAR


def test_shares_are_exact_with_one_request_outstanding() -> None:
    (run,) = replay(trio(UNIFORM), device="size=1GiB,dies=4", timing="paper", duration="16x")
    assert worst(run) < 0.01


@pytest.mark.parametrize("scheduler", ["fifo", "rr", "wfq"])
def test_deep_queues_keep_shares_and_total(scheduler: str) -> None:
    static, proportional = replay(trio(UNIFORM, *["qd=8"] * 3), compare="static", scheduler=scheduler)
    assert worst(proportional) < SHARE_BAR
    assert (proportional.iops or 0.0) > 0.9 * (static.iops or 0.0)


def test_paced_vms_keep_ops_that_saves_gc_for_others() -> None:
    """More OPS for the bottleneck alone would gain less: its requests wait for the GC of the others."""
    static, proportional = replay(trio(FAST15), compare="static")
    assert worst(proportional) < SHARE_BAR
    assert (proportional.iops or 0.0) > 0.95 * (static.iops or 0.0)
    assert (proportional.waf or 0.0) < (static.waf or 0.0)


def test_min_waf_with_a_fair_scheduler_keeps_shares_and_the_total() -> None:
    proportional, min_waf = replay(
        trio(UNIFORM, *["qd=8"] * 3),
        device="size=512MiB,dies=8",
        compare="proportional-strict",
        policy="min_waf",
        scheduler="wfq",
    )
    assert worst(min_waf) < SHARE_BAR
    assert (min_waf.iops or 0.0) == pytest.approx(proportional.iops or 0.0, rel=0.02)


def test_a_feasible_minimum_is_kept_and_a_maximum_not_exceeded() -> None:
    (run,) = replay(trio(UNIFORM, "min=140", "", "max=300"))
    assert (vm_of(run, "a").iops or 0.0) > (1 - BOUND_BAR) * 140
    assert (vm_of(run, "c").iops or 0.0) < (1 + BOUND_BAR) * 300
    assert (vm_of(run, "b").iops or 0.0) > 300
