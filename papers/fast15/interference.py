"""Sections 2 and 3: interference of VMs on one SSD (figures 2 to 7)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from lab.parts import Drive, PreparedDrive
from papers.fast15.setup import EMULATED, LABELS, WORKLOADS, device, drive, three
from papers.figure import (
    Figure,
    Judged,
    Panel,
    Results,
    Rule,
    Trial,
    between,
    close,
    lower_in,
)
from slo_ctl.decide.policies.fast15 import Shared, Static
from slo_ctl.replay.result import RunResult, VmResult

NAMES = tuple(WORKLOADS)


def vm_of(run: RunResult, name: str) -> VmResult:
    """Result of one VM."""
    return next(vm for vm in run.vms if vm.name == name)


def mb_s(vm: VmResult) -> float:
    """Bandwidth of a run with a clock."""
    if vm.bandwidth_bytes_s is None:
        raise ValueError("a run without a clock has no bandwidth")
    return vm.bandwidth_bytes_s / 1e6


def measured(value: float | None) -> float:
    """A value that the run must have measured."""
    if value is None:
        raise ValueError("the run did not measure it")
    return value


# Figure 2: clean and preconditioned, alone and together.

SATURATING = "qd=32"


PAGES, LOG_BLOCKS = "page mapping", "log blocks (BAST)"
_STAYS, _ABSENT = "preconditioned, individual", "preconditioned, individual, neighbours absent"
_EQUAL = "read=0.2,bs=16KiB,read_bs=16KiB"


def _clean(trial: Trial, *extra: str, keys: tuple[str, ...] = ()) -> dict[tuple[str, str], float]:
    """Each VM by itself and all at once on a clean drive, for less time than it takes GC to begin."""
    cells = {}
    with PreparedDrive(drive(trial, three(SATURATING, *extra), "precondition=no", *keys)) as prepared:
        together = prepared.run(Shared(), "fifo", "0.9x", ("0x", "0.9x"))
        for name in NAMES:
            alone = prepared.run(Shared(), "fifo", "0.3x", ("0x", "0.3x"), only=name)
            cells[name, "clean, individual"] = mb_s(vm_of(alone, name))
            cells[name, "clean, concurrent"] = mb_s(vm_of(together, name))
    return cells


def _on_its_own(trial: Trial, vm: str, duration: str) -> VmResult:
    """A VM on a preconditioned drive of as many blocks in all that has the data of this VM alone."""
    size_mib = 1024 // (2 if trial.quick else 1)
    own = Drive((vm,), f"preset=fast15,size={size_mib // 3}MiB,op=245%", seed=trial.seed)
    with PreparedDrive(own) as prepared:
        return prepared.run(Shared(), "fifo", duration).vms[0]


def clean_and_preconditioned(trial: Trial) -> list[Panel]:
    """Bandwidth of each VM by itself and of all three at once, on a clean and on a preconditioned drive."""
    cells = _clean(trial)
    with PreparedDrive(drive(trial, three(SATURATING))) as prepared:
        together = prepared.run(Shared(), "fifo", "4x")
        for name in NAMES:
            alone = prepared.run(Shared(), "fifo", "2x", only=name)
            cells[name, _STAYS] = mb_s(vm_of(alone, name))
            cells[name, "preconditioned, concurrent"] = mb_s(vm_of(together, name))
    for name, text in zip(NAMES, three(SATURATING), strict=True):
        cells[name, _ABSENT] = mb_s(_on_its_own(trial, text, "4x"))
    log_blocks = _clean(trial, keys=("mapping=bast",))
    with PreparedDrive(drive(trial, three(SATURATING), "mapping=bast")) as prepared:
        for name in NAMES:
            alone = prepared.run(Shared(), "fifo", "1x", only=name)
            log_blocks[name, _STAYS] = mb_s(vm_of(alone, name))
    left = {
        (name, mapping): found[name, _STAYS] / found[name, "clean, individual"]
        for mapping, found in ((PAGES, cells), (LOG_BLOCKS, log_blocks))
        for name in NAMES
    }
    return [
        Panel("Bandwidth", "MB/s", cells),
        Panel("Bandwidth, all requests of 16 KiB", "MB/s", _clean(trial, _EQUAL)),
        Panel("Individual bandwidth left by preconditioning", "of clean", left),
    ]


def _uneven(mapping: str, differs: str = "") -> Rule:
    def judge(results: Results) -> Judged:
        left = {
            name: results.mean("Individual bandwidth left by preconditioning", name, mapping)
            for name in NAMES
        }
        text = ", ".join(f"{name} {share:.2f}" for name, share in left.items())
        return Judged(text, left["Financial"] > left["MSN"] and max(left.values()) > 1.2 * min(left.values()))

    return Rule(
        "the effect of preconditioning is not uniform: Financial keeps half, MSN 15 %",
        f"{mapping}: Financial keeps more than MSN, and the VM that keeps most 20 % more than the last",
        judge,
        differs,
    )


def _third(name: str, panel: str = "Bandwidth", differs: str = "") -> Rule:
    def judge(results: Results) -> Judged:
        cell = results.paired(panel, name, "clean, concurrent", "clean, individual")
        return Judged(f"{cell.mean:.2f}", 0.2 <= cell.mean <= 0.5)

    sizes = "" if panel == "Bandwidth" else ", all requests of 16 KiB"
    return Rule(
        "clean SSD: each VM has roughly a third of its individual bandwidth, with some deviation",
        f"{name}{sizes}: concurrent / individual from 0.2 to 0.5",
        judge,
        differs,
    )


def _costs_more(individual: str, paper: str, differs: str = "") -> Rule:
    def judge(results: Results) -> Judged:
        left = {
            name: (
                results.paired("Bandwidth", name, "clean, concurrent", "clean, individual").mean,
                results.paired("Bandwidth", name, "preconditioned, concurrent", individual).mean,
            )
            for name in NAMES
        }
        text = ", ".join(f"{name} {clean:.2f} and {aged:.2f}" for name, (clean, aged) in left.items())
        return Judged(text, all(aged < clean for clean, aged in left.values()))

    rule = f"concurrent / individual, clean, and concurrent / {individual}: the second lower for each VM"
    return Rule(paper, rule, judge, differs)


FIGURE_2 = Figure(
    "fast15:2",
    "Bandwidth of individual and concurrent execution, clean and preconditioned",
    "On a clean 128 GB SSD three VMs together have roughly a third each of what each has by itself, 270 MB/s "
    "in all; on a preconditioned one everything is slower, by unequal factors (Financial to a half, MSN to "
    "15 %), and concurrency costs more.",
    "The drive of table 3. 32 requests outstanding where the paper's replayer has one: its SSD acknowledges "
    "writes from a buffer and one thread fills it, ours acknowledges what is programmed. Clean runs end "
    "before GC begins.",
    LABELS,
    clean_and_preconditioned,
    (
        _third("Financial"),
        _third(
            "MSN",
            differs="Requests are served first come, first served, so a VM gets bandwidth in proportion to "
            "its request size, and MSN's are the largest. The three parts add up to 1.0, and with equal "
            "request sizes, the only change, each VM has its third.",
        ),
        _third("Exchange"),
        *(_third(name, "Bandwidth, all requests of 16 KiB") for name in NAMES),
        lower_in(
            "preconditioned: the overall drop is significant",
            "Bandwidth",
            _STAYS,
            "clean, individual",
            NAMES,
            at_most=0.7,
        ),
        lower_in(
            "preconditioned: concurrent is again far below individual",
            "Bandwidth",
            "preconditioned, concurrent",
            _STAYS,
            NAMES,
            at_most=0.7,
        ),
        _costs_more(
            _STAYS,
            "the drop by concurrent execution is more significant on the preconditioned SSD",
            "Data of the neighbours stays on the drive while a VM runs by itself, so that GC costs it nearly "
            "what it costs all three. Where the drive has the data of that VM alone, the only change, the "
            "drop is larger by far (next rule); the paper does not say what its drive held.",
        ),
        _costs_more(_ABSENT, "(demonstrates the reason)"),
        _uneven(
            PAGES,
            "With page mapping every VM's writes meet the same u of the drive, so preconditioning costs "
            "all about as much. The paper's commercial SSD is a closed box; on a drive with log blocks, "
            "the only change, the effect is as uneven as the paper's, and Financial keeps the most.",
        ),
        _uneven(LOG_BLOCKS),
    ),
    seeds=3,
)


# Figure 4: the emulated SSD, alone and together.

_ALONE = {
    "GC writes to blocks of its own": ("frontier=separate",),
    "GC writes to the host's block": (),
}
SEPARATE, SHARED_BLOCK = _ALONE
ABSENT = "neighbours absent"


def _length(trial: Trial) -> str:
    return "6x" if trial.quick else "8x"


@lru_cache(maxsize=8)
def alone_and_together(trial: Trial) -> dict[str, dict[str, dict[tuple[str, str], float]]]:
    """IOPS and u of each VM by itself and together, for three meanings of "by itself"."""
    found: dict[str, dict[str, dict[tuple[str, str], float]]] = {"iops": {}, "u": {}}

    def record(meaning: str, name: str, column: str, vm: VmResult) -> None:
        found["iops"].setdefault(meaning, {})[name, column] = measured(vm.iops)
        found["u"].setdefault(meaning, {})[name, column] = measured(vm.victim_u)

    for meaning, keys in _ALONE.items():
        with PreparedDrive(drive(trial, three("qd=1"), *keys)) as prepared:
            together = prepared.run(Shared(), "fifo", _length(trial))
            for name in NAMES:
                alone = prepared.run(Shared(), "fifo", _length(trial), only=name)
                record(meaning, name, "alone", vm_of(alone, name))
                record(meaning, name, "together", vm_of(together, name))
                if meaning == SEPARATE:
                    record(ABSENT, name, "together", vm_of(together, name))
    for name, text in zip(NAMES, three("qd=1"), strict=True):
        record(ABSENT, name, "alone", _on_its_own(trial, text, _length(trial)))
    return found


_ALIKE = f"{SEPARATE}, all requests writes of 16 KiB"


def iops_alone_and_together(trial: Trial) -> list[Panel]:
    """Figure 4a; and with requests that differ in their places only."""
    cells = dict(alone_and_together(trial)["iops"])
    alike = cells[_ALIKE] = {}
    with PreparedDrive(drive(trial, three("qd=1", "read=0", "bs=16KiB"), *_ALONE[SEPARATE])) as prepared:
        together = prepared.run(Shared(), "fifo", _length(trial))
        for name in NAMES:
            alone = prepared.run(Shared(), "fifo", _length(trial), only=name)
            alike[name, "alone"] = measured(vm_of(alone, name).iops)
            alike[name, "together"] = measured(vm_of(together, name).iops)
    return [Panel(f"IOPS, {meaning}", "requests/s", found) for meaning, found in cells.items()]


def u_alone_and_together(trial: Trial) -> list[Panel]:
    """Figure 4b."""
    found = alone_and_together(trial)["u"]
    return [Panel(f"u, {meaning}", "share of valid pages", cells) for meaning, cells in found.items()]


_MEANING = (
    "Emulated SSD of table 3, preconditioned, one outstanding request a VM. The paper does not say what the "
    "rest of the drive holds while a VM runs alone, nor where GC writes; three meanings are measured: the "
    "neighbours' data stays and GC writes to blocks of its own, the same with the host's open block, and no "
    "data of neighbours on as large a drive."
)


def _largest_for_financial(paper: str, panel: str, column: str, than: str, differs: str = "") -> Rule:
    def judge(results: Results) -> Judged:
        left = {name: results.paired(panel, name, column, than).mean for name in NAMES}
        order = sorted(NAMES, key=lambda name: left[name])
        text = ", ".join(f"{name} {left[name]:.3f}" for name in order)
        return Judged(text, order[0] == "Financial" and order[-1] == "Exchange")

    return Rule(
        paper, f"{panel}: {column} / {than} lowest for Financial, highest for Exchange", judge, differs
    )


def fewer_together(meanings: Sequence[str], names: Sequence[str]) -> tuple[Rule, ...]:
    """Every VM loses IOPS by its neighbours, for each meaning of "by itself"."""
    paper = "each VM has fewer IOPS concurrently than individually"
    return tuple(lower_in(paper, f"IOPS, {meaning}", "together", "alone", names) for meaning in meanings)


FIGURE_4A = Figure(
    "fast15:4a",
    "IOPS alone and together on the preconditioned simulator",
    "Every workload loses IOPS when they run together, Financial most and Exchange least.",
    _MEANING,
    LABELS,
    iops_alone_and_together,
    (
        *fewer_together((*_ALONE, ABSENT), NAMES),
        _largest_for_financial(
            "the loss is largest for Financial and smallest for Exchange",
            f"IOPS, {SEPARATE}",
            "together",
            "alone",
            "Together each request also waits for those of the others, which costs most where requests are "
            "short: a third of Exchange's are reads, and MSN's are the longest. With writes of one size, the "
            "only change, what differs is GC, and the order is the paper's (next rule).",
        ),
        _largest_for_financial("(demonstrates the reason)", f"IOPS, {_ALIKE}", "together", "alone"),
    ),
    seeds=3,
)

FIGURE_4B = Figure(
    "fast15:4b",
    "u of victim blocks alone and together",
    "u is lower when a workload runs individually; the difference is largest for Financial and smallest for "
    "Exchange.",
    _MEANING,
    LABELS,
    u_alone_and_together,
    (
        lower_in(
            "u is lower when each workload runs individually",
            f"u, {SEPARATE}",
            "alone",
            "together",
            NAMES,
        ),
        _largest_for_financial(
            "the difference is largest for Financial, smallest for Exchange",
            f"u, {SEPARATE}",
            "alone",
            "together",
        ),
        lower_in("u is lower individually", f"u, {ABSENT}", "alone", "together", NAMES),
        lower_in(
            "u is lower individually",
            f"u, {SHARED_BLOCK}",
            "alone",
            "together",
            NAMES,
            "Where GC writes the pages that it moves into the block that the host writes to, the neighbours' "
            "idle pages are mixed again with new ones in every block, and each block keeps a core of them: u "
            "alone cannot fall below their part. With blocks of its own for GC, the only change, the same "
            "VMs show the paper's sign and order.",
        ),
    ),
    seeds=3,
)


# Figures 5 and 7: owners of the pages that GC moves, in one pool and in isolation.


def pages_moved(trial: Trial) -> list[Panel]:
    """Pages that GC moves while it serves each VM's writes, by their owner."""
    panels = []
    with PreparedDrive(drive(trial, three("qd=1"))) as prepared:
        for title, policy in (("One pool", Shared()), ("OPS isolation", Static())):
            moved = prepared.run(policy, "fifo", "4x").gc_pages_moved
            if moved is None:
                raise ValueError("no moved pages were counted")
            cells = {
                (vm, f"pages of {owner}"): 100 * pages / max(1, sum(row))
                for vm, row in zip(moved.vms, moved.pages, strict=True)
                for owner, pages in zip(moved.vms, row, strict=True)
            }
            panels.append(Panel(title, "% of the pages moved for the VM", cells))
    return panels


FIGURE_5 = Figure(
    "fast15:5b",
    "Pages moved by GC, by owner",
    "Figure 5a is a drawing of blocks with pages of several VMs. 5b: of the pages that GC moves while it "
    "serves Financial, only 30 % are its own.",
    "Every page has the number of its VM; preconditioned emulated SSD, one pool.",
    LABELS,
    pages_moved,
    (
        close("Financial: 30 % are its own", ("One pool", "Financial", "pages of Financial"), 30, 0.2),
        *(
            between(
                "most of what GC moves for a VM belongs to the others",
                ("One pool", name, f"pages of {name}"),
                0,
                50,
            )
            for name in ("MSN", "Exchange")
        ),
    ),
)

FIGURE_7 = Figure(
    "fast15:7",
    "Layout with OPS isolation",
    "A drawing: each block has pages of one VM only.",
    "The same run with OPS isolation: what the layout implies is that GC moves no page of another VM.",
    LABELS,
    pages_moved,
    tuple(
        between("blocks have pages of one VM", ("OPS isolation", name, f"pages of {name}"), 100, 100)
        for name in NAMES
    ),
    seeds=3,
    quick_seeds=1,
)


# Figure 6: mixed and separated initialization.

_INITIAL, _MEASURED = 2.0, 0.3
"""Drive writes of the two VMs at first, and then while measuring."""
_PAIRS = {"a": ("64KiB", "512KiB"), "b": ("512KiB", "64KiB"), "c": ("512KiB", "512KiB")}


def mixed_and_separated(trial: Trial) -> list[Panel]:
    """Two VMs write a clean drive at once or one after the other, equal amounts; then both run and are
    measured.
    """
    bandwidth, gc = {}, {}
    end = f"{_INITIAL + _MEASURED:g}x"
    window = (f"{_INITIAL:g}x", end)
    for panel, (first, second) in _PAIRS.items():
        # One outstanding request each: together they write in proportion to their request sizes.
        sizes = [int(size.removesuffix("KiB")) for size in (first, second)]
        turn = f"{_INITIAL * sizes[0] / sum(sizes):.6f}x"
        vms = (f"name=first,workload=uniform,bs={first}", f"name=second,workload=uniform,bs={second}")
        in_turn = (
            f"at={turn},vm=first,action=stop",
            f"at={turn},vm=second,action=start",
            f"at={_INITIAL:g}x,vm=first,action=start",
        )
        cases = {"mixed": (vms, ()), "separated": ((vms[0], f"{vms[1]},start=stopped"), in_turn)}
        for case, (pair, events) in cases.items():
            text = device(trial, "precondition=no", size_mib=512)
            with PreparedDrive(Drive(pair, text, events, seed=trial.seed)) as prepared:
                run = prepared.run(Shared(), "fifo", end, window)
            row = f"6({panel}) {first} + {second}"
            bandwidth[row, case] = sum(mb_s(vm) for vm in run.vms)
            gc[row, case] = measured(run.waf)
    return [Panel("Bandwidth of both VMs", "MB/s", bandwidth), Panel("WAF", "", gc)]


def _gain(panel: str, low: float, high: float, paper: str) -> Rule:
    first, second = _PAIRS[panel]

    def judge(results: Results) -> Judged:
        row = f"6({panel}) {first} + {second}"
        cell = results.paired("Bandwidth of both VMs", row, "separated", "mixed")
        return Judged(f"{cell.mean - 1:+.1%}", low <= cell.mean - 1 <= high)

    bounds = f"at least {low:.0%}" if high > 1 else f"between {low:.0%} and {high:.0%}"
    return Rule(paper, f"{first} + {second}: separated against mixed {bounds}", judge)


FIGURE_6 = Figure(
    "fast15:6",
    "Mixed and separated initialization",
    "VMs that wrote a clean SSD in turn are then substantially faster than those that wrote it at once, with "
    "unlike request sizes in either order (a, b); with equal sizes (c) shown as contrast.",
    "A clean emulated SSD; uniform random writes. Both write 2 drive writes in all, in turn or at once, as "
    f"much each in both cases; the next {_MEASURED:g} drive writes are measured. The larger requests "
    "invalidate their VM's pages eight times as fast, so blocks with one VM's pages have fewer valid ones "
    "when GC takes them. The gain fades as both go on writing: after two more drive writes it is below 3 %.",
    (EMULATED, "synthetic requests as in the paper"),
    mixed_and_separated,
    (
        _gain("a", 0.05, math.inf, "separated is substantially better"),
        _gain("b", 0.05, math.inf, "separated is substantially better"),
        _gain("c", -0.03, 0.03, "equal request sizes, as a contrast"),
    ),
)

FIGURES = (FIGURE_4A, FIGURE_4B, FIGURE_5, FIGURE_6, FIGURE_7)
