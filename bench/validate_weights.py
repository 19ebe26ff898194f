"""Three VMs with weights 1 : 3 : 6 on one emulated SSD with a clock: results of the policies."""

from __future__ import annotations

from validate_figure import PAGE_BYTES, SEED, Row

from slo_ctl.base.progress import Silent
from slo_ctl.decide import gc_model
from slo_ctl.model.sample import FlashTiming, TimingModel
from slo_ctl.replay.result import RunResult
from slo_ctl.replay.run import run
from slo_ctl.replay.scenario_build import build_scenario
from slo_ctl.replay.scenario_text import ScenarioText

WEIGHTS = {"a": 1, "b": 3, "c": 6}
VM_BLOCKS, OPS_BLOCKS, BLOCK_BYTES, DIES = 1000, 450, 512 * 1024, 4
"""One die for the outstanding write of each VM: with fewer they wait for one another, so IOPS even out."""

SHARE_BAR = 0.03
TWO_DIGITS_BAR = 0.06
"""Tolerance for references with two digits only."""

# Simulated independently of this code; figures of the project's validation reference (docs/validation.md).
STATIC_SIMULATED = {"b": 2.6, "c": 4.4}
"""Three VMs, `paper` timing: IOPS relative to VM a."""

STARVED = 0.5
"""Largest share of its target that counts as starving."""


def three_vms(policies: str, overwrites: int = 20) -> dict[str, RunResult]:
    """Results of the policies (names separated by commas), by the replay engine."""
    text = ScenarioText()
    size = len(WEIGHTS) * VM_BLOCKS * BLOCK_BYTES
    op = OPS_BLOCKS / (len(WEIGHTS) * VM_BLOCKS)
    text.add_device(f"preset=fast15,size={size},op={op},dies={DIES}")
    for name, weight in WEIGHTS.items():
        text.add_vm(f"name={name},workload=uniform,weight={weight},qd=1")
    rest, _, last = policies.rpartition(",")
    settings = {"policy": last, "compare": rest or None, "timing": "paper", "duration": f"{overwrites}x"}
    for key, value in {**settings, "alone": "no", "seed": str(SEED)}.items():
        text.set(key, value)
    return {result.policy: result for result in run(build_scenario(text), Silent()).runs}


def weights_rows() -> list[Row]:
    """Results of the OPS policies with weights 1 : 3 : 6."""
    results = three_vms("static,algorithm1,proportional-strict")
    return [
        *static_rows(results["static"]),
        *starvation_rows(results["algorithm1"]),
        *proportional_rows(results["proportional-strict"]),
    ]


def static_rows(result: RunResult) -> list[Row]:
    """OPS in the ratio of the weights does not give IOPS in that ratio."""
    timing = FlashTiming(BLOCK_BYTES // PAGE_BYTES, 60.0, 800.0, 1500.0, 102.0, TimingModel.PAPER)
    total = sum(WEIGHTS.values())
    expected = {
        name: 1e6
        / gc_model.write_time_us(
            timing,
            gc_model.u_at_alpha(1.0 + OPS_BLOCKS * weight / total / VM_BLOCKS, timing.pages_per_block),
        )
        for name, weight in WEIGHTS.items()
    }
    ratio = iops_ratios(result)
    rows = []
    for name, simulated in STATIC_SIMULATED.items():
        what = f"1:3:6, static, IOPS of {name} / a"
        formula = expected[name] / expected["a"]
        rows.append(Row(what, formula, "formula", ratio[name], SHARE_BAR))
        rows.append(Row(what, simulated, "simulated", ratio[name], TWO_DIGITS_BAR))
    return rows


def starvation_rows(result: RunResult) -> list[Row]:
    """Algorithm 1 reduces the first VM to the minimum OPS for GC, and keeps it there."""
    vm = next(vm for vm in result.vms if vm.name == "a")
    # On each die an open block, and one block of slack.
    least = 2 * DIES
    starved = measured(vm.share) / measured(vm.target_share)
    return [
        Row("1:3:6, algorithm1, OPS blocks left to a", least, "minimum", measured(vm.ops_blocks), 0.0),
        Row("1:3:6, algorithm1, share of a / target", STARVED, "at most", starved, 0.0, at_most=True),
    ]


def proportional_rows(result: RunResult) -> list[Row]:
    """Shares of the total, relative to the weights."""
    return [
        Row(
            f"1:3:6, proportional-strict, share of {vm.name}",
            measured(vm.target_share),
            "weights",
            measured(vm.share),
            SHARE_BAR,
        )
        for vm in result.vms
    ]


def iops_ratios(result: RunResult) -> dict[str, float]:
    """IOPS of every VM relative to VM a."""
    by_name = {vm.name: measured(vm.iops) for vm in result.vms}
    return {name: value / by_name["a"] for name, value in by_name.items()}


def measured(value: float | None) -> float:
    """A value that a timed, isolated run always has."""
    if value is None:
        raise ValueError("the replay left out a figure")
    return value
