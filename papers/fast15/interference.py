"""Sections 2 and 3: interference of VMs on one SSD (figures 2 to 7)."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise

import numpy as np

from lab.parts import Drive, PreparedDrive
from papers.fast15.drives import EMULATED, LABELS, SYNTHETIC, WORKLOADS, device, drive, three
from papers.figure import (
    Figure,
    Judged,
    Panel,
    Results,
    Rule,
    Shape,
    Trial,
    between,
    close,
    lower_in,
)
from slo_ctl.decide.policies.fast15 import Shared, Static
from slo_ctl.replay.result import RunResult, VmResult
from traces.synth import workload

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


def clean_and_preconditioned(trial: Trial) -> list[Panel]:
    """Bandwidth of each VM by itself and of all three at once, on a clean and on a preconditioned drive."""
    cells = _clean(trial)
    with PreparedDrive(drive(trial, three(SATURATING))) as prepared:
        together = prepared.run(Shared(), "fifo", "4x")
        for name in NAMES:
            alone = prepared.run(Shared(), "fifo", "2x", only=name)
            cells[name, "preconditioned, individual"] = mb_s(vm_of(alone, name))
            cells[name, "preconditioned, concurrent"] = mb_s(vm_of(together, name))
    log_blocks = _clean(trial, keys=("mapping=bast",))
    with PreparedDrive(drive(trial, three(SATURATING), "mapping=bast")) as prepared:
        for name in NAMES:
            alone = prepared.run(Shared(), "fifo", "1x", only=name)
            log_blocks[name, "preconditioned, individual"] = mb_s(vm_of(alone, name))
    left = {
        (name, mapping): found[name, "preconditioned, individual"] / found[name, "clean, individual"]
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


FIGURE_2 = Figure(
    "fast15:2",
    "Bandwidth of individual and concurrent execution, clean and preconditioned",
    "On a clean 128 GB SSD three VMs together have roughly a third each of what each has by itself; on a "
    "preconditioned one everything is slower, by unequal factors (Financial to a half, MSN to 15 %), and "
    "concurrency costs more.",
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
            "preconditioned, individual",
            "clean, individual",
            NAMES,
            at_most=0.7,
        ),
        lower_in(
            "preconditioned: concurrent is again far below individual",
            "Bandwidth",
            "preconditioned, concurrent",
            "preconditioned, individual",
            NAMES,
            at_most=0.7,
        ),
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


# Figure 3: the access pattern.

_BINS, _REQUESTS, _POINTS = 20, 20_000, 60


def access_pattern(trial: Trial) -> list[Panel]:
    """Positions of each workload's requests in its space."""
    heat, points = {}, {}
    for name, kind in WORKLOADS.items():
        space = 2**30
        offsets = np.concatenate(
            [
                batch.offset_bytes
                for batch in workload(
                    kind, span_bytes=space, seed=trial.seed, parameters={"requests": _REQUESTS}
                )
            ]
        ).astype(np.float64)
        counts, _ = np.histogram(offsets, bins=_BINS, range=(0, space))
        for number, count in enumerate(counts):
            heat[name, f"{(number + 0.5) / _BINS * 100:.1f}"] = 100 * count / len(offsets)
        step = len(offsets) // _POINTS
        for number in range(_POINTS):
            points[name, str(number * step)] = 100 * offsets[number * step] / space
    return [
        Panel("Offset by request", "% of the space", points, Shape.POINTS, x_label="request"),
        Panel(
            "Requests by place", "% of requests", heat, Shape.LINES, x_label="place in the space, %, by 5 %"
        ),
    ]


def _bands(name: str) -> Rule:
    def judge(results: Results) -> Judged:
        table = results.tables["Requests by place"]
        shares = [table.cells[name, column].mean for column in table.columns]
        untouched = sum(share < 0.5 for share in shares)
        # A band begins where a used place follows an unused one.
        used = [False, *(share >= 0.5 for share in shares)]
        bands = sum(after and not before for before, after in pairwise(used))
        return Judged(f"{bands} bands, {untouched} of {_BINS} places unused", bands >= 2 and untouched >= 1)

    return Rule(
        "distinct bands of space are accessed by each workload",
        f"{name}: at least two bands with unused space between them",
        judge,
    )


FIGURE_3 = Figure(
    "fast15:3",
    "Sector access pattern",
    "Each workload touches distinct bands of its space; shown for Financial, MSN and Fileserver.",
    "Requests of the synthetic generators. They were made to have bands, so this shows that they do and not "
    "that the traces did. Fileserver is named in this figure only, without any number, and Exchange is in "
    "its place.",
    (SYNTHETIC,),
    access_pattern,
    tuple(_bands(name) for name in NAMES),
    quick_seeds=1,
)


# Figure 4: the emulated SSD, alone and together.

_ALONE = {
    "GC writes to blocks of its own": ("frontier=separate",),
    "GC writes to the host's block": (),
}
SEPARATE, SHARED_BLOCK = _ALONE
ABSENT = "neighbours absent"


@lru_cache(maxsize=8)
def alone_and_together(trial: Trial) -> dict[str, dict[str, dict[tuple[str, str], float]]]:
    """IOPS and u of each VM by itself and together, for three meanings of "by itself"."""
    found: dict[str, dict[str, dict[tuple[str, str], float]]] = {"iops": {}, "u": {}}

    def record(meaning: str, name: str, column: str, vm: VmResult) -> None:
        found["iops"].setdefault(meaning, {})[name, column] = measured(vm.iops)
        found["u"].setdefault(meaning, {})[name, column] = measured(vm.victim_u)

    for meaning, keys in _ALONE.items():
        with PreparedDrive(drive(trial, three("qd=1"), *keys)) as prepared:
            together = prepared.run(Shared(), "fifo", "8x")
            for name in NAMES:
                alone = prepared.run(Shared(), "fifo", "8x", only=name)
                record(meaning, name, "alone", vm_of(alone, name))
                record(meaning, name, "together", vm_of(together, name))
                if meaning == SEPARATE:
                    record(ABSENT, name, "together", vm_of(together, name))
    for name, text in zip(NAMES, three("qd=1"), strict=True):
        # The same number of blocks in total, with the data of this VM alone.
        size = 1024 // (2 if trial.quick else 1)
        own = Drive((text,), f"preset=fast15,size={size // 3}MiB,op=245%", seed=trial.seed)
        with PreparedDrive(own) as prepared:
            record(ABSENT, name, "alone", prepared.run(Shared(), "fifo", "8x").vms[0])
    return found


def iops_alone_and_together(trial: Trial) -> list[Panel]:
    """Figure 4a."""
    found = alone_and_together(trial)["iops"]
    return [Panel(f"IOPS, {meaning}", "requests/s", cells) for meaning, cells in found.items()]


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


def _largest_difference(results: Results) -> Judged:
    ratios = {name: results.paired(f"u, {SEPARATE}", name, "alone", "together").mean for name in NAMES}
    order = sorted(NAMES, key=lambda name: ratios[name])
    text = ", ".join(f"{name} {ratios[name]:.3f}" for name in order)
    return Judged(f"alone / together: {text}", order[0] == "Financial" and order[-1] == "Exchange")


FIGURE_4A = Figure(
    "fast15:4a",
    "IOPS alone and together on the preconditioned simulator",
    "Every workload loses IOPS when they run together, by unequal factors.",
    _MEANING,
    LABELS,
    iops_alone_and_together,
    tuple(
        lower_in(
            "each VM has fewer IOPS concurrently than individually",
            f"IOPS, {meaning}",
            "together",
            "alone",
            NAMES,
        )
        for meaning in (*_ALONE, ABSENT)
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
        Rule(
            "the difference is largest for Financial, smallest for Exchange",
            f"{SEPARATE}: the same order of u alone / u together",
            _largest_difference,
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

FIGURES = (FIGURE_2, FIGURE_3, FIGURE_4A, FIGURE_4B, FIGURE_5, FIGURE_6, FIGURE_7)
