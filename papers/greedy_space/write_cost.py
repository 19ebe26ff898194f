"""Figures 1 and 2, and the model: the cost of a write by request size and order, and the logical block."""

from __future__ import annotations

from functools import lru_cache
from itertools import product

import numpy as np

from lab.write_cost import TimedPass, WriteCost, fit_passes, measure
from lab.write_size_session import EmulatedDrive, Request, find_on_emulated
from papers.figure import NOT_IN_QUICK, Figure, Judged, Panel, Results, Rule, Shape, Trial
from slo_ctl.base.progress import Silent
from slo_ctl.model.measurement import Order

LABELS = ("emulated SSD with log blocks, after table I",)
LOGICAL_MIB = {"sandisk": 4, "samsung": 8, "mtron": 2}
"""Logical blocks of the drives of table I."""
_MIB = 1 << 20


# Figure 1: spikes.


_SIZES = (16 << 10, 128 << 10)
_BINS = 60
_SPIKES, _LONGEST = "Spikes", "Longest response"


@lru_cache(maxsize=8)
def _passes(drive: str, trial: Trial, small: tuple[int, ...] = _SIZES) -> tuple[list[TimedPass], WriteCost]:
    """Response times of a drive at small sizes and at its logical block, and the model fitted to them."""
    span = (256 if trial.quick else 1024) * _MIB
    sizes = (*small, LOGICAL_MIB[drive] * _MIB)
    passes = measure(EmulatedDrive(drive, span, trial.seed), sizes, Silent())
    return passes, fit_passes(passes)


def _limit_us(cost: WriteCost, request_bytes: int) -> float:
    """Longer responses of that size are spikes."""
    return next(each.band.limit_us for each in cost.sizes if each.request_bytes == request_bytes)


def spikes(trial: Trial) -> list[Panel]:
    """Response times far above the band, by request size and order."""
    passes, cost = _passes("mtron", trial)
    shares, longest = {}, {}
    curves: dict[Order, dict[tuple[str, str], float]] = {Order.RANDOM: {}, Order.SEQUENTIAL: {}}
    for order in curves:
        for each in passes:
            if each.order is order:
                times, column = each.response_us, f"{each.request_bytes >> 10} KiB"
                shares[order.value, column] = 100 * float(
                    (times > _limit_us(cost, each.request_bytes)).mean()
                )
                longest[order.value, column] = float(times.max()) / 1e3
                for number, part in enumerate(np.array_split(times, _BINS)):
                    curves[order][column, f"{100 * (number + 0.5) / _BINS:.1f}"] = float(part.max()) / 1e3
    x_label = "requests, %"
    return [
        Panel(_SPIKES, "% of the requests", shares),
        Panel(_LONGEST, "ms", longest, Shape.TABLE),
        *(
            Panel(f"{_LONGEST} of each sixtieth, {order.value}", "ms", cells, Shape.POINTS, x_label=x_label)
            for order, cells in curves.items()
        ),
    ]


def _none_at_2_mib(results: Results) -> Judged:
    found = [results.mean(_SPIKES, order, "2048 KiB") for order in ("random", "sequential")]
    return Judged(" and ".join(f"{share:g} %" for share in found), not any(found))


def _more_at_random(size: str) -> Rule:
    def judge(results: Results) -> Judged:
        random, sequential = (results.mean(_SPIKES, order, size) for order in ("random", "sequential"))
        return Judged(f"{random:.3g} and {sequential:.3g} %", random > 2 * sequential)

    return Rule(
        "many more spikes with random writes than with sequential ones",
        f"{size}: random more than twice sequential",
        judge,
    )


FIGURE_1 = Figure(
    "greedy-space:1",
    "Spikes of response times by request size",
    "Writes of 1 GB: above a band of short responses there are spikes, few in sequence and many at random; "
    "none with requests of 2 MB, in either order (c, f).",
    "The Mtron of table I as an emulated drive with 32 log blocks. A quick run writes 256 MiB.",
    LABELS,
    spikes,
    (
        Rule("no large spikes with 2 MB", "no spike, random and sequential", _none_at_2_mib),
        _more_at_random("16 KiB"),
        _more_at_random("128 KiB"),
    ),
    seeds=3,
    quick_seeds=1,
)


# The model of section III.

_RATIO, _MERGE = "Time by the model, of the measured", "Mean spike"


def write_cost(trial: Trial) -> list[Panel]:
    """Time of a pass by the model, with one T_merge and B for all sizes, over the measured one."""
    fitted, ratios, heights = {}, {}, {}
    cases = {drive: (drive, _SIZES) for drive in (("mtron",) if trial.quick else LOGICAL_MIB)}
    if not trial.quick:
        cases[_LARGER] = ("samsung", _LARGER_SIZES)
    for row, (drive, small) in cases.items():
        passes, cost = _passes(drive, trial, small)
        merge_us = cost.merge_us.value if cost.merge_us else 0.0
        fitted[row, "T_merge, ms"] = merge_us / 1e3
        fitted[row, "B, MB/s"] = cost.bandwidth_bytes_s.value / 1e6
        for each in passes:
            times, size = each.response_us, each.request_bytes
            own = times[times > _limit_us(cost, size)]
            column = f"{each.order.value}, {f'{size >> 10} KiB' if size in small else 'block'}"
            expected_us = len(times) * cost.band_us(size) + len(own) * merge_us
            ratios[row, column] = expected_us / float(times.sum())
            if len(own):
                heights[row, column] = float(own.mean()) / 1e3
    return [
        Panel("Fitted", "", fitted, Shape.TABLE),
        Panel(_RATIO, "", ratios),
        Panel(_MERGE, "ms", heights, Shape.TABLE),
    ]


_LARGER = "samsung, from 128 KiB"
_LARGER_SIZES = (128 << 10, 512 << 10)


def _model_holds(row: str, paper: str = "a write costs T_merge + n S/B", differs: str = "") -> Rule:
    def judge(results: Results) -> Judged:
        table = results.tables[_RATIO]
        own = {column: cell.mean for (name, column), cell in table.cells.items() if name == row}
        if not own:
            return NOT_IN_QUICK
        judged = [mean for column, mean in own.items() if "random" in column or "block" in column]
        worst = max(abs(mean - 1) for mean in judged)
        return Judged(f"at most {worst:.1%} off", worst <= 0.1)

    rule = f"{row}: random writes, and requests of a logical block, within 10 % of the measured time"
    return Rule(paper, rule, judge, differs)


def _shorter_in_sequence(results: Results) -> Judged:
    drives = [row for row in results.tables[_MERGE].rows if row != _LARGER]
    found = {
        f"{drive}, {size >> 10} KiB": results.paired(
            _MERGE, drive, f"sequential, {size >> 10} KiB", f"random, {size >> 10} KiB"
        ).mean
        for drive, size in product(drives, _SIZES)
    }
    return Judged(
        ", ".join(f"{what} {ratio:.2f}" for what, ratio in found.items()), max(found.values()) < 0.5
    )


MODEL = Figure(
    "greedy-space:model",
    "Write cost: T = T_merge + n S/B (section III)",
    "n sectors of S bytes in one logical block cost one merge and their transfer, as positioning and "
    "transfer on a disk; shorter spikes are merges that copy little.",
    "The three drives of table I emulated; one T_merge and B fitted to all response times of a drive "
    "(`slo-ctl device write-cost`), and the time of a pass by them. For small writes in sequence, whose "
    "merges copy little, one T_merge is too much. A quick run takes the Mtron.",
    LABELS,
    write_cost,
    (
        *(_model_holds(drive) for drive in ("mtron", "sandisk")),
        _model_holds(
            "samsung",
            differs="A request of 16 KiB keeps 4 of the Samsung's 16 dies busy and takes as long as one of "
            "64 KiB: up to there time does not grow as n S/B. Fitted to sizes from 128 KiB on, the only "
            "change, the model holds (next rule).",
        ),
        _model_holds(_LARGER, "(demonstrates the reason)"),
        Rule(
            "shorter spikes are merges that copy little",
            "mean spike of sequential writes below half of that of random ones, each drive and size",
            _shorter_in_sequence,
        ),
    ),
    seeds=3,
    quick_seeds=1,
)


# Figure 2: the logical block.


def logical_blocks(trial: Trial) -> list[Panel]:
    """Throughput by request size, and the size at which both orders are equal."""
    panels, found = [], {}
    drives = ("mtron",) if trial.quick else tuple(LOGICAL_MIB)
    for name in drives:
        span = (256 if trial.quick else 1024) * _MIB
        request = Request(
            target=name,
            span_bytes=span,
            low_bytes=(256 if trial.quick else 8) << 10,
            high_bytes=16 * _MIB,
            seed=trial.seed,
        )
        finding = find_on_emulated(request, Silent()).record.finding()
        found[name, "logical block, MiB"] = (finding.block_bytes or 0) / _MIB
        cells = {}
        for size in finding.sizes:
            cells["sequential", str(size.size_bytes >> 10)] = size.sequential_bytes_s / 1e6
            cells["random", str(size.size_bytes >> 10)] = size.random_bytes_s / 1e6
        panels.append(Panel(f"Throughput, {name}", "MB/s", cells, Shape.LINES, 3, "request, KiB"))
    return [Panel("Found", "", found, Shape.TABLE), *panels]


def _found_right(results: Results) -> Judged:
    table = results.tables["Found"]
    found = {row: set(table.cells[row, "logical block, MiB"].values) for row in table.rows}
    text = ", ".join(
        f"{name} {' and '.join(f'{size:g}' for size in sorted(sizes))} MiB" for name, sizes in found.items()
    )
    return Judged(text, all(sizes == {LOGICAL_MIB[name]} for name, sizes in found.items()))


FIGURE_2 = Figure(
    "greedy-space:2",
    "Finding the logical block size",
    "Random throughput rises with the request size to that of sequential writes; they meet at 4, 8 and 2 MB "
    "(SanDisk, Samsung, Mtron, table I).",
    "The three drives emulated. The paper stops where whole numbers are equal, we where the ratio is below "
    "1.1 with 95 % confidence. A quick run takes the Mtron only.",
    LABELS,
    logical_blocks,
    (Rule("4, 8 and 2 MB", "equal for each drive, with every seed", _found_right),),
    seeds=3,
    quick_seeds=1,
)

FIGURES = (FIGURE_1, MODEL, FIGURE_2)
