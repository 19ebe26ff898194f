"""Section 4: equations 1 and 2, Algorithm 1, and the shares that it gives (figures 8 and 9)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lab.parts import Drive, PreparedDrive
from papers.fast15.interference import mb_s, measured
from papers.fast15.setup import EMULATED, LABELS, WORKLOADS, drive, three
from papers.figure import (
    Figure,
    Judged,
    Panel,
    Results,
    Rule,
    Shape,
    Trial,
    proportional,
)
from slo_ctl.decide import gc_model
from slo_ctl.decide.gc_model import GcCurve
from slo_ctl.decide.policies import Policy
from slo_ctl.decide.policies.fast15 import Algorithm1, Shared, Static
from slo_ctl.decide.policies.proportional_strict import ProportionalStrict
from slo_ctl.model.sample import FlashTiming, ShareBy, TimingModel
from slo_ctl.replay.result import RunResult

_OPS = (7, 15, 30, 50, 100)
"""OPS in per cent."""


def paper_timing(pages_per_block: int = 128) -> FlashTiming:
    """Table 3, with GC counted as in equation 1."""
    return FlashTiming(pages_per_block, 60.0, 800.0, 1500.0, 102.0, TimingModel.PAPER)


# Equations 1 and 2.


def equations(trial: Trial) -> list[Panel]:
    """IOPS and GC writes of uniform writes by OP, and the equations' results for the measured u."""
    iops, ratio = {}, {}
    mib = 128 if trial.quick else 512
    for op in _OPS:
        text = f"preset=fast15,size={mib}MiB,op={op}%,dies=1,channels=1"
        one = Drive(("name=vm,workload=uniform,qd=1",), text, timing="paper", seed=trial.seed)
        with PreparedDrive(one) as prepared:
            vm = prepared.run(Shared(), "fifo", "10x").vms[0]
        u = measured(vm.victim_u)
        iops["measured", str(op)] = measured(vm.iops)
        iops["equation 1, u measured", str(op)] = 1e6 / gc_model.write_time_us(paper_timing(), u)
        expected = gc_model.u_at_alpha(1 + op / 100, 128)
        iops["equation 1, u from OP", str(op)] = 1e6 / gc_model.write_time_us(paper_timing(), expected)
        ratio["measured", str(op)] = measured(vm.gc_write_ratio)
        ratio["u / (1 - u)", str(op)] = u / (1 - u)
    return [
        Panel("IOPS by OP", "page writes/s", iops, Shape.LINES, 4, "over-provisioning, %"),
        Panel("GC writes per host write by OP", "", ratio, Shape.LINES, 4, "over-provisioning, %"),
    ]


def _curves_agree(panel: str, row: str, tolerance: float, paper: str) -> Rule:
    def judge(results: Results) -> Judged:
        columns = results.tables[panel].columns
        worst = max(
            abs(results.mean(panel, "measured", column) / results.mean(panel, row, column) - 1)
            for column in columns
        )
        return Judged(f"at most {worst:.2%} off", worst <= tolerance)

    return Rule(paper, f"{row}: within {tolerance:.0%} of the measurement at every OP", judge)


_EQUATIONS_OURS = (
    "Uniform 4 KiB writes to an emulated SSD with one die, timing as the equation counts it (`--timing "
    "paper`)."
)
EQUATION_1 = Figure(
    "fast15:eq1",
    "Equation 1: IOPS = 1 / (t_GC + t_PRG + t_Xfer)",
    "Write IOPS follow from u; u can be measured, or estimated from the ratio of user data and OPS.",
    _EQUATIONS_OURS,
    (EMULATED, "synthetic uniform writes"),
    equations,
    (
        _curves_agree("IOPS by OP", "equation 1, u measured", 0.02, "IOPS follow from u measured"),
        _curves_agree("IOPS by OP", "equation 1, u from OP", 0.05, "u can be estimated from the OPS size"),
    ),
    seeds=3,
    quick_seeds=1,
)
EQUATION_2 = Figure(
    "fast15:eq2",
    "Equation 2: WAF(u) = u / (1 - u)",
    "GC writes for each host write, by u of the victim blocks. (WAF as drives report it is this plus 1.)",
    _EQUATIONS_OURS,
    (EMULATED, "synthetic uniform writes"),
    equations,
    (_curves_agree("GC writes per host write by OP", "u / (1 - u)", 0.02, "GC writes follow from u"),),
    seeds=3,
    quick_seeds=1,
)


# Algorithm 1 in two readings, and by the specified IOPS of the SSD.

_UNIFORM_WEIGHTS = {"VM-1": 1.0, "VM-3": 3.0, "VM-6": 6.0}
_BY_TEN = {"VM-1": 1.0, "VM-5": 5.0, "VM-10": 10.0}
STATIC, DYNAMIC, ADDITIONS = "static", "Algorithm 1", "OPS, limits and fair queue"
REACHABLE = 0.85
"""Part of the feasible IOPS used as the specification: above 0.9 the targets cannot all be met."""
_EVERY_GC = "0.001x"
"""An interval with about one GC for each VM."""
_KEYS = ("dies=4", "block=256KiB")
"""A die for each VM's outstanding request, and enough blocks that a tenth of OPS is more than a few."""


def same_workload(kind: str, weights: Mapping[str, float]) -> tuple[str, ...]:
    """VMs of one workload, one outstanding request each."""
    return tuple(f"name={vm},workload={kind},weight={weight:g},qd=1" for vm, weight in weights.items())


def feasible_iops(prepared: PreparedDrive, weights: Mapping[str, float]) -> float:
    """The IOPS of all VMs at which the OPS required by their targets, by equation 1, equals the available
    OPS.
    """
    timing = paper_timing(prepared.block_pages)
    curves = [
        GcCurve.prior(-(-pages // prepared.block_pages), prepared.block_pages) for pages in prepared.sizes
    ]
    total_weight = sum(weights.values())

    def needed(iops_total: float) -> float:
        ops = 0.0
        for curve, weight in zip(curves, weights.values(), strict=True):
            u = gc_model.u_at_iops(timing, iops_total * weight / total_weight)
            low, high = 0.0, float(prepared.total_blocks)
            for _ in range(40):
                middle = (low + high) / 2
                low, high = (middle, high) if curve.u_at(middle) > u else (low, middle)
            ops += high
        return ops

    low, high = 1.0, 5000.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if needed(middle) < prepared.total_blocks else (low, middle)
    return low


def _bandwidths(run: RunResult) -> dict[str, float]:
    return {vm.name: mb_s(vm) for vm in run.vms}


def algorithm_1(trial: Trial) -> list[Panel]:
    """Shares of three VMs with uniform writes, by IOPS specification and interval of OPS adjustments."""
    cells: dict[tuple[str, str], float] = {}
    ops: dict[tuple[str, str], float] = {}
    vms = same_workload("uniform", _UNIFORM_WEIGHTS)
    duration = "4x" if trial.quick else "20x"
    parts = (REACHABLE, 1.1) if trial.quick else (0.8, REACHABLE, 0.9, 1.0, 1.1)
    with PreparedDrive(drive(trial, vms, *_KEYS, size_mib=768, timing="paper")) as prepared:
        specified = feasible_iops(prepared, _UNIFORM_WEIGHTS)
        # No rule is about the static split, so that a quick run omits it.
        cases: dict[str, tuple[Policy[Any], str]] = {} if trial.quick else {STATIC: (Static(), "0.05x")}
        for part in parts:
            cases[f"every GC, {part:g} of the feasible IOPS"] = (Algorithm1(part * specified), _EVERY_GC)
        cases[f"20 times a drive write, {REACHABLE:g} of the feasible IOPS"] = (
            Algorithm1(REACHABLE * specified),
            "0.05x",
        )
        for name, (policy, epoch) in cases.items():
            run = prepared.run(policy, "fifo", duration, epoch=epoch)
            cells |= {(name, vm): value for vm, value in _bandwidths(run).items()}
            ops |= {(name, vm.name): float(measured(vm.ops_blocks)) for vm in run.vms}
    return [
        Panel("Bandwidth", "MB/s", cells),
        Panel("OPS", "blocks", ops, Shape.TABLE),
    ]


_DRAINED = (
    "Line 18 takes from the VM with the highest u, which has the least OPS, and a VM that is itself the "
    "highest can never be given a block. So the algorithm only ever drains the first VM, and stops in time "
    "only where the others reach their targets before: with targets that can all be met, and adjusting at "
    "every GC."
)
ALGORITHM_1 = Figure(
    "fast15:alg1",
    "Algorithm 1: OPS allocation",
    "OPS split by weight, then before every GC a block to each VM whose u is above its target, from the VM "
    'with "max current utilization" (line 18). The targets follow from the IOPS that the SSD is specified '
    "with "
    "(line 6). Reported to give quite accurate proportions.",
    "Three VMs, uniform writes, weights 1:3:6, OP 15 %, timing of equation 1, one outstanding request "
    "each, the algorithm as printed. The IOPS specification is a part of the feasible one, at which the "
    "OPS that the targets need, by equation 1, is the OPS there is; the paper gives none.",
    (EMULATED, "synthetic uniform writes"),
    algorithm_1,
    (
        proportional(
            "quite accurate proportions (targets within reach, adjusted at every GC)",
            "Bandwidth",
            f"every GC, {REACHABLE:g} of the feasible IOPS",
            _UNIFORM_WEIGHTS,
            0.15,
        ),
        proportional(
            "quite accurate proportions (targets out of reach)",
            "Bandwidth",
            "every GC, 1.1 of the feasible IOPS",
            _UNIFORM_WEIGHTS,
            0.15,
            _DRAINED,
        ),
        proportional(
            "quite accurate proportions (adjusted 20 times a drive write, a block for each GC in between)",
            "Bandwidth",
            f"20 times a drive write, {REACHABLE:g} of the feasible IOPS",
            _UNIFORM_WEIGHTS,
            0.15,
            _DRAINED,
        ),
    ),
    seeds=3,
    # With few blocks the seed alone decides whether VM-1 keeps 16 or 19 of its OPS.
    quick_seeds=5,
)


# Figure 8: static and dynamic, and with what slo-ctl adds.

_GROUPS = {"uniform": "Uniform writes", **{kind: name for name, kind in WORKLOADS.items()}}
_MIX = "Financial, MSN, Exchange"
_MIX_WEIGHTS = dict(zip(WORKLOADS, (1.0, 3.0, 6.0), strict=True))


def shares(trial: Trial) -> list[Panel]:
    """Bandwidth by weight under the static split, Algorithm 1, and with limits and the fair queue."""
    panels = []
    longest, each_gc = ("4x", "0.002x") if trial.quick else ("10x", _EVERY_GC)
    groups = {name: (same_workload(kind, _BY_TEN), _BY_TEN) for kind, name in _GROUPS.items()}
    groups[_MIX] = (three("qd=1", weights=tuple(_MIX_WEIGHTS.values())), _MIX_WEIGHTS)
    for group, (vms, weights) in groups.items():
        cells: dict[tuple[str, str], float] = {}
        with PreparedDrive(drive(trial, vms, *_KEYS, size_mib=768)) as prepared:
            algorithm = Algorithm1(REACHABLE * feasible_iops(prepared, weights))
            cases: dict[str, tuple[Policy[Any], str, str]] = {
                "one pool": (Shared(), "fifo", "0.05x"),
                STATIC: (Static(), "fifo", "0.05x"),
                DYNAMIC: (algorithm, "fifo", each_gc),
                ADDITIONS: (ProportionalStrict(), "wfq", "0.05x"),
            }
            if trial.quick:
                del cases["one pool"]  # No rule is about it.
            for name, (policy, scheduler, epoch) in cases.items():
                duration = ("8x" if trial.quick else "20x") if name == ADDITIONS else longest
                run = prepared.run(policy, scheduler, duration, epoch=epoch, share_by=ShareBy.PAGES)
                cells |= {(name, vm): value for vm, value in _bandwidths(run).items()}
        panels.append(Panel(group, "MB/s", cells))
    return [*panels, _relative(panels), *_static_by_request_size(trial)]


_RELATIVE = "Relative to the smallest weight"


def _relative(panels: Sequence[Panel]) -> Panel:
    """As figure 8b has it."""
    cells = {}
    for panel in panels:
        for (policy, vm), value in panel.cells.items():
            vms = list(dict.fromkeys(name for _, name in panel.cells))
            column = ("smallest", "middle", "largest")[vms.index(vm)]
            cells[f"{panel.title}, {policy}", column] = value / panel.cells[policy, vms[0]]
    return Panel(_RELATIVE, "", cells)


_BY_SIZE = "Uniform writes under the static split, by request size"
_MIX_BY_SIZE = f"{_MIX} under the static split, by request size"


def _static_by_request_size(trial: Trial) -> list[Panel]:
    sizes = {size: f"requests of {size}" for size in ("4KiB", "16KiB")}
    uniform: dict[tuple[str, str], float] = {}
    mix: dict[tuple[str, str], float] = {}

    def bandwidths(vms: Sequence[str]) -> dict[str, float]:
        with PreparedDrive(drive(trial, vms, *_KEYS, size_mib=768)) as prepared:
            return _bandwidths(prepared.run(Static(), "fifo", "6x"))

    for size, row in sizes.items():
        vms = tuple(f"{vm},bs={size}" for vm in same_workload("uniform", _BY_TEN))
        uniform |= {(row, vm): value for vm, value in bandwidths(vms).items()}
    own = three("qd=1", weights=tuple(_MIX_WEIGHTS.values()))
    alike = tuple(f"{vm},read=0,bs=4KiB" for vm in own)
    for row, vms in (("their own requests", own), ("writes of 4KiB", alike)):
        mix |= {(row, vm): value for vm, value in bandwidths(vms).items()}
    return [Panel(_BY_SIZE, "MB/s", uniform), Panel(_MIX_BY_SIZE, "MB/s", mix)]


def _not_effective(group: str, weights: Mapping[str, float]) -> Rule:
    def judge(results: Results) -> Judged:
        judged = proportional("", group, STATIC, weights, 0.2).judge(results)
        return Judged(judged.ours, not judged.agrees)

    return Rule("static OPS isolation is not effective", f"{group}: a share more than 20 % off", judge)


def _dies_shown(results: Results) -> Judged:
    small, large = (
        results.paired(_BY_SIZE, f"requests of {size}", "VM-10", "VM-1").mean for size in ("4KiB", "16KiB")
    )
    return Judged(f"{small:.2f} and {large:.2f}", small >= 4 and large <= 1.5)


def _mix_shown(results: Results) -> Judged:
    found = {}
    for row in ("their own requests", "writes of 4KiB"):
        first, *others = (results.mean(_MIX_BY_SIZE, row, vm) for vm in _MIX_WEIGHTS)
        found[row] = [value / first for value in others]
    own, alike = found.values()
    text = " and ".join(f"1 : {middle:.2f} : {largest:.2f}" for middle, largest in found.values())
    return Judged(text, own[0] > own[1] and alike[1] > alike[0] >= 2)


_MSN = (
    "As for the single workloads, and MSN's requests are the largest, so that it has most bandwidth at one "
    "outstanding request whatever its OPS. With writes of one page, the only change, even the static split "
    "puts the three in the order of their weights (rule below)."
)
_DIES = (
    "OPS isolation separates blocks, not dies: a request waits for every die that it spans, and those are "
    "busy with the GC of the VMs that have little OPS. Requests of one page reach 1 : 5 : 8 and more, "
    "those that span all four dies stay near 1 : 1 under the same split (table by request size), and the "
    "requests of these workloads have several pages. The paper's simulator may serve them one after the "
    "other. Limits and the fair queue, added to OPS, give the proportions."
)
FIGURE_8 = Figure(
    "fast15:8",
    "Bandwidth by weight, static and dynamic (8a, and relative to the smallest weight, 8b)",
    "With Algorithm 1 bandwidth is quite accurately in proportion to the weights for each workload; with the "
    "static split by weight it is not.",
    "Three VMs of one workload, weights 1:5:10, and the three workloads with weights 1:3:6; one outstanding "
    "request each, OP 15 %, four dies. Shares of bandwidth. `OPS, limits and fair queue` is the policy "
    "`proportional-strict`, sharing by pages; the others have OPS alone, as in the paper.",
    LABELS,
    shares,
    (
        *(_not_effective(name, _BY_TEN) for name in WORKLOADS),
        _not_effective(_MIX, _MIX_WEIGHTS),
        proportional("quite accurate proportions", "Uniform writes", DYNAMIC, _BY_TEN, 0.15),
        *(
            proportional("quite accurate proportions", name, DYNAMIC, _BY_TEN, 0.15, _DIES)
            for name in WORKLOADS
        ),
        proportional("quite accurate proportions", _MIX, DYNAMIC, _MIX_WEIGHTS, 0.15, _MSN),
        Rule(
            "(demonstrates the reason)",
            f"{_MIX_BY_SIZE}: MSN has most with their own requests; with writes of 4 KiB Exchange has most "
            "and MSN twice what Financial has",
            _mix_shown,
        ),
        Rule(
            "(demonstrates the reason)",
            f"{_BY_SIZE}: VM-10 / VM-1 at least 4 with 4 KiB and at most 1.5 with 16 KiB",
            _dies_shown,
        ),
        proportional("(beyond the paper)", _MIX, ADDITIONS, _MIX_WEIGHTS, 0.05),
        *(proportional("(beyond the paper)", name, ADDITIONS, _BY_TEN, 0.05) for name in WORKLOADS),
    ),
    seeds=3,
    quick_seeds=1,
)


# Figure 9: u over time.

_POINTS = 40


def u_over_time(trial: Trial) -> list[Panel]:
    """Mean u of victim blocks over time, under the static split and under Algorithm 1."""
    panels = []
    vms = same_workload("uniform", _UNIFORM_WEIGHTS)
    end = 4 if trial.quick else 12
    with PreparedDrive(drive(trial, vms, *_KEYS, size_mib=768, timing="paper")) as prepared:
        algorithm = Algorithm1(REACHABLE * feasible_iops(prepared, _UNIFORM_WEIGHTS))
        for title, policy in ((STATIC, Static()), (DYNAMIC, algorithm)):
            run = prepared.run(policy, "fifo", f"{end}x", epoch=_EVERY_GC)
            cells = {}
            for vm in run.series.vms:
                points = [
                    (at, u) for at, u in zip(run.series.drive_writes, vm.u, strict=True) if u is not None
                ]
                for number in range(_POINTS):
                    inside = [u for at, u in points if number <= at / end * _POINTS < number + 1]
                    if inside:
                        cells[vm.name, f"{(number + 0.5) / _POINTS * end:.2f}"] = sum(inside) / len(inside)
            panels.append(
                Panel(f"u over time, {title}", "share of valid pages", cells, Shape.LINES, 3, "drive writes")
            )
    return panels


def _last(results: Results, title: str, vm: str) -> float:
    table = results.tables[f"u over time, {title}"]
    columns = [column for column in table.columns if (vm, column) in table.cells]
    tail = columns[-_POINTS // 4 :]
    return sum(table.cells[vm, column].mean for column in tail) / len(tail)


def _adjusted(results: Results) -> Judged:
    static = {vm: _last(results, STATIC, vm) for vm in _UNIFORM_WEIGHTS}
    dynamic = {vm: _last(results, DYNAMIC, vm) for vm in _UNIFORM_WEIGHTS}
    text = ", ".join(f"{vm} {static[vm]:.3f} -> {dynamic[vm]:.3f}" for vm in _UNIFORM_WEIGHTS)
    return Judged(text, dynamic["VM-1"] > static["VM-1"] and dynamic["VM-6"] < static["VM-6"])


def _by_weight(title: str) -> Rule:
    def judge(results: Results) -> Judged:
        u = {vm: _last(results, title, vm) for vm in _UNIFORM_WEIGHTS}
        text = ", ".join(f"{vm} {value:.3f}" for vm, value in u.items())
        return Judged(text, u["VM-1"] > u["VM-3"] > u["VM-6"])

    return Rule("u falls with the weight", f"{title}: u of VM-1 > VM-3 > VM-6 at the end", judge)


FIGURE_9 = Figure(
    "fast15:9",
    "u of victim blocks over time, static and dynamic",
    "(a) with OPS set by weight, (b) with the whole of Algorithm 1, which moves u of the VMs apart as "
    "needed. No numbers in the text.",
    "Uniform writes, weights 1:3:6, as for Algorithm 1.",
    (EMULATED, "synthetic uniform writes"),
    u_over_time,
    (
        _by_weight(STATIC),
        _by_weight(DYNAMIC),
        Rule(
            "Algorithm 1 moves u towards the targets",
            "against the static split, u of VM-1 ends higher and u of VM-6 lower",
            _adjusted,
        ),
    ),
    seeds=3,
    quick_seeds=1,
)

FIGURES: tuple[Figure, ...] = (EQUATION_1, EQUATION_2, ALGORITHM_1, FIGURE_8, FIGURE_9)
