"""Claims about the policies of slo-ctl: fair queue with OPS, p99, and no starvation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lab.parts import Drive, Parts, PreparedDrive, pages_per_s, total_pages_per_s
from papers.fast15.setup import EMULATED
from papers.figure import (
    Figure,
    Judged,
    Panel,
    Results,
    Rule,
    Shape,
    Trial,
    interval_within,
)
from slo_ctl.decide.policies import Policy
from slo_ctl.decide.policies.fast15 import Algorithm1, Shared, Static
from slo_ctl.decide.policies.proportional import Proportional
from slo_ctl.decide.policies.proportional_strict import ProportionalStrict
from slo_ctl.model.sample import Placement
from slo_ctl.replay.result import RunResult

_LABELS = (EMULATED, "synthetic workloads")
_WEIGHTS = {"VM-1": 1.0, "VM-3": 3.0, "VM-6": 6.0}
_EXACT = 0.03
_OFF = "off 1:3:6, %"
"""Largest deviation of a share from the entitlement."""


def _small(trial: Trial, full: str, quick: str, *keys: str) -> str:
    size = quick if trial.quick else full
    return ",".join(("preset=fast15", f"size={size}", "op=15%", *keys))


def _off_weights(run: RunResult) -> float:
    """The largest deviation of a share of pages from that by weight, in per cent of the latter."""
    total, weights = total_pages_per_s(run), sum(vm.weight for vm in run.vms)
    return 100 * max(abs(pages_per_s(vm) / total / (vm.weight / weights) - 1) for vm in run.vms)


def _with_every_seed(
    claim: str,
    panel: str,
    rows: Sequence[str],
    *,
    at_most: float | None = None,
    least: float = 0.0,
) -> Rule:
    """The deviation from the proportions of each of `rows` is within the bounds with every seed."""

    def judge(results: Results) -> Judged:
        values = [value for row in rows for value in results.cell(panel, row, _OFF).values]
        holds = min(values) >= least and (at_most is None or max(values) <= at_most)
        return Judged(f"{min(values):.3g} to {max(values):.3g}", holds)

    bound = f"at most {at_most:g}" if at_most is not None else f"at least {least:g}"
    return Rule(claim, f"{panel}, {', '.join(rows)}: {_OFF} {bound} with every seed", judge)


# The fair queue and OPS, each alone and together.

NOTHING, OPS_BY_WEIGHT, OPS_ALONE = "nothing", "OPS by weight", "OPS for fewest GC writes"
QUEUE_ALONE, TOGETHER = "fair queue", "fair queue and OPS"
_MIXES = {
    "Uniform, hot/cold and half reads": ("uniform", "hotcold", "uniform,read=.5"),
    "Financial, MSN, Exchange": ("financial", "msn", "exchange"),
}
_LEVERS: Mapping[str, tuple[Policy[Any], str]] = {
    NOTHING: (Shared(), "fifo"),
    OPS_BY_WEIGHT: (Static(), "fifo"),
    OPS_ALONE: (Parts(Proportional(), moves=True), "fifo"),
    QUEUE_ALONE: (Parts(Proportional(), weights=True, placement=Placement.SHARED), "wfq"),
    TOGETHER: (Proportional(), "wfq"),
}


def levers(trial: Trial) -> list[Panel]:
    """Total, WAF and deviation from the weights, by the levers used."""
    panels = []
    for mix, kinds in _MIXES.items():
        totals, waf, off = {}, {}, {}
        vms = tuple(
            f"name={vm},workload={kind},weight={weight:g},qd=8"
            for (vm, weight), kind in zip(_WEIGHTS.items(), kinds, strict=True)
        )
        with PreparedDrive(Drive(vms, _small(trial, "512MiB", "256MiB"), seed=trial.seed)) as prepared:
            for name, (policy, scheduler) in _LEVERS.items():
                if trial.quick and name == NOTHING:
                    continue  # No rule is about it.
                run = prepared.run(policy, scheduler, "6x" if trial.quick else "20x")
                totals["total", name] = total_pages_per_s(run)
                waf["WAF", name] = run.waf or 1.0
                off[name, _OFF] = _off_weights(run)
        panels += [
            Panel(f"Throughput, {mix}", "pages/s", totals),
            Panel(f"WAF, {mix}", "", waf, Shape.TABLE),
            Panel(f"Shares, {mix}", "", off, Shape.TABLE),
        ]
    return panels


LEVERS = Figure(
    "beyond:levers",
    "Fair queue and OPS, each alone and together",
    "OPS alone does not keep shares. The fair queue does, and with OPS moved to where it saves most device "
    "time the total is higher than with either alone.",
    "Three VMs, weights 1:3:6, eight outstanding requests each, two mixes of workloads. `fair queue` is on "
    "one pool of blocks, `fair queue and OPS` is the policy `proportional`, `OPS for fewest GC writes` the "
    "same without its queue and limits. Shares of pages; preset fast15 of 512 MiB (quick: 256), OP 15 %; 20 "
    "drive writes (quick: 6), the last half counts.",
    _LABELS,
    levers,
    tuple(
        rule
        for mix in _MIXES
        for rule in (
            _with_every_seed(
                "OPS alone does not keep shares",
                f"Shares, {mix}",
                (OPS_BY_WEIGHT, OPS_ALONE),
                least=50,
            ),
            _with_every_seed(
                "the fair queue keeps shares, with OPS and without",
                f"Shares, {mix}",
                (QUEUE_ALONE, TOGETHER),
                at_most=100 * _EXACT,
            ),
            *(
                interval_within(
                    "together they deliver more than either alone",
                    (f"Throughput, {mix}", "total", TOGETHER),
                    than=alone,
                    above=1,
                )
                for alone in (OPS_BY_WEIGHT, OPS_ALONE, QUEUE_ALONE)
            ),
            interval_within(
                "because GC writes less",
                (f"WAF, {mix}", "WAF", TOGETHER),
                than=QUEUE_ALONE,
                below=1,
            ),
        )
    ),
    seeds=5,
    quick_seeds=3,
)


# p99.

_TARGET_MS = 15.0
_PACED = "100 requests/s, weight 1, beside two VMs of weight 6 and depth 32"
_TARGETED = "depth 4, weight 1, beside weights 6 and 3 at depth 32"
FIRST_COME, FAIR, FAIR_P99 = "first come, first served", "fair queue", f"fair queue, p99={_TARGET_MS:g}ms"


def latency(trial: Trial) -> list[Panel]:
    """p99 of a light VM with heavy ones, and the cost of keeping it in total throughput."""
    p99, totals = {}, {}
    device = _small(trial, "512MiB", "256MiB")
    duration = "8x" if trial.quick else "20x"
    heavy = "name=a,workload=uniform,weight=6,qd=32", "name=b,workload=hotcold,weight=6,qd=32"
    paced = Drive(("name=db,workload=uniform,weight=1,mode=open,iops=100", *heavy), device, seed=trial.seed)
    without_target: Mapping[str, tuple[Policy[Any], str]] = {
        FIRST_COME: (Shared(), "fifo"),
        FAIR: (Proportional(), "wfq"),
    }
    with PreparedDrive(paced) as prepared:
        for name, (policy, scheduler) in without_target.items():
            run = prepared.run(policy, scheduler, duration)
            p99[_PACED, name] = run.vms[0].p99_us / 1e3
            totals[_PACED, name] = total_pages_per_s(run)
    db = "name=db,workload=uniform,read=.5,weight=1,qd=4"
    heavy = "name=a,workload=uniform,weight=6,qd=32,bs=16KiB", "name=b,workload=hotcold,weight=3,qd=32"
    cases: tuple[tuple[str, Policy[Any], str, str], ...] = (
        (FIRST_COME, Shared(), "fifo", db),
        (FAIR, Proportional(), "wfq", db),
        (FAIR_P99, Proportional(), "wfq", f"{db},p99={_TARGET_MS:g}ms"),
    )
    # No rule compares with the first row.
    for name, policy, scheduler, first in cases[1:] if trial.quick else cases:
        with PreparedDrive(Drive((first, *heavy), device, seed=trial.seed)) as prepared:
            run = prepared.run(policy, scheduler, duration)
            p99[_TARGETED, name] = run.vms[0].p99_us / 1e3
            totals[_TARGETED, name] = total_pages_per_s(run)
    return [Panel("p99 of the light VM", "ms", p99), Panel("All VMs", "pages/s", totals, Shape.TABLE, 4)]


LATENCY = Figure(
    "beyond:p99",
    "p99 of a light VM beside heavy ones",
    "A VM that uses less than its share has at most half the p99 that it has first come, first served. One "
    "that wants more than its share gets its p99 target as well, by limits on the others, and the total "
    "loses at most 5 %.",
    f"Writes of 4 KiB at 100 a second, and half reads at depth 4 with a target of {_TARGET_MS:g} ms, which "
    "its share alone does not give. Policies `shared` and `proportional`; preset fast15 of 512 MiB (quick: "
    "256), OP 15 %.",
    _LABELS,
    latency,
    (
        interval_within(
            "within its share: at most half the p99 of first come, first served",
            ("p99 of the light VM", _PACED, FAIR),
            than=FIRST_COME,
            below=0.5,
        ),
        interval_within(
            "the target is not met by the share alone",
            ("p99 of the light VM", _TARGETED, FAIR),
            above=_TARGET_MS,
        ),
        interval_within(
            "the target is met with limits on the others (to 3 %)",
            ("p99 of the light VM", _TARGETED, FAIR_P99),
            below=(1 + _EXACT) * _TARGET_MS,
        ),
        interval_within(
            "the total loses at most 5 %", ("All VMs", _TARGETED, FAIR_P99), than=FAIR, above=0.95
        ),
    ),
    seeds=5,
    quick_seeds=5,
)


# Starvation by Algorithm 1.

STATIC, ALGORITHM_1, STRICT = "static", "Algorithm 1", "proportional-strict"


def starvation(trial: Trial) -> list[Panel]:
    """Shares and OPS of three VMs with uniform writes."""
    shares, ops, totals = {}, {}, {}
    vms = tuple(f"name={vm},workload=uniform,weight={weight:g}" for vm, weight in _WEIGHTS.items())
    device = _small(trial, "1GiB", "512MiB", "dies=4", "block=256KiB")
    with PreparedDrive(Drive(vms, device, timing="paper", seed=trial.seed)) as prepared:
        cases: tuple[tuple[str, Policy[Any], str], ...] = (
            (STATIC, Static(), "fifo"),
            (ALGORITHM_1, Algorithm1(), "fifo"),
            (STRICT, ProportionalStrict(), "wfq"),
        )
        # No rule is about the first row.
        for name, policy, scheduler in cases[1:] if trial.quick else cases:
            run = prepared.run(policy, scheduler, "8x" if trial.quick else "20x")
            total = total_pages_per_s(run)
            for vm, weight in zip(run.vms, _WEIGHTS.values(), strict=True):
                shares[name, vm.name] = pages_per_s(vm) / total / (weight / sum(_WEIGHTS.values()))
                ops[name, vm.name] = float(vm.ops_blocks or 0)
            totals["total", name] = total
        ops.update(
            {
                ("least with which GC goes on", vm): float(n)
                for vm, n in zip(_WEIGHTS, prepared.floors, strict=True)
            }
        )
    return [
        Panel("Share of what is due by weight", "", shares),
        Panel("OPS at the end", "blocks", ops, Shape.TABLE),
        Panel("Throughput", "pages/s", totals, Shape.TABLE),
    ]


def _at_the_floor(results: Results) -> Judged:
    ours, least = (
        results.cell("OPS at the end", row, "VM-1").values
        for row in (ALGORITHM_1, "least with which GC goes on")
    )
    return Judged(f"{max(ours):g} of at least {min(least):g} blocks", ours == least)


STARVATION = Figure(
    "beyond:starvation",
    "Algorithm 1 starves a VM, and what does not",
    "Line 18 takes each block from the VM with the highest u, which has least OPS. That VM ends with "
    "as little as the device allows and gets less than three quarters of its due; `proportional-strict` "
    "gives each VM its due within 3 %, at most 10 % below Algorithm 1's total.",
    "Three VMs, uniform writes, one outstanding request, weights 1:3:6, timing of equation 1. The IOPS "
    "specification is what all VMs reach together with OPS by size (`slo-ctl replay --policy algorithm1`); "
    "fast15:alg1 has others. Preset fast15 of 1 GiB (quick: 512 MiB), four dies, blocks of 256 KiB, OP 15 %.",
    _LABELS,
    starvation,
    (
        Rule(
            "the VM with the highest u loses all OPS that can be taken",
            "Algorithm 1, VM-1: OPS equal to the least, with every seed",
            _at_the_floor,
        ),
        interval_within(
            "it gets less than three quarters of its due",
            ("Share of what is due by weight", ALGORITHM_1, "VM-1"),
            below=0.75,
        ),
        *(
            interval_within(
                f"proportional-strict gives {vm} its due within 3 %",
                ("Share of what is due by weight", STRICT, vm),
                above=1 - _EXACT,
                below=1 + _EXACT,
            )
            for vm in _WEIGHTS
        ),
        interval_within(
            "at most 10 % below Algorithm 1's total",
            ("Throughput", "total", STRICT),
            than=ALGORITHM_1,
            above=0.9,
        ),
    ),
    seeds=5,
    quick_seeds=3,
)

FIGURES = (LEVERS, LATENCY, STARVATION)
